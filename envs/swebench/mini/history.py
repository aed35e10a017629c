"""A git history for a tree that has none: one commit for each file, dated and signed so that hashes never change."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from rocknroll.envs.text import EnvDataError

BEGINNING = 1_700_000_000
"""Seconds since 1970 of the first commit; the others follow a day apart."""
_DAY_S = 86_400
_AUTHOR = "mini-swe <mini-swe@rocknroll.invalid>"
_BRANCH = "refs/heads/main"


MAKE_REPOSITORY = """\
set -e
git init -q -b main --template=
git config user.name mini-swe
git config user.email mini-swe@rocknroll.invalid
git config gc.auto 0
git fast-import --quiet
git reset -q --hard main
git rev-parse HEAD
"""
"""Script that makes a repository in the current folder of what it reads (`stream_of`) and prints its last commit."""


def make_repository(tree: Mapping[str, str], folder: Path) -> str:
    """Make a repository with this tree in an empty folder, checked out; returns the hash of its last commit.

    The last commit has all files, and nothing later exists. Hashes follow from the tree alone.

    Raises:
        EnvDataError: git is missing or refuses.
    """
    return _run(["sh", "-c", MAKE_REPOSITORY], folder, stream_of(tree)).strip()


def difference(after: Mapping[str, str], folder: Path) -> str:
    """What leads from a repository's last commit to another tree, as `git diff` writes it; the repository stays.

    Raises:
        EnvDataError: git is missing or refuses.
    """
    there = _git(folder, "ls-files", "-z").split("\0")
    for path in {path for path in there if path} - set(after):
        (folder / path).unlink()
    for path, text in after.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, newline="")
    _git(folder, "add", "-A")
    found = _git(folder, "diff", "--cached", "--no-color", "--no-ext-diff", "HEAD")
    _git(folder, "reset", "-q", "--hard")
    return found


def stream_of(tree: Mapping[str, str]) -> bytes:
    """Input of `git fast-import` for a tree: a commit for each file, those of `tests/` last."""
    parts: list[bytes] = []
    for number, path in enumerate(sorted(tree, key=lambda path: (path.startswith("tests/"), "/" in path, path))):
        content, message = tree[path].encode(), f"Add {path}".encode()
        parts += [
            f"commit {_BRANCH}\ncommitter {_AUTHOR} {BEGINNING + number * _DAY_S} +0000\n".encode(),
            b"data %d\n%s\n" % (len(message), message),
            f"M 100644 inline {path}\n".encode(),
            b"data %d\n%s\n" % (len(content), content),
        ]
    return b"".join(parts)


def _git(folder: Path, *arguments: str) -> str:
    return _run(["git", *arguments], folder)


def _run(command: Sequence[str], folder: Path, stdin: bytes = b"") -> str:
    # Nothing of the user's own configuration: it could change hashes and diffs.
    environment = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(folder), "GIT_CONFIG_NOSYSTEM": "1"}
    try:
        done = subprocess.run(command, cwd=folder, input=stdin, capture_output=True, check=True, env=environment)
    except (FileNotFoundError, subprocess.CalledProcessError) as error:
        if isinstance(error, FileNotFoundError) or error.returncode == 127:
            raise EnvDataError("mini-swe needs git: install it, for example `apt-get install git`") from None
        said = error.stderr.decode(errors="replace").strip()
        raise EnvDataError(f"git failed: {said}") from None
    return done.stdout.decode()
