"""Math: only a right answer, worked out, earns a reward; whatever else is said is wrong, in bounded time."""

from __future__ import annotations

import json
import re
import threading
import time
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import gymnasium
import pyarrow
import pytest
from gymnasium.utils.env_checker import check_env
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from rocknroll.envs.reasoning import math_stories
from rocknroll.envs.reasoning.config import SPLITS
from rocknroll.envs.reasoning.countdown import compute
from rocknroll.envs.reasoning.family import CountdownFamily
from rocknroll.envs.reasoning.math_answer import LONGEST_ANSWER, answer_of, number_of
from rocknroll.envs.reasoning.math_config import MathConfig
from rocknroll.envs.reasoning.math_env import MathEnv
from rocknroll.envs.reasoning.math_family import MathFamily
from rocknroll.envs.reasoning.math_stories import KINDS, Story, retold, split_of, stories
from rocknroll.envs.reasoning.math_verdict import verdict
from rocknroll.envs.remote import RemoteEnv
from rocknroll.envs.rows import BrokenRow, load_rows
from rocknroll.envs.text import EnvDataError
from rocknroll.sandbox.fleet import Fleet
from rocknroll.sandbox.runtimes.process import ProcessRuntime
from rocknroll.sandbox.spec import EnvSpec, SandboxSpec

SMALL = {"train_problems": 300, "seen_problems": 40, "unseen_problems": 40}
FAMILY = MathFamily(SMALL)
QUESTION = "Expand $(x+1)^2$ as far as it goes, or say what 12*3 is."


def right(response: str, gold: str, timeout_s: float = 5.0) -> bool:
    return verdict(response, QUESTION, gold, timeout_s).correct


@pytest.mark.parametrize(
    ("response", "gold"),
    [
        (r"so it is \boxed{36}", "36"),
        ("<answer>36</answer>", "36"),
        (r"<answer>\boxed{36}</answer> done", "36"),
        ("< answer > 36 < / answer >", "36"),
        ("12 * 3 = 36 answer 36", "36"),
        ("it is 36.", "36"),
        (r"\boxed{35} no, \boxed{36}", "36"),
        (r"\boxed{x = 36}", "36"),
        (r"\boxed{1{,}200 \text{ apples}}", "1200"),
        ("<answer>$1,200</answer>", "1200"),
        (r"\boxed{36}", r"The answer is \boxed{36}"),
        (r"\boxed{\frac{1}{2}}", "0.5"),
        (r"\boxed{\frac12}", "1/2"),
        (r"\boxed{-4}", "-4"),
        (r"\boxed{50\%}", r"50\%"),
        (r"\boxed{2\sqrt{3}}", r"\sqrt{12}"),
        (r"\boxed{1 + 2x + x^2}", "x^2+2x+1"),
        (r"\boxed{\{2, 1\}}", r"\{1,2\}"),
        (r"\boxed{\text{Paris}}", "paris"),
        (r"\boxed{C}", "C"),
        (r"\boxed{-y + x}", "x - y"),
        (r"\boxed{\sin(x)}", r"\sin x"),
        (r"\boxed{Right Triangle}", r"\text{right triangle}"),
    ],
)
def test_right_answers_in_several_forms(response: str, gold: str) -> None:
    assert right(response, gold)


@pytest.mark.parametrize(
    ("response", "gold", "why"),
    [
        (r"\boxed{36} or \boxed{35}", "36", "wrong"),
        (r"\boxed{35, 36, 37}", "36", "not a number"),
        (r"\boxed{\{35, 36\}}", "36", "not a number"),
        (r"\boxed{35 \text{ or } 36}", "36", "not a number"),
        (r"\boxed{12*3}", "36", "not a number, worked out"),
        (r"\boxed{12 \times 3}", "36", "not a number, worked out"),
        (r"\boxed{\sqrt{1296}}", "36", "not a number"),
        (r"\boxed{9**9**9}", "36", "not a number"),
        (r"\boxed{(x+1)^2}", "x^2+2x+1", "repeats the question"),
        (QUESTION, "36", "wrong"),
        (r"\boxed{Pairs}", "Paris", "another word"),
        (r"\boxed{36", "36", "not closed"),
        (r"\boxed{tea pots}", "pea tots", "another word"),
        (r"36 \boxed{}", "36", "is empty"),
        ("thirty-six", "36", "there is no answer"),
        ("it is 7", r"\sqrt{12}", "has to be in"),
        (r"\boxed{x=x}", "x=5", "not a number"),
        (r"\boxed{36" + "0" * 400 + "}", "36", "longer than"),
        ("36 " + "x" * 1_000_000, "36", "there is no answer"),
        (r"\boxed{\frac{36}{}}", r"\sqrt{12}", "wrong|cannot be understood"),
        (r"\boxed{\undefined \\ & }", r"\sqrt{12}", "wrong|cannot be understood"),
        (r"\boxed{\emptyset}", r"\sqrt{12}", "wrong"),
    ],
)
def test_what_is_not_the_answer_earns_nothing(response: str, gold: str, why: str) -> None:
    judged = verdict(response, QUESTION, gold, 5.0)
    assert not judged.correct
    assert re.search(why, judged.why), judged.why


@pytest.mark.parametrize("tower", ["9^{9^{9}}", "10^{10^{10}}", "10000000!", r"(1+x)^{100000}"])
def test_an_answer_that_would_compute_for_ever_is_wrong_in_time(tower: str) -> None:
    began_s = time.monotonic()
    judged = verdict(rf"\boxed{{{tower}}}", QUESTION, r"\sqrt{12}", 0.5)
    assert not judged.correct
    assert time.monotonic() - began_s < 5.0


def test_a_comparison_that_nothing_could_end_is_refused() -> None:
    raised: list[Exception] = []

    def compare() -> None:
        try:
            right(r"\boxed{36}", "36")
        except RuntimeError as error:
            raised.append(error)

    thread = threading.Thread(target=compare)
    thread.start()
    thread.join()
    assert "main thread" in str(raised[0])


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of interrupted finalizers
@settings(max_examples=60)
@given(st.text(alphabet=st.sampled_from(list("0123456789-+*/^!(){},.\\$ xefracboxdsqt%=<>nwr")), max_size=80))
def test_anything_may_be_said(text: str) -> None:
    for said in (text, rf"\boxed{{{text}}}", f"<answer>{text}</answer>"):
        answer_of(said)
        number_of(said)
        right(said, r"\sqrt{12}", 0.2)


@given(st.integers(-9999, 9999), st.integers(1, 99))
def test_a_number_is_right_in_any_notation_and_no_other_number_is(a: int, b: int) -> None:
    value = Fraction(a, b)
    frac = rf"\frac{{{a}}}{{{b}}}"
    for said in (f"{a}/{b}", frac, str(value)):
        assert right(rf"\boxed{{{said}}}", frac), said
    assert not right(rf"\boxed{{{value + 1}}}", frac)


@given(st.text(alphabet=st.sampled_from(list("0123456789,./ -eE\\{}fractimes$%")), max_size=LONGEST_ANSWER))
def test_reading_a_number_takes_no_time(text: str) -> None:
    began_s = time.monotonic()
    number_of(text)
    assert time.monotonic() - began_s < 1.0


def test_environment_takes_one_answer() -> None:
    env = MathEnv(SMALL)
    asked = {"question": "What is 6 times 7?", "answer": "42"}
    assert env.reset(options=asked) == ("What is 6 times 7?", {"won": False})
    assert env.step(r"\boxed{42}")[1:] == (1.0, True, False, {"won": True, "invalid_action": False})
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step(r"\boxed{42}")
    env.reset(options=asked)
    assert env.step("I do not know")[1:] == (0.0, True, False, {"won": False, "invalid_action": True})
    with pytest.raises(EnvDataError, match="`question` and `answer`"):
        env.reset(options={"question": "What?"})


def test_gymnasium_finds_it_and_accepts_it() -> None:
    env = gymnasium.make("rocknroll/Math-v0", config=SMALL)
    check_env(env.unwrapped, skip_render_check=True)
    assert env.reset(seed=5)[0] == env.reset(seed=5)[0]


@pytest.mark.asyncio
async def test_a_question_is_played_in_a_sandbox() -> None:
    env = EnvSpec(entry_point=FAMILY.entry_point, kwargs=FAMILY.env_kwargs())
    async with Fleet(SandboxSpec(name="math", env=env), 1, ProcessRuntime()) as fleet, await fleet.lease("me") as box:
        played = RemoteEnv(box)
        task = FAMILY.tasks("train")[0]
        observation, _ = await played.reset(options=task.options)
        assert observation == task.options["question"]
        assert (await played.step(rf"\boxed{{{task.options['answer']}}}"))[1:3] == (1.0, True)


def test_splits_share_no_problem_and_unseen_ones_no_numbers() -> None:
    found = {split: stories(FAMILY.config, split) for split in SPLITS}
    assert [len(found[split]) for split in SPLITS] == [300, 40, 40]
    ids = [story.id for of_split in found.values() for story in of_split]
    assert len(set(ids)) == len(ids)
    numbers = {split: {(story.kind, story.numbers) for story in of_split} for split, of_split in found.items()}
    assert not numbers["unseen"] & (numbers["train"] | numbers["seen"])
    other = stories(MathConfig.model_validate({**SMALL, "seed": 9, "train_problems": 600}), "train")
    assert not {story.id for story in other} & {story.id for split in ("seen", "unseen") for story in found[split]}


def test_every_kind_of_problem_comes_up_and_is_worked_out_right_to_the_last_step() -> None:
    episodes = MathFamily({**SMALL, "train_problems": 800}).expert_episodes("train", 800, seed=0)
    assert {episode.kind for episode in episodes} == set(KINDS)
    for episode in episodes:
        (step,) = episode.steps
        thoughts, _, answer = step.action.rpartition(" answer ")
        for claim in thoughts.split(" ; "):
            said, _, result = claim.partition(" = ")
            assert compute(said)[0] == int(result), step.action
        assert int(answer) == int(result) == Story.of(episode.task_id).answer
        numbers = [str(number) for number in Story.of(episode.task_id).numbers]
        assert all(number in step.observation for number in numbers)
    assert right(episodes[0].steps[0].action, str(Story.of(episodes[0].task_id).answer))


def test_disguises_keep_the_numbers_and_never_show_what_is_held_out() -> None:
    task, episode = FAMILY.tasks("train")[0], FAMILY.expert_episodes("train", 1, seed=0)[0]
    told = [FAMILY.disguise_task(task, seed) for seed in range(30)]
    assert len({one.options["question"] for one in told}) > 5
    assert {one.options["answer"] for one in told} == {task.options["answer"]}
    assert {one.id for one in told} == {task.id}
    for seed, one in enumerate(told):
        shown = FAMILY.disguise_episode(episode, seed)
        assert shown.steps[0].observation == one.options["question"]
    train = {story.question for story in stories(MathConfig(train_problems=3_000), "train")}
    held_out = {story.question for split in ("seen", "unseen") for story in stories(FAMILY.config, split)}
    assert not train & held_out
    visited = [retold(Story.of(task.id), seed) for task in FAMILY.tasks("train")[:60] for seed in range(10)]
    assert {split_of(story) for story in visited} == {"train"}


@pytest.mark.parametrize("family", [FAMILY, CountdownFamily({"train_puzzles": 3, "seen_puzzles": 0})])
def test_a_disguised_task_stays_in_its_domain(family: MathFamily | CountdownFamily) -> None:
    task = replace(family.tasks("train")[0], domain="sums")
    disguised = family.disguise_task(task, 5)
    assert (disguised.domain, disguised.id, disguised.kind) == ("sums", task.id, task.kind)


def test_more_problems_than_there_are_is_an_error_that_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(math_stories, "PATIENCE", 3)
    with pytest.raises(EnvDataError, match="lower `train_problems`, or raise `largest_number`"):
        MathFamily(SMALL).prepare()


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({"largest_number": 2}, "greater than or equal to 5"),
        ({"problems": 3}, "problems"),
        ({"columns": {"q": "a"}}, "q"),
    ],
)
def test_impossible_settings_are_refused(config: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        MathFamily(config)


ROWS = [
    {"question": "6 times 7?", "answer": "6 * 7 = 42\n#### 42", "topic": "times"},
    {"question": "Half of 9?", "answer": r"4.5", "topic": "half"},
    {"question": "Roots of $x^2=4$?", "answer": r"\boxed{\{-2, 2\}}", "topic": "roots"},
]


def written(folder: Path, rows: list[Any], ending: str = "jsonl") -> str:
    """The rows as a file of that format."""
    path = folder / f"rows.{ending}"
    if ending == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif ending == "json":
        path.write_text(json.dumps(rows))
    else:
        parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    return str(path)


@pytest.mark.parametrize("ending", ["jsonl", "json", "parquet"])
def test_questions_are_read_from_a_file(tmp_path: Path, ending: str) -> None:
    source = written(tmp_path, ROWS, ending)
    family = MathFamily({"data": {"train": source}, "columns": {"kind": "topic"}})
    tasks = family.tasks("train")
    assert [task.id for task in tasks] == ["train-1", "train-2", "train-3"]
    assert [task.kind for task in tasks] == ["times", "half", "roots"]
    assert tasks[0].options == {"question": "6 times 7?", "answer": "42"}
    worked = [episode.steps[0].action for episode in family.expert_episodes("train", 3, seed=0)]
    assert worked == ["6 * 7 = 42\n\\boxed{42}", r"\boxed{4.5}", r"\boxed{\{-2, 2\}}"]
    for task, action in zip(tasks, worked, strict=True):
        assert right(action, task.options["answer"])
    assert family.tasks("unseen") == []


def test_one_source_is_cut_by_its_questions(tmp_path: Path) -> None:
    rows = [{"question": f"What is {n % 150}?", "answer": str(n % 150)} for n in range(300)]
    family = MathFamily({"data": written(tmp_path, rows), "held_out": 0.3})
    asked = {split: {task.options["question"] for task in family.tasks(split)} for split in SPLITS}
    assert not asked["train"] & asked["unseen"]
    assert len(asked["train"]) + len(asked["unseen"]) == 150
    assert 20 < len(asked["unseen"]) < 80
    assert asked["seen"] == set()


def test_every_wrong_row_is_named_with_what_is_wrong(tmp_path: Path) -> None:
    source = tmp_path / "rows.jsonl"
    source.write_bytes(
        b'{"id": "a", "question": "Q", "answer": "1"}\n{"id": "b", "problem": "Q", "answer": "1"}\n\n{"question": \n'
        b'[1]\n{"id": "a", "question": "Q", "answer": 1}\n{"id": "c", "question": "Q", "answer": null}\n\xff\n'
    )
    family = MathFamily({"data": str(source), "columns": {"id": "id"}})
    with pytest.raises(EnvDataError) as caught:
        family.prepare()
    said = str(caught.value)
    assert "6 of 7 rows" in said
    for part in (
        "rows.jsonl line 2: it has no column `question`; its columns: answer, id, problem",
        "line 4: it is not JSON",
        "line 5: it is a list and not an object",
        f"line 6: its id 'a' is that of {source} line 1, too",
        "line 7: its column `answer` is empty",
        "and 1 more",
    ):
        assert part in said
    kept = MathFamily({"data": str(source), "columns": {"id": "id"}, "skip_wrong_rows": True, "held_out": 0})
    with pytest.warns(UserWarning, match="6 of 7 rows cannot be used"):
        kept.prepare()
    assert [task.id for task in kept.tasks("train")] == ["a"]


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("rows.json", b"{}", "an object and not a list of rows"),
        ("rows.json", b"[", "is not JSON"),
        ("rows.parquet", b"no", "cannot be read as Parquet"),
        ("rows.csv", b"a,b", "neither .jsonl, .json, .parquet nor a folder"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, name: str, content: bytes, why: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(EnvDataError, match=why) as caught:
        load_rows(str(tmp_path / name))
    assert name in str(caught.value)


@pytest.mark.parametrize(
    ("source", "why"),
    [("/no/such/place", "there is no file"), ("none.jsonl", "none.jsonl"), ("none.parquet", "there is no file")],
)
def test_a_source_that_is_not_there_is_named(source: str, why: str) -> None:
    with pytest.raises(EnvDataError, match=why):
        load_rows(source)


def test_a_hub_that_cannot_be_reached_is_told_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    def unreachable(*arguments: Any, **named: Any) -> None:
        raise ConnectionError("Couldn't reach 'org/set' on the Hub (ConnectTimeout)")

    monkeypatch.setattr(datasets, "load_dataset", unreachable)
    with pytest.raises(EnvDataError, match=r"org/set .*HF_ENDPOINT.*\.jsonl"):
        load_rows("org/set", "train")


def test_a_hub_data_set_is_asked_for_by_name_subset_and_split(monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    asked: list[Any] = []

    def load(name: str, subset: str | None, split: str) -> list[Any]:
        asked.append((name, subset, split))
        return [{"question": "6 times 7?", "answer": "42"}, "broken"]

    monkeypatch.setattr(datasets, "load_dataset", load)
    assert load_rows("openai/gsm8k:main", "train")[1] == (
        "openai/gsm8k:main[train] row 2",
        BrokenRow("it is text and not an object with columns"),
    )
    family = MathFamily({"data": {"unseen": "org/set[test[:10]]", "train": "org/set"}, "skip_wrong_rows": True})
    with pytest.warns(UserWarning, match="2 of 4 rows"):
        assert [task.id for task in family.tasks("unseen")] == ["unseen-1"]
    assert asked[1:] == [("org/set", None, "test[:10]"), ("org/set", None, "train")]


def test_a_folder_is_read_by_the_library(tmp_path: Path) -> None:
    written(tmp_path, ROWS[:2])
    rows = load_rows(str(tmp_path), "train")
    assert [row["question"] for _, row in rows if not isinstance(row, BrokenRow)] == ["6 times 7?", "Half of 9?"]
