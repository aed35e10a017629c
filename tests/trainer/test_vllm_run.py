"""ALFWorld played by vLLM in the rollout process: weights change during the run, and a server is killed and hangs."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
import vllm_cases as cases
from clusters import choice, small_cluster
from engine_cases import ask, fresh_logprobs

from rocknroll.envs.registry import family as make_family
from rocknroll.trainer.controller import write_weights
from rocknroll.trainer.engines.base import EngineError
from rocknroll.trainer.engines.pool import EnginePool
from rocknroll.trainer.policy import load_policy
from rocknroll.trainer.recipe import Recipe
from rocknroll.trainer.rollout.service import RolloutService
from rocknroll.trainer.trajectory import Trajectory
from rocknroll.trainer.warmstart import prepare_policy

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

AGREED = 2e-3
"""What the learner's forward and the engine may differ by; measured: 1e-6."""


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recipe]:
    python = str(cases.installed().python)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ROCKNROLL_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield Recipe.model_validate(
            {
                "env": {"config": {"train_games": 12, "seen_games": 0, "unseen_games": 6}},
                "policy": {"tiny": {"hidden_size": 64, "layers": 1, "heads": 2, "kv_heads": 1, "head_dim": 32}},
                "warmstart": {"games": 12, "epochs": 1},
                "sandbox": {"count": 3},
                "engine": {"kind": "vllm", "slots": 3, "vllm": {"python": python}},
                "rollout": {"num_groups": 2, "group_size": 2, "constrained": True, "async_ratio": 2.0},
                "report_to": [],
            }
        )


def forward_logprobs(model: Any, trajectory: Trajectory) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    """Log-probabilities of the action tokens over what was allowed, from one fresh forward pass of the learner's."""
    ids = torch.from_numpy(trajectory.token_ids.astype(np.int64))
    with torch.no_grad():
        logits = model(input_ids=ids[None], use_cache=False).logits[0].float()
    assert trajectory.allowed is not None
    values = []
    for position, allowed in zip(np.flatnonzero(trajectory.action_mask), trajectory.allowed, strict=True):
        row = logits[position - 1][list(allowed)]
        values.append(row.log_softmax(0)[allowed.index(int(ids[position]))].item())
    return np.array(values, dtype=np.float32)


def test_alfworld_is_played_while_weights_change(recipe: Recipe, tmp_path: Path) -> None:
    play_while_weights_change(recipe, tmp_path)


def test_alfworld_is_played_by_a_server_and_sandboxes_on_a_cluster(recipe: Recipe, tmp_path: Path) -> None:
    with small_cluster(3, 3, num_cpus=1) as cluster:
        vllm = recipe.engine.vllm.model_copy(update={"where": "cluster"})
        engine = recipe.engine.model_copy(update={"vllm": vllm})
        where = recipe.cluster.model_copy(update={"address": choice(cluster).address})
        play_while_weights_change(recipe.model_copy(update={"engine": engine, "cluster": where}), tmp_path)
    assert "vllm" in (tmp_path / "vllm-0.log").read_text().lower()


def play_while_weights_change(recipe: Recipe, tmp_path: Path) -> None:
    family = make_family(recipe.env.name, recipe.env.config)
    family.prepare()
    policy = prepare_policy(recipe, [family], lambda phase, done, total: None)
    models = [load_policy(str(policy), "float32")[0] for _ in range(2)]
    with torch.no_grad():
        for parameter in models[1].parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    weights = write_weights(models[1].state_dict(), tmp_path / "weights.safetensors")
    service = RolloutService(recipe, policy, run_folder=tmp_path)
    try:
        service.ready()
        batches = [service.next_batch(0)]
        service.publish(1, weights)
        batches += [service.next_batch(version) for version in (1, 2)]
    finally:
        service.stop()
    seen: set[int] = set()
    for trajectory in (t for batch in batches for group in batch.groups for t in group.trajectories):
        versions = trajectory.versions[trajectory.action_mask]
        recorded = trajectory.logprobs[trajectory.action_mask]
        for version in map(int, np.unique(versions)):
            by_it, by_other = (forward_logprobs(models[v], trajectory) for v in (version, 1 - version))
            at = versions == version
            assert np.abs(by_it[at] - recorded[at]).max() < AGREED
            if np.abs(by_it[at] - by_other[at]).max() > AGREED:
                seen.add(version)
    assert seen == {0, 1}, "the weights changed nothing"
    assert "infra_error" not in batches[-1].outcomes
    assert batches[1].metrics["rollout/reused_tokens"] > 0
    assert not [process for process in psutil.process_iter(["cmdline"]) if str(policy) in str(process.info["cmdline"])]


@pytest.mark.asyncio
async def test_killed_server_is_replaced_with_the_newest_weights_and_a_hung_one_is_found(tmp_path: Path) -> None:
    policy = cases.saved(tmp_path / "policy")
    launch, new = cases.launch(policy, cases.installed(), tmp_path / "server.log"), cases.model(1)
    served = cases.served(policy)
    limits = replace(cases.LIMITS, generation=20.0)
    pool = EnginePool(lambda seat: cases.engine(launch, served, limits), restarts=1)
    try:
        await pool.ready()
        await pool.update_weights(new.state_dict(), 1)
        server = pool._seats[0].engine._server  # type: ignore[attr-defined]
        doomed = asyncio.create_task(pool.generate(ask([5, 6, 7], max_tokens=480)))
        while pool.metrics()["steps"] == 0:
            await asyncio.sleep(0.01)
        os.kill(_engine_core(server.pid).pid, signal.SIGKILL)
        with pytest.raises(EngineError, match="failed"):
            await doomed
        answer = await pool.generate(ask([5, 6, 7], max_tokens=20))
        assert pool.metrics()["engine_restarts"] == 1
        assert set(answer.versions) == {1}
        assert answer.logprobs == pytest.approx(fresh_logprobs(new, [5, 6, 7], answer.token_ids), abs=AGREED)

        server = pool._seats[0].engine._server  # type: ignore[attr-defined]
        os.kill(_engine_core(server.pid).pid, signal.SIGSTOP)
        with pytest.raises(EngineError, match=r"no answer in 20 s .*hung; the end of its log"):
            await pool.generate(ask([5, 6, 7], max_tokens=20))
    finally:
        await pool.close()
    assert not psutil.pid_exists(server.pid)


def _engine_core(keeper: int) -> psutil.Process:
    """The process in which the model runs."""
    below = psutil.Process(keeper).children(recursive=True)
    (core,) = (process for process in below if "EngineCore" in " ".join(process.cmdline()))
    return core
