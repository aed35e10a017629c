"""A package of the shipped task set, and the bugs that make its instances.

`packages/NAME/tree/` is the package as it is right, tests included, and `tests.txt` names these. Each bug of
`bugs.yaml` says how to make it wrong and which tests show it; those tests are hidden, and everything else is what the
agent gets.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from rocknroll.envs.text import EnvDataError

PACKAGES = Path(__file__).parent / "packages"
Tree = Mapping[str, str]
"""Text of each file by its path, relative and with slashes."""


class Edit(BaseModel):
    """A place where the bug sits: `right` occurs there exactly once, and is `wrong` in the base commit."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    path: str
    right: str = Field(min_length=1)
    wrong: str


class Bug(BaseModel):
    """One bug of a package, and what a user wrote about it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: str = Field(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$")
    difficulty: Literal["easy", "medium", "hard"]
    kind: str
    """What went wrong, in a word or two: `off by one`, `shared state`, `error handling`…"""
    problem: str = Field(min_length=80)
    edits: tuple[Edit, ...] = Field(min_length=1)
    hides: tuple[str, ...] = Field(min_length=1)
    """Tests that fail because of the bug, as `tests/test_x.py::test_y`; the base commit does not have them."""


@dataclass(frozen=True)
class Package:
    """A package as it is right, and its bugs."""

    name: str
    tree: Tree
    bugs: tuple[Bug, ...]
    tests: tuple[str, ...]
    """Names of all its tests, as pytest's summary prints them up to the first space."""

    def wrong(self, bug: Bug) -> dict[str, str]:
        """The tree with the bug, all tests in place.

        Raises:
            EnvDataError: an edit does not fit the tree.
        """
        tree = dict(self.tree)
        for edit in bug.edits:
            text = tree.get(edit.path, "")
            if text.count(edit.right) != 1:
                raise EnvDataError(
                    f"{self.name}: bug {bug.id!r} replaces a text that {edit.path} has {text.count(edit.right)} times;"
                    " it must stand there exactly once"
                )
            tree[edit.path] = text.replace(edit.right, edit.wrong)
        return tree

    def base(self, bug: Bug) -> dict[str, str]:
        """What the agent gets: the tree with the bug and without the tests that show it."""
        tree = self.wrong(bug)
        for path, names in hidden_by_file(bug.hides).items():
            if path not in tree:
                raise EnvDataError(f"{self.name}: bug {bug.id!r} hides tests of {path}, which there is not")
            tree[path] = without_tests(tree[path], names, f"{self.name}: bug {bug.id!r}: {path}")
        return tree


def hidden_by_file(tests: Iterable[str]) -> dict[str, set[str]]:
    """Names of test functions by their file."""
    found: dict[str, set[str]] = {}
    for test in tests:
        path, _, name = test.partition("::")
        found.setdefault(path, set()).add(name)
    return found


def without_tests(source: str, names: set[str], where: str) -> str:
    """Source of a test module without some of its top-level functions, decorators and all.

    Raises:
        EnvDataError: it has no such function.
    """
    lines = re.findall(r"[^\n]*\n|[^\n]+", source)  # as Python counts them, unlike `splitlines`
    drop: set[int] = set()
    missing = set(names)
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name in names:
            missing.discard(node.name)
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            last = node.end_lineno or node.lineno
            while last < len(lines) and not lines[last].strip():
                last += 1
            drop |= set(range(first - 1, last))
    if missing:
        raise EnvDataError(f"{where} has no test function {', '.join(sorted(missing))} at its top level")
    kept = "".join(line for number, line in enumerate(lines) if number not in drop)
    return kept.rstrip("\n") + "\n"


def package_names() -> list[str]:
    """The shipped packages, in alphabetical order."""
    return sorted(folder.name for folder in PACKAGES.iterdir() if (folder / "bugs.yaml").exists())


def load_package(name: str) -> Package:
    """Read a shipped package.

    Raises:
        EnvDataError: its description is broken; says where.
    """
    folder = PACKAGES / name
    try:
        described = yaml.safe_load((folder / "bugs.yaml").read_text())
        bugs = tuple(Bug.model_validate(bug) for bug in described)
        tests = tuple((folder / "tests.txt").read_text().split())
    except (OSError, yaml.YAMLError, ValidationError, TypeError) as error:
        raise EnvDataError(f"{folder / 'bugs.yaml'}: {error}") from error
    tree = folder / "tree"
    files = {
        path.relative_to(tree).as_posix(): path.read_text()
        for path in sorted(tree.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    }
    return Package(name, files, bugs, tests)
