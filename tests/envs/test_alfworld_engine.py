"""The memoised engine says, allows and decides exactly what TextWorld's own environment does."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from rocknroll.envs.alfworld import house, package, pddl
from rocknroll.envs.alfworld.blueprint import Blueprint, draw
from rocknroll.envs.alfworld.config import TASK_TYPES, AlfWorldConfig, TaskType
from rocknroll.envs.alfworld.engine import MemoisedEngine
from rocknroll.envs.alfworld.game import Game
from rocknroll.envs.alfworld.stock import StockEngine
from rocknroll.envs.alfworld.translation import TranslationStore, translate

SMALL = AlfWorldConfig(data="generated")
FULL = AlfWorldConfig(data="generated", max_receptacles=12, objects=(8, 12))
STEPS = 20

WORDS = {"go": "go to {1}", "open": "open {1}", "take": "take {0} from {1}", "put": "move {0} to {1}", "use": "use {0}"}

GO_HOME = {"go", "look", "inventory", "help", "examine"}
"""Verbs that change little; random play would mostly walk."""


def a_blueprint(task_type: TaskType, config: AlfWorldConfig = SMALL, seed: int = 0) -> Blueprint:
    return draw(task_type, house.scene_numbers(held_out=False), config, random.Random(f"{task_type}{seed}"))


def a_game(task_type: TaskType, config: AlfWorldConfig = SMALL, seed: int = 0, grammar: str | None = None) -> Game:
    data = pddl.game_data(a_blueprint(task_type, config, seed), "a_game")
    return Game("here", task_type, data["pddl_domain"], data["pddl_problem"], grammar or data["grammar"], "game")


def commands_of(engine: MemoisedEngine, blueprint: Blueprint) -> list[str]:
    """The known solution, in the words of the loaded game."""
    commands = []
    for move in blueprint.solution:
        thing, place = (
            engine.name(house.symbol(name).lower()) if name else "" for name in (move.thing, move.receptacle)
        )
        words = {
            "go": "go to {1}",
            "open": "open {1}",
            "take": "take {0} from {1}",
            "put": "move {0} to {1}",
            "use": "use {0}",
        }
        commands.append(words.get(move.verb, f"{move.verb} {{0}} with {{1}}").format(thing, place))
    return commands


@pytest.fixture
def engine(alfworld_cache: Path) -> Iterator[MemoisedEngine]:
    made = MemoisedEngine(TranslationStore(alfworld_cache / "alfworld" / "translations"))
    yield made
    made.close()


def a_command(commands: tuple[str, ...], rng: random.Random) -> str:
    """Mostly something that changes the world, sometimes nonsense."""
    if rng.random() < 0.1:
        return rng.choice(["fly to the moon", "", " look ", "take", commands[0].upper()])
    eventful = [command for command in commands if command.split()[0] not in GO_HOME]
    return rng.choice(eventful if eventful and rng.random() < 0.6 else commands)


def assert_same_episodes(ours: MemoisedEngine, game: Game, episodes: int, steps: int) -> None:
    stock = StockEngine()
    ours.load(game)
    stock.load(game)
    rng = random.Random(game.problem)
    for _ in range(episodes):
        frame = ours.reset()
        assert frame == stock.reset()
        for _ in range(steps):
            command = a_command(frame.commands, rng)
            frame = ours.step(command)
            assert frame == stock.step(command), command
    stock.close()


@pytest.mark.parametrize("task_type", TASK_TYPES)
def test_random_episodes_are_those_of_textworld(engine: MemoisedEngine, task_type: TaskType) -> None:
    assert_same_episodes(engine, a_game(task_type), episodes=2, steps=STEPS)


def test_random_episodes_in_a_larger_scene_are_those_of_textworld(engine: MemoisedEngine) -> None:
    assert_same_episodes(engine, a_game("pick_cool_then_place_in_recep", FULL), episodes=1, steps=STEPS)


def test_an_older_grammar_is_played_as_textworld_plays_it(engine: MemoisedEngine) -> None:
    grammar = (
        package.grammar()
        .replace('template :: "move {o} to {r}"', 'template :: "put {o} in/on {r}"')
        .replace("You move the {o.name} to the {r.name}.", "You put the {o.name} in/on the {r.name}.")
        .replace("UNKNOWN GOAL", "put a thing somewhere, and [quickly]")
    )
    game = a_game("pick_and_place_simple", grammar=grammar.replace("[quickly]", "quickly"))
    assert_same_episodes(engine, game, episodes=1, steps=STEPS)


@pytest.mark.parametrize("task_type", TASK_TYPES)
def test_winning_is_seen_at_the_same_step(engine: MemoisedEngine, task_type: TaskType) -> None:
    blueprint, game, stock = a_blueprint(task_type), a_game(task_type), StockEngine()
    engine.load(game)
    stock.load(game)
    frame = engine.reset()
    assert frame == stock.reset()
    for command in commands_of(engine, blueprint):
        assert not frame.won
        frame = engine.step(command)
        assert frame == stock.step(command)
    assert frame.won
    stock.close()


def test_a_second_episode_starts_as_the_first(engine: MemoisedEngine) -> None:
    engine.load(a_game("pick_two_obj_and_place"))
    first = engine.reset()
    rng = random.Random(0)
    frame = first
    for _ in range(30):
        frame = engine.step(a_command(frame.commands, rng))
    assert engine.reset() == first


def test_the_state_hash_forgets_what_was_only_looked_at(engine: MemoisedEngine) -> None:
    engine.load(a_game("pick_and_place_simple"))
    start = engine.reset()
    place = next(command for command in start.commands if command.startswith("go to "))
    there = engine.step(place)
    assert there.state_hash != start.state_hash
    looked = engine.step(place.replace("go to", "examine"))
    assert looked.admitted
    assert looked.state_hash == there.state_hash
    assert engine.step("inventory").state_hash == there.state_hash


def test_the_state_hash_depends_on_the_goal(engine: MemoisedEngine) -> None:
    hashes = set()
    for seed in range(2):
        engine.load(a_game("pick_and_place_simple", seed=seed))
        hashes.add(engine.reset().state_hash)
    assert len(hashes) == 2


def test_the_state_hash_sees_an_object_move(engine: MemoisedEngine) -> None:
    engine.load(a_game("pick_and_place_simple"))
    frame = engine.reset()
    for command in commands_of(engine, a_blueprint("pick_and_place_simple")):
        before, frame = frame.state_hash, engine.step(command)
        assert frame.state_hash != before


def test_a_stored_translation_is_the_one_that_was_made(tmp_path: Path) -> None:
    game = a_game("pick_heat_then_place_in_recep")
    store = TranslationStore(tmp_path)
    made = store.get(game.domain, game.problem)
    assert made == translate(game.domain, game.problem)
    assert TranslationStore(tmp_path).get(game.domain, game.problem) == made


def test_a_damaged_translation_is_made_again(tmp_path: Path) -> None:
    game = a_game("pick_heat_then_place_in_recep")
    made = TranslationStore(tmp_path).get(game.domain, game.problem)
    (stored,) = (path for path in tmp_path.rglob("*") if path.is_file())
    stored.write_bytes(stored.read_bytes()[:100])
    assert TranslationStore(tmp_path).get(game.domain, game.problem) == made


def test_memory_stays_flat_over_many_resets(engine: MemoisedEngine) -> None:
    games = [a_game(task_type, seed=seed) for task_type in TASK_TYPES for seed in range(2)]
    rng = random.Random(0)

    def rounds(count: int) -> None:
        for _ in range(count):
            for game in games:
                engine.load(game)
                frame = engine.reset()
                for _ in range(5):
                    frame = engine.step(a_command(frame.commands, rng))

    rounds(10)
    before = psutil.Process().memory_info().rss
    rounds(60)
    assert psutil.Process().memory_info().rss - before < 4 * 2**20
