"""What the learner saw in each action token, on disk beside the trajectories: one Parquet file per iteration.

One row is one trajectory. Each column but `id` holds one value per action token, or is null where nothing was computed
(docs/trajectories.md). The files are for people and programs that look; nothing reads them to go on with a run.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

if TYPE_CHECKING:
    from rocknroll.trainer.experience import Experience

Array = NDArray[np.float64]

SIGNALS: Mapping[str, str] = {
    "advantage": "the advantage it was trained with, credit and masks included",
    "gamma": "γ, the factor of its credit",
    "waad": "WAAD, how far back it looks (near-sighted heads)",
    "fai": "FAI, how much later tokens look at it (far-sighted heads)",
    "value": "V, the return that the critics expected",
    "sigma": "σ, how far the critics differ",
}
"""Columns, and what they hold."""

SCHEMA = pa.schema([("id", pa.string()), *((name, pa.list_(pa.float32())) for name in SIGNALS)])


def insights_file(folder: Path, iteration: int) -> Path:
    """Where the insights of an iteration lie."""
    return folder / f"{iteration:06d}.parquet"


def write_insights(folder: Path, iteration: int, experience: Experience) -> Path:
    """Write what is known of the trajectories that `iteration` learns from, atomically; returns the file."""
    path = insights_file(folder, iteration)
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [
        {"id": trajectory.id, **_of_member(experience, member)}
        for member, trajectory in enumerate(experience.trajectories)
    ]
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        pq.write_table(pa.Table.from_pylist(rows, SCHEMA), partial, compression="zstd")
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    return path


def read_insights(folder: Path, iteration: int, trajectory_id: str) -> dict[str, Array]:
    """Signals of one trajectory by name, [n] each; empty where nothing was written.

    Raises:
        OSError: the file cannot be read.
    """
    path = insights_file(folder, iteration)
    if not path.is_file():
        return {}
    try:
        table = pq.read_table(path, filters=[("id", "=", trajectory_id)])
    except pa.ArrowException as error:
        raise OSError(f"{path} cannot be read ({error}); remove it to see the trajectory without it") from error
    (row,) = table.to_pylist() or [{}]
    return {name: np.array(row[name], dtype=np.float64) for name in SIGNALS if row.get(name) is not None}


def _of_member(experience: Experience, member: int) -> dict[str, Array | None]:
    signals, judged = experience.signals.get(member), experience.valuation
    return {
        "advantage": experience.credited(member),
        "gamma": experience.gamma.get(member),
        "waad": signals.waad if signals is not None else None,
        "fai": signals.fai if signals is not None else None,
        "value": judged.values[member] if judged is not None else None,
        "sigma": judged.sigmas[member] if judged is not None else None,
    }
