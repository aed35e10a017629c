"""`roll inspect --ledger` says where every episode went, and whether it adds up."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import Result

from rocknroll.envs.text import Task
from rocknroll.trainer.cli.exit_codes import ExitCode
from rocknroll.trainer.recipe import Recipe
from rocknroll.trainer.rollout.events import Aborted, Episode, Started, Why
from rocknroll.trainer.rollout.ledger import Ledger
from rocknroll.trainer.run_folder import RunFolder

Roll = Callable[..., Result]


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[RunFolder]:
    """A run that is being played: one episode cut off, one under way."""
    made = RunFolder(tmp_path / "run")
    made.write_recipe(Recipe(name="run"))
    ledger = Ledger(made.ledger)
    first, second = (Episode(0, member, 0, Task("task", "kind")) for member in range(2))
    ledger.record([Started(first, 0), Started(second, 0), Aborted(first, Why.REDUNDANT)], {"open": []})
    yield made
    ledger.close()


def test_json_holds_what_scripts_rely_on(roll: Roll, folder: RunFolder) -> None:
    result = roll("inspect", folder.path, "--ledger", "--json")
    assert result.exit_code == ExitCode.OK, result.stderr
    found = json.loads(result.stdout)
    assert found == {
        "run": str(folder.path),
        "balanced": True,
        "started": 2,
        "completed": 0,
        "trained": 0,
        "pending": 0,
        "buffered": 0,
        "discarded": {},
        "aborted": 1,
        "aborted_by_why": {"redundant": 1},
        "infra_error": {},
        "retried": 0,
        "interrupted": 0,
        "playing": 1,
        "requeued": 0,
        "lost": 0,
        "duplicated": 0,
        "problems": [],
    }


def test_people_get_a_table_and_a_verdict(roll: Roll, folder: RunFolder) -> None:
    lines = [line.split() for line in roll("inspect", folder.path, "--ledger").stdout.splitlines()]
    assert ["started", "2"] in lines
    assert ["aborted", "1", "redundant", "1"] in lines
    assert ["being", "played", "1"] in lines
    assert lines[-1] == ["balanced"]


def test_what_does_not_balance_is_said(roll: Roll, folder: RunFolder) -> None:
    folder.metrics_file.write_text('{"iteration": 4}\n')
    lines = roll("inspect", folder.path, "--ledger").stdout.splitlines()
    assert lines[-2:] == ["! in metrics.jsonl, and its batch was never taken: iteration 4", "NOT BALANCED"]


def test_the_ledger_is_about_the_whole_run(roll: Roll, folder: RunFolder) -> None:
    assert roll("inspect", folder.path, "g1", "--ledger").exit_code == ExitCode.USAGE
