"""Training from stored trajectories: the batches of another run, in their order, and nothing played.

The learner is the same; its stream reads files. What it trains is off-policy from the second batch on, more so than
in the run that played the trajectories, so the objective's corrections are put to the test.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rocknroll.trainer import report
from rocknroll.trainer.errors import RunFolderError
from rocknroll.trainer.learning import learner_of
from rocknroll.trainer.rank_processes import RankTask
from rocknroll.trainer.recipe import Recipe
from rocknroll.trainer.run_folder import RunFolder
from rocknroll.trainer.storage import read_groups
from rocknroll.trainer.stream import Batch, StreamStopped
from rocknroll.trainer.trajectory import NO_VERSION, Group, Trajectory
from rocknroll.trainer.ui import RunUI


@dataclass(frozen=True)
class OfflineResult:
    """A run that was trained from stored trajectories."""

    run: Path
    source: Path
    """The run that had played them."""
    iterations: int
    trajectories: int
    wall_s: float

    def to_json(self) -> dict[str, Any]:
        """What `roll replay --train --json` prints."""
        return asdict(self) | {"run": str(self.run), "source": str(self.source)}


class FileStream:
    """A `stream.Stream` over trajectory files, one a batch. Weights go nowhere."""

    def __init__(self, files: Sequence[Path]) -> None:
        """Versions are counted from the first file on: what earlier policies had played counts as played by the first
        one."""
        self._files = files
        self._behind = int(files[0].stem) - 1
        self.trajectories = 0
        """Handed out so far."""

    def start(self) -> None:
        """Files are there already."""

    def next_batch(self, version: int) -> Batch:
        """The groups of file number `version`."""
        groups = tuple(self._read(version))
        self.trajectories += sum(len(group.trajectories) for group in groups)
        return Batch(groups, {"batch/replayed": 1.0})

    def ready_groups(self, version: int, seen: int) -> Sequence[Group]:
        """All of them are."""
        return self._read(version)[seen:]

    def publish(self, version: int, state: Mapping[str, torch.Tensor]) -> None:
        """Nobody plays with them."""

    def state_dict(self) -> dict[str, Any]:
        """Nothing: the learner's version says which file comes next."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up what `state_dict` returned: nothing."""

    def stop(self) -> None:
        """Nothing is held."""

    def _read(self, version: int) -> list[Group]:
        if version >= len(self._files):
            raise StreamStopped(f"there are {len(self._files)} files")
        return [
            replace(group, trajectories=tuple(self._aged(t) for t in group.trajectories))
            for group in read_groups(self._files[version])
        ]

    def _aged(self, trajectory: Trajectory) -> Trajectory:
        since = np.maximum(trajectory.versions - self._behind, 0)
        return replace(trajectory, versions=np.where(trajectory.action_mask, since, NO_VERSION).astype(np.int32))


def train_offline(
    recipe: Recipe, folder: RunFolder, source: RunFolder, files: Sequence[Path], policy: Path, ui: RunUI
) -> OfflineResult:
    """Train `policy` in `folder` on `files` of the run `source`, one iteration each, as far as the recipe goes.

    Raises:
        RunFolderError: another process is writing the run.
        StorageError: a file is broken.
        LearnerRankLost: a rank of the learner died.
        LearnerDiverged: a loss or gradient is not finite.
        KeyboardInterrupt: the run is left as it is, without a policy.
    """
    began = time.monotonic()
    stream = FileStream(files)
    with folder.held():
        if folder.exists():
            raise RunFolderError(f"There is a run in {folder.path} now, begun while this one was being prepared.")
        folder.write_recipe(recipe)
        origin = {"run": str(source.path.resolve()), "files": [path.name for path in files]}
        folder.replayed_from.write_text(json.dumps(origin) + "\n", encoding="utf-8")
        ui.phase("learning from stored trajectories")

        def tell(row: Mapping[str, float]) -> None:
            ui.iteration(int(row["iteration"]), recipe.learner.iterations, row)

        with learner_of(RankTask(recipe, policy, folder.path), stream, tell) as learner:
            learner.learn()
        learner.save_policy(folder.policy)
        report.write(folder)
    return OfflineResult(
        folder.path, source.path, recipe.learner.iterations, stream.trajectories, time.monotonic() - began
    )
