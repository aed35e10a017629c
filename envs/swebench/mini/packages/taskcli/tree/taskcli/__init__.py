"""A to-do list in a JSON file."""

from taskcli.store import Store, StoreError
from taskcli.task import Task, TaskError
from taskcli.tasklist import TaskList

__all__ = ["Store", "StoreError", "Task", "TaskError", "TaskList"]
