"""An instance of SWE-bench: a repository at a commit, what is wrong with it, and the tests that decide.

Rows come in two schemas: the classic one of 12 columns, and that of swebench 5.x, which adds the image, the script that
runs the tests, and the name of the parser that reads its log. Here a row is a mapping, wherever it came from.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rocknroll.envs.rows import BrokenRow, Row

PASS_AND_FAIL = "pass_and_fail"
REQUIRED = ("instance_id", "repo", "base_commit", "patch", "test_patch", "problem_statement", "FAIL_TO_PASS")
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_COMMIT = re.compile(r"[0-9a-f]{7,64}")


class RowError(ValueError):
    """A row is not an instance; says what is wrong with which column."""


@dataclass(frozen=True)
class Instance:
    """One task. Patches are unified diffs with `a/` and `b/` prefixes."""

    id: str
    repo: str
    base_commit: str
    problem: str
    gold_patch: str
    test_patch: str
    """Adds or changes the tests that decide; never enters the agent's sandbox."""
    fail_to_pass: tuple[str, ...]
    pass_to_pass: tuple[str, ...]
    version: str = ""
    hints: str = ""
    image: str = ""
    """As the row gives it; empty: by convention (`images.py`)."""
    eval_script: str = ""
    """Script of the 5.x schema that applies the test patch and runs the tests; empty: pytest on the test files."""
    log_parser: str = "pytest"
    tree: Mapping[str, str] | None = field(default=None, repr=False, compare=False)
    """Text of every file at the base commit by its path, for rows that need no image of their own: whatever has
    Python, git and pytest can run them (column `tree`, JSON text)."""
    row: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)
    """The row itself, for tools that take rows."""


def instance_of(row: Mapping[str, Any]) -> Instance:
    """Check a row and read it.

    Raises:
        RowError: a column is missing or is not what it should be.
    """
    if not isinstance(row, Mapping):
        raise RowError(f"it is {type(row).__name__} and not an object with columns")
    if missing := [name for name in REQUIRED if row.get(name) is None]:
        raise RowError(f"it has no column {', '.join(missing)}")
    texts = {name: _text(row, name) for name in REQUIRED if name != "FAIL_TO_PASS"}
    if not _ID.fullmatch(texts["instance_id"]):
        raise RowError(f"its instance_id {texts['instance_id']!r} has characters other than letters, digits and . _ -")
    if not _COMMIT.fullmatch(texts["base_commit"]):
        raise RowError(f"its base_commit {texts['base_commit']!r} is not a commit hash")
    failing = _tests(row, "FAIL_TO_PASS")
    if not failing:
        raise RowError("its FAIL_TO_PASS is empty, so no patch could resolve it")
    passing = _tests(row, "PASS_TO_PASS") if row.get("PASS_TO_PASS") is not None else ()
    if both := set(failing) & set(passing):
        raise RowError(f"{sorted(both)[0]!r} is in FAIL_TO_PASS and in PASS_TO_PASS")
    if (kind := _optional(row, "eval_type") or PASS_AND_FAIL) != PASS_AND_FAIL:
        raise RowError(f"its eval_type {kind!r} takes unreported tests for passed; only {PASS_AND_FAIL} can be")
    if not _optional(row, "eval_script") and not any("::" in test for test in failing):
        raise RowError(
            f"it has no eval_script, and its tests have no names of pytest's ({failing[0]!r}): take rows of the 5.x"
            " schema, whose rows say how their tests are run and read (eval_script, log_parser)"
        )
    return Instance(
        id=texts["instance_id"],
        repo=texts["repo"],
        base_commit=texts["base_commit"],
        problem=texts["problem_statement"],
        gold_patch=texts["patch"],
        test_patch=texts["test_patch"],
        fail_to_pass=failing,
        pass_to_pass=passing,
        version=_optional(row, "version"),
        hints=_optional(row, "hints_text"),
        image=_optional(row, "image"),
        eval_script=_optional(row, "eval_script"),
        log_parser=_optional(row, "log_parser") or "pytest",
        tree=_tree(row),
        row=dict(row),
    )


def instances_of(rows: Iterable[tuple[str, Row]]) -> tuple[list[Instance], dict[str, str]]:
    """Read rows, each with a name for messages (`line 3`): the instances, and what is wrong with the others by name.

    An instance id that comes twice is wrong the second time.
    """
    found: dict[str, Instance] = {}
    first: dict[str, str] = {}
    wrong: dict[str, str] = {}
    for name, row in rows:
        if isinstance(row, BrokenRow):
            wrong[name] = row.problem
            continue
        try:
            instance = instance_of(row)
        except RowError as error:
            wrong[name] = str(error)
            continue
        if instance.id in found:
            wrong[name] = f"its instance_id {instance.id!r} is that of {first[instance.id]}, too"
            continue
        found[instance.id], first[instance.id] = instance, name
    return list(found.values()), wrong


def _text(row: Mapping[str, Any], name: str) -> str:
    value = row[name]
    if not isinstance(value, str):
        raise RowError(f"its {name} is {type(value).__name__} and not text")
    return value


def _optional(row: Mapping[str, Any], name: str) -> str:
    return _text(row, name) if row.get(name) is not None else ""


def _tree(row: Mapping[str, Any]) -> Mapping[str, str] | None:
    if row.get("tree") is None:
        return None
    try:
        tree = json.loads(_text(row, "tree"))
    except json.JSONDecodeError as error:
        raise RowError(f"its tree is not JSON: {error}") from None
    if not isinstance(tree, dict) or not tree or not all(isinstance(text, str) for text in tree.values()):
        raise RowError("its tree is not a JSON object with the text of each file by its path")
    for path in tree:
        parts = path.split("/")
        if {"", ".", ".."} & set(parts) or ".git" in parts or "\0" in path or "\n" in path:
            raise RowError(f"its tree has the path {path!r}, which no repository has")
    return tree


def _tests(row: Mapping[str, Any], name: str) -> tuple[str, ...]:
    """Test names: a list, or a list as JSON text."""
    value = row[name]
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except json.JSONDecodeError as error:
            raise RowError(f"its {name} is text, and not that of a JSON list: {error}") from None
    if hasattr(value, "tolist"):  # an array of a Parquet column
        value = value.tolist()
    if not isinstance(value, list | tuple) or not all(isinstance(test, str) for test in value):
        raise RowError(f"its {name} is not a list of test names")
    return tuple(value)
