"""The house stands: what is documented exists, and what is installed is everything."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from rocknroll.trainer.cli.app import app
from rocknroll.trainer.trackers import TRACKERS

ROOT = Path(__file__).parents[1]
FOLDERS = ("sandbox", "envs", "trainer", "dashboard", "recipes")
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def tracked_files() -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("not a git checkout")
    return [ROOT / name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]


def test_a_wheel_holds_every_module_and_recipe(tmp_path: Path) -> None:
    build = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--no-deps",
        "--no-build-isolation",
        "--quiet",
        "-w",
        str(tmp_path),
        ".",
    ]
    subprocess.run(build, cwd=ROOT, check=True, timeout=120)
    (wheel,) = tmp_path.glob("*.whl")
    packed = set(zipfile.ZipFile(wheel).namelist())
    ours = {
        f"rocknroll/{file.relative_to(ROOT)}"
        for folder in FOLDERS
        for pattern in ("*.py", "*.yaml")
        for file in (ROOT / folder).rglob(pattern)
    }
    assert len(ours) > 50
    assert ours <= packed


@pytest.mark.parametrize("folder", FOLDERS)
def test_import_names_are_relative_links_to_the_folders(folder: str) -> None:
    link = ROOT / "src" / "rocknroll" / folder
    assert link.readlink() == Path("..", "..", folder)
    assert link.resolve() == ROOT / folder


def test_make_installs_the_torch_that_the_package_asks_for() -> None:
    printed = subprocess.run(
        ["make", "--dry-run", "--always-make", "setup"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    (torch,) = (wanted for wanted in PYPROJECT["project"]["dependencies"] if wanted.startswith("torch=="))
    assert f'"{torch}"' in printed
    assert printed.index(f'"{torch}"') < printed.index('-e ".[dev]"')


def test_readme_names_only_targets_and_commands_that_exist() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    assert set(re.findall(r"`?make (\w+)", readme)) <= targets
    commands = {command.name for command in app.registered_commands}
    assert set(re.findall(r"roll (train|eval|inspect|validate|recipes|doctor)\b", readme)) <= commands
    assert {"train", "test"} <= targets


def test_every_command_is_documented() -> None:
    documented = set(
        re.findall(r"^\| `roll (\w+)", (ROOT / "docs" / "cli.md").read_text(encoding="utf-8"), re.MULTILINE)
    )
    assert documented == {command.name for command in app.registered_commands}


def test_links_between_documents_lead_somewhere() -> None:
    for document in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", document.read_text(encoding="utf-8")):
            assert (document.parent / target).exists(), f"{document.name} links to {target}"


def test_every_tracker_that_is_not_installed_by_default_is_an_extra() -> None:
    assert TRACKERS.keys() - {"tensorboard"} <= PYPROJECT["project"]["optional-dependencies"].keys()


def test_no_module_has_a_name_that_says_nothing() -> None:
    empty = re.compile(r"^(utils?|helpers?|common|misc)(\.py)?$")
    assert not [file for file in tracked_files() if any(empty.match(part) for part in file.relative_to(ROOT).parts)]


def test_no_path_of_one_machine_is_committed() -> None:
    private = re.compile(rb"(?<![\w.])/(home|root|Users|work)/\w")
    assert not [file for file in tracked_files() if private.search(file.read_bytes())]
