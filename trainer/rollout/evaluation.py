"""One evaluation: every task once, in task order, however often infrastructure gets in the way (pure)."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from rocknroll.envs.text import Task
from rocknroll.trainer.trajectory import Outcome, Trajectory

LOST_IN_A_ROW = 64
"""Losses of one task in a row that end the evaluation: nothing else would, with a single task left."""


class Evaluation:
    """What is still to be played, and what has been."""

    def __init__(self, name: str, tasks: Sequence[Task], temperature: float) -> None:
        self.id = name
        self.tasks = tasks
        self.temperature = temperature
        self.waiting = deque((index, 0) for index in range(len(tasks)))
        """(task index, attempt) still to be played."""
        self.hopeless = ""
        """Why it will never be complete; empty while it can be."""
        self._done: dict[int, Trajectory] = {}

    @property
    def done(self) -> int:
        """How many tasks were played to their end."""
        return len(self._done)

    @property
    def complete(self) -> bool:
        return self.done == len(self.tasks)

    def finished(self, index: int, attempt: int, trajectory: Trajectory) -> None:
        """An episode ended; one that was lost is played again."""
        if trajectory.outcome in (Outcome.COMPLETED, Outcome.TRUNCATED):
            self._done[index] = trajectory
        elif attempt + 1 < LOST_IN_A_ROW:
            self.waiting.append((index, attempt + 1))
        else:
            self.hopeless = (
                f"the task {self.tasks[index].id} of an evaluation was lost {LOST_IN_A_ROW} times in a row, and with"
                f" it the evaluation. The last time: {trajectory.error}"
            )

    def trajectories(self) -> list[Trajectory]:
        """Of a complete evaluation, in task order."""
        return [self._done[index] for index in range(len(self.tasks))]
