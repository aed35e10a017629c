"""The command line: parse, load, run one command, save.

A command that fails saves nothing. Exit codes: 0, 1 for what a `TaskError` tells, 2 for wrong usage.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from datetime import date

from taskcli.query import DUE, has_tag, select, sort_tasks
from taskcli.store import Store
from taskcli.task import PRIORITIES, Task, TaskError, parse_day, shift
from taskcli.tasklist import TaskList


def main(argv: Sequence[str] | None = None, clock: Callable[[], date] = date.today) -> int:
    """Run one command and return the exit code."""
    args = _parser().parse_args(argv)
    store = Store(args.file)
    try:
        tasks = store.load()
        lines = _COMMANDS[args.command](tasks, args, clock())
        if args.command != "list":
            store.save(tasks)
    except TaskError as error:
        print(f"taskcli: {error}", file=sys.stderr)
        return 1
    print("\n".join(lines))
    return 0


def show(task: Task) -> str:
    """A task in one line."""
    notes = [task.priority] if task.priority != "normal" else []
    notes += [f"due {task.due}"] if task.due else []
    notes += [f"every {task.repeat}"] if task.repeat else []
    words = [task.text, *(f"({note})" for note in notes), *(f"#{tag}" for tag in task.tags)]
    return f"{task.id} [{'x' if task.done else ' '}] {' '.join(words)}"


def _add(tasks: TaskList, args: argparse.Namespace, today: date) -> list[str]:
    with tasks.change(f"add {args.text}"):
        task = tasks.add(Task(0, args.text, today))
        _alter(task, args, today)
    return [f"added {show(task)}"]


def _edit(tasks: TaskList, args: argparse.Namespace, today: date) -> list[str]:
    with tasks.change(f"edit {args.id}"):
        task = tasks[args.id]
        _alter(task, args, today)
    return [f"edited {show(task)}"]


def _alter(task: Task, args: argparse.Namespace, today: date) -> None:
    task.text = args.text or task.text
    task.priority = args.priority or task.priority
    if args.due is not None:
        task.due = None if args.due == "none" else parse_day(args.due, today)
    if args.repeat is not None:
        task.repeat = None if args.repeat == "none" else args.repeat
    if args.due is not None or args.repeat is not None:
        task.since = task.due if task.repeat else None
    if task.repeat is not None:
        if task.due is None:
            raise TaskError("a task that repeats needs a due day")
        shift(task.due, task.repeat)
    for tag in args.tag:
        if not has_tag(task, tag):
            task.tags.append(tag)


def _done(tasks: TaskList, args: argparse.Namespace, today: date) -> list[str]:
    lines = []
    with tasks.change(f"done {' '.join(map(str, args.id))}"):
        for task_id in args.id:
            successor = tasks.complete(task_id, today)
            lines.append(f"done {show(tasks[task_id])}")
            lines += [f"next {show(successor)}"] if successor else []
    return lines


def _remove(tasks: TaskList, args: argparse.Namespace, today: date) -> list[str]:
    with tasks.change(f"remove {' '.join(map(str, args.id))}"):
        return [f"removed {show(tasks.remove(task_id))}" for task_id in args.id]


def _list(tasks: TaskList, args: argparse.Namespace, today: date) -> list[str]:
    wanted = [task for task in tasks if args.all or task.done is None]
    chosen = select(wanted, today, tags=args.tag, search=args.search, due=args.due)
    return [show(task) for task in sort_tasks(chosen, args.sort)] or ["nothing to do"]


_COMMANDS: dict[str, Callable[[TaskList, argparse.Namespace, date], list[str]]] = {
    "add": _add,
    "edit": _edit,
    "done": _done,
    "remove": _remove,
    "list": _list,
    "undo": lambda tasks, args, today: [f"undid: {tasks.undo()}"],
    "redo": lambda tasks, args, today: [f"redid: {tasks.redo()}"],
}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="taskcli", description="A to-do list in a JSON file.")
    parser.add_argument("--file", default=os.environ.get("TASKCLI_FILE") or "~/.tasks.json")
    commands = parser.add_subparsers(dest="command", required=True)
    add, edit, show_list = (commands.add_parser(name) for name in ("add", "edit", "list"))
    add.add_argument("text")
    edit.add_argument("id", type=int)
    edit.add_argument("--text")
    for command in (add, edit):
        command.add_argument("--due", help="a day, or none")
        command.add_argument("--priority", choices=PRIORITIES)
        command.add_argument("--repeat", help="3d, 2w, 1m or none")
    for command in (add, edit, show_list):
        command.add_argument("--tag", action="append", default=[])
    for name in ("done", "remove"):
        commands.add_parser(name).add_argument("id", nargs="+", type=int)
    show_list.add_argument("--all", action="store_true", help="those done, too")
    show_list.add_argument("--search", default="")
    show_list.add_argument("--due", choices=DUE)
    show_list.add_argument("--sort", default="due,priority", help="as in --sort=-priority,due")
    commands.add_parser("undo")
    commands.add_parser("redo")
    return parser


if __name__ == "__main__":
    sys.exit(main())
