"""What this machine has, what is missing, and the one command that adds it. Imports nothing heavy itself."""

from __future__ import annotations

import asyncio
import os
import platform
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil

from rocknroll.trainer.engines.vllm.installation import ADD_CPU, find_installation
from rocknroll.trainer.errors import RecipeError
from rocknroll.trainer.trackers import TRACKERS

GIB = 2**30
LEAST_MEMORY_BYTES = 3 * GIB
"""Learner, rollout process and 32 sandboxes of the ALFWorld recipe."""
LEAST_DISK_BYTES = 2 * GIB
"""Games, policies and checkpoints."""


@dataclass(frozen=True)
class Check:
    """One thing looked at."""

    name: str
    ok: bool
    needed: bool
    """False: optional; its absence is told, not counted."""
    found: str
    fix: str = ""
    """The one command (or sentence) that mends it."""


def examine() -> list[Check]:
    """Look at everything `roll train` needs or can use."""
    return [check for look in _LOOKS for check in look()]


def to_json(checks: list[Check]) -> dict[str, Any]:
    """What `roll doctor --json` prints."""
    return {"ok": all(check.ok for check in checks if check.needed), "checks": [asdict(check) for check in checks]}


def _python() -> Iterator[Check]:
    ok = sys.version_info >= (3, 11)
    yield Check("python", ok, True, platform.python_version(), "" if ok else "install CPython 3.11 or later")


def _torch() -> Iterator[Check]:
    if find_spec("torch") is None:
        yield Check("torch", False, True, "not installed", "pip install 'torch==2.13.0'")
        return
    import torch

    accelerator = f"{torch.cuda.device_count()} GPU" if torch.cuda.is_available() else "CPU"
    yield Check("torch", True, True, f"{torch.__version__}, {accelerator}, {torch.get_num_threads()} threads")


def _libraries() -> Iterator[Check]:
    for name in ("transformers", "trl", "gymnasium"):
        try:
            yield Check(name, True, True, metadata.version(name))
        except metadata.PackageNotFoundError:
            yield Check(name, False, True, "not installed", "pip install -e .")


def _machine() -> Iterator[Check]:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    yield Check("cores", True, True, str(cores))
    free = psutil.virtual_memory().available
    ok = free >= LEAST_MEMORY_BYTES
    fix = "" if ok else f"free memory up to {LEAST_MEMORY_BYTES / GIB:.0f} GiB, or lower sandbox.count"
    yield Check("memory", ok, True, f"{free / GIB:.1f} GiB free", fix)
    disk = shutil.disk_usage(Path.cwd()).free
    ok = disk >= LEAST_DISK_BYTES
    fix = "" if ok else f"free {LEAST_DISK_BYTES / GIB:.0f} GiB here, or run elsewhere"
    yield Check("disk", ok, True, f"{disk / GIB:.1f} GiB free here", fix)


def _threads() -> Iterator[Check]:
    threads = os.environ.get("OMP_NUM_THREADS")
    found = (
        f"OMP_NUM_THREADS={threads}"
        if threads
        else "OMP_NUM_THREADS is not set; `roll train` sets what the recipe says"
    )
    yield Check("threads", True, False, found)


def _vllm() -> Iterator[Check]:
    try:
        found = find_installation()
    except RecipeError as error:
        yield Check("vllm", False, False, str(error), ADD_CPU)
        return
    yield Check("vllm", True, False, f"{found.version}, for {'CPUs' if found.cpu else 'GPUs'}, of {found.python}")


def _alfworld() -> Iterator[Check]:
    try:
        yield Check("alfworld", True, True, metadata.version("alfworld"))
    except metadata.PackageNotFoundError:
        yield Check("alfworld", False, True, "not installed", "pip install 'alfworld==0.4.2'")
    folder = os.environ.get("ALFWORLD_DATA")
    if not folder:
        yield Check("alfworld data", True, False, "generated from a seed ($ALFWORLD_DATA is not set)")
        return
    ok = (Path(folder) / "json_2.1.1").is_dir()
    found = f"official, in {folder}" if ok else f"$ALFWORLD_DATA={folder} holds no json_2.1.1"
    yield Check("alfworld data", ok, True, found, "" if ok else "alfworld-download, or unset ALFWORLD_DATA")


def _sandboxes() -> Iterator[Check]:
    from rocknroll.sandbox.doctor import examine as examine_sandboxes
    from rocknroll.sandbox.errors import RuntimeUnavailable

    try:
        report = asyncio.run(examine_sandboxes())
    except RuntimeUnavailable as error:
        yield Check("sandboxes", False, True, str(error), "rock doctor")
        return
    for check in report["checks"]:
        yield Check(check["name"], check["ok"], False, check["found"], check["remedy"])


def _trackers() -> Iterator[Check]:
    for name, install in TRACKERS.items():
        ok = find_spec(name) is not None
        yield Check(name, ok, False, "installed" if ok else "not installed", "" if ok else install)


_LOOKS: tuple[Callable[[], Iterator[Check]], ...] = (
    _python,
    _torch,
    _libraries,
    _machine,
    _threads,
    _vllm,
    _alfworld,
    _sandboxes,
    _trackers,
)
