"""Real fleets for the dashboard's tests come from those of the sandboxes; what they look at is shared."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "sandbox"))


@pytest.fixture
def folder() -> Iterator[Path]:
    """Where a fleet keeps its state; pytest's own folders have paths too long for sockets."""
    path = Path(tempfile.mkdtemp(prefix="t-"))
    yield path
    shutil.rmtree(path, ignore_errors=True)
