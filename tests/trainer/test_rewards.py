"""Rewards from the recipe's function in worker processes: values, timeouts, failures, and nothing left behind."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from pebble.pool.process import PoolManager

from rocknroll.envs.reasoning.timeouts import AdaptiveTimeouts
from rocknroll.envs.text import Task
from rocknroll.trainer.errors import RecipeError
from rocknroll.trainer.rewards.workers import EpisodeText, Reward, RewardFailed, RewardWorkers, TextTurn

EPISODE = EpisodeText((TextTurn("o", "look", 0.5),), success=True)


def task(name: str = "t", **options: Any) -> Task:
    return Task(name, "k", options)


@asynccontextmanager
async def workers_of(function: str, count: int = 1, **timeouts: float) -> AsyncIterator[RewardWorkers]:
    workers = RewardWorkers(f"reward_functions:{function}", count, AdaptiveTimeouts(**timeouts))
    await workers.start()
    try:
        yield workers
    finally:
        await workers.close()


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.01)


@pytest.mark.asyncio
async def test_function_sees_the_episode_and_its_value_is_the_reward() -> None:
    async with workers_of("everything") as workers:
        assert await workers.score(task(a=[1]), EPISODE) == Reward(1.0, correct=False)
        assert workers.metrics()["scored"] == 1
    async with workers_of("longest_action") as workers:
        assert await workers.score(task(), EPISODE) == Reward(4.0, correct=True)


@pytest.mark.asyncio
async def test_workers_import_no_model_library() -> None:
    async with workers_of("heavy_modules") as workers:
        assert (await workers.score(task(), EPISODE)).value == 0.0


@pytest.mark.asyncio
async def test_evaluation_that_takes_too_long_scores_nothing_and_frees_its_worker() -> None:
    async with workers_of("as_told", minimum_s=0.2, maximum_s=0.5) as workers:
        assert await workers.score(task(sleep_s=600), EPISODE) == Reward(0.0, timed_out=True)
        assert await workers.score(task(value=3), EPISODE) == Reward(3.0, correct=True)
        assert workers.metrics()["timeouts"] == 1


@pytest.mark.asyncio
async def test_time_in_the_queue_is_not_time_of_the_evaluation() -> None:
    async with workers_of("as_told", minimum_s=0.2, maximum_s=5.0) as workers:
        rewards = await asyncio.gather(*(workers.score(task(str(n), sleep_s=0.8), EPISODE) for n in range(8)))
    assert [reward.timed_out for reward in rewards] == [False] * 8


@pytest.mark.asyncio
async def test_timeout_follows_what_correct_answers_took() -> None:
    async with workers_of("as_told", minimum_s=0.1, maximum_s=300.0) as workers:
        await workers.score(task(sleep_s=0.2, value=1), EPISODE)
        assert (await workers.score(task(sleep_s=600), EPISODE)).timed_out
        learnt = workers.state_dict()
    assert 0.2 <= learnt["anchors_s"]["t"] < 100.0


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"raise": "of its own"}, "TimeoutError: of its own"),
        ({"exit": True}, "SystemExit: 3"),
        ({"die": True}, r"its worker died \(exit code 7\)"),
        ({"value": "much"}, "ValueError: could not convert"),
        ({"value": None}, "TypeError"),
        ({"value": float("nan")}, "it returned nan"),
        ({"value": (1, 2, 3)}, "too many values"),
    ],
)
async def test_failure_is_told_and_costs_one_evaluation(options: dict[str, Any], why: str) -> None:
    async with workers_of("as_told") as workers:
        with pytest.raises(RewardFailed, match=rf"as_told\) gave no reward for t: .*{why}"):
            await workers.score(task(**options), EPISODE)
        assert (await workers.score(task(value=2), EPISODE)).value == 2.0
        assert workers.metrics()["failures"] == 1


@pytest.mark.asyncio
async def test_cancelled_evaluation_frees_its_worker(tmp_path: Path) -> None:
    started = tmp_path / "started"
    async with workers_of("as_told", maximum_s=600.0) as workers:
        long = asyncio.create_task(workers.score(task(sleep_s=600, file=str(started)), EPISODE))
        await until(started.exists)
        long.cancel()
        with pytest.raises(asyncio.CancelledError):
            await long
        assert (await workers.score(task(value=2), EPISODE)).value == 2.0


@pytest.mark.asyncio
async def test_metrics_count_what_waits_and_how_long_evaluations_take(tmp_path: Path) -> None:
    started = tmp_path / "started"
    async with workers_of("as_told", maximum_s=600.0) as workers:
        for _ in range(3):
            await workers.score(task("quick"), EPISODE)
        await workers.score(task("slow", sleep_s=0.3), EPISODE)
        assert workers.metrics()["p50_s"] < 0.3 <= workers.metrics()["p95_s"]
        waiting = [asyncio.create_task(workers.score(task(sleep_s=600, file=str(started)), EPISODE)) for _ in range(3)]
        await until(started.exists)
        assert workers.metrics()["queue"] == 2
        for one in waiting:
            one.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        assert workers.metrics()["queue"] == 0


@pytest.mark.asyncio
async def test_closing_ends_the_workers_and_what_they_did(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # What fails the futures of a stopped pool, if its threads end in one order and not in the other.
    monkeypatch.setattr(PoolManager, "handle_broken_pool", lambda manager, error: None)
    started = tmp_path / "started"
    async with workers_of("as_told", maximum_s=600.0) as workers:
        long = asyncio.create_task(workers.score(task(sleep_s=600, file=str(started)), EPISODE))
        queued = asyncio.create_task(workers.score(task(), EPISODE))
        await until(lambda: started.exists() and started.read_text().endswith("\n"))
        await workers.close()
        for one in (long, queued):
            with pytest.raises(RewardFailed, match="closed"):
                await one
        with pytest.raises(RewardFailed, match="closed"):
            await workers.score(task(), EPISODE)
    assert not psutil.pid_exists(int(started.read_text()))


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("function", "why"),
    [
        ("reward_functions", "not of the form `package.module:function`"),
        ("no_such_module:f", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("reward_functions:no_such_function", "AttributeError"),
        ("reward_functions:not_a_function", "not_a_function is not a function"),
    ],
)
async def test_function_that_is_not_there_is_refused_at_the_start(function: str, why: str) -> None:
    workers = RewardWorkers(function, 1, AdaptiveTimeouts())
    with pytest.raises(RecipeError, match=rf"`reward.function` \({function}\) cannot be used: .*{why}"):
        await workers.start()


PARENT = """
import asyncio, sys
from pathlib import Path
from test_rewards import EPISODE, task, workers_of

async def main():
    async with workers_of("as_told", maximum_s=600.0) as workers:
        if sys.argv[2] == "prints":
            await workers.score(task(print="noise"), EPISODE)
            print("data")
        else:
            await workers.score(task(sleep_s=600, file=sys.argv[1]), EPISODE)

if __name__ == "__main__":
    asyncio.run(main())
"""


def parent(script: Path, *arguments: str) -> subprocess.Popen[str]:
    script.write_text(PARENT)
    paths = os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])
    return subprocess.Popen(
        [sys.executable, str(script), *arguments],
        env={**os.environ, "PYTHONPATH": paths},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.asyncio
async def test_workers_die_with_a_killed_parent_even_while_they_compute(tmp_path: Path) -> None:
    started = tmp_path / "started"
    process = parent(tmp_path / "parent.py", str(started), "sleeps")
    await until(lambda: started.exists() and started.read_text().endswith("\n"))
    worker = int(started.read_text())
    process.send_signal(signal.SIGKILL)
    process.communicate()
    await until(lambda: not psutil.pid_exists(worker) or psutil.Process(worker).status() == psutil.STATUS_ZOMBIE)


def test_what_functions_print_stays_out_of_standard_output(tmp_path: Path) -> None:
    out, errors = parent(tmp_path / "parent.py", "-", "prints").communicate()
    assert (out, "noise" in errors) == ("data\n", True)
