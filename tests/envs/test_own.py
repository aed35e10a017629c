"""A user's own environment: by import name, by entry point, and as the documentation shows it."""

from __future__ import annotations

import asyncio
import re
import sys
from pathlib import Path

import pytest
from pydantic import ValidationError

from rocknroll.envs.blocking import BlockingPlaces
from rocknroll.envs.own import OwnFamily
from rocknroll.envs.places import Patience, env_spec, folders
from rocknroll.envs.registry import UnknownFamily, family
from rocknroll.sandbox.errors import FleetExhausted
from rocknroll.trainer import scripted
from rocknroll.trainer.recipe_loader import check_environment, load_recipe
from rocknroll.trainer.ui import Quiet

DOCUMENTED = Path(__file__).parents[2] / "docs" / "adapters.md"


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that modules are imported from."""
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def test_the_documented_example_has_ten_lines_and_plays(elsewhere: Path) -> None:
    (code,) = re.findall(r"```python\n# my_envs\.py\n(.*?)```", DOCUMENTED.read_text(encoding="utf-8"), re.DOTALL)
    lines = [line for line in code.splitlines() if line.strip() and not line.startswith(("import", "from"))]
    assert len(lines) == 10
    (elsewhere / "my_envs.py").write_text(code)
    recipe = load_recipe([], ["env.name=my_envs:Guess", "sandbox.count=2"])
    check_environment(recipe)
    script = elsewhere / "actions"
    script.write_text("4\n")
    playing = scripted.rollout(
        recipe, f"script:{script}", split="train", episodes=9, concurrency=2, attempts=1, ui=Quiet()
    )
    report = asyncio.run(playing).as_json()
    assert (report["episodes"], report["lost"]) == (9, {})
    assert report["success_rate"] == pytest.approx(1 / 9, abs=1e-3)
    sys.modules.pop("my_envs")


def test_an_installed_package_adds_a_name_by_an_entry_point(elsewhere: Path) -> None:
    (elsewhere / "their_envs.py").write_text("from own_envs import Lock\n")
    info = elsewhere / "their_envs-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: their-envs\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[rocknroll.envs]\ntheir-lock = their_envs:Lock\nmath = their_envs:Lock\n")
    made = family("their-lock")
    assert isinstance(made, OwnFamily)
    assert made.name == "their_envs:Lock"
    assert not isinstance(family("math"), OwnFamily)
    with pytest.raises(UnknownFamily, match="Did you mean 'their-lock'"):
        family("their-lok")


def test_tasks_without_options_are_seeds_and_repeat_themselves() -> None:
    die = OwnFamily("own_envs:Die", {"kwargs": {"sides": 1000}, "train_tasks": 3, "unseen_tasks": 2})
    tasks = [*die.tasks("train"), *die.tasks("seen"), *die.tasks("unseen")]
    assert len({str(task.options) for task in tasks}) == len(tasks) == 5
    with BlockingPlaces(die, 1, Patience()) as places:
        shown = []
        for task in (*tasks, *tasks):
            episode = places.episode("test", task)
            text, info = places.call(episode.reset())
            assert info == {"options": None}
            assert places.call(episode.step(text))[1] == 1.0
            shown.append(text)
    assert shown[:5] == shown[5:]
    assert len(set(shown)) > 1


def test_an_environment_that_is_not_of_text_is_refused_with_the_reason() -> None:
    numeric = OwnFamily("own_envs:Numeric", {"train_tasks": 1})
    with BlockingPlaces(numeric, 1) as places, pytest.raises(FleetExhausted, match="`action_space` has to be"):
        places.call(places.episode("test", numeric.tasks("train")[0]).reset())


def test_unknown_settings_are_refused() -> None:
    with pytest.raises(ValidationError, match="sides"):
        family("own_envs:Die", {"sides": 3})


def test_a_sandbox_sees_the_folder_of_the_users_module_and_of_nothing_installed() -> None:
    assert env_spec(OwnFamily("own_envs:Die")).python_path == (Path(__file__).parent,)
    assert folders("rocknroll.envs.own", "json", "gymnasium", "numpy") == ()
