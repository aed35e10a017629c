"""Help and reading recipes load no model library, so that they answer at once."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = {"torch", "transformers", "trl", "textual", "ray", "textworld", "alfworld", "pyarrow", "pandas"}


def loaded_by(code: str) -> set[str]:
    """Top-level modules that a fresh interpreter has loaded after running `code`."""
    report = (
        "import sys, atexit; atexit.register(lambda: print('LOADED', *{m.partition('.')[0] for m in sys.modules}))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", report + code], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return set(done.stdout.rpartition("LOADED")[2].split())


@pytest.mark.parametrize("package", ["rocknroll.trainer.cli", "rocknroll.sandbox.cli"])
def test_help_loads_nothing_heavy(package: str) -> None:
    assert not HEAVY & loaded_by(f"import sys; sys.argv = ['x', '--help']; from {package} import main; main()")


@pytest.mark.parametrize(
    "arguments",
    [
        ["train", "alfworld", "--dry-run"],
        ["recipes"],
        ["train", "--help"],
        ["inspect", "--help"],
        ["replay", "--help"],
        ["plan", "alfworld-qwen", "--placement", "--gpus-per-node", "1", "cluster.devices.learner=1"],
    ],
)
def test_commands_that_only_read_recipes_load_nothing_heavy(arguments: list[str]) -> None:
    assert not HEAVY & loaded_by(
        f"import sys; sys.argv = ['roll', *{arguments}]; from rocknroll.trainer.cli import main; main()"
    )


def test_a_reader_that_has_seen_enough_is_no_error() -> None:
    shown = subprocess.run(
        f"{sys.executable} -c 'from rocknroll.trainer.cli import main; main()' recipes alfworld; echo code $? >&2",
        shell=True,
        stdout=(closed := subprocess.Popen(["true"], stdin=subprocess.PIPE)).stdin,
        stderr=subprocess.PIPE,
        text=True,
        timeout=120,
        check=False,
    )
    closed.wait()
    assert shown.stderr == "code 0\n"
