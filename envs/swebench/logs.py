"""What a test run's log says of each test.

The names of parsers are those of swebench 5.x. That of pytest is here, made to agree with theirs to the letter, for
rows list test names as that parser prints them; all others come from the `swebench` package (extra `swebench`).
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Collection, Mapping
from types import SimpleNamespace
from typing import Any

from rocknroll.envs.swebench.instance import Instance, RowError

PASSED, FAILED, ERROR, SKIPPED, XFAIL = "PASSED", "FAILED", "ERROR", "SKIPPED", "XFAIL"
_STATUSES = (FAILED, PASSED, SKIPPED, ERROR, XFAIL)
_COUNT = re.compile(r"\[\d+\]")
Statuses = Mapping[str, str]
"""Status of each test by its name."""


def parse_pytest(log: str) -> dict[str, str]:
    """From the short summary of `pytest -rA`. A name ends at its first space, as in published rows."""
    found: dict[str, str] = {}
    for line in log.split("\n"):
        if not line.startswith(_STATUSES):
            continue
        words = (line.replace(" - ", " ") if line.startswith(FAILED) else line).split()
        if len(words) > 1 and not (words[0] == SKIPPED and _COUNT.fullmatch(words[1])):
            found[words[1]] = words[0]
    return found


def parser_of(instance: Instance) -> Callable[[str], dict[str, str]]:
    """What reads this instance's logs.

    Raises:
        RowError: nobody knows its parser.
    """
    name = instance.log_parser
    if name in ("pytest", "parse_log_pytest"):
        return parse_pytest
    try:
        known: Mapping[str, Any] = importlib.import_module("swebench.harness.log_parsers").PARSER_REGISTRY
    except ImportError:
        raise RowError(
            f"its log_parser {name!r} comes with the swebench package: pip install 'rocknroll[swebench]'"
        ) from None
    if name not in known:
        raise RowError(f"its log_parser {name!r} is none that swebench has ({', '.join(sorted(known))})")
    spec = SimpleNamespace(instance_id=instance.id, version=instance.version, repo=instance.repo)
    return lambda log: dict(known[name](log, spec))


def function_of(test: str) -> str:
    """`tests/test_x.py::TestA::test_b[1-2]` without its parameters."""
    return test.partition("[")[0]


def status_of(test: str, statuses: Statuses) -> str | None:
    """Status of a test; None where the log does not name it.

    Published rows have names that were cut in the middle of a parameter; such a one has the status of all that begin
    with it, if they agree.
    """
    if test in statuses:
        return statuses[test]
    if test.count("[") > test.count("]"):
        whole = {status for name, status in statuses.items() if name.startswith(test)}
        if whole and len({status in (PASSED, XFAIL) for status in whole}) == 1:
            return sorted(whole)[0]
    return None


def not_passed(tests: Collection[str], statuses: Statuses, *, skipped_counts: bool) -> list[str]:
    """Tests that did not pass; being skipped is enough for those that passed before (`skipped_counts`)."""
    enough = {PASSED, XFAIL, SKIPPED} if skipped_counts else {PASSED, XFAIL}
    return [test for test in tests if status_of(test, statuses) not in enough]
