"""No number in the objectives can change without a test going red."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import mutation
import pytest


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_every_changed_constant_is_noticed() -> None:
    run = subprocess.run([sys.executable, Path(mutation.__file__)], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr


def test_every_module_of_the_objectives_is_put_to_the_test() -> None:
    assert {path.stem for path in mutation.OBJECTIVES.glob("*.py")} - {"__init__"} == mutation.CAUGHT_BY.keys()


def test_a_mutant_differs_in_one_number() -> None:
    source = "limit = 20.0\nsize = len(x) - 1\nflag = True\nzero = 0.0\n"
    assert [changed.splitlines() for _, changed in mutation.mutants(source)] == [
        ["limit = 30.0", "size = len(x) - 1", "flag = True", "zero = 0.0"],
        ["limit = 20.0", "size = len(x) - 2", "flag = True", "zero = 0.0"],
        ["limit = 20.0", "size = len(x) - 1", "flag = True", "zero = 1.0"],
    ]
