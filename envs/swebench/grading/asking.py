"""How the tests are asked, and what the answers prove. Pure.

Every test that decides is asked twice, in processes that know nothing of each other: once as it is, and once turned
around (`poison.py`). Which comes first is drawn for each test. Right code passes the one and fails the other; code that
only reports success passes both.
"""

from __future__ import annotations

import random
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from rocknroll.envs.swebench.grading.poison import CannotPoison, poisoned
from rocknroll.envs.swebench.logs import ERROR, FAILED, PASSED, XFAIL, Statuses, function_of, not_passed, status_of

SPOT_CHECKS = 3
"""Tests that have to keep passing and are asked turned around, too."""


@dataclass(frozen=True)
class Asking:
    """One run of the tests."""

    files: Mapping[str, str]
    """Content of the test files that differ from what the test patch makes of them."""
    turned: frozenset[str]
    """Test functions (`tests/test_x.py::test_a`) that are turned around in it."""
    only: tuple[str, ...] = ()
    """Functions to run; empty: all of the test files."""


@dataclass(frozen=True)
class Verdict:
    """What the answers come to."""

    resolved: bool
    not_passed: tuple[str, ...]
    """Tests that had to pass and did not."""
    trips: tuple[str, ...]
    """What right code cannot have answered: a test turned around that passed, one that nobody reported on…"""
    unproven: tuple[str, ...]
    """Deciding tests that could not be turned around; for these a report is all there is."""


def plan(
    sources: Mapping[str, str], fail_to_pass: Iterable[str], pass_to_pass: Iterable[str], rng: random.Random
) -> tuple[Asking, Asking]:
    """The two runs. `sources`: content of each test file, the test patch applied.

    Tests of files that cannot be turned around (no Python, no such function) are asked as they are, in the first run.
    """
    deciding = _askable({function_of(test) for test in fail_to_pass}, sources)
    others = _askable({function_of(test) for test in pass_to_pass} - set(deciding), sources)
    first = {test for test in deciding if rng.random() < 0.5}
    spot = rng.sample(others, min(SPOT_CHECKS, len(others)))
    second = set(deciding) - first | set(spot)
    return (
        Asking(_turned_files(sources, first, rng), frozenset(first)),
        Asking(_turned_files(sources, second, rng), frozenset(second), tuple(sorted({*deciding, *spot}))),
    )


def judge(
    askings: tuple[Asking, Asking],
    answers: tuple[Statuses, Statuses],
    exit_codes: tuple[int | None, int | None],
    fail_to_pass: Collection[str],
    pass_to_pass: Collection[str],
) -> Verdict:
    """What two runs prove. `exit_codes`: of the test commands, None where one did not end by itself."""
    (first, second), (answer, second_answer) = askings, answers
    again = [test for test in (*fail_to_pass, *pass_to_pass) if function_of(test) in first.turned]
    straight = {test: status_of(test, answer) for test in (*fail_to_pass, *pass_to_pass)}
    straight |= {test: status_of(test, second_answer) for test in again}
    known = {test: status for test, status in straight.items() if status is not None}
    missing = not_passed(fail_to_pass, known, skipped_counts=False)
    missing += not_passed(pass_to_pass, known, skipped_counts=True)
    trips = [
        *_passed_though_turned(first, answer, second_answer),
        *_passed_though_turned(second, second_answer, answer),
        *_unreported(first, answer),
        *_unreported(second, second_answer),
        *_unexplained(answer, exit_codes[0]),
        *_unexplained(second_answer, exit_codes[1]),
    ]
    unproven = {function_of(test) for test in fail_to_pass} - first.turned - second.turned
    return Verdict(not missing and not trips, tuple(missing), tuple(trips), tuple(sorted(unproven)))


def refuted(
    asking: Asking,
    answer: Statuses,
    exit_code: int | None,
    fail_to_pass: Collection[str],
    pass_to_pass: Collection[str],
) -> tuple[list[str], list[str]]:
    """What the first run alone says against a patch: tests, asked as they are, that did not pass; and what right code
    cannot have answered. Either is enough."""
    failing, passing = (
        [test for test in tests if function_of(test) not in asking.turned] for tests in (fail_to_pass, pass_to_pass)
    )
    missing = not_passed(failing, answer, skipped_counts=False) + not_passed(passing, answer, skipped_counts=True)
    return missing, [*_unreported(asking, answer), *_unexplained(answer, exit_code)]


def _askable(functions: Collection[str], sources: Mapping[str, str]) -> list[str]:
    """Those that can be turned around, in a fixed order."""
    found = []
    for function in sorted(functions):
        path, _, name = function.partition("::")
        try:
            poisoned(sources.get(path, ""), [name], random.Random(0))
        except CannotPoison:
            continue
        found.append(function)
    return found


def _turned_files(sources: Mapping[str, str], functions: Collection[str], rng: random.Random) -> dict[str, str]:
    by_file: dict[str, list[str]] = {}
    for function in sorted(functions):
        path, _, name = function.partition("::")
        by_file.setdefault(path, []).append(name)
    return {path: poisoned(sources[path], names, rng) for path, names in by_file.items()}


def _passed_though_turned(asking: Asking, answer: Statuses, straight: Statuses) -> list[str]:
    """Tests that passed both ways. Wrong code may give what one wants that was turned around; it fails it straight."""
    return [
        f"{test} passed turned around"
        for test, status in answer.items()
        if function_of(test) in asking.turned
        and status in (PASSED, XFAIL)
        and straight.get(test, PASSED) in (PASSED, XFAIL)
    ]


def _unreported(asking: Asking, answer: Statuses) -> list[str]:
    reported = {function_of(test) for test in answer}
    return [f"{function} was not reported" for function in sorted(asking.turned) if function not in reported]


def _unexplained(answer: Statuses, exit_code: int | None) -> list[str]:
    """Whether the exit code says something else than the log."""
    if not answer:
        return ["no test was reported"]
    failed = any(status in (FAILED, ERROR) for status in answer.values())
    if exit_code is None:
        return ["the test command did not end by itself"]
    if failed == (exit_code == 0):
        return [f"exit code {exit_code} and {'failures' if failed else 'no failure'} reported"]
    return []


_SUMMARY = re.compile(r"^=+ (?:.*?)((?:\d+ \w+(?:, )?)+) in [\d.]+s.* =+$", re.MULTILINE)


def counts_disagree(log: str, answer: Statuses) -> str:
    """What is wrong with pytest's last line against its list of tests; empty where nothing is."""
    lines = _SUMMARY.findall(log)
    if len(lines) != 1:
        return f"pytest's summary came {len(lines)} times"
    said = {kind: int(number) for number, kind in re.findall(r"(\d+) (\w+)", lines[0])}
    for kind, status in (("passed", PASSED), ("failed", FAILED)):
        listed = sum(found == status for found in answer.values())
        if said.get(kind, 0) < listed:
            return f"pytest counted {said.get(kind, 0)} {kind} and listed {listed}"
    return ""
