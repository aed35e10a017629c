"""The one rule of output: results on stdout, everything else on stderr.

With `--json` a command prints one JSON object as the last line of stdout.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any

import typer

JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object as the last line of stdout.")]


def print_json(data: Mapping[str, Any]) -> None:
    """The command's result, on one line."""
    sys.stderr.flush()
    print(json.dumps(data), flush=True)


_CONTROL = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b.|[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def printable(text: str) -> str:
    """Text from inside a sandbox without what would drive the terminal."""
    return _CONTROL.sub("", text)


@contextmanager
def stdout_kept_clean() -> Iterator[None]:
    """Send to stderr what libraries and child processes print on stdout meanwhile."""
    sys.stdout.flush()
    ours = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(ours, 1)
        os.close(ours)
