"""`roll generate`: make instances of SWE-bench's kind by breaking the shipped packages."""

from __future__ import annotations

import json
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import typer

from rocknroll.sandbox.cli.boundary import DebugOption
from rocknroll.sandbox.cli.output import JsonOption, print_json, stdout_kept_clean
from rocknroll.trainer.cli import swebench
from rocknroll.trainer.cli.progress import make_ui
from rocknroll.trainer.ui import RunUI

CHUNK = 25
"""Rows that are made, and written, together: what an interruption can cost."""


def generate(
    output: Annotated[Path, typer.Argument(metavar="FILE", help="JSONL; gone on with if it is there.")],
    count: Annotated[int, typer.Option("--count", "-n", min=1, help="Rows that the file is to have.")] = 100,
    seed: Annotated[int, typer.Option(min=0, help="The same seed makes the same rows.")] = 0,
    split: Annotated[
        Literal["train", "seen", "unseen"] | None,
        typer.Option(help="Only this one: no mutation is in two splits. Default: all."),
    ] = None,
    package: Annotated[list[str] | None, typer.Option(help="A shipped package; may be repeated.")] = None,
    jobs: swebench.JobsOption = None,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Break mini-swe's packages in ways that their tests notice; each break is an instance, with its problem told.

    Examples:

      roll generate tasks.jsonl --count 1000

      roll generate held-out.jsonl --count 100 --split unseen

      roll train mini-swe env.config.data=tasks.jsonl
    """
    from rocknroll.envs.swebench.mini.generate import generate as make

    ids = _ids(output)
    there = len(ids)
    with stdout_kept_clean() if as_json else nullcontext(), make_ui() as ui:
        while len(ids) < count:
            chunk, done = min(CHUNK - len(ids) % CHUNK, count - len(ids)), len(ids)
            rows = make(
                chunk,
                seed * 1_000_003 + done // CHUNK,
                package or (),
                partial(_tell, ui, done, count),
                swebench.parallel(jobs),
                split,
                ids,
            )
            with output.open("a", encoding="utf-8") as file:
                file.write("".join(f"{json.dumps(row)}\n" for row in rows))
            ids |= {row["instance_id"] for row in rows}
    if as_json:
        print_json({"file": str(output), "rows": len(ids), "made": len(ids) - there})
        return
    print(f"{output} has {len(ids)} instances, {len(ids) - there} of them new")


def _tell(ui: RunUI, before: int, count: int, made: int, of_chunk: int) -> None:
    ui.progress("instances", before + made, count)


def _ids(path: Path) -> set[str]:
    """Of the rows that are there. A line that was cut off is taken out.

    Raises:
        EnvDataError: the file has something else in it.
    """
    from rocknroll.envs.rows import BrokenRow, load_rows
    from rocknroll.envs.text import EnvDataError

    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        return set()
    text = path.read_text(encoding="utf-8")
    if not text.endswith("\n") and text:
        path.write_text(text[: text.rfind("\n") + 1], encoding="utf-8")
    found = set()
    for name, row in load_rows(str(path)):
        if isinstance(row, BrokenRow) or not isinstance(row.get("instance_id"), str):
            raise EnvDataError(f"{name} is no instance: name another file, or remove this one")
        found.add(row["instance_id"])
    return found
