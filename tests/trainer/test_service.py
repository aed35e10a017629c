"""The rollout process for real: ALFWorld in process sandboxes, the embedded engine, a sandbox killed with -9."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
from safetensors.torch import save_file

from rocknroll.envs.registry import family as make_family
from rocknroll.sandbox.alerts.rule import Reading
from rocknroll.trainer.audit import audit
from rocknroll.trainer.controller import write_weights
from rocknroll.trainer.policy import load_policy
from rocknroll.trainer.recipe import Recipe
from rocknroll.trainer.rollout.loop import RolloutFailed
from rocknroll.trainer.rollout.service import RolloutBatch, RolloutService
from rocknroll.trainer.run_folder import RunFolder
from rocknroll.trainer.storage import StorageError
from rocknroll.trainer.trajectory import Trajectory
from rocknroll.trainer.warmstart import prepare_policy

pytestmark = pytest.mark.timeout(240)


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recipe]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ROCKNROLL_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield Recipe.model_validate(
            {
                "env": {
                    "config": {"train_games": 12, "seen_games": 0, "unseen_games": 6},
                    "faults": {"latency_s": 0.02},
                },
                "policy": {"tiny": {"hidden_size": 32, "layers": 1, "heads": 2, "kv_heads": 1, "head_dim": 16}},
                "warmstart": {"games": 12, "epochs": 1},
                "sandbox": {"count": 3},
                "engine": {"slots": 3},
                "rollout": {"num_groups": 2, "group_size": 2, "constrained": True},
                "alerts": {"every_s": 0.05},
                "report_to": [],
            }
        )


@pytest.fixture(scope="module")
def policy(recipe: Recipe) -> Path:
    family = make_family(recipe.env.name, recipe.env.config)
    family.prepare()
    return prepare_policy(recipe, [family], lambda phase, done, total: None)


@contextmanager
def running(recipe: Recipe, policy: Path, folder: RunFolder | None = None) -> Iterator[RolloutService]:
    service = RolloutService(recipe, policy, run_folder=folder.path if folder else None)
    try:
        service.ready()
        yield service
    finally:
        service.stop()


@pytest.fixture
def service(recipe: Recipe, policy: Path) -> Iterator[RolloutService]:
    with running(recipe, policy) as service:
        yield service


def forward_logprobs(model: torch.nn.Module, trajectory: Trajectory) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    """Log-probabilities of the action tokens over what was allowed, from one fresh forward pass."""
    ids = torch.from_numpy(trajectory.token_ids.astype(np.int64))
    with torch.no_grad():
        logits = model(input_ids=ids[None], use_cache=False).logits[0].float()
    assert trajectory.allowed is not None
    positions = np.flatnonzero(trajectory.action_mask)
    values = []
    for position, allowed in zip(positions, trajectory.allowed, strict=True):
        row = logits[position - 1][list(allowed)]
        values.append(row.log_softmax(0)[allowed.index(int(ids[position]))].item())
    return np.array(values, dtype=np.float32)


def test_killed_sandboxes_cost_one_trajectory_each_and_their_slots_come_back(
    recipe: Recipe, policy: Path, tmp_path: Path
) -> None:
    ahead = recipe.rollout.model_copy(update={"async_ratio": 4.0})  # so much is admitted that all three always play
    model, _ = load_policy(str(policy), "float32")
    weights = write_weights(model.state_dict(), tmp_path / "same.safetensors")
    with running(recipe.model_copy(update={"rollout": ahead}), policy) as service:
        assert "infra_error" not in service.next_batch(0).outcomes
        for pid in service.sandbox_pids():  # some may still be starting on a busy machine
            os.kill(pid, signal.SIGKILL)
        for version in range(1, 4):
            service.publish(version, weights)
            batch = service.next_batch(version)
            assert len(batch.groups) == 2
        lost = batch.outcomes["infra_error"]
        assert 1 <= lost <= 3
        assert batch.outcomes["retried"] == lost
        causes = ("sandbox_lost", "env_crashed", "lease_lost")  # whichever end was seen first
        assert sum(batch.outcomes.get(f"infra_error/{cause}", 0) for cause in causes) == lost, batch.outcomes
        deadline = time.monotonic() + 60
        while len(service.sandbox_pids()) < 3 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert len(service.sandbox_pids()) == 3, "the killed sandboxes were not replaced"


def test_behaviour_logprobs_survive_turns_and_a_weight_swap(
    service: RolloutService, recipe: Recipe, policy: Path, tmp_path: Path
) -> None:
    old, _ = load_policy(str(policy), "float32")
    new, _ = load_policy(str(policy), "float32")
    with torch.no_grad():
        for parameter in new.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    before = service.next_batch(0)
    weights = tmp_path / "new.safetensors"
    save_file({name: value.clone() for name, value in new.state_dict().items()}, weights)
    service.publish(1, weights)
    after = service.next_batch(1)
    models = {0: old, 1: new}
    seen: set[int] = set()
    for batch in (before, after):
        for trajectory in (t for group in batch.groups for t in group.trajectories):
            versions = trajectory.versions[trajectory.action_mask]
            recorded = trajectory.logprobs[trajectory.action_mask]
            for version in np.unique(versions):
                expected = forward_logprobs(models[int(version)], trajectory)
                assert np.abs(expected - recorded)[versions == version].max() < 1e-4
                seen.add(int(version))
    assert seen == {0, 1}


def test_a_learner_that_begins_again_gets_the_batches_it_had_and_then_goes_on(
    recipe: Recipe, policy: Path, tmp_path: Path
) -> None:
    folder = RunFolder(tmp_path)
    weights = tmp_path / "weights.safetensors"
    save_file({name: value.clone() for name, value in load_policy(str(policy))[0].state_dict().items()}, weights)
    with running(recipe, policy, folder) as first:
        had = [first.next_batch(0), publish_and_take(first, 1, weights)]
    assert [batch.metrics["batch/replayed"] for batch in had] == [0.0, 0.0]
    with running(recipe, policy, folder) as second:
        again = [second.next_batch(0), publish_and_take(second, 1, weights), publish_and_take(second, 2, weights)]
    assert [batch.metrics["batch/replayed"] for batch in again] == [1.0, 1.0, 0.0]
    assert [ids(batch) for batch in again[:2]] == [ids(batch) for batch in had]
    assert not {*ids(again[2])} & {*ids(had[0]), *ids(had[1])}
    for batch, repeated in zip(had, again, strict=False):
        for ours, theirs in zip(members(batch), members(repeated), strict=True):
            assert np.array_equal(ours.token_ids, theirs.token_ids) and np.array_equal(ours.logprobs, theirs.logprobs)
    found = audit(folder)
    assert found.balanced, found.problems
    assert (found.pending, found.playing) == (3 * 4, 0)


def test_a_damaged_batch_reaches_the_learner_as_what_it_is(recipe: Recipe, policy: Path, tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    with running(recipe, policy, folder) as first:
        first.next_batch(0)
    path = folder.trajectories / "000001.parquet"
    path.write_bytes(path.read_bytes()[:-10])
    with running(recipe, policy, folder) as second, pytest.raises(StorageError, match=r"000001.parquet"):
        second.next_batch(0)


def test_a_process_that_waits_for_a_batch_ends_when_it_is_told_to(recipe: Recipe, policy: Path) -> None:
    never = recipe.model_copy(update={"rollout": recipe.rollout.model_copy(update={"num_groups": 1000})})
    with running(never, policy, None) as service:
        process = psutil.Process(service.pid)
        service._connection.send(("next_batch", (0,)))
        service.stop()
        assert not process.is_running()


def publish_and_take(service: RolloutService, version: int, weights: Path) -> RolloutBatch:
    service.publish(version, weights)
    return service.next_batch(version)


def members(batch: RolloutBatch) -> list[Trajectory]:
    return [t for group in batch.groups for t in group.trajectories]


def ids(batch: RolloutBatch) -> list[str]:
    return [t.id for t in members(batch)]


def test_an_evaluation_reports_every_task_in_order(service: RolloutService, recipe: Recipe) -> None:
    tasks = make_family(recipe.env.name, recipe.env.config).tasks("unseen")
    heard: list[tuple[int, int]] = []
    trajectories = service.evaluate(tasks, 0.0, lambda done, total: heard.append((done, total)))
    assert [t.task_id for t in trajectories] == [t.id for t in tasks]
    assert heard[-1] == (len(tasks), len(tasks))


def test_a_dead_rollout_process_is_an_error_that_says_so_and_leaves_nothing(service: RolloutService) -> None:
    sandboxes = service.sandbox_pids()
    os.kill(service.pid, signal.SIGKILL)
    with pytest.raises(RolloutFailed, match="the rollout process died"):
        service.next_batch(0)
    _, alive = psutil.wait_procs([psutil.Process(pid) for pid in sandboxes if psutil.pid_exists(pid)], timeout=10)
    assert not alive


def test_a_call_brings_news_of_the_rollouts_while_it_goes_on(service: RolloutService, recipe: Recipe) -> None:
    heard: list[tuple[int, Sequence[Reading]]] = []
    service.heard = lambda finished, of_sandboxes: heard.append((finished, of_sandboxes))
    service.next_batch(0)
    told = [finished for finished, _ in heard]
    assert told == sorted(told) and told[-1] > 0
    assert {reading.rule for reading in heard[-1][1]} >= {"stalled_queue", "memory_growth"}
