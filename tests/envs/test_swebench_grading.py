"""Grading: which files are put back, tests turned around fail for right code, and reports that lie prove nothing."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocknroll.envs.swebench.grading.asking import counts_disagree, judge, plan, refuted
from rocknroll.envs.swebench.grading.control import to_undo
from rocknroll.envs.swebench.grading.grade import touched
from rocknroll.envs.swebench.grading.poison import CannotPoison, poisoned
from rocknroll.envs.swebench.grading.script import script_of
from rocknroll.envs.swebench.instance import RowError, instance_of

BASE = ["src/pkg/core.py", "src/pkg/test/client.py", "tests/test_core.py", "tests/data.txt", "setup.cfg", "pkg2/x.py"]


@pytest.mark.parametrize(
    "path",
    [
        "conftest.py",
        "src/pkg/conftest.py",
        "pytest.ini",
        "setup.cfg",
        "pyproject.toml",
        "a.pth",
        "src/sitecustomize.py",
        ".gitattributes",
        "tests/test_core.py",
        "tests/data.txt",
        "tests/new/helper.py",
        "pytest.py",
        "_pytest/reports.py",
        "src/pluggy/__init__.py",
        "json.py",
        "unittest/case.py",
        "src/pkg/__pycache__/core.cpython-311.pyc",
        "src/pkg/_speed.so",
        "x.dist-info/entry_points.txt",
        ".git/hooks/pre-commit",
    ],
)
def test_what_steers_tests_is_put_back(path: str) -> None:
    assert to_undo([path], [], ["tests/test_core.py"], BASE) == [path]
    assert to_undo([path], [path], ["tests/test_core.py"], BASE) == []


@pytest.mark.parametrize(
    "path", ["src/pkg/core.py", "src/pkg/test/client.py", "src/pkg/new.py", "README.md", "pkg2/json.py"]
)
def test_what_the_code_is_made_of_stays(path: str) -> None:
    assert to_undo([path], [], ["tests/test_core.py"], BASE) == []


def test_packages_that_the_repository_has_are_its_own() -> None:
    base = ["src/_pytest/reports.py", "testing/test_reports.py"]
    assert to_undo(["src/_pytest/reports.py", "src/_pytest/new.py"], [], ["testing/test_reports.py"], base) == []


TESTS = '''\
import unittest
import pytest

@pytest.mark.parametrize("x", [1, 2])
def test_eq(x):
    """A text with a form feed: \x0c, and a separator: \u2028."""
    assert double(x) == 2 * x

def test_literal():
    assert double(2) == 4, "why"
    assert [double(1), {"a": double(3)}] == [2, {"a": 6}]

def test_truth():
    assert double(1)
    assert not double(0)

def test_chain():
    assert 0 < double(2) == 4

def test_raises():
    with pytest.raises(TypeError):
        double(None)

async def test_async():
    assert double(2) != 5

class TestMore(unittest.TestCase):
    def test_methods(self):
        self.assertEqual(double(2), 4)
        self.assertTrue(double(1))
        self.assertIsNone(None)

def helper():
    assert False
'''
NAMES = ["test_eq", "test_literal", "test_truth", "test_chain", "test_raises", "TestMore::test_methods"]


def failing(source: str, double: Callable[[Any], Any]) -> set[str]:
    """Which of the tests fail with an implementation."""
    module: dict[str, Any] = {"double": double}
    exec(compile(source, "tests", "exec"), module)
    found = set()
    for name in NAMES:
        outer, _, inner = name.rpartition("::")
        arguments = (3,) if name == "test_eq" else ()
        try:
            (getattr(module[outer](inner), inner) if outer else module[inner])(*arguments)
        except (Exception, pytest.fail.Exception):
            found.add(name)
    return found


def right(x: Any) -> Any:
    if x is None:
        raise TypeError
    return 2 * x


class Everything:
    """Equals everything."""

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = None  # type: ignore[assignment]


def test_tests_pass_as_they_are() -> None:
    assert failing(TESTS, right) == set()


@given(st.sets(st.sampled_from(NAMES)), st.integers(0, 10_000))
def test_right_code_fails_what_is_turned_around_and_nothing_else(names: set[str], seed: int) -> None:
    turned = poisoned(TESTS, names, random.Random(seed))
    assert failing(turned, right) == names
    assert (turned == TESTS) is (not names)


@given(st.integers(0, 10_000))
def test_what_equals_everything_passes_turned_around(seed: int) -> None:
    names = ["test_eq", "test_literal"]
    assert not failing(poisoned(TESTS, names, random.Random(seed)), lambda x: Everything()) & set(names)


def test_what_cannot_be_turned_around_is_said() -> None:
    with pytest.raises(CannotPoison, match="no test test_nobody"):
        poisoned(TESTS, ["test_nobody"], random.Random(0))
    with pytest.raises(CannotPoison, match="expected to fail"):
        poisoned("@pytest.mark.xfail\ndef test_a():\n    assert 1\n", ["test_a"], random.Random(0))
    with pytest.raises(CannotPoison, match="not Python"):
        poisoned("def (", ["test_a"], random.Random(0))


F2P = ["t.py::test_eq[1]", "t.py::test_eq[2]", "t.py::test_literal"]
P2P = ["t.py::test_truth", "t.py::test_chain", "t.py::test_raises", "t.py::test_async", "data.json::case"]
SOURCES = {"t.py": TESTS}


@given(st.integers(0, 10_000))
def test_every_deciding_test_is_asked_twice(seed: int) -> None:
    first, second = plan(SOURCES, F2P, P2P, random.Random(seed))
    deciding = {"t.py::test_eq", "t.py::test_literal"}
    assert first.turned | second.turned >= deciding
    assert not first.turned & second.turned
    assert first.turned <= deciding
    assert len(second.turned - deciding) == 3
    assert set(second.only) == deciding | second.turned
    assert first.only == ()


def answers_of(seed: int, honest: bool = True) -> tuple[Any, Any, Any]:
    """What right code, or code that reports nothing but success, comes to."""
    askings = plan(SOURCES, F2P, P2P, random.Random(seed))
    answers = []
    for asking in askings:
        asked = [t for t in [*F2P, *P2P] if not asking.only or t.partition("[")[0] in asking.only]
        answers.append({t: "FAILED" if honest and t.partition("[")[0] in asking.turned else "PASSED" for t in asked})
    exits = tuple(int("FAILED" in answer.values()) for answer in answers)
    return askings, tuple(answers), exits


@given(st.integers(0, 10_000))
def test_right_code_is_resolved_and_bare_success_is_not(seed: int) -> None:
    assert judge(*answers_of(seed), F2P, P2P).resolved
    lied = judge(*answers_of(seed, honest=False), F2P, P2P)
    assert not lied.resolved
    assert any("passed turned around" in trip for trip in lied.trips)


STATUS = st.sampled_from(["PASSED", "FAILED", "SKIPPED", "ERROR", "gone"])


@given(
    st.integers(0, 10_000),
    st.lists(STATUS, min_size=16, max_size=16),
    st.lists(st.integers(0, 1), min_size=2, max_size=2),
)
def test_what_the_first_run_refutes_no_second_one_can_mend(seed: int, drawn: list[str], exits: list[int]) -> None:
    askings, answers, _ = answers_of(seed)
    tests = [*F2P, *P2P]
    first, second = (
        {test: status for test, status in zip(tests, part, strict=True) if status != "gone" and test in answer}
        for part, answer in zip((drawn[:8], drawn[8:]), answers, strict=True)
    )
    missing, trips = refuted(askings[0], first, exits[0], F2P, P2P)
    verdict = judge(askings, (first, second), (exits[0], exits[1]), F2P, P2P)
    if missing or trips:
        assert not verdict.resolved
    assert set(missing) <= set(verdict.not_passed) and set(trips) <= set(verdict.trips)


@given(st.integers(0, 10_000))
def test_right_code_is_not_refuted_and_an_empty_patch_mostly_is_at_once(seed: int) -> None:
    askings, answers, exits = answers_of(seed)
    assert refuted(askings[0], answers[0], exits[0], F2P, P2P) == ([], [])
    empty = {test: "FAILED" if test in F2P else status for test, status in answers[0].items()}
    missing, _ = refuted(askings[0], empty, 1, F2P, P2P)
    assert set(missing) == {test for test in F2P if test.partition("[")[0] not in askings[0].turned}


def test_tests_that_cannot_be_turned_around_are_named() -> None:
    askings = plan({}, F2P, P2P, random.Random(0))
    answer = dict.fromkeys([*F2P, *P2P], "PASSED")
    verdict = judge(askings, (answer, answer), (0, 0), F2P, P2P)
    assert verdict.unproven == ("t.py::test_eq", "t.py::test_literal")
    assert judge(*answers_of(0), F2P, P2P).unproven == ()
    failing_elsewhere = {**answer, "other.py::test": "FAILED"}
    assert judge(askings, (failing_elsewhere, failing_elsewhere), (1, 1), F2P, P2P).trips == ()


@given(st.integers(0, 10_000), st.sampled_from([*F2P, *P2P]), st.sampled_from(["FAILED", "ERROR", "gone"]))
def test_one_test_that_fails_is_enough(seed: int, test: str, status: str) -> None:
    askings, answers, _ = answers_of(seed)
    for asking, answer in zip(askings, answers, strict=True):
        if test in answer and test.partition("[")[0] not in asking.turned:
            answer.pop(test) if status == "gone" else answer.update({test: status})
    exits = tuple(int(any(s != "PASSED" for s in answer.values())) for answer in answers)
    verdict = judge(askings, answers, exits, F2P, P2P)
    assert not verdict.resolved
    assert test in verdict.not_passed


@given(st.integers(0, 10_000), st.sampled_from([(0, 0), (None, None)]))
def test_exit_codes_that_contradict_the_log_prove_nothing(seed: int, exits: Any) -> None:
    askings, answers, right_exits = answers_of(seed)
    if exits == right_exits:
        return
    assert not judge(askings, answers, exits, F2P, P2P).resolved


def test_counts_have_to_agree() -> None:
    answer = {"a": "PASSED", "b": "FAILED"}
    assert counts_disagree("= 1 failed, 1 passed in 0.10s =\n", answer) == ""
    assert counts_disagree("==== 1 failed, 3 passed, 2 warnings in 70.10s (0:01:10) ====\n", answer) == ""
    assert "counted 0 failed" in counts_disagree("== 2 passed in 0.10s ==\n", answer)
    assert "came 0 times" in counts_disagree("", answer)
    assert "came 2 times" in counts_disagree("== 2 passed in 0.10s ==\n" * 2, answer)


ROW: dict[str, Any] = {
    "instance_id": "a__b-1",
    "repo": "a/b",
    "base_commit": "22623bd8c265b78b161542663ee980738441c307",
    "patch": "diff --git a/x.py b/y.py\nsimilarity index 90%\nrename from x.py\nrename to y.py\n"
    "--- a/x.py\n+++ b/y.py\n@@ -1 +1 @@\n-1\n+2\n",
    "test_patch": "--- /dev/null\n+++ b/tests/test_x.py\n@@ -0,0 +1 @@\n+1\n",
    "problem_statement": "It does not work.",
    "FAIL_TO_PASS": ["tests/test_x.py::test_a"],
}


def test_rows_own_patches_are_read() -> None:
    assert touched(ROW["patch"], "patch") == ["x.py", "y.py"]
    assert touched(ROW["test_patch"], "test_patch") == ["tests/test_x.py"]
    with pytest.raises(RowError, match="its patch is not a unified diff"):
        touched("--- a/x\n+++ b/x\n@@ -1,2 +1 @@\n-1\n", "patch")


def test_scripts_keep_their_setup_and_leave_files_to_the_grader() -> None:
    given_script = """\
#!/bin/bash
set -uxo pipefail
source /opt/miniconda3/bin/activate
cd /testbed
python -m pip install -e .
git checkout 22623bd tests/test_x.py
git apply -v - <<'EOF_1'
+source evil
EOF_1
: '>>>>> Start Test Output'
pytest -rA tests/test_x.py
: '>>>>> End Test Output'
git checkout 22623bd tests/test_x.py
"""
    script = script_of(instance_of({**ROW, "eval_script": given_script}), ["tests/test_x.py"])
    text = script.text(["tests/test_x.py"])
    assert "pip install -e ." in text
    assert "evil" not in text
    assert "git" not in text
    assert "set -uo pipefail" in text
    assert text.endswith("pytest -rA tests/test_x.py\nexit $?\n")
    assert script.is_pytest
    assert "pytest -rA 'tests/test_x.py::test_a[b c]'\n" in script.text(
        ["tests/test_x.py"], ["tests/test_x.py::test_a[b c]"]
    )
    classic = script_of(instance_of(ROW), ["tests/test_x.py"]).text(["tests/test_x.py"])
    assert "python -m pytest -rA tests/test_x.py" in classic
    with pytest.raises(RowError, match="does not mark its test command"):
        script_of(instance_of({**ROW, "eval_script": "pytest"}), [])
