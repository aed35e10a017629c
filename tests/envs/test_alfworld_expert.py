"""The handcoded expert and its episodes."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from rocknroll.envs.alfworld import package
from rocknroll.envs.alfworld.config import SPLITS, TASK_TYPES
from rocknroll.envs.alfworld.expert import NOTHING, Expert, read_goal
from rocknroll.envs.alfworld.family import AlfWorldFamily
from rocknroll.envs.text import EnvDataError

ROOM = (
    "You are in the middle of a room. Looking quickly around you, you see a cabinet 1, a fridge 1, and a shelf 1.\n\n"
    "Your task is to: {}."
)


@pytest.mark.parametrize("task_type", TASK_TYPES)
def test_every_sentence_of_the_package_is_understood(task_type: str) -> None:
    for template in package.goals().gdict[task_type]["templates"]:
        goal = read_goal(template.format(obj="mug", recep="shelf", toggle="desklamp"))
        assert (goal.task_type, goal.thing) == (task_type, "mug")
        assert (goal.place, goal.lamp) in {("shelf", ""), ("", "desklamp")}


def test_a_sentence_that_no_template_makes_is_refused() -> None:
    with pytest.raises(ValueError, match="Tidy the kitchen"):
        Expert(ROOM.format("Tidy the kitchen"))


def test_it_looks_first_where_nothing_has_to_be_opened_and_last_at_the_target() -> None:
    expert = Expert(ROOM.format("put a mug in cabinet"))
    visited = []
    for _ in range(3):
        command = expert.act()
        visited.append(command)
        place = command.removeprefix("go to ")
        kind = "open. In it" if place != "shelf 1" else ""
        expert.observe(
            command,
            f"You arrive at {place}. "
            + (f"The {place} is {kind}, you see nothing." if kind else f"On the {place}, you see nothing."),
        )
    assert visited == ["go to shelf 1", "go to fridge 1", "go to cabinet 1"]


def test_it_gets_rid_of_what_someone_else_took() -> None:
    expert = Expert(ROOM.format("put a mug in cabinet"))
    expert.observe("go to shelf 1", "You arrive at shelf 1. On the shelf 1, you see a book 1, and a mug 1.")
    expert.observe("take book 1 from shelf 1", "You pick up the book 1 from the shelf 1.")
    assert expert.act() == "move book 1 to shelf 1"
    expert.observe("move book 1 to shelf 1", "You move the book 1 to the shelf 1.")
    assert expert.act() == "take mug 1 from shelf 1"


def test_a_second_receptacle_at_the_same_spot_is_examined() -> None:
    expert = Expert(ROOM.format("put a mug in cabinet"))
    expert.observe("go to fridge 1", "You arrive at fridge 1. The fridge 1 is closed.")
    assert expert.act() == "open fridge 1"
    expert.observe("open fridge 1", "You open the fridge 1. The fridge 1 is open. In it, you see nothing.")
    assert expert.act() == "go to shelf 1"
    expert.observe("go to shelf 1", "Nothing happens.")
    assert expert.act() == "examine shelf 1"


def test_episodes_end_with_the_command_that_solves_the_task(alfworld: AlfWorldFamily) -> None:
    episodes = alfworld.expert_episodes("train", 12, seed=0)
    assert len(episodes) >= 11
    assert all("Your task is to" in episode.steps[0].observation for episode in episodes)
    assert all(step.action in step.admissible for episode in episodes for step in episode.steps)
    assert all(step.imitate for episode in episodes for step in episode.steps)


def test_episodes_come_from_the_cache_the_second_time(alfworld: AlfWorldFamily) -> None:
    first = alfworld.expert_episodes("unseen", 6, seed=0)
    calls: list[tuple[int, int]] = []
    assert alfworld.expert_episodes("unseen", 6, seed=0, progress=lambda *done: calls.append(done)) == first
    assert not calls


def test_mistakes_are_marked_refused_and_the_expert_goes_on(alfworld: AlfWorldFamily) -> None:
    episodes = alfworld.expert_episodes("train", 12, seed=0, mistakes=0.25)
    steps = [step for episode in episodes for step in episode.steps]
    mistaken = [step for step in steps if not step.imitate]
    assert 0.1 < len(mistaken) / len(steps) < 0.4
    assert len(episodes) >= 8
    assert not any(step.action in step.admissible for step in mistaken)
    assert NOTHING in alfworld.vocabulary(), "a policy that never saw a mistake can still read the answer to one"
    for episode in episodes:
        for step, following in pairwise(episode.steps):
            if not step.imitate:
                assert following.observation.startswith(NOTHING)
                assert following.admissible == step.admissible, "a mistake changes nothing"
    assert alfworld.expert_episodes("train", 12, seed=1, mistakes=0.25) != episodes


def test_a_broken_game_stops_the_playing_with_its_name(alfworld: AlfWorldFamily, tmp_path: Path) -> None:
    copy = AlfWorldFamily(
        alfworld.config.model_copy(
            update={"train_games": 2, "seen_games": 0, "unseen_games": 0, "cache_dir": str(tmp_path)}
        )
    )
    path = Path(copy.tasks("train")[1].options["game"])
    path.write_text("{", encoding="utf-8")
    with pytest.raises(EnvDataError, match="not valid JSON") as error:
        copy.expert_episodes("train", 2, seed=0)
    assert str(path) in str(error.value)


def test_counts_beyond_a_split_give_the_whole_split(alfworld: AlfWorldFamily) -> None:
    assert SPLITS[1] == "seen"
    assert len(alfworld.expert_episodes("seen", 100, seed=0)) <= 6
