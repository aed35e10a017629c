"""Who would sit where, and whether it fits: a recipe's roles on the nodes and devices that it names. Pure.

Nothing is started and nothing is looked at, so a plan for 64 GPUs can be made on a laptop. Memory is estimated
(`memory_model.py`); what could not be known from the recipe stands in `assumptions`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from rocknroll.trainer.architecture import Architecture, architecture_of, of_tiny
from rocknroll.trainer.device_map import assign, colocated
from rocknroll.trainer.errors import RecipeError
from rocknroll.trainer.memory_model import (
    GIB,
    EngineLoad,
    LearnerLoad,
    Part,
    engine_memory,
    learner_memory,
    total_bytes,
)
from rocknroll.trainer.recipe import Recipe
from rocknroll.trainer.tiny_model import TinyModel

ACTION_SHARE = 0.25
"""Share of a pass's tokens that the policy sampled, unless told: in ALFWorld about one in ten, in code more."""
WORDS = 1000
"""Size assumed of a vocabulary of words that is made from an environment's texts; ALFWorld's has about 200."""


@dataclass(frozen=True)
class DevicePlan:
    """One accelerator, and what is on it."""

    number: int
    """Counted through all nodes."""
    node: int
    index: int
    """On its node."""
    parts: Mapping[str, tuple[Part, ...]]
    """Memory by who sits there: `learner rank 0`, `engine 1 (2 of 2)`."""

    @property
    def need_bytes(self) -> int:
        """All that sits there at once."""
        return sum(total_bytes(parts) for parts in self.parts.values())


@dataclass(frozen=True)
class PlacementPlan:
    """Every role in its place."""

    nodes: int
    gpus_per_node: int
    gpu_memory_bytes: int | None
    devices: tuple[DevicePlan, ...]
    """All of them, also those that nobody uses."""
    on_cpu: Mapping[str, str]
    """Roles that need no accelerator: how many, and where."""
    colocated: bool
    assumptions: tuple[str, ...]
    problems: tuple[str, ...]
    """Why it would not run; empty when it would."""

    def to_json(self) -> dict[str, Any]:
        """What `roll plan --placement --json` prints."""
        devices = [
            {
                **{name: getattr(device, name) for name in ("number", "node", "index", "need_bytes")},
                "seats": {seat: [asdict(part) for part in parts] for seat, parts in device.parts.items()},
            }
            for device in self.devices
        ]
        return {
            "ok": not self.problems,
            **{name: getattr(self, name) for name in ("nodes", "gpus_per_node", "gpu_memory_bytes", "colocated")},
            "devices": devices,
            "on_cpu": dict(self.on_cpu),
            "assumptions": list(self.assumptions),
            "problems": list(self.problems),
        }


def plan_placement(recipe: Recipe, action_share: float = ACTION_SHARE) -> PlacementPlan:
    """Put every role of `recipe` in its place.

    Raises:
        RecipeError: devices are missing, overlap in part, or a model's shape is needed and not known.
    """
    cluster = recipe.cluster
    assigned = assign(cluster)
    problems = list(engine_problems(recipe, assigned))
    limit = None if cluster.gpu_memory_gib is None else int(cluster.gpu_memory_gib * GIB)
    seats, assumptions = _seats(recipe, assigned, action_share, needed=limit is not None)
    devices = tuple(
        DevicePlan(number, number // cluster.gpus_per_node, number % cluster.gpus_per_node, seats.get(number, {}))
        for number in range(cluster.nodes * cluster.gpus_per_node)
    )
    if limit is not None:
        problems += _memory_problems(devices, limit)
    return PlacementPlan(
        nodes=cluster.nodes,
        gpus_per_node=cluster.gpus_per_node,
        gpu_memory_bytes=limit,
        devices=devices,
        on_cpu=_on_cpu(recipe, assigned),
        colocated=colocated(assigned),
        assumptions=tuple(assumptions),
        problems=tuple(problems),
    )


def tensor_parallel_size(recipe: Recipe) -> int:
    """Devices that each engine splits its weights over."""
    return recipe.engine.vllm.tensor_parallel_size if recipe.engine.kind == "vllm" else 1


def engine_problems(recipe: Recipe, assigned: Mapping[str, tuple[int, ...]]) -> Iterator[str]:
    """Why the engines cannot be on the devices that they are given."""
    devices, split, replicas = assigned.get("engine"), tensor_parallel_size(recipe), recipe.engine.replicas
    if devices is None:
        return
    if recipe.engine.kind == "local":
        yield (
            "engine: `cluster.devices.engine` gives it accelerators, and `engine.kind: local` computes on the CPU. Set"
            " `engine.kind` to `vllm`, or leave the devices out."
        )
    if len(devices) != replicas * split:
        yield (
            f"engine: {replicas} engines (`engine.replicas`) on {split} devices each"
            f" (`engine.vllm.tensor_parallel_size`) need {replicas * split}, and `cluster.devices.engine` gives"
            f" {len(devices)}."
        )
        return
    for number in range(replicas):
        own = devices[number * split : (number + 1) * split]
        nodes = sorted({device // recipe.cluster.gpus_per_node for device in own})
        if len(nodes) > 1:
            yield (
                f"engine {number}: its devices {_range(own)} are on nodes {nodes}, and an engine splits its weights"
                " within one node: name devices so that each engine's are on one, or lower"
                " `engine.vllm.tensor_parallel_size`."
            )
    if colocated(assigned) and recipe.engine.kind == "vllm" and recipe.engine.vllm.kv_cache_bytes is None:
        yield (
            "engine: it shares its devices with the learner, and without `engine.vllm.kv_cache_bytes` vLLM takes what"
            " it finds free, which leaves the learner nothing. Set it."
        )


def _seats(
    recipe: Recipe, assigned: Mapping[str, tuple[int, ...]], action_share: float, *, needed: bool
) -> tuple[dict[int, dict[str, tuple[Part, ...]]], list[str]]:
    """Who sits on each device, with the memory of each, and what was assumed."""
    seats: dict[int, dict[str, tuple[Part, ...]]] = {}
    learner: tuple[Part, ...] = ()
    engine: tuple[Part, ...] = ()
    assumptions: list[str] = []
    if assigned:
        try:
            learner, engine, assumptions = _memory(recipe, action_share)
        except RecipeError as unknown:
            if needed:
                raise
            assumptions = [f"memory is not estimated: {unknown}"]
    for rank, device in enumerate(assigned.get("learner", ())):
        seats.setdefault(device, {})[f"learner rank {rank}"] = learner
    split = tensor_parallel_size(recipe)
    for place, device in enumerate(assigned.get("engine", ())):
        part = f" ({place % split + 1} of {split})" if split > 1 else ""
        seats.setdefault(device, {})[f"engine {place // split}{part}"] = engine
    return seats, assumptions


def _memory(recipe: Recipe, action_share: float) -> tuple[tuple[Part, ...], tuple[Part, ...], list[str]]:
    """Of a rank and of an engine's device."""
    learner, engine = recipe.learner, recipe.engine
    assumptions: list[str] = []
    policy = _shape(recipe.policy.model, recipe.policy.tiny, "policy.model", assumptions, recipe.policy.architecture)
    longest = (
        min(engine.max_length, recipe.policy.tiny.max_length) if recipe.policy.model == "tiny" else engine.max_length
    )
    copies = int(learner.kl_coef > 0)
    if learner.mismatch.mode != "off":
        copies += math.ceil(recipe.rollout.async_ratio) + 1
    copies += recipe.credit.kind != "none" and recipe.credit.source == "copy"
    pass_tokens = max(learner.pass_tokens, longest)
    if longest > learner.pass_tokens:
        assumptions.append(
            f"the largest pass is one trajectory of {longest:,} tokens (`engine.max_length`), longer than"
            f" `learner.pass_tokens` ({learner.pass_tokens:,})"
        )
    assumptions.append(f"{action_share:.0%} of a pass's tokens are action tokens (`--action-share`)")
    rank = LearnerLoad(
        model=policy,
        dtype=recipe.policy.dtype,
        ranks=recipe.learner_ranks,
        sharded=learner.parallel == "fsdp2" and recipe.learner_ranks > 1,
        pass_tokens=pass_tokens,
        action_share=action_share,
        recompute=learner.recompute,
        extra_copies=copies,
        critics=_critics(recipe, policy, assumptions),
    )
    vllm = recipe.engine.vllm if recipe.engine.kind == "vllm" else None
    served = EngineLoad(
        model=policy,
        dtype=(vllm.dtype if vllm else None) or recipe.policy.dtype,
        split=tensor_parallel_size(recipe),
        slots=engine.slots,
        max_length=longest,
        kv_cache_bytes=vllm.kv_cache_bytes if vllm else None,
    )
    return learner_memory(rank), engine_memory(served), assumptions


def _critics(recipe: Recipe, policy: Architecture, assumptions: list[str]) -> tuple[Architecture, ...]:
    critics = recipe.critics
    if critics.kind == "none":
        return ()
    if critics.kind == "symmetric":
        return (policy,)
    if critics.model == "tiny":
        return critics.count * (of_tiny(critics.tiny, policy.vocabulary),)
    return critics.count * (_shape(critics.model, critics.tiny, "critics.model", assumptions),)


def _shape(
    model: str, tiny: TinyModel, setting: str, assumptions: list[str], given: Architecture | None = None
) -> Architecture:
    if model != "tiny":
        return architecture_of(model, setting, given)
    if not tiny.subwords:
        assumptions.append(f"the vocabulary of words has {WORDS:,} (it is made from the environment's texts)")
    return of_tiny(tiny, tiny.subwords or WORDS)


def _memory_problems(devices: tuple[DevicePlan, ...], limit: int) -> Iterator[str]:
    """One for each kind of device that is too small."""
    short: dict[tuple[str, ...], list[DevicePlan]] = {}
    for device in devices:
        if device.need_bytes > limit:
            short.setdefault(tuple(sorted(seat.split()[0] for seat in device.parts)), []).append(device)
    for roles, of_kind in short.items():
        worst = max(of_kind, key=lambda device: device.need_bytes)
        parts = sorted((part for parts in worst.parts.values() for part in parts), key=lambda part: -part.size_bytes)
        largest = ", ".join(f"{part.name} {part.size_bytes / GIB:.1f}" for part in parts[:3])
        yield (
            f"{' and '.join(roles)}: device{'s' * (len(of_kind) > 1)} {_range([device.number for device in of_kind])}"
            f" would need {worst.need_bytes / GIB:.1f} GiB of {limit / GIB:.1f}, {(worst.need_bytes - limit) / GIB:.1f}"
            f" too much (most of it: {largest}). {_advice(roles)}"
        )


def _advice(roles: tuple[str, ...]) -> str:
    ways = []
    if "learner" in roles:
        ways.append(
            "`learner.recompute`, `learner.parallel: fsdp2` with more ranks, or smaller passes (`learner.pass_tokens`,"
            " `engine.max_length`) for the learner"
        )
    if "engine" in roles:
        ways.append(
            "fewer `engine.slots`, a smaller `engine.max_length` or a larger tensor_parallel_size for the engine"
        )
    if len(roles) > 1:
        ways.append("devices of its own for each")
    return f"What helps: {'; '.join(ways)}."


def _on_cpu(recipe: Recipe, assigned: Mapping[str, tuple[int, ...]]) -> dict[str, str]:
    """Roles without an accelerator."""
    here = "node 0, where `roll` runs"
    found = {}
    if "learner" not in assigned:
        found["learner ranks"] = f"{recipe.learner_ranks} on {here}"
    if "engine" not in assigned:
        found["engines"] = f"{recipe.engine.replicas} on {here}"
    found["rollout process"] = f"1 on {here}"
    sandboxes = sum(part.sandboxes or recipe.sandbox.count for part in recipe.sources.values())
    spread = f"spread over {recipe.cluster.nodes} nodes" if recipe.cluster.nodes > 1 else f"on {here}"
    found["sandboxes"] = f"{sandboxes} {spread}"
    if recipe.reward.function is not None:
        found["reward workers"] = f"{recipe.reward.workers} on {here}"
    return found


def _range(numbers: list[int] | tuple[int, ...]) -> str:
    """`0-3, 6` for 0, 1, 2, 3, 6."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)
