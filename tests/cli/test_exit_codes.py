"""Exit codes are what the documentation says, and every known error has a real class behind its name."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import pytest

from rocknroll.sandbox.cli import exit_codes as rock
from rocknroll.sandbox.errors import SandboxError
from rocknroll.trainer.cli.exit_codes import ExitCode, boundary
from rocknroll.trainer.errors import RecipeError

DOCS = Path(__file__).parents[2] / "docs" / "exit-codes.md"


def test_documentation_lists_every_code_with_its_meaning() -> None:
    rows = re.findall(r"^\| (\d+) \| (\w+) \| (.+) \|$", DOCS.read_text(encoding="utf-8"), re.MULTILINE)
    assert [(int(value), name, meaning) for value, name, meaning in rows] == [
        (int(code), code.name, code.meaning) for code in ExitCode
    ]


@pytest.mark.parametrize("name", [*boundary.known, *rock.boundary.known])
def test_every_known_error_exists(name: str) -> None:
    module, _, cls = name.rpartition(".")
    assert issubclass(getattr(import_module(module), cls), Exception)


def test_an_error_gets_the_code_of_the_class_it_derives_from() -> None:
    class Special(SandboxError):
        pass

    assert boundary.exit_code(Special("x")) is ExitCode.INFRASTRUCTURE
    assert boundary.exit_code(RecipeError("x")) is ExitCode.RECIPE
    assert boundary.exit_code(KeyboardInterrupt()) is ExitCode.INTERRUPTED


def test_an_unforeseen_error_is_no_known_one() -> None:
    assert boundary.exit_code(ValueError("x")) is ExitCode.UNEXPECTED
