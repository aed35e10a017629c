"""Tasks that a reasoning family reads from data: rows into splits, every fault of a row told by the row's name.

A setting `data` names one source, which is cut into `train` and `unseen` by a hash of what is asked, or one source for
each split. The same question never lies on both sides of a cut.
"""

from __future__ import annotations

import hashlib
import json
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, Literal, Protocol, TypeVar

from pydantic import Field

from rocknroll.envs.reasoning.config import SPLITS
from rocknroll.envs.rows import BrokenRow, load_rows
from rocknroll.envs.text import EnvDataError

SplitName = Literal["train", "seen", "unseen"]
DataSetting = str | dict[SplitName, str]
"""A source as `rows.load_rows` takes it, or one for each split. `[name]` behind it is the split of a hub's data set or
of a folder: `openai/gsm8k:main[test]`; without, `train` for training tasks and `test` for others. Empty: generated."""
HeldOut = Annotated[float, Field(ge=0.0, le=1.0)]

SHOWN_FAULTS = 5
_SOURCE = re.compile(r"(?P<place>[^\[\]]+)\[(?P<split>.+)\]")


class WrongRow(ValueError):
    """A row is no task of its family; says what is wrong with which column, as the end of a sentence."""


class Identified(Protocol):
    """Anything with an id and a question."""

    @property
    def id(self) -> str: ...

    @property
    def question(self) -> str: ...


Item = TypeVar("Item", bound=Identified)
Reader = Callable[[str, Mapping[str, Any]], Item]
"""Makes an item of an id, for rows that have none, and a row.

Raises:
    WrongRow: it cannot.
"""


def read_splits(
    data: DataSetting, held_out: float, reader: Reader[Item], *, skip_wrong_rows: bool = False
) -> dict[str, list[Item]]:
    """The items of every split, in the order of their rows.

    Args:
        held_out: share of a single source that is `unseen`.
        skip_wrong_rows: leave rows out that are wrong, with a warning that counts them.

    Raises:
        EnvDataError: a source cannot be read, rows of it are wrong, or two items have the same id.
    """
    found: dict[str, list[Item]] = {split: [] for split in SPLITS}
    faults: list[str] = []
    first: dict[str, str] = {}
    for split, source in _sources(data):
        for number, (name, row) in enumerate(_rows(source, split or "train"), start=1):
            try:
                item = _item(reader, f"{split}-{number}" if split else str(number), row)
                if item.id in first:
                    raise WrongRow(f"its id {item.id!r} is that of {first[item.id]}, too")
            except WrongRow as wrong:
                faults.append(f"{name}: {wrong}")
                continue
            first[item.id] = name
            found[split or _side(item, held_out)].append(item)
    _tell(faults, skip_wrong_rows, len(first))
    return found


def column(row: Mapping[str, Any], name: str) -> Any:
    """The value of a column.

    Raises:
        WrongRow: there is no such column, or nothing in it; the text says which there are.
    """
    if row.get(name) is None:
        there = ", ".join(sorted(str(key) for key in row)) or "none"
        empty = f"its column `{name}` is empty" if name in row else f"it has no column `{name}`"
        raise WrongRow(f"{empty}; its columns: {there}")
    return row[name]


def text(row: Mapping[str, Any], name: str) -> str:
    """A column that has to be text with something in it; numbers are taken as they are written.

    Raises:
        WrongRow: it is not.
    """
    value = column(row, name)
    if isinstance(value, int | float) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str) or not value.strip():
        raise WrongRow(f"its column `{name}` is {type(value).__name__}{' without content' * isinstance(value, str)}")
    return value


def parsed(row: Mapping[str, Any], name: str) -> Any:
    """A column that is a structure, or one as JSON text.

    Raises:
        WrongRow: it is text that is not JSON.
    """
    value = column(row, name)
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError) as error:
        raise WrongRow(f"its column `{name}` is text that is not JSON: {error}") from None


def share(said: str) -> float:
    """A number in [0, 1) that follows from a text."""
    return int.from_bytes(hashlib.sha256(said.encode()).digest()[:8], "big") / 2**64


def content_hash(*made_of: Any) -> str:
    """Short hash of plain values."""
    return hashlib.sha256(json.dumps(made_of, sort_keys=True, default=str).encode()).hexdigest()[:16]


def _sources(data: DataSetting) -> Iterator[tuple[str, str]]:
    """(split, source); the split of a single source is empty."""
    if isinstance(data, str):
        yield "", data
    else:
        yield from data.items()


def _rows(source: str, split: str) -> list[tuple[str, Mapping[str, Any] | BrokenRow]]:
    found = _SOURCE.fullmatch(source)
    if found is not None:
        return load_rows(found["place"], found["split"])
    return load_rows(source, "train" if split == "train" else "test")


def _item(reader: Reader[Item], number: str, row: Mapping[str, Any] | BrokenRow) -> Item:
    if isinstance(row, BrokenRow):
        raise WrongRow(row.problem)
    return reader(number, row)


def _side(item: Identified, held_out: float) -> str:
    return "unseen" if share(item.question) < held_out else "train"


def _tell(faults: list[str], skip: bool, usable: int) -> None:
    if not faults:
        return
    shown = "; ".join(faults[:SHOWN_FAULTS])
    more = f"; and {len(faults) - SHOWN_FAULTS} more" if len(faults) > SHOWN_FAULTS else ""
    said = f"{len(faults)} of {usable + len(faults)} rows cannot be used: {shown}{more}"
    if not skip or not usable:
        raise EnvDataError(f"{said}. Mend them, name other columns, or set `skip_wrong_rows`")
    warnings.warn(f"{said}; they are left out", stacklevel=2)
