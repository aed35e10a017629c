"""What is wrong with a configuration, in sentences: where it was written, what was expected, what is nearest."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

ANY_NAME = "NAME"
"""Stands in a known key for a name that the writer chooses."""
_NEAR = 0.6
"""How alike (difflib) a known key must be to be suggested."""
_QUOTED = re.compile(r"'([^']*)'")
"""A choice in pydantic's list of them."""
_NAME_CHARACTERS = "._-]"
"""What the patterns of names have and others have not."""


@dataclass(frozen=True)
class Schema:
    """A model, where in its document it stands (`env.config.`), and what the document is (`A recipe`)."""

    prefix: str
    model: type[BaseModel]
    document: str

    def keys(self) -> list[str]:
        """Every dotted key, sections included."""
        return known_keys(self.model, self.prefix)


def known_keys(model: type[BaseModel], prefix: str = "") -> list[str]:
    """Every dotted key of a model, sections included; the sections of a mapping go by `ANY_NAME`."""
    found: list[str] = []
    for name, info in model.model_fields.items():
        found.append(prefix + name)
        if get_origin(info.annotation) is dict:
            name += f".{ANY_NAME}"
        for part in (info.annotation, *get_args(info.annotation)):  # a section, or one that may be left out
            if isinstance(part, type) and issubclass(part, BaseModel):
                found += known_keys(part, f"{prefix}{name}.")
    return found


def explain(invalid: ValidationError, schema: Schema, origin: Callable[[tuple[str, ...]], str]) -> str:
    """All that pydantic found, as sentences."""
    return " ".join(_sentence(error, schema, origin) for error in invalid.errors(include_url=False))


def _sentence(error: ErrorDetails, schema: Schema, origin: Callable[[tuple[str, ...]], str]) -> str:
    loc = tuple(str(part) for part in error["loc"])
    key = schema.prefix + ".".join(loc)
    if error["type"] == "extra_forbidden":
        return f"{origin(loc)}: unknown key `{key}`. {_suggestion(key, schema)}"
    if error["type"] == "missing":
        return f"{origin(loc)}: `{key}` is missing."
    if error["type"] == "value_error":
        where = f"`{key.rstrip('.')}`: " if key else ""
        return f"{where}{error['msg'].removeprefix('Value error, ')}."
    if error["type"] == "string_pattern_mismatch" and _NAME_CHARACTERS in error["ctx"]["pattern"]:
        expected = "may hold letters, digits, `.`, `_` and `-` only, and not begin with `.` or `-`"
    else:
        expected = _EXPECTED.get(error["type"]) or error["msg"].replace("Input should be", "must be", 1)
    near = _nearest_choice(error) if error["type"] == "literal_error" else []
    found = f"{json.dumps(error['input'])} ({kind(error['input'])})"
    return f"{origin(loc)}: `{key}` {expected}, but is {found}. {did_you_mean(near)}".rstrip()


_EXPECTED = {
    "model_type": "must be a section (a mapping)",
    "dict_type": "must be a mapping",
    "tuple_type": "must be a list, such as [a, b]",
    "int_type": "must be a whole number",
    "float_type": "must be a number",
    "finite_number": "must be a finite number",
    "bool_type": "must be true or false",
    "string_type": "must be text (quote it)",
}
"""What pydantic's commonest complaints mean to the writer, by error type."""


def _suggestion(key: str, schema: Schema) -> str:
    """The same name in another section, else the nearest key of this one; and what this section knows."""
    known = schema.keys()
    section, _, leaf = key.rpartition(".")
    siblings = [name.rpartition(".")[2] for name in known if _is_in(section, name.rpartition(".")[0])]
    elsewhere = [name for name in known if name.rpartition(".")[2] == leaf]
    within = f"{section}." if section else ""
    likely = elsewhere or [within + near for near in nearest(leaf, siblings)]
    where = f"`{section}` knows" if section else f"{schema.document} knows"
    return f"{did_you_mean(likely)}{where}: {', '.join(siblings)}."


def _nearest_choice(error: ErrorDetails) -> list[str]:
    """The choice that what was written is most like."""
    return nearest(str(error["input"]), _QUOTED.findall(error["ctx"]["expected"]))


def _is_in(section: str, known: str) -> bool:
    """Whether a section is the known one, whatever the writer called its parts."""
    parts, pattern = section.split("."), known.split(".")
    return len(parts) == len(pattern) and all(
        place in (part, ANY_NAME) for part, place in zip(parts, pattern, strict=True)
    )


def nearest(word: str, known: Sequence[str]) -> list[str]:
    return get_close_matches(word, known, n=1, cutoff=_NEAR)


def did_you_mean(keys: Sequence[str]) -> str:
    return f"Did you mean {' or '.join(f'`{key}`' for key in keys)}? " if keys else ""


_KINDS: dict[type, str] = {
    bool: "a truth value",
    int: "a whole number",
    float: "a number",
    str: "text",
    list: "a list",
    dict: "a mapping",
    type(None): "nothing",
}


def kind(value: Any) -> str:
    return _KINDS.get(type(value), type(value).__name__)
