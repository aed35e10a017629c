"""Generated instances: mutations change one span, tests notice them, and only mending them resolves what they make."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import json
import random
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Self

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rocknroll.envs.swebench.grading.grade import Grade, grade
from rocknroll.envs.swebench.instance import instance_of, instances_of
from rocknroll.envs.swebench.logs import function_of
from rocknroll.envs.swebench.mini import generate as generating
from rocknroll.envs.swebench.mini import trials as trying
from rocknroll.envs.swebench.mini.generate import PLANS, Pool, generate, generated, split_of
from rocknroll.envs.swebench.mini.history import difference, make_repository
from rocknroll.envs.swebench.mini.mutations import Mutation, changed, edits_of
from rocknroll.envs.swebench.mini.mutators import MUTATORS, mutations_of
from rocknroll.envs.swebench.mini.package import Bug, Package, load_package, package_names
from rocknroll.envs.swebench.mini.problems import Failure, failures_of, statement
from rocknroll.envs.swebench.mini.trials import Answer, Outcome, Trials, Verdict, judged
from rocknroll.envs.text import EnvDataError
from rocknroll.sandbox.errors import SandboxLost
from rocknroll.sandbox.fleet import Fleet
from rocknroll.sandbox.leased import LeasedSandbox
from rocknroll.sandbox.runtimes.process import ProcessRuntime
from rocknroll.sandbox.spec import SandboxSpec

EXAMPLES = {
    "comparison off by one": ("def f(a, b):\n    return a < b\n", "def f(a, b):\n    return a <= b\n"),
    "inverted condition": ("def f(a):\n    if not a:\n        g()\n", "def f(a):\n    if a:\n        g()\n"),
    "wrong connective": ("def f(a, b):\n    return a and b\n", "def f(a, b):\n    return a or b\n"),
    "swapped operands": ("def f(a, b):\n    return (a - 1) - b\n", "def f(a, b):\n    return b - (a - 1)\n"),
    "wrong operator": ("def f(a):\n    a += 2\n", "def f(a):\n    a -= 2\n"),
    "constant off by one": ("def f(a):\n    return g(a, 10)\n", "def f(a):\n    return g(a, 9)\n"),
    "flipped flag": ("def f(a=True):\n    g()\n", "def f(a=False):\n    g()\n"),
    "wrong bound": ("def f(a, i):\n    return a[i + 1 :]\n", "def f(a, i):\n    return a[i :]\n"),
    "missing guard": (
        "def f(a):\n    g()\n    # Nothing below zero.\n    if a < 0:\n        raise ValueError\n    return a\n",
        "def f(a):\n    g()\n    return a\n",
    ),
    "missing statement": ("def f(a):\n    a.sort()\n", "def f(a):\n    pass\n"),
    "wrong variable": ("def f(low, high):\n    return low\n", "def f(low, high):\n    return high\n"),
    "swapped arguments": ("def f(a, b):\n    return g(a, b[0])\n", "def f(a, b):\n    return g(b[0], a)\n"),
    "forgotten argument": ("def f(a):\n    return sorted(a, key=g)\n", "def f(a):\n    return sorted(a)\n"),
    "missing branch": (
        "def f(a):\n    if a:\n        g()\n    else:\n        h()\n    return a\n",
        "def f(a):\n    if a:\n        g()\n    return a\n",
    ),
    "missing copy": ("def f(a):\n    return list(a)\n", "def f(a):\n    return a\n"),
    "wrong method": ("def f(a):\n    return a.lstrip('é')\n", "def f(a):\n    return a.rstrip('é')\n"),
    "wrong exception type": (
        "try:\n    g()\nexcept (KeyError, OSError):\n    h()\n",
        "try:\n    g()\nexcept OSError:\n    h()\n",
    ),
}
"""Of each kind a source and what one of its mutations makes of it."""


@pytest.mark.parametrize("kind", MUTATORS)
def test_every_kind_does_what_it_is_called(kind: str) -> None:
    before, after = EXAMPLES[kind]
    made = [changed({"x.py": before}, [one])["x.py"] for one in mutations_of("x.py", before) if one.kind == kind]
    assert after in made


@cache
def package(name: str) -> Package:
    return load_package(name)


@cache
def pool(name: str) -> Pool:
    return Pool(package(name))


@settings(max_examples=50)
@given(st.sampled_from(package_names()), st.randoms(use_true_random=False))
def test_a_mutation_changes_its_span_and_nothing_else(name: str, rng: random.Random) -> None:
    kinds = pool(name).mutations["train"]
    one = rng.choice(kinds[rng.choice(list(kinds))])
    text = package(name).tree[one.path]
    made = changed(package(name).tree, [one])
    assert list(made) == [one.path]
    assert made[one.path] == text[: one.start] + one.after + text[one.end :] != text
    assert text[one.start : one.end] == one.before
    assert text[: one.start].count("\n") + 1 == one.line
    ast.parse(made[one.path])


def test_mutations_follow_from_the_text_alone() -> None:
    text = package("lrukit").tree["lrukit/lru.py"]
    found = mutations_of("lrukit/lru.py", text)
    assert len(found) > 50
    assert mutations_of("lrukit/lru.py", text) == found


def test_annotations_decorators_and_parts_of_f_strings_stay() -> None:
    source = "@cache(size=1)\ndef f(a: X[1], b) -> Y[2:]:\n    c: Z[3] = f'{a + 4}'\n"
    left = [one for one in mutations_of("x.py", source) if any(digit in one.before for digit in "1234")]
    assert left == []


def test_mutations_that_meet_are_refused() -> None:
    source = "def f(a, b):\n    return a - b < 2\n"
    whole, inner = (next(one for one in mutations_of("x.py", source) if one.before == text) for text in ("a - b", "b"))
    with pytest.raises(ValueError, match="meets another"):
        changed({"x.py": source}, [whole, inner])
    with pytest.raises(ValueError, match="does not fit"):
        changed({"x.py": "def g(): ...\n"}, [whole])


def drawn(name: str, plan: generating.Plan, rng: random.Random) -> list[Mutation]:
    """Mutations as a plan has them; a file with one function has no two for it."""
    members: list[Mutation] = []
    while len(members) < plan.mutations:
        one = pool(name).draw(rng, plan, members, "train")
        members = [] if one is None else [*members, one]
    return members


@settings(max_examples=30)
@given(st.sampled_from(package_names()), st.sampled_from(list(PLANS)), st.randoms(use_true_random=False))
def test_edits_make_the_mutated_tree(name: str, plan: generating.Plan, rng: random.Random) -> None:
    tree = package(name).tree
    files = changed(tree, drawn(name, plan, rng))
    bug = Bug(
        id="b", difficulty="easy", kind="", problem="x" * 80, edits=edits_of(tree, files), hides=("tests/test_x.py::y",)
    )
    assert package(name).wrong(bug) == {**tree, **files}


@settings(max_examples=30)
@given(st.sampled_from(list(PLANS)), st.integers(0, 1000))
def test_draws_follow_the_plan_and_the_seed(plan: generating.Plan, seed: int) -> None:
    members = drawn("lrukit", plan, random.Random(seed))
    assert members == drawn("lrukit", plan, random.Random(seed))
    places = {(one.path, one.function) for one in members}
    files = {one.path for one in members}
    assert len(places) == plan.mutations
    assert plan.difficulty == ("easy" if len(places) == 1 else "medium" if len(places) == 2 > len(files) else "hard")


def test_a_mutation_belongs_to_one_split() -> None:
    split = {name: {one for ones in kinds.values() for one in ones} for name, kinds in pool("inikit").mutations.items()}
    sizes = {name: len(ones) for name, ones in split.items()}
    assert sum(sizes.values()) == len(set.union(*split.values()))
    assert 0.05 < sizes["unseen"] / sum(sizes.values()) < 0.15
    assert 0.05 < sizes["seen"] / sum(sizes.values()) < 0.15


TESTS = ("tests/test_a.py::test_x[1]", "tests/test_a.py::test_x[2]", "tests/test_a.py::test_y", *"uvwz")
PASSING = dict.fromkeys(TESTS, "PASSED")


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        (Answer(PASSING, 0), "no test fails"),
        (Answer({**PASSING, TESTS[1]: "FAILED"}, 1), "kept"),
        (Answer({**PASSING, TESTS[1]: "ERROR"}, 1), "kept"),
        (Answer({**PASSING, TESTS[1]: "FAILED", TESTS[2]: "FAILED"}, 1), "too many tests fail"),
        (Answer({**PASSING, "u": "FAILED"}, 1), "too many tests fail"),
        (Answer({"tests/test_a.py": "ERROR"}, 2), "broken"),
        (Answer(dict.fromkeys(TESTS[1:], "PASSED"), 1), "broken"),
        (Answer({**PASSING, TESTS[1]: "FAILED"}, 0), "broken"),
        (Answer(PASSING, -9), "broken"),
        (Answer(PASSING, 0, timed_out=True), "timed out"),
        (Answer(PASSING, 0, cut=True), "too much output"),
    ],
)
def test_mutants_are_kept_if_few_tests_fail_and_all_report(answer: Answer, outcome: Outcome) -> None:
    """A test that is hidden takes all of its cases along; the file that it is hidden from keeps others."""
    verdict = judged(TESTS, answer)
    assert verdict.outcome == outcome
    assert verdict.failing == (("tests/test_a.py::test_x",) if outcome == "kept" else ())


LOG = """\
.F.FF                                                                    [100%]
=================================== FAILURES ===================================
______________________________ test_halves[a b] _______________________________
tests/test_tiny.py:7: in test_halves
    assert half(3) == 1
E   AssertionError: assert 2 == 1
E    +  where 2 = half(3)
____________________________ test_text_is_refused _____________________________
tests/test_tiny.py:11: in test_text_is_refused
    with pytest.raises(TypeError):
E   Failed: DID NOT RAISE TypeError
_________________________________ test_empty __________________________________
tests/test_tiny.py:11: in test_empty
    half(None)
E   KeyError: <tiny.Key object at 0x7f00aa>

During handling of the above exception, another exception occurred:
tests/test_tiny.py:11: in test_empty
    half(None)
tiny.py:3: in half
    raise TinyError(secret) from error
E   tiny.TinyError: nothing in /tmp/pytest-of-me/pytest-3/x\x1b[2J
==================================== PASSES ====================================
=========================== short test summary info ============================
FAILED tests/test_tiny.py::test_halves[a b] - AssertionError: assert 2 == 1
"""
TINY_TESTS = {
    "tests/test_tiny.py": "from tiny import TinyError, half\n\n\ndef halved(x):\n    return half(x)\n\n\n"
    "def test_halves():\n    assert halved(3) == 1\n\n\ndef test_text_is_refused():\n    halved('')\n\n\n"
    "def test_empty():\n    halved(None)\n"
}
FAILURES = failures_of(LOG)


def test_failures_are_read_from_the_log() -> None:
    found = failures_of(LOG)
    assert found == (
        Failure("tests/test_tiny.py::test_halves", ("AssertionError: assert 2 == 1", "+  where 2 = half(3)")),
        Failure("tests/test_tiny.py::test_text_is_refused", ("Failed: DID NOT RAISE TypeError",)),
        Failure("tests/test_tiny.py::test_empty", ("tiny.TinyError: nothing in /tmp/x\ufffd[2J",)),
    )


@settings(max_examples=40)
@given(st.randoms(use_true_random=False))
def test_statements_tell_what_was_expected_and_what_came(rng: random.Random) -> None:
    text = statement("tiny", TINY_TESTS, [failure.test for failure in FAILURES], FAILURES, rng)
    assert len(text) >= 80
    for fact in ("`half(3)`", "`2`", "`1`", "`TypeError`", "`tiny.TinyError: nothing in", "`half`"):
        assert fact in text, fact
    assert "Text is refused" in text
    for foreign in ("test_", "tests/", "halved", "secret", "KeyError"):
        assert foreign not in text, foreign


def test_statements_are_worded_by_seed() -> None:
    tests = [FAILURES[0].test]
    texts = [statement("tiny", TINY_TESTS, tests, FAILURES, random.Random(seed)) for seed in range(40)]
    assert len(set(texts)) > 20
    assert texts[7] == statement("tiny", TINY_TESTS, tests, FAILURES, random.Random(7))


@pytest.mark.parametrize(
    ("said", "facts"),
    [
        ("assert ['a == b'] == ['a', 'b']", ("`['a == b']`", "`['a', 'b']`")),
        ("assert {1: (2,)} is None", ("`{1: (2,)}`", "`None`")),
        ("assert not True\n+  where True = is_odd(2)", ("`is_odd(2)`", "`True`", "`False`")),
        ("assert 'x`y' == ''", ("``'x`y'``", "`''`")),
        ("Failed: DID NOT RAISE <class 'tiny.TinyError'>", ("`TinyError`",)),
        (
            "AssertionError: Regex pattern did not match.\nExpected regex: 'odd'\nActual message: 'no'",
            ("'odd'", "'no'"),
        ),
        ("AssertionError: Regex pattern did not match.\nRegex: 'odd'\nInput: 'no'", ("'odd'", "'no'")),
        ("Failed: DID NOT RAISE any of (TypeError, ValueError)", ("`TypeError` and `ValueError`",)),
    ],
)
def test_explanations_of_pytest_are_understood(said: str, facts: Sequence[str]) -> None:
    test = FAILURES[0].test
    text = statement("tiny", TINY_TESTS, [test], [Failure(test, tuple(said.split("\n")))], random.Random(0))
    for fact in facts:
        assert fact in text, text


class FakeTrials:
    """Decides by the content of the files which mutants are kept, and takes its time by chance."""

    def __init__(self, packages: Sequence[Package], jobs: int) -> None:
        self.outcomes: Counter[Outcome] = Counter()
        self._chance = random.Random(jobs)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def noticed(self, package: Package, files: Mapping[str, str]) -> Verdict:
        for _ in range(self._chance.randrange(20)):
            await asyncio.sleep(0)
        rng = random.Random(json.dumps(sorted(files.items())))
        # One test shows everything: whatever is noticed alone is noticed among others.
        tests = {"tests/test_lru.py::test_missing_key", f"tests/{rng.choice(['test_lru', 'test_ttl'])}.py::test_x"}
        known = {function_of(test) for test in package.tests}
        return Verdict("kept", tuple(sorted(tests & known))) if rng.random() < 0.5 else Verdict("no test fails")

    verdict = noticed


@pytest.fixture
def fake_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither sandboxes nor repositories."""
    monkeypatch.setattr(generating, "Trials", FakeTrials)
    monkeypatch.setattr(
        generating, "row_of", lambda package, bug: {"instance_id": f"rocknroll__{package.name}-{bug.id}"}
    )


def ids(count: int, seed: int = 0, jobs: int = 2, **options: Any) -> list[str]:
    made = asyncio.run(generated([package("lrukit")], count, seed, jobs=jobs, **options))
    return [row["instance_id"] for row in made.rows]


@pytest.mark.usefixtures("fake_trials")
def test_what_is_made_depends_on_the_seed_and_not_on_how_fast() -> None:
    made = ids(12)
    assert len(set(made)) == 12
    assert ids(12, jobs=5) == made
    assert ids(5) == made[:5]
    assert not set(ids(5, seed=1)) & set(made)


@pytest.mark.usefixtures("fake_trials")
def test_instances_are_of_the_split_asked_for_and_not_of_those_excluded() -> None:
    made = ids(6, split="unseen")
    assert {split_of(name) for name in made} == {"unseen"}
    assert not set(ids(4, split="unseen", exclude=made)) & set(made)
    assert {split_of(name) for name in ids(30)} >= {"train", "seen"}


@pytest.mark.usefixtures("fake_trials")
def test_it_is_told_when_there_are_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generating, "PLANS", {generating.Plan("easy", 1): 1.0})
    monkeypatch.setattr(generating, "MOST_GIVEN_UP", 5)
    with pytest.raises(EnvDataError, match="no more than") as told:
        ids(100, split="unseen")
    there = int(str(told.value).partition("than ")[2].split()[0])
    assert 0 < there < sum(map(len, pool("lrukit").mutations["unseen"].values()))


@pytest.mark.usefixtures("fake_trials")
def test_rows_are_handed_out_as_they_are_made() -> None:
    seen: list[str] = []
    asked = ids(4, on_row=lambda row: seen.append(row["instance_id"]), progress=lambda done, _: seen.append(str(done)))
    assert seen == [asked[0], "1", asked[1], "2", asked[2], "3", asked[3], "4"]


def test_packages_that_there_are_not_are_named() -> None:
    with pytest.raises(EnvDataError, match="no package nonesuch; it has almanac"):
        generate(1, 0, ["lrukit", "nonesuch"])


TINY = Package(
    "tiny",
    {
        "tiny.py": "def double(number):\n    return number * 2\n",
        "tests/test_tiny.py": "from tiny import double\n\n"
        "def test_two():\n    assert double(2) == 4\n\n"
        "def test_none():\n    assert double(0) == 0\n\n"
        "def test_one():\n    assert double(1) == 2\n",
    },
    (),
    ("tests/test_tiny.py::test_two", "tests/test_tiny.py::test_none", "tests/test_tiny.py::test_one"),
)
MUTANTS: dict[Outcome, str] = {
    "kept": "    return number * 2 if number != 2 else 5",
    "no test fails": "    return number + number",
    "too many tests fail": "    return 7",
    "broken": "    return nothing(",
    "timed out": "    while True: pass",
    "too much output": "    print('x' * 2_000_000)\n    return number * 2",
    "flaky": "    import os\n    return number * 2 + (number == 1 and os.environ['PYTHONHASHSEED'] == '1')",
}


def mutant(body: str) -> dict[str, str]:
    return {"tiny.py": f"def double(number):\n{body}\n"}


async def lost(*_: object) -> Answer:
    raise SandboxLost("gone")


def test_mutants_that_would_make_no_task_are_dropped_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trying, "DEADLINE_S", 0.0)

    async def outcomes() -> None:
        async with Trials([TINY], jobs=2) as trials:
            found = await asyncio.gather(*(trials.verdict(TINY, mutant(body)) for body in MUTANTS.values()))
            assert [verdict.outcome for verdict in found] == list(MUTANTS)
            assert found[0].failing == ("tests/test_tiny.py::test_two",)
            assert found[0].failures[0].said[0] == "assert 5 == 4"
            with monkeypatch.context() as patch:
                patch.setattr(trying, "WALL_FACTOR", 1.0)
                sleeper = await trials.verdict(TINY, mutant("    import time\n    time.sleep(3600)"))
                patch.setattr(trying, "_answer", lost)
                killer = await trials.verdict(TINY, mutant("    ..."))
            assert (sleeper.outcome, killer.outcome) == ("timed out", "sandbox lost")
            assert trials.outcomes == Counter([*MUTANTS, "timed out", "sandbox lost"])

    asyncio.run(outcomes())


def test_a_package_whose_own_tests_fail_is_refused() -> None:
    wrong = Package("tiny", {**TINY.tree, "tiny.py": "def double(number):\n    return 0\n"}, (), TINY.tests)

    async def enter() -> None:
        async with Trials([wrong], jobs=1):
            pass

    with pytest.raises(EnvDataError, match="tests of tiny do not pass here though nothing is wrong"):
        asyncio.run(enter())


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    return generate(2, seed=0, packages=("lrukit",))


def test_generated_rows_are_instances(rows: list[dict[str, Any]]) -> None:
    instances, wrong = instances_of((row["instance_id"], row) for row in rows)
    assert not wrong
    assert len(instances) == 2
    for row in rows:
        name = row["repo"].partition("/")[2]
        assert row["instance_id"].startswith(f"rocknroll__{name}-mut-")
        assert row["difficulty"] in ("easy", "medium", "hard")
        assert row["PASS_TO_PASS"]
        assert set(row["FAIL_TO_PASS"]) <= set(package(name).tests)


def test_the_same_seed_gives_the_same_rows(rows: list[dict[str, Any]]) -> None:
    assert generate(1, seed=0, packages=("lrukit",), jobs=1) == rows[:1]


def test_a_row_has_nothing_of_its_hidden_tests_or_its_solution(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        right, base = package(row["repo"].partition("/")[2]).tree, json.loads(row["tree"])
        lines = [line[1:].strip() for line in (row["patch"] + row["test_patch"]).splitlines() if line[:1] in "+-"]
        for line in lines:
            assert len(line) < 12 or line not in row["problem_statement"], line
        for test in row["FAIL_TO_PASS"]:
            name = function_of(test).rpartition("::")[2]
            assert not any(f"def {name}(" in text for text in base.values()), name
        differing = {path for path, text in right.items() if base[path] != text and not path.startswith("tests/")}
        assert differing == {line[6:] for line in row["patch"].splitlines() if line.startswith("+++ b/")}


def graded(row: Mapping[str, Any], folder: Path) -> list[Grade]:
    """Grades of the solution, and of a patch that does nothing, in sandboxes made from the row alone."""
    tree = json.loads(row["tree"])
    assert make_repository(tree, folder) == row["base_commit"]
    idle = difference({**tree, "NOTES.md": "nothing\n"}, folder)
    variables = trying._spec(folder).variables
    spec = SandboxSpec(name="grade", template=folder, bare=True, readable=(trying.tools_folder(),), variables=variables)

    async def both() -> list[Grade]:
        async with Fleet(spec, size=2, runtime=ProcessRuntime()) as fleet:

            @contextlib.asynccontextmanager
            async def fresh() -> AsyncIterator[LeasedSandbox]:
                sandbox = await fleet.lease("grader")
                try:
                    yield sandbox
                finally:
                    await sandbox.release(recycle=True)

            instance = instance_of(row)
            return [await grade(instance, patch, fresh, workdir=".", timeout_s=60) for patch in (row["patch"], idle)]

    return asyncio.run(both())


def test_the_solution_resolves_and_doing_nothing_does_not(rows: list[dict[str, Any]], tmp_path: Path) -> None:
    for row in rows:
        folder = tmp_path / row["instance_id"]
        folder.mkdir()
        gold, nothing = graded(row, folder)
        assert gold.resolved, (gold, gold.logs)
        assert (nothing.resolved, nothing.why, nothing.cheating) == (False, "tests failed", 0)
