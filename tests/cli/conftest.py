"""Runs `roll` in this process, in an empty folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from rocknroll.trainer.cli.app import app
from rocknroll.trainer.rollout import forking


@pytest.fixture
def roll(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """`roll("train", "alfworld")` gives a result with `exit_code`, `stdout` and `stderr`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(forking, "begin", lambda: None)  # these runs are no runs, and the server would outlive the test
    return lambda *arguments, **options: CliRunner().invoke(app, [str(word) for word in arguments], **options)
