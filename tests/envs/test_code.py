"""Code: a program passes a test by printing or returning what is right, and by nothing else that it does."""

from __future__ import annotations

import ast
import asyncio
import json
import os
import re
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from textwrap import dedent
from typing import Any, cast

import gymnasium
import pytest
import pytest_asyncio
from gymnasium.utils.env_checker import check_env
from hypothesis import given
from hypothesis import strategies as st

from rocknroll.envs.reasoning import code_exercises, code_runner
from rocknroll.envs.reasoning.code_answer import LONGEST_PROGRAM, candidate_of, same_output, same_value
from rocknroll.envs.reasoning.code_config import CodeConfig
from rocknroll.envs.reasoning.code_exercises import CHANGE, KEEP, LISTS, TAKE, Exercise, exercises
from rocknroll.envs.reasoning.code_family import CodeFamily, CodePlaces
from rocknroll.envs.reasoning.code_grading import Trial
from rocknroll.envs.reasoning.code_problem import Case, CodeProblem, problem_of
from rocknroll.envs.reasoning.config import SPLITS
from rocknroll.envs.reasoning.sources import WrongRow
from rocknroll.envs.text import EnvDataError, OutsideFamily, Task
from rocknroll.sandbox.errors import ExecFailed, FleetExhausted, RuntimeUnavailable, SandboxError
from rocknroll.sandbox.leased import LeasedSandbox
from rocknroll.sandbox.results import ExecResult

BASE = "rocknroll-base:local"
"""The image that .ci/docker-base makes."""
SMALL = {"train_exercises": 60, "seen_exercises": 8, "unseen_exercises": 8}
FAST = {**SMALL, "sandboxes": 2, "min_timeout_s": 10.0, "max_timeout_s": 20.0}

DOUBLED = {
    "question": "Print the double of the number that you read.",
    "input_output": json.dumps({"inputs": ["4\n", "-7\n"], "outputs": ["8\n", "-14"]}),
    "solutions": ["print(2 * int(input()))"],
}
JOINED = {
    "question": "Join the words.",
    "input_output": {"fn_name": "join", "inputs": [[["a", "b"], "-"], [[], ""]], "outputs": ["a-b", ""]},
    "solutions": "def join(words, by):\n    return by.join(words)",
}


# The answer: what is taken from a response, and when an output is right. Nothing is run.


@pytest.mark.parametrize(
    ("response", "source"),
    [
        ("Here:\n```python\nprint(1)\n```\ndone", "print(1)"),
        ("```py\nprint(1)\n```", "print(1)"),
        ("```Python3\nprint(1)\n```", "print(1)"),
        ("```python\nprint(1)\n```\nor\n```python\nprint(2)\n```", "print(2)"),
        ("```python\nprint(1)\n```\nrun it:\n```bash\npython a.py\n```", "print(1)"),
        ("` ` ` python print ( 1 ) ` ` `", "print ( 1 )"),
        ("```python\ndef f():\n    return 1\n```", "def f():\n    return 1"),
    ],
)
def test_the_last_python_block_is_the_program(response: str, source: str) -> None:
    assert candidate_of(response).source == source


@pytest.mark.parametrize(
    ("response", "why"),
    [
        ("print(1)", "no ```python block"),
        ("```\nprint(1)\n```", "no ```python block"),
        ("```python\nprint(1)", "no ```python block"),
        ("```python\n\n```", "is empty"),
        ("```python\n" + "#" * (LONGEST_PROGRAM + 1) + "\n```", "longer than"),
    ],
)
def test_a_response_without_a_program_is_told_why(response: str, why: str) -> None:
    assert why in candidate_of(response).problem


@given(st.text(alphabet=st.sampled_from(list("`python 3\n#x")), max_size=200))
def test_anything_may_be_said(text: str) -> None:
    found = candidate_of(text)
    assert bool(found.source) != bool(found.problem)


@pytest.mark.parametrize(
    ("expected", "printed", "right"),
    [
        ("1 2\n3", b"1 2 \n3\n\n", True),
        ("1 2\n3", b"1 2 3", False),
        ("3", b"3.0", False),
        ("0.3", b"0.30000000000000004", True),
        ("0.3", b"0.31", False),
        ("1e-9", b"0", True),
        ("100000000.5", b"100000000.4", True),
        ("100000000", b"100000001", False),
        ("inf", b"nan", False),
        ("0.5", b"nan", False),
        ("yes", b"YES", False),
        ("", b"", True),
        ("x", b"\xff", False),
        ("1", b"1\n1", False),
    ],
)
def test_printed_words_and_lines_have_to_be_the_same(expected: str, printed: bytes, right: bool) -> None:
    assert same_output(expected, printed, 1e-6) is right


@pytest.mark.parametrize(
    ("expected", "got", "right"),
    [
        (3, 3, True),
        (3, 3.0, True),
        (3, 3.0000001, False),
        (3, True, False),
        (1, True, False),
        (True, 1, False),
        (True, True, True),
        (0.3, 0.1 + 0.2, True),
        (0.3, float("nan"), False),
        (0.5, 10**400, False),
        ([1, [2.5]], [1, [2.5000000001]], True),
        ([1, 2], [1, 2, 3], False),
        ([3], 3, True),
        ([3], [3], True),
        ([[3]], [3], True),
        ([3, 4], 3, False),
        ({"a": 1}, {"a": 1}, True),
        ({"a": 1}, {"a": 1, "b": 2}, False),
        (None, None, True),
        (None, 0, False),
        ("3", 3, False),
        ("", None, False),
    ],
)
def test_returned_values_have_to_be_the_same(expected: Any, got: Any, right: bool) -> None:
    assert same_value(expected, got, 1e-6) is right


# Rows of data sets.


def read(row: dict[str, Any], **columns: str) -> CodeProblem:
    config = CodeConfig.model_validate({"columns": columns})
    return problem_of("7", row, config.columns, None)


def test_rows_of_programs_and_functions_are_read() -> None:
    program, function = read(DOUBLED), read(JOINED)
    assert (program.kind, program.function, program.cases[0]) == ("program", "", Case("4\n", "8\n"))
    assert program.solution == "print(2 * int(input()))"
    assert (function.kind, function.function, function.cases[1]) == ("function", "join", Case([[], ""], ""))
    assert "named `join`" in function.question


def test_rows_with_a_list_of_tests_are_read() -> None:
    stdin = [{"input": "4\n", "output": "8", "testtype": "stdin"}]
    assert read({"question": "Q", "cases": json.dumps(stdin)}, tests="cases").cases == (Case("4\n", "8"),)
    functional = {
        "question": "Q",
        "cases": [{"input": "[1, 2]\n3", "output": "[6]", "testtype": "functional"}],
        "metadata": '{"func_name": "scale"}',
        "starter_code": "class Solution:\n    def scale(self, xs: List[int], by: int) -> List[int]:\n",
    }
    problem = read(functional, tests="cases")
    assert (problem.function, problem.cases) == ("scale", (Case([[1, 2], 3], [6]),))
    assert "Begin with:\n```python\nclass Solution" in problem.question


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"input_output": None}, "its column `input_output` is empty; its columns: input_output, question, solutions"),
        ({"input_output": "{"}, "text that is not JSON"),
        ({"input_output": 7}, "neither an object"),
        ({"input_output": {"inputs": ["1"]}}, "no list `outputs`"),
        ({"input_output": {"inputs": ["1"], "outputs": []}}, "1 inputs and 0 outputs"),
        ({"input_output": {"inputs": [], "outputs": []}}, "has no test"),
        ({"input_output": {"inputs": [1], "outputs": ["1"]}}, "is int and not text"),
        ({"input_output": {"fn_name": "f(", "inputs": [[1]], "outputs": [1]}}, "which is no name"),
        ({"input_output": {"fn_name": "f", "inputs": [1], "outputs": [1]}}, "not a list of its arguments"),
        ({"input_output": [{"input": "1"}]}, "no `input` or no `output`"),
        ({"input_output": [{"input": "1", "output": "1", "testtype": "functional"}]}, "no column `metadata`"),
        ({"input_output": {"inputs": ["1"], "outputs": ["1" * (3 << 20)]}}, "an output of 3145728 bytes"),
        ({"question": " "}, "is str without content"),
    ],
)
def test_rows_that_are_no_problem_are_told_why(change: dict[str, Any], why: str) -> None:
    with pytest.raises(WrongRow) as caught:
        read({**DOUBLED, **change})
    assert why in str(caught.value)


def test_problems_are_read_from_a_file_and_wrong_lines_are_named(tmp_path: Path) -> None:
    source = tmp_path / "tasks.jsonl"
    source.write_text("\n".join(map(json.dumps, (DOUBLED, JOINED))))
    family = CodeFamily({"data": {"train": str(source)}})
    assert [(task.id, task.kind) for task in family.tasks("train")] == [("train-1", "program"), ("train-2", "function")]
    first, _ = family.expert_episodes("train", 2, seed=0)
    assert first.steps[0].action == "```python\nprint(2 * int(input()))\n```"
    source.write_text(f"{json.dumps(DOUBLED)}\n{json.dumps({'question': 'Q'})}\n")
    with pytest.raises(EnvDataError, match=r"tasks\.jsonl line 2: it has no column `input_output`"):
        CodeFamily({"data": str(source)}).prepare()


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({"min_timeout_s": 9, "max_timeout_s": 3}, "must not exceed `max_timeout_s`"),
        ({"exercises": 3}, "exercises"),
        ({"runtime": "none"}, "process"),
    ],
)
def test_impossible_settings_are_refused(config: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        CodeFamily(config)


# Generated exercises.


def test_splits_share_no_exercise_and_unseen_ones_no_combination() -> None:
    config = CodeConfig(train_exercises=600, seen_exercises=60, unseen_exercises=60)
    found = {split: exercises(config, split) for split in SPLITS}
    assert [len(found[split]) for split in SPLITS] == [600, 60, 60]
    combinations = {split: {(e.keep, e.change, e.take) for e in of_split} for split, of_split in found.items()}
    assert not combinations["unseen"] & (combinations["train"] | combinations["seen"])
    assert not {e.id for e in found["train"]} & {e.id for e in found["seen"]}
    questions = [e.question for of_split in found.values() for e in of_split]
    assert len(set(questions)) == len(questions)


def test_more_exercises_than_there_are_is_an_error_that_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code_exercises, "PATIENCE", 3)
    with pytest.raises(EnvDataError, match="lower `train_exercises`, or give `data`"):
        CodeFamily().prepare()


@pytest.mark.parametrize("form", ["program", "function"])
@pytest.mark.parametrize("take", TAKE)
def test_every_solution_does_what_its_exercise_says(form: str, take: str, capsys: pytest.CaptureFixture[str]) -> None:
    for keep in KEEP:
        for change in CHANGE:
            exercise = Exercise(form, keep, 3 * KEEP[keep].has_number, change, 4 * CHANGE[change].has_number, take)
            problem = exercise.problem()
            for case in problem.cases:
                names: dict[str, Any] = {"input": lambda line=case.given: line}
                exec(problem.solution, names)
                if form == "function":
                    assert same_value(case.expected, names["f"](*case.given), 0.0), problem
                else:
                    assert same_output(case.expected, capsys.readouterr().out.encode(), 0.0), problem
    assert (take in LISTS) == isinstance(exercise.result([1]), list)


def test_a_word_tokenizer_can_say_every_solution() -> None:
    family = CodeFamily(SMALL)
    known = set(family.vocabulary())
    for episode in family.expert_episodes("train", 60, seed=0):
        (step,) = episode.steps
        assert set(step.action.split(" ")) <= known
        assert candidate_of(step.action).source in step.action


# Real sandboxes.

PROBLEMS = {
    "double": read(DOUBLED),
    "join": read(JOINED),
    "half": CodeProblem("half", "function", "Halve.", (Case([3], 1.5), Case([4], 2.0), Case([5], 2.5)), "half"),
}


class Bench:
    """Tries programs on the three problems."""

    def __init__(self, places: CodePlaces) -> None:
        self._grader = places.grader
        self.places = places

    async def why(self, problem: str, source: str) -> str:
        return (await self._grader.grade(PROBLEMS[problem], dedent(source), "test")).why


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def bench() -> AsyncIterator[Bench]:
    family = CodeFamily({**FAST, "processes": 24, "memory_bytes": 256 << 20})
    async with family.places(2) as places:
        yield Bench(places)


inside = pytest.mark.asyncio(loop_scope="module")

FORGERIES = {
    "prints what a right result looks like": (
        "half",
        """
        def half(n):
            print('{"value": 1.5}')
            return 0
        """,
    ),
    "writes a result to every descriptor": (
        "half",
        """
        import os
        def half(n):
            for fd in range(3, 20):
                try:
                    os.write(fd, b'\\n{"value": 1.5}\\n')
                except OSError:
                    pass
            os._exit(0)
        """,
    ),
    "is equal to everything": (
        "half",
        """
        class Any(float):
            def __eq__(self, other):
                return True
        def half(n):
            return Any(0)
        """,
    ),
    "replaces json": (
        "half",
        """
        import json
        json.dumps = lambda *a, **k: '{"value": 1.5}'
        def half(n):
            return 0
        """,
    ),
    "replaces the standard output": (
        "double",
        """
        import sys, io
        sys.stdout = io.StringIO()
        print(2 * int(input()))
        """,
    ),
    "prints every answer": (
        "double",
        """
        for n in range(-20, 20):
            print(n)
        """,
    ),
    "looks for the expected outputs": (
        "double",
        """
        import glob
        found = ""
        for pattern in ("/proc/*/environ", "/proc/*/cmdline", "/proc/*/maps", "**/*", "/tmp/*"):
            for name in glob.glob(pattern, recursive=True):
                try:
                    found += open(name, errors="replace").read()
                except OSError:
                    pass
        print(8 if "-14" in found else "nothing")
        """,
    ),
    "remembers the first input for the second": (
        "double",
        """
        import os
        n = open("seen").read() if os.path.exists("seen") else input()
        open("seen", "w").write(n)
        print(2 * int(n))
        """,
    ),
}


@inside
@pytest.mark.parametrize("forgery", FORGERIES)
async def test_a_forged_result_is_wrong(bench: Bench, forgery: str) -> None:
    problem, source = FORGERIES[forgery]
    assert "correct" not in await bench.why(problem, source)


ENDINGS = {
    "raises": ("double", "1 / 0", "test 1 of 2: raised ZeroDivisionError: division by zero"),
    "does not parse": ("half", "def half(:", "test 1 of 3: raised SyntaxError"),
    "has no such function": ("half", "def other(n): return n / 2", "raised KeyError: 'half'"),
    "exits early": ("half", "def half(n): raise SystemExit(0)", "raised SystemExit"),
    "exits hard": ("half", "import os; os._exit(0)", "ended before it returned"),
    "returns what is not JSON": ("half", "def half(n): return {n}", "raised TypeError"),
    "is right twice": ("half", "def half(n): return n / 2 if n < 5 else 0", "test 3 of 3: wrong answer"),
    "returns what nobody can read": (
        "half",
        """
        import json
        def half(n):
            json.encoder.c_make_encoder = None
            json.encoder.JSONEncoder.encode = lambda *_: "[" * 30000
        """,
        "cannot be read",
    ),
    "floods the output": ("double", "print('x' * 5_000_000)", "printed more than"),
    "fills memory": ("double", "x = bytearray(1 << 30); x[:] = b'1' * (1 << 30)", "signal 9|MemoryError"),
    "fills memory with children": (
        "double",
        """
        import os, time
        for _ in range(8):
            if not os.fork():
                x = b"1" * (60 << 20)
                time.sleep(3)
                os._exit(0)
        x = b"1" * (100 << 20)
        for _ in range(8):
            os.wait()
        print("nothing")
        """,
        "wrong answer|signal 9|MemoryError|timed out",
    ),
    "kills its parent": (
        "double",
        """
        import os
        for pid in (os.getppid(), 1):
            try:
                os.kill(pid, 9)
            except OSError:
                pass
        print(2 * int(input()))
        """,
        "correct",
    ),
    "kills everybody": ("double", "import os; os.kill(-1, 9)", "raised ProcessLookupError|signal 9"),
    "asks the network": (
        "double",
        "import socket; socket.create_connection(('1.1.1.1', 80), 2)",
        "raised OSError|raised ConnectionRefusedError",
    ),
    "imports this package": ("double", "import rocknroll", "raised ModuleNotFoundError"),
    "prints what a terminal obeys": ("double", "raise ValueError('\\x1b[31mred')", r"raised ValueError:  \[31mred"),
}


@inside
@pytest.mark.parametrize("ending", ENDINGS)
async def test_a_verdict_says_how_a_program_ended(bench: Bench, ending: str) -> None:
    problem, source, why = ENDINGS[ending]
    said = await bench.why(problem, source)
    assert re.search(why, said), said


RIGHT = {
    "a program": ("double", "print(2 * int(input()))"),
    "one under a main guard": (
        "double",
        """
        if __name__ == "__main__":
            print(2 * int(input()))
        """,
    ),
    "a function that prints": (
        "join",
        """
        def join(words, by):
            print("debugging", words)
            return by.join(words)
        """,
    ),
    "a method": (
        "join",
        """
        class Solution:
            def join(self, words: List[str], by: str) -> str:
                return by.join(words)
        """,
    ),
    "one that leaves a thread": (
        "half",
        """
        import threading, time
        threading.Thread(target=time.sleep, args=(60,)).start()
        def half(n):
            return n / 2
        """,
    ),
}


@inside
@pytest.mark.parametrize("right", RIGHT)
async def test_right_programs_of_every_form_pass(bench: Bench, right: str) -> None:
    assert await bench.why(*RIGHT[right]) == "correct"


class Crowded:
    """A sandbox in which no command can be started any more after the first so many."""

    def __init__(self, room: int) -> None:
        self._room = room

    async def write(self, path: str, data: bytes) -> None:
        pass

    async def exec(self, command: Any, timeout_s: float, stdin: bytes, output_bytes: int) -> ExecResult:
        if self._room == 0:
            raise ExecFailed("cannot run ['python']: Resource temporarily unavailable")
        self._room -= 1
        return ExecResult(0, str(2 * int(stdin)).encode(), b"", 0, 0, False, 0.1)


@pytest.mark.asyncio
async def test_a_program_that_leaves_no_room_for_the_next_test_is_graded_and_a_sandbox_without_any_is_an_error() -> (
    None
):
    def trial(room: int) -> Trial:
        return Trial(cast(LeasedSandbox, Crowded(room)), ["python"], PROBLEMS["double"], CodeConfig(partial=True))

    grade = await trial(1).grade("", 2.0)
    assert (grade.passed, grade.correct) == (1, False)
    assert "test 2 of 2: what earlier tests left running keeps it from starting" in grade.why
    assert (await trial(2).grade("", 2.0)).correct
    with pytest.raises(ExecFailed):
        await trial(0).grade("", 2.0)


@inside
async def test_one_program_finds_nothing_of_the_one_before(bench: Bench) -> None:
    await bench.why("double", "open('/tmp/left', 'w').write('8'); open('left', 'w').write('8')")
    said = await asyncio.gather(
        *(bench.why("double", "print(open('/tmp/left').read() or open('left').read())") for _ in range(3))
    )
    assert all("FileNotFoundError" in why for why in said)


@inside
async def test_an_answer_is_played_from_its_question_to_its_reward() -> None:
    family = CodeFamily(FAST)
    assert isinstance(family, OutsideFamily)
    async with family.places(4) as places:
        for episode in family.expert_episodes("train", 4, seed=0):
            task = Task(episode.task_id, episode.kind)
            async with places.lease("me", task) as env:
                assert (await env.reset())[0] == episode.steps[0].observation
                _, reward, terminated, _, info = await env.step(episode.steps[0].action)
                assert (reward, terminated, info["won"], info["metrics"]["tests_passed"]) == (1.0, True, True, 1.0)
                with pytest.raises(gymnasium.error.ResetNeeded):
                    await env.step("again")
            async with places.lease("me", task) as env:
                await env.reset()
                _, reward, terminated, _, info = await env.step("no program")
                assert (reward, terminated, info["won"], info["invalid_action"]) == (0.0, True, False, True)


@inside
async def test_partial_credit_is_the_share_of_tests_and_nothing_after_a_timeout(tmp_path: Path) -> None:
    row = {"question": "Q", "input_output": {"fn_name": "f", "inputs": [[1], [2], [3], [4]], "outputs": [1, 2, 3, 4]}}
    (tmp_path / "t.jsonl").write_text(json.dumps(row))
    data = {"train": str(tmp_path / "t.jsonl")}
    family = CodeFamily({**FAST, "data": data, "partial": True, "min_timeout_s": 5.0, "max_timeout_s": 5.0})
    task = family.tasks("train")[0]

    async def reward(body: str) -> float:
        async with places.lease("me", task) as env:
            await env.reset()
            return (await env.step(f"```python\ndef f(n):\n    {body}\n```"))[1]

    async with family.places(1) as places:
        assert await reward("return n if n != 2 else 0") == 0.75
        assert await reward("return n if n != 2 else __import__('time').sleep(60)") == 0.0


@inside
async def test_a_timeout_follows_the_longest_right_answer_of_its_problem() -> None:
    family = CodeFamily({**FAST, "min_timeout_s": 0.5, "max_timeout_s": 20.0})
    async with family.places(1) as places:
        grader = places.grader
        problem = CodeProblem("sleepy", "program", "Q", (Case("", "1"),))
        asleep = "import time\ntime.sleep({})\nprint(1)"
        right = await grader.grade(problem, asleep.format(1.0), "me")
        assert right.correct and 1.0 <= right.took_s < 10.0
        endless = await grader.grade(problem, "while True: pass", "me")
        assert endless.timed_out and not endless.correct
        assert 1.5 <= endless.took_s < 1.5 * right.took_s + 3.0
        assert endless.reward(partial=True) == 0.0
        assert "timed out" in endless.why


@inside
async def test_a_lost_sandbox_is_an_error_and_not_a_reward() -> None:
    family = CodeFamily(FAST)
    async with family.places(1) as places:
        fleet = places.grader._fleet
        problem = CodeProblem("slow", "program", "Q", (Case("", "1"),))
        grading = asyncio.create_task(places.grader.grade(problem, "import time\ntime.sleep(30)", "me"))
        while not any(row["state"] == "LEASED" for row in fleet.snapshot()):
            await asyncio.sleep(0.01)
        instance = fleet.instance(fleet.snapshot()[0]["id"])
        assert instance is not None
        await instance.kill()
        with pytest.raises(SandboxError):
            await grading


def test_gymnasium_finds_it_and_accepts_it() -> None:
    env = gymnasium.make("rocknroll/Code-v0", config=FAST)
    try:
        check_env(env.unwrapped, skip_render_check=True)
        episode = CodeFamily(FAST).expert_episodes("train", 1, seed=0)[0]
        env.reset(options={"task": episode.task_id})
        assert env.step(episode.steps[0].action)[1] == 1.0
    finally:
        env.close()


@inside
async def test_the_same_in_a_container() -> None:
    family = CodeFamily({**FAST, "runtime": "docker", "image": BASE})
    try:
        async with family.places(1) as places:
            grader = places.grader
            assert (await grader.grade(PROBLEMS["double"], "print(2 * int(input()))", "me")).correct
            assert "ZeroDivisionError" in (await grader.grade(PROBLEMS["half"], "1 / 0", "me")).why
    except (RuntimeUnavailable, FleetExhausted) as error:
        if os.environ.get("ROCKNROLL_REQUIRE_DOCKER"):
            raise
        pytest.skip(str(error))


def test_the_runner_needs_nothing_but_the_standard_library() -> None:
    tree = ast.parse(Path(str(code_runner.__file__)).read_text())
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    assert imported <= sys.stdlib_module_names
    assert not any(isinstance(node, ast.ImportFrom) for node in ast.walk(tree))
