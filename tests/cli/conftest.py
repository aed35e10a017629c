"""Runs `roll` in this process, in an empty folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from rocknroll.trainer.cli.app import app


@pytest.fixture
def roll(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """`roll("train", "alfworld")` gives a result with `exit_code`, `stdout` and `stderr`."""
    monkeypatch.chdir(tmp_path)
    return lambda *arguments, **options: CliRunner().invoke(app, [str(word) for word in arguments], **options)
