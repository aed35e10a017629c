"""A handful of generated ALFWorld games, made once for all tests of a run (and all workers of it)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rocknroll.envs.alfworld.family import AlfWorldFamily


@pytest.fixture(scope="session")
def alfworld_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    return shared / "alfworld-cache"


@pytest.fixture(scope="session")
def alfworld(alfworld_cache: Path) -> AlfWorldFamily:
    family = AlfWorldFamily(
        {"data": "generated", "train_games": 12, "seen_games": 6, "unseen_games": 12, "cache_dir": str(alfworld_cache)}
    )
    family.prepare()
    return family
