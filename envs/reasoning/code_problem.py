"""A programming problem with its tests, and how it is read from a row of the usual data sets.

Two columns of tests are understood: that of APPS and TACO, inputs and outputs side by side with the name of a function
or without, and that of LiveCodeBench, a list of cases, each of which says whether it is of a program or a function.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rocknroll.envs.reasoning.code_config import CodeColumns
from rocknroll.envs.reasoning.sources import WrongRow, parsed, text

LARGEST_INPUT_BYTES = 8 << 20
LARGEST_OUTPUT_BYTES = 1 << 21
"""Half of what a sandbox keeps of a command's output: more could not be told from something else."""


@dataclass(frozen=True)
class Case:
    """One test. Of a program: text in and text out; of a function: its arguments, and what it returns (JSON)."""

    given: Any
    expected: Any


@dataclass(frozen=True)
class CodeProblem:
    """A problem, whole; its tests never leave the trainer's process but one input at a time."""

    id: str
    kind: str
    question: str
    cases: tuple[Case, ...]
    function: str = ""
    """Name of the function that is called; empty: it is a program that reads and prints."""
    solution: str = ""
    """A right one; empty where none is known."""


def problem_of(number: str, row: Mapping[str, Any], columns: CodeColumns, max_tests: int | None) -> CodeProblem:
    """Read a row; `number` is its id where the data has none.

    Raises:
        WrongRow: a column is missing or is not what it should be.
    """
    function, cases = _tests(parsed(row, columns.tests), row, columns)
    if not cases:
        raise WrongRow(f"its column `{columns.tests}` has no test")
    for case in cases:
        _check_size(case.given, LARGEST_INPUT_BYTES, "input")
        _check_size(case.expected, LARGEST_OUTPUT_BYTES, "output")
    question = text(row, columns.question).strip()
    starter = row.get(columns.starter)
    if isinstance(starter, str) and starter.strip():
        question = f"{question}\n\nBegin with:\n```python\n{starter.strip()}\n```"
    elif function and function not in question:
        question = f"{question}\n\nWrite a function named `{function}`."
    return CodeProblem(
        id=text(row, columns.id) if columns.id else number,
        kind=text(row, columns.kind) if columns.kind else "function" if function else "program",
        question=question,
        cases=tuple(cases[:max_tests]),
        function=function,
        solution=_solution(row, columns.solutions),
    )


def _tests(value: Any, row: Mapping[str, Any], columns: CodeColumns) -> tuple[str, Sequence[Case]]:
    """(function name or "", tests)."""
    if isinstance(value, Mapping):
        function = value.get("fn_name") or ""
        given, expected = _list(value, "inputs", columns.tests), _list(value, "outputs", columns.tests)
        if len(given) != len(expected):
            raise WrongRow(f"its column `{columns.tests}` has {len(given)} inputs and {len(expected)} outputs")
        pairs = list(zip(given, expected, strict=True))
    elif isinstance(value, list):
        functional = {case.get("testtype") == "functional" for case in value if isinstance(case, Mapping)}
        if len(functional) > 1:
            raise WrongRow(f"its column `{columns.tests}` has tests of a program and of a function")
        function = _function_of(row, columns) if True in functional else ""
        pairs = [_pair(case, columns.tests, bool(function)) for case in value]
    else:
        raise WrongRow(f"its column `{columns.tests}` is neither an object with inputs and outputs nor a list of tests")
    if not isinstance(function, str) or (function and not function.isidentifier()):
        raise WrongRow(f"its function is named {function!r}, which is no name")
    if not function:
        return "", [Case(_lines(given, columns), _lines(expected, columns)) for given, expected in pairs]
    for arguments, _ in pairs:
        if not isinstance(arguments, list):
            raise WrongRow(f"an input of `{function}` is {arguments!r} and not a list of its arguments")
    return function, [Case(arguments, expected) for arguments, expected in pairs]


def _pair(case: Any, name: str, functional: bool) -> tuple[Any, Any]:
    if not isinstance(case, Mapping) or "input" not in case or "output" not in case:
        raise WrongRow(f"a test in its column `{name}` has no `input` or no `output`")
    if not functional:
        return case["input"], case["output"]
    try:
        arguments = [json.loads(line) for line in str(case["input"]).splitlines() if line.strip()]
        return arguments, json.loads(case["output"])
    except (ValueError, TypeError) as error:
        raise WrongRow(f"a test of a function in its column `{name}` is not JSON line by line: {error}") from None


def _function_of(row: Mapping[str, Any], columns: CodeColumns) -> Any:
    metadata = parsed(row, columns.metadata)
    name = metadata.get("func_name") if isinstance(metadata, Mapping) else None
    if not name:
        raise WrongRow(f"its tests are of a function, and its column `{columns.metadata}` has no `func_name`")
    return name


def _check_size(value: Any, limit: int, what: str) -> None:
    size = len((value if isinstance(value, str) else json.dumps(value)).encode(errors="replace"))
    if size > limit:
        raise WrongRow(f"a test has an {what} of {size} bytes, more than the {limit} that can be tried")


def _list(value: Mapping[str, Any], key: str, name: str) -> list[Any]:
    found = value.get(key)
    if not isinstance(found, list):
        raise WrongRow(f"its column `{name}` has no list `{key}`")
    return found


def _lines(value: Any, columns: CodeColumns) -> str:
    """What a program reads or prints; some sets have it as a list of lines."""
    if isinstance(value, list) and all(isinstance(line, str) for line in value):
        return "\n".join(value)
    if not isinstance(value, str):
        raise WrongRow(f"a test of a program in its column `{columns.tests}` is {type(value).__name__} and not text")
    return value


def _solution(row: Mapping[str, Any], name: str) -> str:
    value = row.get(name)
    if isinstance(value, str) and value.lstrip().startswith("["):
        value = parsed(row, name)
    if isinstance(value, list):
        value = value[0] if value else None
    return value if isinstance(value, str) else ""
