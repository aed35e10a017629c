"""pytest as a folder of its own, to be shown to sandboxes: with it comes nothing else of this machine's libraries."""

from __future__ import annotations

import compileall
import hashlib
import shutil
import tempfile
from importlib.metadata import Distribution, distribution
from pathlib import Path
from py_compile import PycInvalidationMode

from rocknroll.envs.cache import cache_root

DISTRIBUTIONS = ("pytest", "pluggy", "iniconfig", "packaging", "pygments")
"""pytest and what it imports, on every Python that the project supports."""


def tools_folder() -> Path:
    """The folder, for PYTHONPATH; made once for each set of versions, and compiled for this interpreter."""
    found = [distribution(name) for name in DISTRIBUTIONS]
    key = hashlib.sha256(" ".join(f"{each.name}-{each.version}" for each in found).encode()).hexdigest()[:16]
    folder = cache_root() / "swebench-tools" / key
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(dir=folder.parent))
    for each in found:
        _copy(each, made)
    # By content: what is mounted elsewhere has other times.
    compileall.compile_dir(made, quiet=2, invalidation_mode=PycInvalidationMode.UNCHECKED_HASH)
    made.chmod(0o755)
    try:
        made.rename(folder)
    except OSError:  # another process was faster
        shutil.rmtree(made)
    return folder


def _copy(installed: Distribution, folder: Path) -> None:
    for file in installed.files or ():
        source = Path(str(installed.locate_file(file)))
        if file.parts[0] == ".." or "__pycache__" in file.parts or not source.is_file():
            continue
        target = folder / file
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
