"""Where made things are kept between runs."""

from __future__ import annotations

import os
from pathlib import Path

from platformdirs import user_cache_path


def cache_folder() -> Path:
    """`$ROCKNROLL_CACHE`, else the platform's cache folder for rocknroll."""
    return Path(os.environ.get("ROCKNROLL_CACHE") or user_cache_path("rocknroll"))
