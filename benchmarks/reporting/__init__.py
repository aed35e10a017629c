"""What every benchmark here prints: a table for people, one JSON object for scripts.

Import this before anything of the project: Python puts a script's folder first on the path, where
`alfworld.py` would hide the package of that name. Importing this module puts the folder last.
"""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_FOLDER = str(Path(__file__).resolve().parents[1])

if _FOLDER in sys.path:
    sys.path.remove(_FOLDER)
    sys.path.append(_FOLDER)


def machine() -> dict[str, Any]:
    """Where the figures were taken: processor, cores, memory, load, Python."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "load_1min": round(os.getloadavg()[0], 2),
        "system": platform.system(),
        "python": platform.python_version(),
    }


def peak_mib() -> float:
    """The most memory that this process had resident. `ru_maxrss` will not do: it begins with what the parent had."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


def emit(
    name: str, ratios: Mapping[str, float | Mapping[str, float]], figures: Mapping[str, Any], as_json: bool
) -> None:
    """Print the result; a ratio may be one or several by size. With `as_json` the last line of stdout is the JSON
    object, otherwise it is a table."""
    if as_json:
        print(json.dumps({"name": name, "ratios": dict(ratios), "figures": dict(figures), "machine": machine()}))
        return
    print(name)
    for label, ratio in ratios.items():
        for size, value in ratio.items() if isinstance(ratio, Mapping) else [("", ratio)]:
            print(f"  {f'{label} {size}':<32} {value:8.2f} x")
    for label, value in figures.items():
        print(f"  {label:<32} {value}")


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())
