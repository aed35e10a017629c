"""What of a run is replayed: its stored batches, and the policy. Imports no model library."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from rocknroll.trainer.errors import RunFolderError
from rocknroll.trainer.run_folder import RunFolder
from rocknroll.trainer.storage import trajectory_files


def stored_files(folder: RunFolder, first: int | None, last: int | None) -> list[Path]:
    """The run's trajectory files of the iterations `first` to `last`, both included; None: no bound.

    Raises:
        RunFolderError: there is none.
    """
    files = trajectory_files(folder.trajectories)
    chosen = [path for path in files if (first or 0) <= int(path.stem) <= (last or int(path.stem))]
    if not chosen:
        there = f"it has those of iterations {_span(files)}" if files else "it has none yet"
        raise RunFolderError(f"{folder.path} holds no trajectories of the iterations asked for; {there}.")
    return chosen


def policy_of(folder: RunFolder, checkpoint: int | None) -> Path:
    """The model of a checkpoint (by its step); without one the trained policy, or else the newest checkpoint.

    Raises:
        RunFolderError: it is not there.
    """
    there = sorted(_steps(folder))
    if checkpoint is not None:
        if checkpoint not in there:
            steps = f"those of the steps {', '.join(map(str, there))} are kept" if there else "there is none"
            raise RunFolderError(f"{folder.path} has no checkpoint of step {checkpoint}: {steps}.")
        return folder.checkpoints / f"checkpoint-{checkpoint}"
    if folder.policy.is_dir():
        return folder.policy
    if not there:
        raise RunFolderError(
            f"{folder.path} has no policy yet, neither a trained one nor a checkpoint. Name one by `--policy`."
        )
    return folder.checkpoints / f"checkpoint-{there[-1]}"


def _steps(folder: RunFolder) -> Iterator[int]:
    for path in folder.checkpoints.glob("checkpoint-*"):
        if (step := path.name.partition("-")[2]).isdigit():
            yield int(step)


def _span(files: Sequence[Path]) -> str:
    return f"{int(files[0].stem)} to {int(files[-1].stem)}"
