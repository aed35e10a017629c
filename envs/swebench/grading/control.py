"""Files that steer how tests run rather than what the code does.

A patch has no business with them unless the gold patch changes them, too. They are put back to the base commit, or
removed, before anything runs; a patch that works does not depend on them.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Collection
from pathlib import PurePosixPath

_NAMES = frozenset(
    {
        "conftest.py",
        "pytest.ini",
        ".pytest.ini",
        "pytest.toml",
        ".pytest.toml",
        "tox.ini",
        "tox.toml",
        "setup.cfg",
        "setup.py",
        "pyproject.toml",
        "noxfile.py",
        "Makefile",
        "GNUmakefile",
        "makefile",
        ".coveragerc",
        "coveragerc",
        "sitecustomize.py",
        "usercustomize.py",
        ".gitattributes",
        ".gitmodules",
        ".env",
        ".envrc",
        "runtests.py",
        "manage.py",
        "jest.config.js",
        "package.json",
        "babel.config.js",
        ".mocharc.js",
        ".python-version",
    }
)
"""Of files, wherever they are."""
_SUFFIXES = frozenset({".pth", ".egg-link", ".pyc", ".pyo", ".so", ".pyd", ".dll", ".dylib", ".egg", ".whl", ".zip"})
"""Code that nobody reads, and files that Python carries out when it starts."""
_FOLDERS = frozenset({"__pycache__", ".git", ".github", "node_modules", "site-packages", "dist-packages"})
_METADATA = re.compile(r".+\.(egg-info|dist-info)$")
_TESTING = frozenset(
    {
        "pytest",
        "_pytest",
        "pluggy",
        "iniconfig",
        "packaging",
        "exceptiongroup",
        "tomli",
        "pygments",
        "py",
        "xdist",
        "coverage",
        "unittest2",
        "nose",
        "hypothesis",
        "mock",
        "attr",
        "attrs",
        "numpy",
    }
)
"""Top-level modules of what runs tests."""


def to_undo(
    changed: Collection[str], gold: Collection[str], tests: Collection[str], base: Collection[str]
) -> list[str]:
    """Changed files that are put back before grading.

    Args:
        changed: files that the patch adds, changes or removes. All paths are relative to the repository, with slashes.
        gold: files that the gold patch touches; they stay as the patch has them.
        tests: files that the test patch touches.
        base: files of the base commit.
    """
    roots = {root for path in tests if (root := _test_root(path))}
    tops = {_top(path) for path in base}
    return sorted(
        path
        for path in changed
        if path not in gold
        and (path in tests or _steers(path) or _among(path, roots) or (_shadows(path) and _top(path) not in tops))
    )


def _steers(path: str) -> bool:
    *folders, name = PurePosixPath(path).parts
    if name in _NAMES or PurePosixPath(name).suffix in _SUFFIXES:
        return True
    return any(folder in _FOLDERS or _METADATA.match(folder) for folder in folders)


def _test_root(path: str) -> str:
    """The outermost folder of tests that a test lies in; empty where its folder has other things, too."""
    parts = PurePosixPath(path).parts
    for depth, folder in enumerate(parts[:-1], start=1):
        if folder.lower() in ("test", "tests", "testing", "__tests__", "spec", "e2e"):
            return "/".join(parts[:depth])
    return ""


def _among(path: str, roots: Collection[str]) -> bool:
    return any(path.startswith(f"{root}/") for root in roots)


def _top(path: str) -> str:
    """The module that a file of the repository's root, or of its `src`, belongs to."""
    parts = PurePosixPath(path).parts
    top = parts[1] if parts[0] in ("src", "lib") and len(parts) > 1 else parts[0]
    return top.removesuffix(".py")


def _shadows(path: str) -> bool:
    """Whether a file would be imported instead of a module that running tests needs."""
    return path.endswith(".py") and _top(path) in (sys.stdlib_module_names | _TESTING)
