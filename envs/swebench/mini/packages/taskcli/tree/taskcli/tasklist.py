"""The list of tasks and the journal of its changes.

Changes are made inside `TaskList.change`, which compares the tasks before and after and remembers both for undo and
redo. Ids are never used again, not even after an undo.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import date
from typing import Any

from taskcli.task import Task, TaskError, next_due

UNDO_DEPTH = 50


class TaskList:
    """Tasks by id; iterating gives them in the order of their ids. An unknown id is a TaskError everywhere."""

    def __init__(self) -> None:
        self._tasks: dict[int, Task] = {}
        self._next_id = 1
        self._undo: list[dict[str, Any]] = []
        self._redo: list[dict[str, Any]] = []

    def __iter__(self) -> Iterator[Task]:
        return iter(sorted(self._tasks.values(), key=lambda task: task.id))

    def __getitem__(self, task_id: int) -> Task:
        if task_id not in self._tasks:
            raise TaskError(f"there is no task {task_id}")
        return self._tasks[task_id]

    def add(self, task: Task) -> Task:
        """Take a task in, under a new id."""
        task.id, self._next_id = self._next_id, self._next_id + 1
        self._tasks[task.id] = task
        return task

    def remove(self, task_id: int) -> Task:
        """Take a task out."""
        task = self[task_id]
        del self._tasks[task_id]
        return task

    def complete(self, task_id: int, today: date) -> Task | None:
        """Mark a task as done; TaskError if it is already. If it repeats, its successor is added and returned: it is
        due on the first day of the series that is later than both today and the day on which this one was due.
        """
        task = self[task_id]
        if task.done is not None:
            raise TaskError(f"task {task_id} is done already")
        successor = None
        if task.repeat is not None and task.due is not None:
            due = next_due(task.since or task.due, task.repeat, max(task.due, today))
            successor = self.add(replace(task, created=today, due=due, tags=list(task.tags)))
        task.done = today
        return successor

    @contextmanager
    def change(self, label: str) -> Iterator[None]:
        """A step that undo takes back as a whole. Inside, tasks may be added, removed and altered in any way; if the
        block raises, the tasks are as they were before. Steps do not nest.
        """
        before = self._snapshot()
        try:
            yield
        except BaseException:
            self._tasks = {task_id: Task.from_dict(data) for task_id, data in before.items()}
            raise
        after = self._snapshot()
        pairs = [(before.get(number), after.get(number)) for number in sorted(before.keys() | after.keys())]
        if changes := [{"before": old, "after": new} for old, new in pairs if old != new]:
            self._undo.append({"label": label, "changes": changes})
            del self._undo[:-UNDO_DEPTH]
            self._redo.clear()

    def undo(self) -> str:
        """Take the last step back and return its label; TaskError if there is none."""
        return self._replay(self._undo, self._redo, "after", "before")

    def redo(self) -> str:
        """Do again what was taken back last; a new step ends that. TaskError if there is nothing to do again."""
        return self._replay(self._redo, self._undo, "before", "after")

    def to_dict(self) -> dict[str, Any]:
        """The list and its journal as data for JSON."""
        tasks = list(self._snapshot().values())
        return {"next_id": self._next_id, "tasks": tasks, "undo": self._undo, "redo": self._redo}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> TaskList:
        """The list that `to_dict` gave; KeyError, TypeError or ValueError if the data is something else."""
        tasks = cls()
        tasks._tasks = {task.id: task for task in map(Task.from_dict, data["tasks"])}
        tasks._next_id, tasks._undo, tasks._redo = data["next_id"], data["undo"], data["redo"]
        return tasks

    def _snapshot(self) -> dict[int, dict[str, Any]]:
        return {task.id: task.to_dict() for task in self}

    def _replay(self, source: list[dict[str, Any]], target: list[dict[str, Any]], old: str, new: str) -> str:
        if not source:
            raise TaskError("there is nothing to undo" if new == "before" else "there is nothing to redo")
        step = source.pop()
        for change in step["changes"]:
            if change[old] is not None:
                del self._tasks[change[old]["id"]]
            if change[new] is not None:
                self._tasks[change[new]["id"]] = Task.from_dict(change[new])
        target.append(step)
        return str(step["label"])
