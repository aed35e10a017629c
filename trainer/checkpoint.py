"""What a learner's checkpoint holds besides transformers' own files, and which checkpoints are whole.

A checkpoint is written in a staging folder and renamed when it is complete, so a folder named
`checkpoint-<step>` is always whole, whenever the process was killed. It carries the checksum of each of
its files, so what was damaged since is named before anything is loaded from it.
"""

from __future__ import annotations

import json
import re
import shutil
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rocknroll.trainer.experience import Experience
from rocknroll.trainer.storage import StorageError, read_groups, write_groups
from rocknroll.trainer.trajectory import Group
from rocknroll.trainer.valuation import Valuation

KEPT = 2
"""Checkpoints that stay: the newest, and one to go back to."""

STATE_FILE = "learner.json"
GROUPS_FILE = "pending.parquet"
LOGPROBS_FILE = "pending.npz"
SUMS_FILE = "checksums.json"
CHUNK_BYTES = 1 << 20
FORMAT = 1


class CheckpointError(Exception):
    """A checkpoint is missing or broken; the text says which and what to do."""


@dataclass(frozen=True)
class LearnerState:
    """The learner's own part of a checkpoint."""

    version: int
    stream: Mapping[str, Any]
    pending: PendingBatch | None
    """The batch in the middle of which the checkpoint was taken."""


@dataclass(frozen=True)
class PendingBatch:
    """What cannot be recomputed of a half-trained batch: its groups, and forwards under weights that are gone."""

    groups: tuple[Group, ...]
    metrics: Mapping[str, float]
    steps_done: int
    steps: int
    """Optimiser steps the whole batch was cut into."""
    proximal: dict[int, np.ndarray[tuple[int, ...], np.dtype[np.float32]]]
    reference: dict[int, np.ndarray[tuple[int, ...], np.dtype[np.float32]]]
    past: dict[int, np.ndarray[tuple[int, ...], np.dtype[np.float32]]]
    gamma: dict[int, np.ndarray[tuple[int, ...], np.dtype[np.float64]]]
    valuation: Valuation | None


def write_state(folder: Path, version: int, stream: Mapping[str, Any], pending: Experience | None) -> None:
    """Write the learner's part into `folder`, which is made."""
    folder.mkdir(parents=True, exist_ok=True)
    state: dict[str, Any] = {"format": FORMAT, "version": version, "stream": dict(stream), "pending": None}
    if pending is not None:
        steps = len(pending.minibatches)
        state["pending"] = {"steps_done": pending.steps_done, "steps": steps, "metrics": pending.metrics}
        write_groups(folder / GROUPS_FILE, pending.groups)
        arrays: dict[str, Any] = {f"proximal/{member}": values for member, values in pending.proximal.items()}
        arrays |= {f"reference/{member}": values for member, values in pending.reference.items()}
        arrays |= {f"past/{member}": values for member, values in pending.past.items()}
        arrays |= {f"gamma/{member}": values for member, values in pending.gamma.items()}
        if pending.valuation is not None:
            arrays |= {f"value/{member}": values for member, values in enumerate(pending.valuation.values)}
            arrays |= {f"sigma/{member}": values for member, values in enumerate(pending.valuation.sigmas)}
            arrays["last_values"] = np.array(pending.valuation.last)
        with (folder / LOGPROBS_FILE).open("wb") as file:
            np.savez(file, **arrays)
    (folder / STATE_FILE).write_text(json.dumps(state), encoding="utf-8")


def read_state(folder: Path) -> LearnerState:
    """The learner's part of a checkpoint.

    Raises:
        CheckpointError: a file of it is missing or broken.
    """
    try:
        state = json.loads((folder / STATE_FILE).read_text(encoding="utf-8"))
        if state["format"] != FORMAT:
            raise ValueError(f"format {state['format']}, expected {FORMAT}")
        pending = None
        if state["pending"] is not None:
            with np.load(folder / LOGPROBS_FILE) as arrays:
                saved = {name: arrays[name] for name in arrays.files}
            pending = PendingBatch(
                groups=tuple(read_groups(folder / GROUPS_FILE)),
                metrics=state["pending"]["metrics"],
                steps_done=int(state["pending"]["steps_done"]),
                steps=int(state["pending"]["steps"]),
                proximal=_by_member(saved, "proximal/"),
                reference=_by_member(saved, "reference/"),
                past=_by_member(saved, "past/"),
                gamma=_by_member(saved, "gamma/"),
                valuation=_valuation(saved),
            )
        return LearnerState(version=int(state["version"]), stream=state["stream"], pending=pending)
    except (OSError, ValueError, KeyError, TypeError, zipfile.BadZipFile, StorageError) as error:
        raise CheckpointError(
            f"{folder} is not a usable checkpoint: {type(error).__name__}: {error}. {_GO_BACK}"
        ) from error


def newest_checkpoint(folder: Path) -> Path:
    """The checkpoint with the most steps in a run's `checkpoints` folder, after comparing its files' checksums.

    Raises:
        CheckpointError: there is none, or it is damaged.
    """
    found = _checkpoints(folder)
    if not found:
        raise CheckpointError(f"{folder} holds no checkpoint: the run ended before its first one. Start it anew.")
    _verify(found[-1])
    return found[-1]


def promote(staged: Path, folder: Path) -> None:
    """Give a finished checkpoint its place and take away the oldest beyond KEPT.

    What is to go is moved to the staging folder first: half removed in its own place it would look like a checkpoint.
    """
    sums = {path.name: _checksum(path) for path in sorted(staged.iterdir())}
    (staged / SUMS_FILE).write_text(json.dumps(sums), encoding="utf-8")
    target = folder / staged.name
    if target.exists():
        _discard(target, staged.parent)
    staged.replace(target)
    for old in _checkpoints(folder)[:-KEPT]:
        _discard(old, staged.parent)


def _discard(checkpoint: Path, staging: Path) -> None:
    doomed = checkpoint.replace(staging / f"old-{checkpoint.name}")
    shutil.rmtree(doomed)


def _verify(folder: Path) -> None:
    """Raises CheckpointError when a file is missing or is not what was written."""
    try:
        sums: dict[str, int] = json.loads((folder / SUMS_FILE).read_text(encoding="utf-8"))
        damaged = [name for name, checksum in sums.items() if _checksum(folder / name) != checksum]
    except (OSError, ValueError, AttributeError) as error:
        raise CheckpointError(f"{folder} is damaged: {type(error).__name__}: {error}. {_GO_BACK}") from error
    if damaged:
        raise CheckpointError(f"{folder} is damaged: {', '.join(damaged)} is not what was written. {_GO_BACK}")


_GO_BACK = "Remove that folder to resume from the checkpoint before it, from which the learner repeats what is missing."


def _checksum(path: Path) -> int:
    checksum = 0
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            checksum = zlib.crc32(chunk, checksum)
    return checksum


def _checkpoints(folder: Path) -> list[Path]:
    steps = {path: re.fullmatch(r"checkpoint-(\d+)", path.name) for path in folder.glob("checkpoint-*")}
    return [path for _, path in sorted((int(match[1]), path) for path, match in steps.items() if match)]


def _valuation(saved: Mapping[str, Any]) -> Valuation | None:
    if "last_values" not in saved:
        return None
    values, sigmas = _by_member(saved, "value/"), _by_member(saved, "sigma/")
    members = range(len(values))
    return Valuation([values[m] for m in members], [sigmas[m] for m in members], saved["last_values"].tolist())


def _by_member(saved: Mapping[str, Any], prefix: str) -> dict[int, Any]:
    return {int(name.removeprefix(prefix)): values for name, values in saved.items() if name.startswith(prefix)}
