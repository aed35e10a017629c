"""Where made things are kept between runs: games, expert episodes, policies."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs


def cache_root(cache_dir: str | None = None) -> Path:
    """Folder for everything that can be made again: `cache_dir`, else `$ROCKNROLL_CACHE`, else the platform's."""
    said = cache_dir or os.environ.get("ROCKNROLL_CACHE")
    if said:
        return Path(said).expanduser()
    return platformdirs.user_cache_path("rocknroll")
