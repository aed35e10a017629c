"""Generated libraries: what is in them, how they are made, and how bad data is refused."""

from __future__ import annotations

import json
import os
import random
from collections import Counter
from pathlib import Path

import pytest
from pydantic import ValidationError

from rocknroll.envs.alfworld import house, official, package, pddl
from rocknroll.envs.alfworld.blueprint import draw
from rocknroll.envs.alfworld.catalogue import GameRef, balanced
from rocknroll.envs.alfworld.config import SPLITS, TASK_TYPES, AlfWorldConfig, TaskType
from rocknroll.envs.alfworld.family import AlfWorldFamily
from rocknroll.envs.alfworld.games import GeneratedLibrary, library
from rocknroll.envs.alfworld.make import task_type_of
from rocknroll.envs.alfworld.validate import officially_listed, validate
from rocknroll.envs.text import EnvDataError

SMALL = AlfWorldConfig(data="generated")


def drawn(task_type: TaskType, seed: int, held_out: bool = False, config: AlfWorldConfig = SMALL) -> str:
    blueprint = draw(task_type, house.scene_numbers(held_out), config, random.Random(seed))
    return pddl.problem(blueprint, "one")


@pytest.mark.parametrize("task_type", TASK_TYPES)
def test_a_seed_decides_the_whole_problem(task_type: TaskType) -> None:
    assert drawn(task_type, 3) == drawn(task_type, 3)
    assert drawn(task_type, 3) != drawn(task_type, 4)


@pytest.mark.parametrize("task_type", TASK_TYPES)
def test_scenes_keep_to_the_configured_sizes(task_type: TaskType) -> None:
    for seed in range(20):
        blueprint = draw(task_type, house.scene_numbers(held_out=False), SMALL, random.Random(seed))
        assert len(blueprint.receptacles) <= SMALL.max_receptacles
        assert SMALL.objects[0] <= len(blueprint.things) <= SMALL.objects[1]
        assert len({receptacle.location for receptacle in blueprint.receptacles}) == len(blueprint.receptacles)


@pytest.mark.parametrize("task_type", TASK_TYPES)
def test_nothing_asked_for_starts_where_it_belongs(task_type: TaskType) -> None:
    for seed in range(20):
        blueprint = draw(task_type, house.scene_numbers(held_out=False), SMALL, random.Random(seed))
        asked = [thing for thing in blueprint.things if thing.kind == blueprint.object_kind]
        assert len(asked) >= (2 if task_type == "pick_two_obj_and_place" else 1)
        assert all(thing.receptacle.kind != blueprint.parent_kind for thing in asked)


def test_every_layout_of_the_package_can_be_read() -> None:
    rooms = Counter(house.scene(number).room for held_out in (False, True) for number in house.scene_numbers(held_out))
    assert rooms == {"Kitchen": 30, "LivingRoom": 30, "Bedroom": 30, "Bathroom": 30}


def test_held_out_scenes_are_disjoint_from_training_scenes(alfworld: AlfWorldFamily) -> None:
    scenes = {split: {ref.scene for ref in GeneratedLibrary(alfworld.config).games(split)} for split in SPLITS}
    assert not scenes["unseen"] & (scenes["train"] | scenes["seen"])
    assert scenes["unseen"] <= set(house.scene_numbers(held_out=True))


def test_every_prefix_of_a_split_is_balanced_over_task_types() -> None:
    kinds = [task_type_of(index, "unseen", SMALL) for index in range(20)]
    assert all(set(Counter(kinds[: 6 * rounds]).values()) == {rounds} for rounds in (1, 2, 3))


def test_more_games_do_not_change_the_first_ones() -> None:
    more = SMALL.model_copy(update={"train_games": 5000})
    assert [task_type_of(index, "train", SMALL) for index in range(30)] == [
        task_type_of(index, "train", more) for index in range(30)
    ]


def test_the_official_loader_lists_every_game(alfworld: AlfWorldFamily) -> None:
    ours = {Path(task.options["game"]).resolve() for split in SPLITS for task in alfworld.tasks(split)}
    assert officially_listed(alfworld, list(SPLITS)) == ours


def test_game_files_have_the_official_fields(alfworld: AlfWorldFamily) -> None:
    path = Path(alfworld.tasks("unseen")[0].options["game"])
    assert path.relative_to(alfworld.data_root).parts[:2] == ("json_2.1.1", "valid_unseen")
    game = json.loads(path.read_text(encoding="utf-8"))
    assert set(game) == {"pddl_domain", "grammar", "pddl_problem", "solvable", "walkthrough"}
    assert game["solvable"]
    assert game["walkthrough"]
    assert game["pddl_domain"] == package.domain()


def test_validation_counts_by_task_type_and_finds_the_games_solvable(alfworld_cache: Path) -> None:
    report = validate(AlfWorldConfig(data="generated", cache_dir=str(alfworld_cache)), games=12)
    assert (report.total, report.accepted) == (12, 12)
    assert report.solved >= 11
    assert {kind: count.total for kind, count in report.by_task.items()} == dict.fromkeys(TASK_TYPES, 2)
    assert json.loads(json.dumps(report.as_json()))["solved"] == report.solved


def test_preparing_twice_makes_nothing_anew(alfworld: AlfWorldFamily) -> None:
    before = Path(alfworld.tasks("train")[0].options["game"]).stat().st_mtime_ns
    calls: list[tuple[int, int]] = []
    AlfWorldFamily(alfworld.config).prepare(lambda done, total: calls.append((done, total)))
    assert not calls
    assert Path(alfworld.tasks("train")[0].options["game"]).stat().st_mtime_ns == before


def test_an_interrupted_library_goes_on_where_it_stopped(tmp_path: Path) -> None:
    config = AlfWorldConfig(data="generated", train_games=3, seen_games=0, unseen_games=0, cache_dir=str(tmp_path))
    first = GeneratedLibrary(config)
    kept = Path(first.games("train")[0].path)
    os.utime(kept, ns=(1, 1))
    lost = Path(first.games("train")[1].path)
    lost.unlink()
    lost.with_name("traj_data.json").unlink()
    lost.parent.rmdir()
    (first.root / "index.json").unlink()
    first.root.rename(first.root.with_suffix(".partial"))
    assert not first.root.exists()
    again = GeneratedLibrary(config).games("train")
    assert [ref.path for ref in again] == [ref.path for ref in first.games("train")]
    assert lost.exists()
    assert kept.stat().st_mtime_ns == 1


def test_other_settings_get_another_library(alfworld: AlfWorldFamily) -> None:
    key = GeneratedLibrary(alfworld.config).key
    changes: list[dict[str, object]] = [{"seed": 1}, {"train_games": 13}, {"objects": (3, 5)}, {"max_receptacles": 5}]
    assert all(GeneratedLibrary(alfworld.config.model_copy(update=change)).key != key for change in changes)
    assert GeneratedLibrary(alfworld.config.model_copy(update={"max_steps": 7})).key == key


def test_tasks_are_the_same_for_every_family_of_one_configuration(alfworld: AlfWorldFamily) -> None:
    twin = AlfWorldFamily(alfworld.config.model_dump(mode="json"))
    assert twin.tasks("unseen") == alfworld.tasks("unseen")
    assert twin.content_key() == alfworld.content_key()


def test_an_unknown_split_is_refused(alfworld: AlfWorldFamily) -> None:
    with pytest.raises(EnvDataError, match=r"'test'.*train, seen, unseen"):
        alfworld.tasks("test")


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"task_types": []}, "task_types is empty"),
        ({"max_receptacles": 2}, "at least 4"),
        ({"objects": [5, 3]}, "fewest"),
        ({"max_recepticles": 6}, "Extra inputs"),
        ({"task_types": ["wash_the_car"]}, "pick_and_place_simple"),
    ],
)
def test_an_impossible_configuration_is_refused(settings: dict[str, object], complaint: str) -> None:
    with pytest.raises(ValidationError, match=complaint):
        AlfWorldFamily(settings)


def test_a_scene_that_cannot_hold_the_task_is_an_error_that_says_so() -> None:
    with pytest.raises(EnvDataError, match="allow more receptacles or objects"):
        draw("pick_heat_then_place_in_recep", (401,), SMALL, random.Random(0))


def test_incomplete_official_data_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "json_2.1.1" / "train").mkdir(parents=True)
    monkeypatch.setenv("ALFWORLD_DATA", str(tmp_path))
    with pytest.raises(EnvDataError, match=r"incomplete: json_2\.1\.1/valid_seen.*alfworld-download"):
        library(AlfWorldConfig())


def test_official_data_without_a_folder_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ALFWORLD_DATA", raising=False)
    with pytest.raises(EnvDataError, match=r"neither data_path nor \$ALFWORLD_DATA"):
        library(AlfWorldConfig(data="official"))


def test_without_the_variable_games_are_generated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ALFWORLD_DATA", raising=False)
    assert isinstance(library(AlfWorldConfig()), GeneratedLibrary)


def test_importing_the_package_leaves_the_variable_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ALFWORLD_DATA", raising=False)
    package.constants()
    package.naming()
    assert "ALFWORLD_DATA" not in os.environ


def test_a_folder_in_the_official_layout_is_played_as_official_data(alfworld: AlfWorldFamily, tmp_path: Path) -> None:
    config = AlfWorldConfig(
        data="official",
        data_path=str(alfworld.data_root),
        train_games=7,
        unseen_games=6,
        seen_games=6,
        cache_dir=str(tmp_path),
    )
    found = library(config)
    assert isinstance(found, official.OfficialLibrary)
    assert {ref.path for ref in found.games("train")} <= {task.options["game"] for task in alfworld.tasks("train")}
    assert len(found.games("train")) == 7
    assert Counter(ref.kind for ref in found.games("unseen")) == dict.fromkeys(TASK_TYPES, 1)


def test_official_data_with_an_unreadable_game_names_it(tmp_path: Path) -> None:
    for folder in ("train", "valid_seen", "valid_unseen"):
        game = tmp_path / "json_2.1.1" / folder / "some_task" / "trial_1"
        game.mkdir(parents=True)
        (game / "traj_data.json").write_text('{"task_type": "pick_and_place_simple", "scene": {"scene_num": 1}}')
        (game / "game.tw-pddl").write_text("{")
    found = library(AlfWorldConfig(data="official", data_path=str(tmp_path), cache_dir=str(tmp_path / "cache")))
    with pytest.raises(EnvDataError, match=r"trial_1/game\.tw-pddl cannot be played"):
        found.games("train")


def test_balancing_takes_task_types_in_turn() -> None:
    refs = [GameRef(str(number), "many" if number % 5 else "few", 1) for number in range(20)]
    assert Counter(ref.kind for ref in balanced(refs, 8, "0")) == {"many": 4, "few": 4}
    assert balanced(refs, 8, "0") == balanced(refs, 8, "0")
    assert len(balanced(refs, 100, "0")) == 20
