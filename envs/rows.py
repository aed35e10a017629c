"""Rows of a data set, from a file or from the Hugging Face hub, each with a name that messages can point at.

A row that cannot be read does not end the load: a `BrokenRow` stands in its place and says why, so that whoever checks
the columns can report every fault of a file at once.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rocknroll.envs.text import EnvDataError

_HUB_ID = re.compile(r"(?P<id>[\w.-]+(/[\w.-]+)?)(:(?P<subset>[\w.-]+))?")


@dataclass(frozen=True)
class BrokenRow:
    """A row that is no mapping from columns to values."""

    problem: str
    """As the end of a sentence that begins with the row's name: `it is not JSON: …`."""


Row = Mapping[str, Any] | BrokenRow


def load_rows(source: str, split: str = "test") -> list[tuple[str, Row]]:
    """All rows in their order, each with a name for messages: `tasks.jsonl line 3`, `org/set[test] row 3`; from 1.

    Args:
        source: a `.jsonl`, `.json` (a list) or `.parquet` file; a folder; or a data set of the hub as `org/name` or
            `org/name:subset`.
        split: of a folder or a data set of the hub; a file is one split.

    Raises:
        EnvDataError: the source is not there, cannot be read as a whole, or the hub cannot be reached.
    """
    path = Path(source).expanduser()
    if (reader := _READERS.get(path.suffix.lower())) is not None:
        return reader(path)
    if path.is_dir():
        return _named(f"{source}[{split}]", _from_library(source, None, split))
    if path.exists():
        raise EnvDataError(f"{source} is neither .jsonl, .json, .parquet nor a folder")
    found = _HUB_ID.fullmatch(source)
    if found is None:
        raise EnvDataError(f"there is no file or folder {source}, and that is not the name of a data set of the hub")
    return _named(f"{source}[{split}]", _from_library(found["id"], found["subset"], split))


def _json_lines(path: Path) -> list[tuple[str, Row]]:
    lines = enumerate(_content(path).split(b"\n"), start=1)
    return [(f"{path} line {number}", _parsed(line)) for number, line in lines if line.strip()]


def _json_list(path: Path) -> list[tuple[str, Row]]:
    try:
        rows = json.loads(_content(path))
    except (ValueError, RecursionError) as error:
        raise EnvDataError(f"{path} is not JSON: {error}") from None
    if not isinstance(rows, list):
        raise EnvDataError(f"{path} holds {_kind(rows)} and not a list of rows; one row a line belongs in a .jsonl")
    return _named(str(path), rows)


def _parquet(path: Path) -> list[tuple[str, Row]]:
    import pyarrow
    from pyarrow import parquet

    if not path.is_file():
        raise EnvDataError(f"there is no file {path}")
    try:
        return _named(str(path), parquet.read_table(path).to_pylist())
    except (OSError, pyarrow.ArrowException) as error:
        raise EnvDataError(f"{path} cannot be read as Parquet: {error}") from error


_READERS: dict[str, Callable[[Path], list[tuple[str, Row]]]] = {
    ".jsonl": _json_lines,
    ".json": _json_list,
    ".parquet": _parquet,
}


def _from_library(name: str, subset: str | None, split: str) -> list[Any]:
    """Rows of a folder or of a data set of the hub, by the `datasets` library."""
    import datasets
    import httpx

    try:
        return list(datasets.load_dataset(name, subset, split=split))
    except (ConnectionError, httpx.TransportError) as error:
        raise EnvDataError(
            f"the data set {name} is not on this machine and the Hugging Face hub cannot be reached: {error}. Set "
            "HF_ENDPOINT to a mirror, or download the data elsewhere and give the path of a .jsonl or .parquet file"
        ) from error
    except (OSError, ValueError, httpx.HTTPError, datasets.exceptions.DatasetsError) as error:
        raise EnvDataError(f"the split {split!r} of the data set {name} cannot be loaded: {error}") from error


def _named(source: str, rows: Sequence[Any]) -> list[tuple[str, Row]]:
    return [(f"{source} row {number}", _checked(row)) for number, row in enumerate(rows, start=1)]


def _parsed(line: bytes) -> Row:
    try:
        return _checked(json.loads(line))
    except (ValueError, RecursionError) as error:
        return BrokenRow(f"it is not JSON: {error}")


def _checked(row: Any) -> Row:
    return row if isinstance(row, Mapping) else BrokenRow(f"it is {_kind(row)} and not an object with columns")


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "text", bool: "a truth value", type(None): "null"}
    return names.get(type(value), "a number")


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise EnvDataError(f"{path} cannot be read: {error.strerror}") from error
