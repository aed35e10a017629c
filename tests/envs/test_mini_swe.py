"""mini-swe: bugs show in the tests that they hide and in no other; the grader resolves the gold patches alone."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import pytest
from swebench_attacks import ATTACKS, PATCHES

from rocknroll.envs.swebench.config import PlaceConfig
from rocknroll.envs.swebench.grading.grade import Grade, grade
from rocknroll.envs.swebench.instance import Instance, instance_of, instances_of
from rocknroll.envs.swebench.logs import function_of, parse_pytest
from rocknroll.envs.swebench.mini.history import difference, make_repository
from rocknroll.envs.swebench.mini.package import Package, load_package, package_names
from rocknroll.envs.swebench.mini.rows import mini_rows, package_rows
from rocknroll.envs.swebench.workplaces import Workplaces
from rocknroll.envs.text import EnvDataError

PYTHON = Path(sys.prefix)
VARIABLES = {
    "PATH": f"{PYTHON / 'bin'}:/usr/local/bin:/usr/bin:/bin",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
}


def put(tree: Mapping[str, str], folder: Path) -> None:
    for path, text in tree.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, newline="")


def run_tests(tree: Mapping[str, str], folder: Path) -> dict[str, str]:
    """Status of every test of a tree."""
    put(tree, folder)
    command = [sys.executable, "-m", "pytest", "-q", "-rA", "--tb=no", "-p", "no:cacheprovider", "--rootdir", "."]
    done = subprocess.run(command, cwd=folder, env={**os.environ, **VARIABLES}, capture_output=True, text=True)
    return parse_pytest(done.stdout)


def test_there_are_eight_packages_and_more_than_two_dozen_bugs_of_all_grades() -> None:
    packages = [load_package(name) for name in package_names()]
    bugs = [bug for package in packages for bug in package.bugs]
    assert len(packages) >= 8
    assert len(bugs) >= 24
    assert {bug.difficulty for bug in bugs} == {"easy", "medium", "hard"}


@pytest.mark.parametrize("name", package_names())
def test_hard_bugs_show_in_the_tests_that_they_hide_and_in_no_other(name: str, tmp_path: Path) -> None:
    """Of the others, those of `test_gold_is_resolved_and_nothing_else_is` are tried; all would take minutes."""
    package = load_package(name)
    right = run_tests(package.tree, tmp_path / "right")
    assert set(right.values()) == {"PASSED"}
    assert set(right) == set(package.tests)
    for bug in [bug for bug in package.bugs if bug.difficulty == "hard"]:
        wrong = run_tests(package.wrong(bug), tmp_path / bug.id)
        failing = {function_of(test) for test in package.tests if wrong.get(test) != "PASSED"}
        assert failing == set(bug.hides), bug.id


def test_rows_are_instances_and_hide_what_decides() -> None:
    instances, wrong = instances_of((row["instance_id"], row) for row in mini_rows())
    assert not wrong
    assert len(instances) == sum(len(load_package(name).bugs) for name in package_names())
    for instance in instances:
        package = load_package(instance.repo.partition("/")[2])
        (bug,) = [bug for bug in package.bugs if instance.id.endswith(f"-{bug.id}")]
        base = package.base(bug)
        for test in instance.fail_to_pass:
            path, _, name = function_of(test).partition("::")
            assert f"def {name}(" not in base[path], test
        assert instance.pass_to_pass, instance.id


def test_histories_follow_from_the_tree_alone(tmp_path: Path) -> None:
    package = load_package("rangeset")
    commits = set()
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        commits.add(make_repository(package.base(package.bugs[0]), tmp_path / name))
    assert commits == {package_rows("rangeset")[0]["base_commit"]}
    log = subprocess.run(["git", "log", "--oneline", "--all"], cwd=tmp_path / "a", capture_output=True, text=True)
    assert len(log.stdout.splitlines()) == len(package.base(package.bugs[0]))


def test_descriptions_that_do_not_fit_are_refused() -> None:
    package = load_package("rangeset")
    bug = package.bugs[0]
    edit = bug.edits[0].model_copy(update={"right": "nowhere to be found"})
    with pytest.raises(EnvDataError, match="has 0 times"):
        package.wrong(bug.model_copy(update={"edits": (edit,)}))
    with pytest.raises(EnvDataError, match="no test function test_nobody"):
        package.base(bug.model_copy(update={"hides": ("tests/test_sets.py::test_nobody",)}))


class Bench:
    """Grades patches of one instance in real process sandboxes."""

    def __init__(self, package: Package, index: int, folder: Path) -> None:
        self.package, self.base = package, package.base(package.bugs[index])
        self.instance: Instance = instance_of(package_rows(package.name)[index])
        self._folder = folder
        (folder / "repository").mkdir(parents=True)
        make_repository(self.base, folder / "repository")

    def patch_to(self, tree: Mapping[str, str]) -> str:
        return difference(tree, self._folder / "repository")

    def grade(self, *patches: str) -> list[Grade]:
        return asyncio.run(self._grade(patches))

    async def _grade(self, patches: tuple[str, ...]) -> list[Grade]:
        async with Workplaces(PlaceConfig(), 2) as places:
            fresh, workdir = partial(places.fresh, self.instance, "grader"), places.workdir(self.instance)
            return [await grade(self.instance, patch, fresh, workdir=workdir, timeout_s=60) for patch in patches]


@pytest.mark.parametrize("name", package_names())
def test_gold_is_resolved_and_nothing_else_is(name: str, tmp_path: Path) -> None:
    index = random.Random(name).randrange(4)
    bench = Bench(load_package(name), index, tmp_path)
    idle = bench.patch_to({**bench.base, "NOTES.md": "nothing\n"})
    gold, empty, nothing, broken = bench.grade(bench.instance.gold_patch, "", idle, "diff --git a/x b/x\ngarbage\n")
    assert gold == Grade(True, "resolved", logs=gold.logs), (gold, gold.logs)
    assert (empty.resolved, empty.why) == (False, "empty patch")
    assert (nothing.resolved, nothing.why, nothing.cheating) == (False, "tests failed", 0)
    assert (broken.resolved, broken.why) == (False, "patch does not apply")


@pytest.fixture(scope="module")
def rangeset(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return Bench(load_package("rangeset"), 0, tmp_path_factory.mktemp("bench"))


@pytest.mark.parametrize("attack", [*ATTACKS, *PATCHES])
def test_no_attack_is_resolved(attack: str, rangeset: Bench) -> None:
    patch = PATCHES.get(attack) or rangeset.patch_to(ATTACKS[attack]("rangeset", rangeset.base))
    (found,) = rangeset.grade(patch)
    assert not found.resolved and found.why in ("tests failed", "no proof"), (found, found.logs)


@pytest.mark.parametrize("attack", ["conftest at the root", "plugin by pytest.ini", "sitecustomize", "tests replaced"])
def test_right_code_is_resolved_whatever_came_with_it(attack: str, rangeset: Bench) -> None:
    """What is put back costs a right patch nothing but the mark."""
    right = {**rangeset.base, **{e.path: rangeset.package.tree[e.path] for e in rangeset.package.bugs[0].edits}}
    (found,) = rangeset.grade(rangeset.patch_to(ATTACKS[attack]("rangeset", right)))
    assert found.resolved, (found, found.logs)
    assert found.cheating == len(found.undone) > 0
