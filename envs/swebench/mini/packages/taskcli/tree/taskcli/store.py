"""Where a list is kept: one JSON file, which is only ever replaced as a whole."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path

from taskcli.task import TaskError
from taskcli.tasklist import TaskList


class StoreError(TaskError):
    """The file cannot be read or written, or holds no task list."""


class Store:
    """A task list in a file. A missing file is an empty list."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path).expanduser()

    def load(self) -> TaskList:
        """Read the list; StoreError if there is a file, but it cannot be read or holds something else."""
        try:
            return TaskList.from_dict(json.loads(self.path.read_text(encoding="utf-8")))
        except FileNotFoundError:
            return TaskList()
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise StoreError(f"cannot read a task list from {self.path}: {error}") from error

    def save(self, tasks: TaskList) -> None:
        """Write the list, or raise StoreError and leave the old one; a reader never sees half a list.

        A link stays a link, and the file keeps its permissions; a new file is for its owner only.
        """
        target = Path(os.path.realpath(self.path))
        try:
            data = json.dumps(tasks.to_dict(), ensure_ascii=False, indent=1).encode("utf-8")
            handle, draft = tempfile.mkstemp(prefix=f"{target.name}.", dir=target.parent)
            try:
                with open(handle, "wb") as file:
                    file.write(data)
                if target.exists():
                    shutil.copymode(target, draft)
                os.replace(draft, target)
            except BaseException:
                os.unlink(draft)
                raise
        except (OSError, UnicodeEncodeError) as error:
            raise StoreError(f"cannot write {self.path}: {error}") from error
