"""Rollouts under fire: steps raise and hang, sandboxes are killed, and every batch still comes."""

from __future__ import annotations

import contextlib
import os
import random
import signal
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from rocknroll.envs.registry import family as make_family
from rocknroll.trainer.engines.local import LocalEngine
from rocknroll.trainer.policy import load_policy
from rocknroll.trainer.recipe import Recipe
from rocknroll.trainer.rollout.assembly import Parts, assemble
from rocknroll.trainer.rollout.events import Aborted, Event, Failed, Kept, Started
from rocknroll.trainer.trajectory import Outcome
from rocknroll.trainer.warmstart import prepare_policy

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    # An engine's worker thread that dies says so on standard error; here it is meant to die.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning"),
]
BATCHES = 4
KILL_EVERY = 4
"""Episodes that begin between two kills: as many kills on a fast machine as on a slow one."""


class Balance:
    """A journal that counts how often each episode started and ended, and does harm every now and then."""

    def __init__(self) -> None:
        self.started: Counter[str] = Counter()
        self.ended: Counter[str] = Counter()
        self.harm: Callable[[], None] = lambda: None

    def record(self, events: Sequence[Event], state: Mapping[str, Any]) -> None:
        for event in events:
            if isinstance(event, Started):
                self.started[event.episode.id] += 1
                if self.started.total() % KILL_EVERY == 0:
                    self.harm()
            elif isinstance(event, Kept | Failed | Aborted):
                self.ended[event.episode.id] += 1


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Recipe:
    monkeypatch.setenv("ROCKNROLL_CACHE", str(tmp_path / "cache"))
    return Recipe.model_validate(
        {
            "env": {
                "config": {"train_games": 12, "seen_games": 0, "unseen_games": 6, "max_steps": 6},
                "faults": {"error_rate": 0.1, "hang_rate": 0.02, "latency_s": 0.01},
            },
            "policy": {"tiny": {"hidden_size": 32, "layers": 1, "heads": 2, "kv_heads": 1, "head_dim": 16}},
            "warmstart": {"games": 12, "epochs": 1},
            "sandbox": {"count": 4, "step_timeout_s": 1.0, "reset_timeout_s": 30.0},
            "engine": {"slots": 4, "restarts": 1},
            "rollout": {
                "num_groups": 2,
                "group_size": 2,
                "constrained": True,
                "infra_retries": 10_000,
                "max_infra_error_rate": 1.0,
            },
            "report_to": [],
        }
    )


def kill_a_sandbox(parts: Parts, rng: random.Random) -> None:
    if pids := parts.sandbox_pids():
        with contextlib.suppress(ProcessLookupError):
            os.kill(rng.choice(pids), signal.SIGKILL)


def break_the_engine(parts: Parts) -> None:
    """Have its worker thread fail as a fault in its own code would."""

    def fail() -> None:
        raise MemoryError("broken on purpose")

    engine = parts.engine._seats[0].engine
    assert isinstance(engine, LocalEngine)
    engine._post(fail)


@pytest.mark.asyncio
async def test_every_batch_comes_through_faults_hangs_and_kills(recipe: Recipe) -> None:
    family = make_family(recipe.env.name, recipe.env.config)
    family.prepare()
    policy = prepare_policy(recipe, [family], lambda phase, done, total: None)
    model, _ = load_policy(str(policy), recipe.policy.dtype)
    balance = Balance()
    async with assemble(recipe, policy, balance) as parts:
        await parts.ready()
        pids = parts.sandbox_pids()
        balance.harm = partial(kill_a_sandbox, parts, random.Random(0))
        trained: list[str] = []
        for version in range(BATCHES):
            if version == BATCHES // 2:
                break_the_engine(parts)
            batch = await parts.loop.next_batch(version)
            trained += [t.id for group in batch.groups for t in group.trajectories]
            assert all(t.outcome is not Outcome.INFRA_ERROR for group in batch.groups for t in group.trajectories)
            await parts.engine.update_weights(model.state_dict(), version + 1)
            await parts.loop.on_version(version + 1)
        open_groups = parts.scheduler.state_dict()["open"]
        lost, restarts = dict(parts.loop.lost), parts.engine.metrics()["engine_restarts"]
    assert len(trained) == len(set(trained)) == BATCHES * 4
    assert restarts == 1
    assert lost["env_error"] > 0
    assert lost.keys() & {"sandbox_lost", "env_crashed"}
    assert set(balance.started.values()) == set(balance.ended.values()) == {1}
    assert len(balance.started - balance.ended) <= recipe.sandbox.count, f"still playing at the end: {open_groups}"
    assert not balance.ended - balance.started
    assert not [pid for pid in pids if psutil.pid_exists(pid)], "sandboxes were left behind"
