"""Batches on their way from the scheduler to the learner: a Parquet file first, then the learner.

What was handed out once is handed out again from its file, so a learner that was rolled back to a checkpoint repeats
exactly what the killed one did. The ledger keeps a batch's trajectories until its file was read back whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rocknroll.trainer.rollout.ledger import Ledger
from rocknroll.trainer.storage import StorageError, read_groups, stored_ids, trajectory_file, write_groups
from rocknroll.trainer.trajectory import Group


class BatchFiles:
    """The stored batches of a run; without a folder nothing is kept. Batch b is the file of iteration b + 1."""

    def __init__(self, folder: Path | None, ledger: Ledger) -> None:
        self._folder = folder
        self._ledger = ledger

    def recover(self) -> int:
        """Write the files that a killed process did not get round to; how many there were.

        Raises:
            StorageError, LedgerError: as their texts say.
        """
        pending = self._ledger.pending_batches()
        for batch in pending:
            self.write(batch.index, batch.groups)
            self.known_good(batch.index)
        return len(pending)

    def write(self, batch: int, groups: Sequence[Group]) -> None:
        """Write a batch's file and read it back; touches the ledger in no way, so any thread may do it.

        Raises:
            StorageError: what was written does not read back.
        """
        if self._folder is None:
            return
        path = write_groups(trajectory_file(self._folder, batch + 1), groups)
        if stored_ids(path) != _ids(groups):
            raise StorageError(f"{path} does not hold what was written: the disk or its file system is not sound")

    def known_good(self, batch: int) -> None:
        """The batch's trajectories may leave the ledger."""
        self._ledger.batch_written(batch)

    def taken(self, batch: int) -> bool:
        """Whether the batch was handed out before."""
        return self._ledger.batch_ids(batch) is not None

    def read(self, batch: int) -> tuple[Group, ...]:
        """A batch that was handed out before, as it was.

        Raises:
            StorageError: its file is missing, damaged, or that of another batch.
        """
        if self._folder is None:
            raise StorageError(f"batch {batch} was handed out and not kept: there is no run folder")
        path = trajectory_file(self._folder, batch + 1)
        try:
            groups = tuple(read_groups(path))
        except StorageError as error:
            raise StorageError(
                f"{error}. The learner has to repeat iteration {batch + 1}, which learned from that file: restore it"
                " from a copy, or start the run anew under another name."
            ) from error
        if _ids(groups) != self._ledger.batch_ids(batch):
            raise StorageError(f"{path} holds other trajectories than the ledger says: it is from another run")
        return groups


def _ids(groups: Sequence[Group]) -> list[str]:
    return [trajectory.id for group in groups for trajectory in group.trajectories]
