"""Rows become instances or are refused one by one; images, answers of agents and logs are read as others write them."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from swebench.harness import grading as official
from swebench.harness.constants import ResolvedStatus
from swebench.harness.log_parsers import PARSER_REGISTRY

from rocknroll.envs.swebench.images import image_names
from rocknroll.envs.swebench.instance import RowError, instance_of, instances_of
from rocknroll.envs.swebench.logs import not_passed, parse_pytest, parser_of, status_of
from rocknroll.envs.swebench.protocol import SENTINEL, command_of, observation, shortened, submits

ROW: dict[str, Any] = {
    "instance_id": "psf__requests-1142",
    "repo": "psf/requests",
    "base_commit": "22623bd8c265b78b161542663ee980738441c307",
    "patch": "--- a/x.py\n+++ b/x.py\n@@ -1 +1 @@\n-1\n+2\n",
    "test_patch": "--- a/test_x.py\n+++ b/test_x.py\n@@ -1 +1 @@\n-1\n+2\n",
    "problem_statement": "It does not work.",
    "hints_text": None,
    "FAIL_TO_PASS": '["test_x.py::test_a[1]"]',
    "PASS_TO_PASS": ["test_x.py::test_b"],
    "version": "1.1",
}


@pytest.mark.parametrize("as_text", [True, False])
def test_tests_may_be_lists_or_their_json(as_text: bool) -> None:
    tests = ["test_x.py::test_a", "test_x.py::test_c[a b"]
    for value in (json.dumps(tests), tests, tuple(tests), np.array(tests, dtype=object)):
        if isinstance(value, str) is as_text:
            assert instance_of({**ROW, "FAIL_TO_PASS": value}).fail_to_pass == tuple(tests)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"patch": None}, "no column patch"),
        ({"patch": 3}, "its patch is int"),
        ({"instance_id": "a/b"}, "characters other than"),
        ({"base_commit": "main"}, "not a commit hash"),
        ({"FAIL_TO_PASS": "[]"}, "empty, so no patch could resolve it"),
        ({"FAIL_TO_PASS": "test_a"}, "not that of a JSON list"),
        ({"FAIL_TO_PASS": '{"a": 1}'}, "not a list of test names"),
        ({"PASS_TO_PASS": [1]}, "not a list of test names"),
        ({"PASS_TO_PASS": ["test_x.py::test_a[1]"]}, "in FAIL_TO_PASS and in PASS_TO_PASS"),
        ({"eval_type": "fail_only"}, "takes unreported tests for passed"),
        ({"FAIL_TO_PASS": ["test_a (queries.tests.Lookups)"]}, "no names of pytest's.*eval_script, log_parser"),
    ],
)
def test_broken_rows_say_what_is_wrong(change: dict[str, Any], why: str) -> None:
    with pytest.raises(RowError, match=why):
        instance_of({**ROW, **change})


def test_one_broken_row_costs_no_other() -> None:
    other = {**ROW, "instance_id": "psf__requests-2"}
    rows = [("line 1", ROW), ("line 2", {}), ("line 3", ROW), ("line 4", [1]), ("line 5", other)]
    found, wrong = instances_of(rows)  # type: ignore[arg-type]
    assert [instance.id for instance in found] == ["psf__requests-1142", "psf__requests-2"]
    assert set(wrong) == {"line 2", "line 3", "line 4"}
    assert "that of line 1, too" in wrong["line 3"]


def test_images_have_the_published_name_or_the_local_one() -> None:
    instance = instance_of({**ROW, "instance_id": "Astropy__astropy-1"})
    assert image_names(instance, architecture="x86_64") == (
        "swebench/sweb.eval.x86_64.astropy_1776_astropy-1:latest",
        "sweb.eval.x86_64.astropy__astropy-1:latest",
    )
    for given_name, name in (("host:5000/a/b", "host:5000/a/b:latest"), ("a/b:3", "a/b:3")):
        assert image_names(instance_of({**ROW, "image": given_name})) == (name,)


@pytest.mark.parametrize("language", ["bash", "sh", "mswea_bash_command"])
def test_one_block_is_a_command(language: str) -> None:
    assert command_of(f"I look.\n```{language}\nls -l\ncat x\n```\n").text == "ls -l\ncat x"


@pytest.mark.parametrize("response", ["", "```bash\n```", "```bash\nls\n```\n```bash\npwd\n```", "```python\n1\n```"])
def test_everything_else_is_not(response: str) -> None:
    command = command_of(response)
    assert command.text == ""
    assert "command block" in command.problem


def test_only_a_successful_sentinel_submits() -> None:
    assert submits(f"{SENTINEL}\ndiff", 0)
    assert not submits(f"{SENTINEL}", 1)
    assert not submits(f"echo {SENTINEL}", 0)
    assert not submits("", 0)


@given(st.text(max_size=400), st.integers(20, 100))
def test_long_output_keeps_head_and_tail(text: str, limit: int) -> None:
    shown = shortened(text, limit)
    if len(text) <= limit:
        assert shown == text
    else:
        assert shown.startswith(text[: limit // 2])
        assert shown.endswith(text[-(limit // 2) :])
        assert f"{len(text) - 2 * (limit // 2)} characters left out" in shown


def test_observations_say_what_happened() -> None:
    said = observation(-9, "x\n", timed_out_s=60, turns_left=3)
    assert "<returncode>-9</returncode>" in said
    assert "stopped after 60 s" in said
    assert "3 turns are left" in said


LOG = """\
=========================== short test summary info ============================
PASSED tests/test_a.py::test_one
PASSED tests/test_a.py::test_two[a b]
SKIPPED [1] tests/test_a.py:30: no reason
XFAIL tests/test_a.py::test_three - not yet
FAILED tests/test_a.py::test_four - AssertionError: PASSED tests/test_a.py::test_four
ERROR tests/test_b.py
=================== 1 failed, 2 passed, 1 skipped in 0.12s ===================
"""


def test_logs_of_pytest() -> None:
    assert parse_pytest(LOG) == {
        "tests/test_a.py::test_one": "PASSED",
        "tests/test_a.py::test_two[a": "PASSED",
        "tests/test_a.py::test_three": "XFAIL",
        "tests/test_a.py::test_four": "FAILED",
        "tests/test_b.py": "ERROR",
    }
    assert parser_of(instance_of({**ROW, "log_parser": "parse_log_pytest"})) is parse_pytest
    with pytest.raises(RowError, match="is none that swebench has"):
        parser_of(instance_of({**ROW, "log_parser": "parse_log_nobody"}))


NAMES = ("test_x.py::test_a", "test_x.py::test_b[1]", "test_x.py::test_b[2]", "test_x.py::test_c[a")
STATUS = st.sampled_from(["PASSED", "FAILED", "ERROR", "SKIPPED", "XFAIL"])


@given(
    st.dictionaries(st.sampled_from([*NAMES, "test_x.py::test_c[a-1]", "test_x.py::test_c[a-2]"]), STATUS),
    st.sets(st.sampled_from(NAMES)),
    st.sets(st.sampled_from(NAMES)),
)
def test_what_statuses_come_to_is_what_the_official_harness_makes_of_them(
    statuses: dict[str, str], failing: set[str], passing: set[str]
) -> None:
    report = official.get_eval_tests_report(statuses, {"FAIL_TO_PASS": failing, "PASS_TO_PASS": passing})
    missing = not_passed(failing, statuses, skipped_counts=False) + not_passed(passing, statuses, skipped_counts=True)
    assert (missing == []) == (official.get_resolution_status(report) == ResolvedStatus.FULL.value)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(
                ["PASSED", "FAILED", "ERROR", "SKIPPED", "XFAIL", "SKIPPED [3]", "FAILED -", "", "PASSEDx"]
            ),
            st.sampled_from(
                ["test_x.py::test_a", "test_x.py::test_b[a b]", "test_x.py::test_a - AssertionError: x", ""]
            ),
        )
    )
)
def test_logs_of_pytest_are_read_as_by_the_official_parser(lines: list[tuple[str, str]]) -> None:
    log = "\n".join(" ".join(line) for line in lines)
    assert parse_pytest(log) == PARSER_REGISTRY["parse_log_pytest"](log, None)


@pytest.mark.parametrize(
    ("row", "log", "found"),
    [
        (
            {"log_parser": "parse_log_django", "eval_script": "x"},
            "test_a (queries.tests.Lookups) ... ok\ntest_b (queries.tests.Lookups) ... FAIL\n",
            {"test_a (queries.tests.Lookups)": "PASSED", "test_b (queries.tests.Lookups)": "FAILED"},
        ),
        # This one looks at the version and then at the text; without its version it fails.
        ({"log_parser": "parse_log_lighthouse", "eval_script": "x", "version": "10.0"}, "nothing\n", {}),
    ],
)
def test_other_parsers_are_those_of_the_package(row: dict[str, Any], log: str, found: dict[str, str]) -> None:
    assert parser_of(instance_of({**ROW, **row}))(log) == found


def test_names_cut_in_a_parameter_have_the_status_of_all_that_begin_so() -> None:
    statuses = {"t[log(photon-1]": "PASSED", "t[log(photon-2]": "XFAIL", "u[a-1]": "PASSED", "u[a-2]": "FAILED"}
    assert status_of("t[log(photon", statuses) in ("PASSED", "XFAIL")
    assert status_of("u[a", statuses) is None
    assert status_of("t", statuses) is None
