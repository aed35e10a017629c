"""What `roll validate` and `roll grade` have in common: data sets, sandboxes, progress."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

if TYPE_CHECKING:
    from rocknroll.envs.swebench.config import PlaceConfig
    from rocknroll.envs.swebench.instance import Instance

RuntimeOption = Annotated[
    Literal["docker", "process"] | None,
    typer.Option(help="Where tests run. Default: process if every row has its files (`tree`), else docker."),
]
JobsOption = Annotated[int | None, typer.Option("--jobs", "-j", min=1, help="Gradings at once. Default: the cores.")]
OnlyOption = Annotated[list[str] | None, typer.Option("--only", metavar="ID", help="An instance; may be repeated.")]
TimeoutOption = Annotated[float, typer.Option("--timeout", min=1.0, help="Seconds for one run of the tests.")]
ResultsOption = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="JSONL to which every result is added; those that are there are not made again."),
]
SplitOption = Annotated[str, typer.Option(help="Split, of a data set from the hub.")]
PullOption = Annotated[bool, typer.Option("--pull", help="Fetch images that are not on this machine.")]


def read(source: str, split: str, only: Collection[str]) -> tuple[list[Instance], dict[str, str]]:
    """The instances of a source, and what is wrong with its other rows, which is said on stderr, too.

    Raises:
        EnvDataError: there is no such data set. BadParameter: an instance of `only` is not in it.
    """
    from rocknroll.envs.swebench.dataset import load_instances

    instances, wrong = load_instances(source, split)
    if missing := set(only) - {instance.id for instance in instances}:
        raise typer.BadParameter(f"{source} has no instance {', '.join(sorted(missing))}")
    for name, problem in wrong.items():
        print(f"{name}: {problem}", file=sys.stderr)
    return [instance for instance in instances if not only or instance.id in only], dict(wrong)


def place(runtime: str | None, pull: bool, instances: Collection[Instance]) -> PlaceConfig:
    """Where these instances are graded."""
    from rocknroll.envs.swebench.config import PlaceConfig

    fit = all(instance.tree is not None for instance in instances)
    chosen: Any = runtime or ("process" if fit else "docker")
    return PlaceConfig(runtime=chosen, pull=pull)


def parallel(jobs: int | None) -> int:
    return jobs or len(os.sched_getaffinity(0))
