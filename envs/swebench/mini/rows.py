"""Instances of the shipped task set, as rows in the official schema (classic columns and those of 5.x)."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from functools import lru_cache
from pathlib import Path
from typing import Any

from rocknroll.envs.cache import cache_root
from rocknroll.envs.swebench.logs import function_of
from rocknroll.envs.swebench.mini.history import difference, make_repository
from rocknroll.envs.swebench.mini.package import PACKAGES, Bug, Package, hidden_by_file, load_package, package_names

WORKDIR = "/testbed"


def mini_rows() -> list[dict[str, Any]]:
    """All shipped instances, package by package; made once and kept in the cache.

    Raises:
        EnvDataError: a package's description is broken, or git is missing.
    """
    kept = cache_root() / "mini-swe" / f"{_content_key()}.json"
    if kept.is_file():
        return list(json.loads(kept.read_text(encoding="utf-8")))
    rows = [row for name in package_names() for row in package_rows(name)]
    kept.parent.mkdir(parents=True, exist_ok=True)
    partial = kept.with_name(f".{kept.name}.{os.getpid()}")
    partial.write_text(json.dumps(rows), encoding="utf-8")
    partial.replace(kept)
    return rows


def _content_key() -> str:
    """Hash of the packages and of what makes rows of them."""
    code = [PACKAGES.parent / f"{name}.py" for name in ("rows", "package", "history")]
    made_by = [*code, *(path for path in PACKAGES.rglob("*") if path.is_file())]
    said = hashlib.sha256()
    for path in sorted(path for path in made_by if "__pycache__" not in path.parts):
        said.update(f"{path.relative_to(PACKAGES.parent)}\0".encode() + path.read_bytes() + b"\0")
    return said.hexdigest()[:16]


@lru_cache(maxsize=64)
def package_rows(name: str) -> tuple[dict[str, Any], ...]:
    """The instances of one package."""
    package = load_package(name)
    return tuple(row_of(package, bug) for bug in package.bugs)


def row_of(package: Package, bug: Bug) -> dict[str, Any]:
    """The instance that a bug of a package makes, in both schemas and with its `tree`.

    Raises:
        EnvDataError: the bug does not fit the package, or git is missing.
    """
    base, wrong = package.base(bug), package.wrong(bug)
    test_files = sorted(hidden_by_file(bug.hides))
    tests_there = [test for test in package.tests if test.partition("::")[0] in test_files]
    instance_id = f"rocknroll__{package.name}-{bug.id}"
    right = {**base, **{edit.path: package.tree[edit.path] for edit in bug.edits}}
    with tempfile.TemporaryDirectory() as folder:
        commit = make_repository(base, Path(folder))
        gold = difference(right, Path(folder))
        tests = difference({**base, **{path: wrong[path] for path in test_files}}, Path(folder))
    return {
        "instance_id": instance_id,
        "repo": f"rocknroll/{package.name}",
        "base_commit": commit,
        "environment_setup_commit": commit,
        "patch": gold,
        "test_patch": tests,
        "problem_statement": bug.problem,
        "hints_text": "",
        "created_at": "2026-01-01T00:00:00Z",
        "version": "1.0",
        "difficulty": bug.difficulty,
        "FAIL_TO_PASS": [test for test in tests_there if function_of(test) in bug.hides],
        "PASS_TO_PASS": [test for test in tests_there if function_of(test) not in bug.hides],
        "tree": json.dumps(base),
        "image": f"rocknroll/mini-swe.{package.name}.{bug.id}:{commit[:12]}",
        "eval_script": _eval_script(commit, test_files, tests),
        "log_parser": "parse_log_pytest",
        "eval_type": "pass_and_fail",
    }


def _eval_script(commit: str, test_files: list[str], test_patch: str) -> str:
    """As the official data sets write it."""
    files, end = " ".join(test_files), "EOF_114329324912"
    return f"""\
#!/bin/bash
set -uxo pipefail
cd {WORKDIR}
git checkout {commit} {files}
git apply -v - <<'{end}'
{test_patch}{end}
: '>>>>> Start Test Output'
python3 -m pytest -rA {files}
: '>>>>> End Test Output'
git checkout {commit} {files}
"""
