"""Countdown: only a right expression satisfies the verifier, the splits are disjoint, and derivations hold."""

from __future__ import annotations

import ast
import operator
import re
from fractions import Fraction

import gymnasium
import pytest
from gymnasium.utils.env_checker import check_env
from hypothesis import given
from hypothesis import strategies as st

from rocknroll.envs.reasoning.config import SPLITS, CountdownConfig
from rocknroll.envs.reasoning.countdown import (
    CountdownEnv,
    NotAnExpression,
    answer_of,
    compute,
    question,
    verdict,
)
from rocknroll.envs.reasoning.family import CountdownFamily
from rocknroll.envs.reasoning.puzzles import Puzzle, puzzles, reachable, results
from rocknroll.envs.text import EnvDataError

SMALL = {"train_puzzles": 300, "seen_puzzles": 40, "unseen_puzzles": 40, "largest_number": 12, "largest_value": 60}
FAMILY = CountdownFamily(SMALL)

OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}


def by_python(node: ast.expr) -> Fraction:
    """The value by Python's own parser: an independent reference."""
    if isinstance(node, ast.Constant):
        return Fraction(node.value)
    assert isinstance(node, ast.BinOp)
    return OPERATORS[type(node.op)](by_python(node.left), by_python(node.right))


expressions = st.recursive(
    st.integers(0, 99).map(str),
    lambda inner: st.tuples(inner, st.sampled_from("+-*/"), inner, st.booleans(), st.sampled_from(["", " "])).map(
        lambda parts: ("({}{s}{}{s}{})" if parts[3] else "{}{s}{}{s}{}").format(*parts[:3], s=parts[4])
    ),
    max_leaves=6,
)


@given(expressions)
def test_values_are_those_of_python(text: str) -> None:
    try:
        expected = by_python(ast.parse(text.strip(), mode="eval").body)
    except ZeroDivisionError:
        with pytest.raises(NotAnExpression, match="divides by zero"):
            compute(text)
        return
    except SyntaxError:  # 007
        return
    value, used = compute(text)
    assert value == expected
    constants = (node.value for node in ast.walk(ast.parse(text.strip())) if isinstance(node, ast.Constant))
    assert sorted(used) == sorted(constants)


@given(st.text(max_size=60))
def test_anything_may_be_said(text: str) -> None:
    for said in (text, f"answer {text}", f"<answer>{text}</answer>"):
        verdict(said, [3, 5, 7], 56)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ("", "ends in the middle"),
        ("8 * 7", "has to use"),
        ("56", "has to use"),
        ("(3 + 5) * 7 * 1", "has to use"),
        ("(3 + 5) * 7 - 7 + 7", "has to use"),
        ("(3 + 5) * 7 / 1", "has to use"),
        ("35 + 7 * 3", "has to use"),
        ("(3 + 5) * 7 = 56", "`=` is not part"),
        ("(3 + 5) * 7 ** 1", "stands where a number belongs"),
        ("(3 + 5) // 7", "stands where a number belongs"),
        ("-3 + 5 + 7", "stands where a number belongs"),
        ("3 5 7", "does not belong behind"),
        ("(3 + 5", "not closed|ends in the middle"),
        ("3 + 5) * 7", "does not belong behind"),
        ("3.0 + 5 + 7", "is not part"),
        ("3 + 5 + ７", "is not part"),
        ("3 + 5 + ⁷", "is not part"),
        ("__import__('os').system('true')", "is not part"),
        ("56 if 3 + 5 + 7 else 0", "is not part"),
        ("3 / (5 - 5) + 7", "divides by zero"),
        ("(" * 5000 + "3", "longer than"),
        ("9" * 5000, "longer than"),
        ("(" * 190 + "3", "ends in the middle"),
        ("3 * 5 - 7", "it is 8 and not 56"),
        ("7 / 3 * 5", "it is 35/3 and not 56"),
    ],
)
def test_what_is_not_a_right_expression_earns_nothing(answer: str, why: str) -> None:
    judged = verdict(f"thinking (3 + 5) * 7 = 56 answer {answer}", [3, 5, 7], 56)
    assert not judged.correct
    assert re.search(why, judged.why), judged.why


@pytest.mark.parametrize(
    "response",
    [
        "answer (3 + 5) * 7",
        "3 + 5 = 8 left 7 8 ; answer 7*( 5+3 )",
        "Answer: 7 * (3 + 5)",
        "<think>5 * 7 = 35, no</think> <answer> (5+3)*7 </answer> done",
        "answer 1 + 1 no, answer (3 + 5) * 7",
    ],
)
def test_right_answers_in_several_forms(response: str) -> None:
    assert verdict(response, [7, 3, 5], 56).correct


def test_the_last_answer_counts() -> None:
    assert answer_of("<answer>1</answer> <answer>2</answer>") == "2"
    assert answer_of("the unanswered question") is None
    assert not verdict("<answer>(3 + 5) * 7</answer><answer>1</answer>", [3, 5, 7], 56).correct


def test_environment_takes_one_answer() -> None:
    env = CountdownEnv({**SMALL, "format_reward": 0.1})
    observation, info = env.reset(options={"numbers": [3, 5, 7], "target": 56})
    assert observation == "numbers 3 5 7 target 56"
    assert info == {"won": False}
    assert env.step("answer (3 + 5) * 7")[1:] == (1.0, True, False, {"won": True, "invalid_action": False})
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step("answer (3 + 5) * 7")
    env.reset(options={"numbers": [3, 5, 7], "target": 56})
    assert env.step("answer 3 + 5 + 7")[1] == 0.1
    env.reset(options={"numbers": [3, 5, 7], "target": 56})
    assert env.step("I give up")[1] == 0.0


@pytest.mark.parametrize(
    "options", [{"numbers": [3]}, {"numbers": [], "target": 3}, {"numbers": ["3"], "target": 3}, {"game": "x"}]
)
def test_options_that_are_no_puzzle_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(EnvDataError, match="Countdown takes `numbers`"):
        CountdownEnv(SMALL).reset(options=options)


def test_gymnasium_finds_it_and_accepts_it() -> None:
    env = gymnasium.make("rocknroll/Countdown-v0", config=SMALL)
    check_env(env.unwrapped, skip_render_check=True)
    assert env.reset(seed=5)[0] == env.reset(seed=5)[0]


def test_splits_share_no_puzzle_and_unseen_ones_no_numbers() -> None:
    found = {split: puzzles(FAMILY.config, split) for split in SPLITS}
    assert [len(found[split]) for split in SPLITS] == [300, 40, 40]
    ids = [puzzle.id for of_split in found.values() for puzzle in of_split]
    assert len(set(ids)) == len(ids)
    numbers = {split: {puzzle.numbers for puzzle in of_split} for split, of_split in found.items()}
    assert not numbers["unseen"] & (numbers["train"] | numbers["seen"])


def test_splits_of_different_sizes_and_seeds_stay_disjoint() -> None:
    """A puzzle's split is its own, so nothing that one run trains on is held out by another."""
    other = CountdownConfig.model_validate({**SMALL, "train_puzzles": 600, "seed": 9})
    train = {puzzle.id for puzzle in puzzles(other, "train")}
    held_out = {p.id for split in ("seen", "unseen") for p in puzzles(FAMILY.config, split)}
    assert not train & held_out


def slow_reachable(values: list[Fraction]) -> set[Fraction]:
    """By all orders and operations, with fractions and negative numbers: everything that can be reached at all."""
    if len(values) == 1:
        return set(values)
    found: set[Fraction] = set()
    for i in range(len(values)):
        for j in range(len(values)):
            if i == j:
                continue
            rest = [values[k] for k in range(len(values)) if k not in (i, j)]
            a, b = values[i], values[j]
            for result in (a + b, a - b, a * b, *([a / b] if b else [])):
                found |= slow_reachable([*rest, result])
    return found


@given(st.lists(st.integers(1, 9), min_size=2, max_size=3))
def test_what_is_reachable_can_be_reached(numbers: list[int]) -> None:
    everything = slow_reachable([Fraction(n) for n in numbers])
    assert {Fraction(value) for value in reachable(tuple(sorted(numbers)), 60)} <= everything


@given(st.integers(1, 60), st.integers(1, 60))
def test_operations_are_whole_positive_and_bounded(a: int, b: int) -> None:
    for sign, first, second, result in results(a, b, 60):
        assert {first, second} == {a, b}
        assert Fraction(result) == compute(f"{first} {sign} {second}")[0]
        assert 0 < result <= 60


@pytest.mark.parametrize("gives_up", [0.0, 0.5])
def test_every_derivation_is_right_to_the_last_step(gives_up: float) -> None:
    family = CountdownFamily({**SMALL, "gives_up": gives_up})
    episodes = family.expert_episodes("train", 300, seed=0)
    assert len(episodes) == 300
    given_up = 0
    for episode in episodes:
        (step,) = episode.steps
        given, _, target = episode.task_id.partition("=")
        numbers = [int(n) for n in given.split("-")]
        thoughts, _, answer = step.action.rpartition(" answer ")
        *failed, last = (attempt.removesuffix(f" want {target}") for attempt in thoughts.split(" no ; "))
        assert len(failed) == len(set(failed)) <= family.config.detours
        for attempt in failed:
            assert carried_out(attempt, numbers) != int(target), step.action
        judged = verdict(f"answer {answer}", numbers, int(target))
        assert judged.well_formed
        assert compute(answer)[0] == carried_out(last, numbers)
        given_up += not judged.correct
    assert sum(" no ;" in episode.steps[0].action for episode in episodes) > 50
    assert (50 < given_up < 250) if gives_up else given_up == 0


def carried_out(attempt: str, numbers: list[int]) -> int:
    """What is left at the end of `8 - 3 = 5 ; 5 * 11 = 55`; every claim is checked."""
    values = numbers[:]
    for claim in attempt.split(" ; "):
        said, _, result = claim.partition(" = ")
        value, used = compute(said)
        assert value == int(result), attempt
        for number in used:
            values.remove(number)
        values.append(int(result))
    (left,) = values
    return left


def test_disguises_ask_the_same_puzzle_otherwise_and_depend_on_the_seed_alone() -> None:
    task, episode = FAMILY.tasks("train")[0], FAMILY.expert_episodes("train", 1, seed=0)[0]
    disguised = [FAMILY.disguise_task(task, seed) for seed in range(8)]
    assert all(sorted(d.options["numbers"]) == task.options["numbers"] for d in disguised)
    assert len({tuple(d.options["numbers"]) for d in disguised}) > 1
    assert FAMILY.disguise_task(task, 3) == disguised[3]
    shown = [FAMILY.disguise_episode(episode, seed) for seed in range(8)]
    assert len({one.steps[0].action for one in shown}) > 1
    for seed, one in enumerate(shown):
        assert one.steps[0].observation == question(disguised[seed].options["numbers"], task.options["target"])
        assert verdict(one.steps[0].action, task.options["numbers"], task.options["target"]).correct


def test_every_word_of_expert_and_environment_is_in_the_vocabulary() -> None:
    words = set(FAMILY.vocabulary())
    for episode in FAMILY.expert_episodes("train", 300, seed=0):
        assert set(f"{episode.steps[0].observation} {episode.steps[0].action}".split()) <= words


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({"numbers": [4, 3]}, "in this order"),
        ({"largest_value": 50}, "must be at least `largest_number`"),
        ({"puzzles": 3}, "puzzles"),
    ],
)
def test_impossible_settings_are_refused(config: dict[str, object], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        CountdownFamily(config)


def test_more_puzzles_than_there_are_is_an_error_that_says_what_to_do() -> None:
    family = CountdownFamily({"numbers": [2, 2], "largest_number": 3, "largest_value": 6, "train_puzzles": 500})
    with pytest.raises(EnvDataError, match="lower `train_puzzles`, or raise"):
        family.prepare()


def test_puzzles_name_themselves() -> None:
    assert Puzzle((3, 5, 7), 56).id == "3-5-7=56"
