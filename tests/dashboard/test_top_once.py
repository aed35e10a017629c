"""`rock top --once`: what scripts rely on, and help that stays light."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from rocking import COMMAND, Rock

from rocknroll.sandbox.cli.exit_codes import ExitCode


@pytest.fixture(scope="module")
def rock() -> Iterator[Rock]:
    """A manager of its own with two sandboxes."""
    with tempfile.TemporaryDirectory(prefix="t-") as folder:
        file = Path(folder) / "fleet.yaml"
        file.write_text("pools:\n  box: {size: 2}\n")
        rock = Rock(Path(folder) / "state")
        started = rock("up", "-f", str(file), "--wait")
        assert started.returncode == 0, started.stderr
        yield rock
        rock("down")


def test_json_has_what_scripts_rely_on(rock: Rock) -> None:
    found = rock.json("top", "--once")
    assert (found["verdict"], found["reasons"], found["alerts"]) == ("healthy", [], [])
    assert found["counts"]["READY"] == 2 and found["counts"]["QUARANTINED"] == 0


def test_text_is_one_frame(rock: Rock) -> None:
    shown = rock("top", "--once", "--ascii")
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.startswith("HEALTHY\n") and "2 of 2 up: 2 READY" in shown.stdout
    assert shown.stdout.isascii()


def test_a_removed_sandbox_is_told_and_comes_back_by_restart(rock: Rock) -> None:
    assert rock("remove", "box-1").returncode == 0
    found = rock.json("top", "--once")
    assert found["verdict"] == "degraded" and "box-1: taken out of service" in found["reasons"][0]
    assert found["counts"]["QUARANTINED"] == 1
    assert rock("restart", "box-1").returncode == 0


def test_without_a_manager_it_is_down(tmp_path: Path) -> None:
    done = Rock(tmp_path / "state")("top", "--once", "--json")
    found = json.loads(done.stdout)
    assert done.returncode == ExitCode.SERVICE
    assert found["verdict"] == "down" and "no service answers" in found["reasons"][0]
    assert (found["counts"], found["alerts"]) == ({}, [])


def test_json_without_once_is_a_usage_error() -> None:
    environment = {**os.environ, "TERM": "dumb"}
    done = subprocess.run([*COMMAND, "top", "--json"], capture_output=True, env=environment, timeout=120, check=False)
    assert done.returncode == ExitCode.USAGE
