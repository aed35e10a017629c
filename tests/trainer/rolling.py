"""`roll train` as a process of its own, to be struck by a test."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from rocknroll.trainer.audit import Audit, audit
from rocknroll.trainer.cli.exit_codes import ExitCode
from rocknroll.trainer.errors import RunFolderError
from rocknroll.trainer.recipe import Recipe
from rocknroll.trainer.rollout.ledger_file import lock_file
from rocknroll.trainer.run_folder import RunFolder

LIMIT_S = 240


class Roll:
    """Runs `roll train` in a folder of its own; `on_path` comes before all other packages."""

    def __init__(self, home: Path, on_path: str = "") -> None:
        self.home = home
        packages = os.pathsep.join(path for path in (on_path, *sys.path) if path)
        self._environment = os.environ | {"ROCKNROLL_CACHE": str(home / "cache"), "PYTHONPATH": packages}

    def folder(self, name: str) -> RunFolder:
        return RunFolder(self.home / "runs" / name)

    def start(self, name: str, recipe: Mapping[str, Any]) -> subprocess.Popen[str]:
        """Begin the run, or go on with it if it is there."""
        draft = self.home / f"{name}.yaml"
        draft.write_text(Recipe.model_validate({**recipe, "name": name}).model_dump_json())
        folder = self.folder(name)
        words = ["--resume", str(folder.path)] if folder.exists() else [str(draft)]
        code = "from rocknroll.trainer.cli import main; main()"
        return subprocess.Popen(
            [sys.executable, "-c", code, "train", *words],
            cwd=self.home,
            env=self._environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def to_the_end(self, name: str, recipe: Mapping[str, Any]) -> None:
        running = self.start(name, recipe)
        _, said = running.communicate(timeout=LIMIT_S)
        assert running.returncode == ExitCode.OK, said


def family(pid: int) -> list[psutil.Process]:
    """The process and all that it has started, the process first; empty when it is gone."""
    try:
        parent = psutil.Process(pid)
        return [parent, *parent.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def rollouts_pid(folder: RunFolder) -> int | None:
    """Who writes the ledger; None before it has begun."""
    with suppress(OSError, ValueError):
        return int(lock_file(folder.ledger).read_text())
    return None


def rows(folder: RunFolder) -> list[str]:
    """A line for every iteration."""
    return folder.metrics_file.read_text().splitlines() if folder.metrics_file.exists() else []


def balance(folder: RunFolder) -> Audit | None:
    """The ledger's balance, which must hold at every moment; None before there is a ledger."""
    try:
        found = audit(folder)
    except RunFolderError:
        return None
    assert found.balanced, found.problems
    assert (found.lost, found.duplicated, found.playing) == (0, 0, 0)
    return found
