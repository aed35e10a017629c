"""Environments in TRL's shape, without TRL: rollouts, what a policy may do wrong, and what infrastructure may."""

from __future__ import annotations

import inspect
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from waiting import WAIT_S, below, until

from rocknroll.envs.adapters.trl import OVER, EpisodeOver, ReplayDiffers, TrlEnvironment, TrlEnvironments
from rocknroll.envs.text import EnvDataError
from rocknroll.sandbox.errors import EnvCrashed, FleetExhausted, SandboxError, SpecInvalid

LOCK = "own_envs:Lock"


@pytest.fixture
def environments() -> Iterator[TrlEnvironments]:
    with TrlEnvironments(LOCK, count=1) as made:
        yield made


def fleet(environments: TrlEnvironments) -> Any:
    return environments.places._places._fleet  # type: ignore[attr-defined]


def leased(environments: TrlEnvironments) -> int:
    return int(fleet(environments).metrics()["state_LEASED"])


def kill_sandbox(environments: TrlEnvironments) -> None:
    (row,) = fleet(environments).snapshot()
    os.kill(row["pid"], signal.SIGKILL)
    until(lambda: fleet(environments).snapshot()[0]["pid"] != row["pid"], "the sandbox was replaced")


def begun(environments: TrlEnvironments, number: int = 3) -> TrlEnvironment:
    env = environments()
    assert env.reset(task=f"train-{number}", prompt=[], other_column=1) == "A lock."
    return env


def test_a_rollout_is_played_and_its_sandbox_given_back_with_the_last_step(environments: TrlEnvironments) -> None:
    env = begun(environments)
    assert leased(environments) == 1
    assert env.act("1") == "1: closed, try 1"
    assert env.act(command="3") == "It opens." + OVER
    assert leased(environments) == 0
    assert (env.get_reward(), env.get_reward(), env.reward, env.info["won"]) == (1.0, 1.0, 1.0, True)


def test_an_unfinished_rollout_counts_and_holds_nothing_after_its_reward(environments: TrlEnvironments) -> None:
    env = begun(environments)
    env.act("1")
    assert env.get_reward() == 0.0
    assert leased(environments) == 0
    assert env.reset(task="train-1") == "A lock."
    assert env.reset(task="train-2") == "A lock."
    assert leased(environments) == 1


def test_the_policy_sees_one_tool(environments: TrlEnvironments) -> None:
    public = [name for name, _ in inspect.getmembers(type(environments()), inspect.isfunction) if name[0] != "_"]
    assert sorted(public) == ["act", "get_reward", "reset"]


def test_rows_of_one_task_begin_the_same_episode(environments: TrlEnvironments) -> None:
    rows = environments.rows("unseen")
    assert [row["task"] for row in rows] == ["unseen-0", "unseen-1"]
    assert "Say the number that opens the lock." in rows[0]["prompt"][0]["content"]
    env = environments()
    env.reset(**rows[1])
    assert env.act("9") == "It opens." + OVER


def test_what_the_policy_does_wrong_is_told_to_it_and_costs_nothing_else(environments: TrlEnvironments) -> None:
    env = begun(environments)
    with pytest.raises(TypeError, match="has to be text"):
        env.act(3)  # type: ignore[arg-type]
    env.act("3")
    with pytest.raises(EpisodeOver):
        env.act("3")
    assert (env.get_reward(), env.lost) == (1.0, "")


def test_a_sandbox_that_is_killed_is_replaced_and_the_rollout_goes_on_where_it_was(
    environments: TrlEnvironments,
) -> None:
    env = begun(environments)
    env.act("1")
    kill_sandbox(environments)
    assert env.act("2") == "2: closed, try 2"
    assert env.act("3") == "It opens." + OVER
    assert (env.get_reward(), len(env.turns)) == (1.0, 3)
    assert environments.replayed.total() == 1
    assert not environments.lost


def test_without_replays_a_lost_rollout_has_no_reward_and_the_next_is_not_touched() -> None:
    with TrlEnvironments(LOCK, count=1, replays=0) as environments:
        env = begun(environments)
        kill_sandbox(environments)
        with pytest.raises(SandboxError):
            env.act("3")
        with pytest.raises(SandboxError, match="was lost to infrastructure"):
            env.act("3")
        assert env.get_reward() is None
        assert environments.lost.total() == 1
        assert env.reset(task="train-3") == "A lock."
        env.act("3")
        assert (env.get_reward(), env.lost) == (1.0, "")


def test_an_episode_that_does_not_repeat_itself_is_not_gone_on_with(environments: TrlEnvironments) -> None:
    env = begun(environments)
    env.act("chance")
    kill_sandbox(environments)
    with pytest.raises(ReplayDiffers):
        env.act("3")
    assert env.get_reward() is None
    assert leased(environments) == 0


def test_an_action_that_always_breaks_the_environment_is_a_loss_not_a_reward(environments: TrlEnvironments) -> None:
    env = begun(environments)
    with pytest.raises(EnvCrashed):
        env.act("crash")
    assert env.get_reward() is None
    assert dict(environments.lost) == {"env_crashed": 1}


def test_more_rollouts_at_once_than_sandboxes_are_refused_not_waited_for(environments: TrlEnvironments) -> None:
    first = environments()
    with pytest.raises(SpecInvalid, match="generation_batch_size"):
        environments()
    del first
    environments()


def test_where_nothing_can_ever_be_played_the_trainer_stops() -> None:
    with TrlEnvironments("own_envs:Broken", count=1) as environments, pytest.raises(FleetExhausted, match="be made"):
        environments().reset(task="train-1")


def test_a_row_without_a_task_is_refused(environments: TrlEnvironments) -> None:
    with pytest.raises(EnvDataError, match="column `task`"):
        environments().reset(prompt=[])


def test_an_exception_that_passes_leaves_no_process() -> None:
    def interrupted() -> None:
        with TrlEnvironments(LOCK, count=1) as environments:
            begun(environments)
            assert {each.pid for each in below()} > before
            raise KeyboardInterrupt

    before = {each.pid for each in below()}
    with pytest.raises(KeyboardInterrupt):
        interrupted()
    until(lambda: {each.pid for each in below()} <= before, "its processes end")


def test_a_trainer_that_is_killed_leaves_no_sandbox() -> None:
    program = (
        "from rocknroll.envs.adapters.trl import TrlEnvironments; import sys\n"
        f"environments = TrlEnvironments({LOCK!r}, count=1); env = environments(); env.reset(task='train-1')\n"
        "print(environments.places._places._fleet.snapshot()[0]['pid'], flush=True); sys.stdin.read()"
    )
    paths = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    trainer = subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": paths},
    )
    assert trainer.stdout is not None
    pid = int(trainer.stdout.readline())
    started = below(trainer.pid)
    assert pid in [each.pid for each in started]
    trainer.kill()
    trainer.wait()
    assert not psutil.wait_procs(started, WAIT_S)[1]
