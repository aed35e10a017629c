"""Two domains in one rollout process for real: ALFWorld in two sizes, a fleet of sandboxes for each."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from rocknroll.trainer.domains import Domains
from rocknroll.trainer.recipe import Recipe
from rocknroll.trainer.rollout.service import RolloutService
from rocknroll.trainer.warmstart import prepare_policy

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Recipe:
    monkeypatch.setenv("ROCKNROLL_CACHE", str(tmp_path))
    games = {"data": "generated", "train_games": 6, "seen_games": 0, "unseen_games": 6}
    return Recipe.model_validate(
        {
            "domains": {
                "easy": {"env": {"config": {**games, "max_receptacles": 4}}, "ratio": 2.0, "sandboxes": 2},
                "hard": {"env": {"config": {**games, "max_steps": 5}}, "sandboxes": 1},
            },
            "policy": {"tiny": {"hidden_size": 32, "layers": 1, "heads": 2, "kv_heads": 1, "head_dim": 16}},
            "warmstart": {"games": 6, "epochs": 1},
            "sandbox": {"count": 3},
            "engine": {"slots": 3},
            "rollout": {"num_groups": 3, "group_size": 2, "constrained": True, "async_ratio": 0},
            "report_to": [],
        }
    )


def test_each_domain_is_played_in_its_own_sandboxes_by_its_share(recipe: Recipe) -> None:
    domains = Domains(recipe)
    for family in domains.families:
        family.prepare()
    service = RolloutService(recipe, prepare_policy(recipe, domains.families, lambda phase, done, total: None))
    try:
        service.ready()
        batch = service.next_batch(0)
        played = [trajectory for group in batch.groups for trajectory in group.trajectories]
        assert Counter(t.domain for t in played) == {"easy": 4, "hard": 2}
        assert all(t.task_id in {task.id for task in domains[t.domain].tasks("train")} for t in played)
        assert all(len(t.turns) <= 5 for t in played if t.domain == "hard")
        tasks = [*domains["hard"].tasks("unseen")[:2], *domains["easy"].tasks("unseen")[:2]]
        evaluated = service.evaluate(tasks, 0.0)
        assert [(t.domain, t.task_id) for t in evaluated] == [(task.domain, task.id) for task in tasks]
        assert len(service.sandbox_pids()) == 3
    finally:
        service.stop()
