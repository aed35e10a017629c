"""Vector environments over sandboxes of processes."""

from __future__ import annotations

from collections.abc import Iterator

import gymnasium
import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from gymnasium.vector import AutoresetMode
from waiting import below

import rocknroll.envs  # noqa: F401  registers the ids
from rocknroll.envs.adapters.vector import MembersLost, SandboxVectorEnv
from rocknroll.envs.text import EnvDataError
from rocknroll.sandbox.errors import EnvCrashed

TASKS = ["train-1", "train-2", "train-3"]


@pytest.fixture
def lock() -> Iterator[SandboxVectorEnv]:
    with SandboxVectorEnv(3, "own_envs:Lock") as env:
        yield env


def test_make_vec_plays_in_sandboxes() -> None:
    before = {each.pid for each in below()}
    env = gymnasium.make_vec("rocknroll/Countdown-v0", num_envs=2, config={"train_puzzles": 20})
    assert isinstance(env, SandboxVectorEnv)
    assert env.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP
    first, _ = env.reset(seed=5)
    assert first in env.observation_space
    assert env.reset(seed=5)[0] == first
    _, rewards, terminated, truncated, _ = env.step(("answer", "answer"))
    assert rewards.tolist() == [0.0, 0.0]
    assert (terminated | truncated).tolist() == [True, True]
    assert {each.pid for each in below()} > before
    env.close()
    assert {each.pid for each in below()} <= before


def test_a_member_begins_anew_in_the_step_after_its_end(lock: SandboxVectorEnv) -> None:
    lock.reset(options={"tasks": TASKS})
    texts, rewards, terminated, _, infos = lock.step(["1", "1", "1"])
    assert texts == ("It opens.", "1: closed, try 1", "1: closed, try 1")
    assert (rewards.tolist(), terminated.tolist()) == ([1.0, 0.0, 0.0], [True, False, False])
    assert infos["won"].tolist() == [True, False, False]
    texts, rewards, terminated, _, _ = lock.step(["ignored", "x", "3"])
    assert texts[:2] == ("A lock.", "x: closed, try 2")
    assert (rewards.tolist(), terminated.tolist()) == ([0.0, 0.0, 1.0], [False, False, True])


def test_members_step_at_the_same_time(lock: SandboxVectorEnv) -> None:
    lock.reset(options={"tasks": TASKS})
    naps = [text.partition(":")[0].split() for text in lock.step(["nap"] * 3)[0]]
    assert max(float(began_s) for began_s, _ in naps) < min(float(ended_s) for _, ended_s in naps)


def test_a_lost_member_is_an_error_that_names_it_and_keeps_what_the_others_did(lock: SandboxVectorEnv) -> None:
    lock.reset(options={"tasks": TASKS})
    with pytest.raises(MembersLost, match="member 1") as caught:
        lock.step(["1", "crash", "1"])
    assert isinstance(caught.value.failures[1], EnvCrashed)
    assert caught.value.mask.tolist() == [False, True, False]
    texts, rewards, terminated, _, _ = caught.value.results
    assert (texts[0], texts[2], terminated.tolist()) == ("It opens.", "1: closed, try 1", [True, False, False])
    assert np.isnan(rewards).tolist() == [False, True, False]
    with pytest.raises(ResetNeeded, match="member 1"):
        lock.step(["1", "1", "1"])
    assert lock.reset(options={"reset_mask": caught.value.mask, "tasks": TASKS})[0][1] == "A lock."
    assert lock.step(["x", "2", "3"])[1].tolist() == [0.0, 1.0, 1.0]


def test_what_reset_does_not_know_is_refused(lock: SandboxVectorEnv) -> None:
    with pytest.raises(EnvDataError, match="no task 'train-99'"):
        lock.reset(options={"tasks": ["train-99"] * 3})
    with pytest.raises(EnvDataError, match="reset takes"):
        lock.reset(options={"tsaks": TASKS})
    with pytest.raises(ResetNeeded):
        lock.step(["1", "1", "1"])
