"""`roll plan --placement`: a picture for people, the same as JSON, and what would not fit."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from rocknroll.trainer.cli.exit_codes import ExitCode
from rocknroll.trainer.recipe_loader import load_recipe

Roll = Callable[..., Result]


def planned(roll: Roll, *words: str) -> dict[str, Any]:
    done = roll("plan", *words, "--placement", "--json")
    assert done.exit_code in (ExitCode.OK, ExitCode.RECIPE), done.stderr
    shown: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert shown["ok"] is (done.exit_code == ExitCode.OK)
    return shown


def test_the_picture_shows_every_device_with_who_sits_there(roll: Roll) -> None:
    done = roll(
        "plan", "alfworld-qwen", "cluster.devices.learner=2", "--placement", "--gpus-per-node", 3, "--gpu-memory", 79
    )
    assert done.exit_code == ExitCode.OK, done.stdout
    rows = [line.split() for line in done.stdout.splitlines()[1:4]]
    assert rows[0][:5] == ["0", "0", "learner", "rank", "0"]
    assert rows[1][:5] == ["0", "1", "learner", "rank", "1"]
    assert rows[2] == ["0", "2", "-"]
    for said in ("optimiser", "1,543,714,304 parameters", "sandboxes: 128 on node 0", "--action-share", "\nfits\n"):
        assert said in done.stdout


def test_what_does_not_fit_ends_with_3_and_says_what_helps(roll: Roll) -> None:
    flags = ["--gpus-per-node", "1", "--gpu-memory", "8"]
    shown = planned(roll, "alfworld-qwen", "cluster.devices.learner=1", *flags)
    (problem,) = shown["problems"]
    assert problem.startswith("learner: device 0 would need") and "What helps" in problem
    (device,) = shown["devices"]
    assert device["need_bytes"] == sum(part["size_bytes"] for part in device["seats"]["learner rank 0"])


def test_recomputing_makes_long_passes_fit(roll: Roll) -> None:
    words = ["swebench", "cluster.devices.learner=1", "--gpus-per-node", "1", "--gpu-memory", "79"]
    assert planned(roll, *words)["ok"]
    assert not planned(roll, *words, "learner.recompute=false")["ok"]


def test_devices_that_are_not_there_are_a_recipe_error(roll: Roll) -> None:
    done = roll("plan", "alfworld-qwen", "cluster.devices.learner=9", "--placement", "--nodes", 2, "--gpus-per-node", 4)
    assert done.exit_code == ExitCode.RECIPE
    assert "asks for 9 devices and 8 are free" in done.stderr and "\n" not in done.stderr.strip()


def test_a_recipe_of_this_machine_needs_no_device(roll: Roll) -> None:
    shown = planned(roll, "alfworld")
    assert shown["devices"] == [] and shown["on_cpu"]["engines"] == "1 on node 0, where `roll` runs"


@pytest.mark.parametrize("words", [["alfworld"], ["--placement"], ["alfworld", "--placement", "--nodes", "0"]])
def test_a_plan_of_nothing_is_a_usage_error(roll: Roll, words: list[str]) -> None:
    assert roll("plan", *words).exit_code == ExitCode.USAGE


@pytest.mark.parametrize("recipe", ["alfworld-qwen", "swebench"])
@pytest.mark.parametrize(("overlay", "gpus"), [("gpu1", 1), ("gpu8", 8), ("gpu64", 64)])
def test_shipped_hardware_fits_the_recipes_for_it(roll: Roll, recipe: str, overlay: str, gpus: int) -> None:
    shown = planned(roll, recipe, f"hardware/{overlay}")
    assert shown["problems"] == []
    assert len(shown["devices"]) == gpus
    assert all(device["seats"] for device in shown["devices"])


def test_an_overlay_is_found_by_its_name_in_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert load_recipe(["alfworld-qwen", "hardware/gpu8"]).learner_ranks == 4
