"""Families by name."""

from __future__ import annotations

import subprocess
import sys

import pytest

from rocknroll.envs.alfworld.family import AlfWorldFamily
from rocknroll.envs.registry import FAMILIES, UnknownFamily, family


def test_a_registered_name_makes_a_configured_family() -> None:
    made = family("alfworld", {"data": "generated", "train_games": 7})
    assert isinstance(made, AlfWorldFamily)
    assert made.config.train_games == 7


def test_a_class_can_be_given_by_import_name() -> None:
    assert isinstance(family(FAMILIES["alfworld"], {"data": "generated"}), AlfWorldFamily)


def test_a_misspelt_name_gets_the_nearest_one() -> None:
    with pytest.raises(UnknownFamily, match="Did you mean 'alfworld'"):
        family("alfwrold")


def test_a_class_that_cannot_be_imported_is_named() -> None:
    with pytest.raises(UnknownFamily, match=r"no_such_module:Thing.*No module named"):
        family("no_such_module:Thing")


def test_a_family_can_be_made_without_importing_the_engine() -> None:
    program = (
        "import sys; from rocknroll.envs.registry import family; family('alfworld', {'data': 'generated'});"
        "print([name for name in ('textworld', 'fast_downward', 'torch', 'alfworld') if name in sys.modules])"
    )
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert shown.strip() == "[]"
