"""`roll plan`: where a recipe's roles would sit, and whether they fit, before anything is started."""

from __future__ import annotations

import sys
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from rocknroll.sandbox.cli.boundary import DebugOption
from rocknroll.sandbox.cli.output import JsonOption, print_json
from rocknroll.trainer.cli.arguments import name_recipes, split_overrides
from rocknroll.trainer.cli.exit_codes import ExitCode
from rocknroll.trainer.memory_model import GIB, Part, total_bytes
from rocknroll.trainer.placement_plan import ACTION_SHARE, DevicePlan, PlacementPlan, plan_placement
from rocknroll.trainer.recipe_loader import load_recipe

BAR = 20
"""Characters that a device's whole memory is drawn with."""


def plan(
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="RECIPE|KEY=VALUE", help="Recipes (files or shipped names), then overrides."),
    ] = None,
    placement: Annotated[
        bool, typer.Option("--placement", help="Show who sits on which device, with estimated memory.")
    ] = False,
    nodes: Annotated[int | None, typer.Option(min=1, help="Machines; overrides cluster.nodes.")] = None,
    gpus_per_node: Annotated[
        int | None, typer.Option(min=0, help="Accelerators of each; overrides cluster.gpus_per_node.")
    ] = None,
    gpu_memory: Annotated[
        float | None,
        typer.Option(metavar="GIB", min=0.1, help="Memory of each accelerator; overrides cluster.gpu_memory_gib."),
    ] = None,
    action_share: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="Share of the tokens of a pass that the policy sampled.")
    ] = ACTION_SHARE,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Show where a recipe's roles would sit; exits with 3 when they would not fit.

    Needs no accelerator and no model: of that its shape is enough, from a config.json on this machine or
    `policy.architecture` in the recipe. Memory is estimated (docs/cluster.md).

    Examples:

      roll plan alfworld-qwen hardware/gpu8 --placement

      roll plan my.yaml --placement --nodes 2 --gpus-per-node 8 --gpu-memory 80 --json
    """
    if not placement:
        raise typer.BadParameter("say what to plan: --placement shows who sits on which device")
    recipes, overrides = split_overrides(words or [])
    if not recipes:
        raise typer.BadParameter(f"no recipe given. Shipped: {name_recipes()}")
    given = {"nodes": nodes, "gpus_per_node": gpus_per_node, "gpu_memory_gib": gpu_memory}
    overrides += [f"cluster.{name}={value}" for name, value in given.items() if value is not None]
    made = plan_placement(load_recipe(recipes, overrides), action_share)
    if as_json:
        print_json(made.to_json())
    else:
        _show(made)
    if made.problems:
        raise typer.Exit(ExitCode.RECIPE)


def _show(made: PlacementPlan) -> None:
    console = Console(file=sys.stdout, highlight=False, markup=False)
    if made.devices:
        console.print(_device_table(made))
        console.print()
        for title, parts in _kinds(made.devices).items():
            console.print(_memory_table(title, parts))
            console.print()
    for role, where in made.on_cpu.items():
        print(f"{role}: {where}")
    for assumption in made.assumptions:
        print(f"assumed: {assumption}")
    if made.devices:
        print("Memory is estimated from shapes; no GPU was looked at.")
    for problem in made.problems:
        print(f"PROBLEM {problem}")
    print("does not fit" if made.problems else "fits" if made.gpu_memory_bytes or not made.devices else "placed")


def _device_table(made: PlacementPlan) -> Table:
    """A row for each device."""
    table = Table("node", "device", "who", "GiB", "", box=None, pad_edge=False, header_style="bold")
    table.columns[3].justify = "right"
    for device in made.devices:
        who = " + ".join(device.parts) or "-"
        need = f"{device.need_bytes / GIB:.1f}" if device.need_bytes else ""
        table.add_row(str(device.node), f"{device.number}", who, need, _bar(device.need_bytes, made.gpu_memory_bytes))
    return table


def _bar(need: int, limit: int | None) -> str:
    if limit is None or not need:
        return ""
    share = need / limit
    filled = min(BAR, round(share * BAR))
    return f"{'█' * filled}{'·' * (BAR - filled)} {share:.0%} of {limit / GIB:.0f}"


def _kinds(devices: tuple[DevicePlan, ...]) -> dict[str, tuple[Part, ...]]:
    """The memory of the first seat of each role: those of one role are alike."""
    kinds: dict[str, tuple[Part, ...]] = {}
    for device in devices:
        for seat, parts in device.parts.items():
            if parts and not any(known.split()[0] == seat.split()[0] for known in kinds):
                kinds[seat] = parts
    return kinds


def _memory_table(title: str, parts: tuple[Part, ...]) -> Table:
    table = Table(title, "GiB", "", box=None, pad_edge=False, header_style="bold")
    table.columns[1].justify = "right"
    for part in parts:
        table.add_row(f"  {part.name}", f"{part.size_bytes / GIB:.2f}", part.how)
    table.add_row("  all", f"{total_bytes(parts) / GIB:.2f}", "")
    return table
