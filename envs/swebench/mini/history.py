"""A git history for a tree that has none: one commit for each file, dated and signed so that hashes never change."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path

from rocknroll.envs.text import EnvDataError

BEGINNING = 1_700_000_000
"""Seconds since 1970 of the first commit; the others follow a day apart."""
_DAY_S = 86_400
_AUTHOR = "mini-swe <mini-swe@rocknroll.invalid>"
_BRANCH = "refs/heads/main"


def make_repository(tree: Mapping[str, str], folder: Path) -> str:
    """Make a repository with this tree in an empty folder, checked out; returns the hash of its last commit.

    The last commit has all files, and nothing later exists. Hashes follow from the tree alone.

    Raises:
        EnvDataError: git is missing or refuses.
    """
    _git(folder, "init", "-q", "-b", "main", "--template=")
    with (folder / ".git" / "config").open("a") as config:
        config.write("[user]\n\tname = mini-swe\n\temail = mini-swe@rocknroll.invalid\n[gc]\n\tauto = 0\n")
    _git(folder, "fast-import", "--quiet", stdin=_stream(tree))
    _git(folder, "reset", "-q", "--hard", "main")
    return _git(folder, "rev-parse", "HEAD").strip()


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


def _stream(tree: Mapping[str, str]) -> bytes:
    """Input of `git fast-import`: the package's own files first, its tests last."""
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


def _git(folder: Path, *arguments: str, stdin: bytes = b"") -> str:
    # Nothing of the user's own configuration: it could change hashes and diffs.
    environment = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(folder), "GIT_CONFIG_NOSYSTEM": "1"}
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=folder, input=stdin, capture_output=True, check=True, env=environment
        )
    except FileNotFoundError:
        raise EnvDataError("mini-swe needs git: install it, for example `apt-get install git`") from None
    except subprocess.CalledProcessError as error:
        said = error.stderr.decode(errors="replace").strip()
        raise EnvDataError(f"git {arguments[0]} failed: {said}") from None
    return done.stdout.decode()
