"""ALFWorld here against TextWorld's own environment: the same games, the same commands, in one run.

    python benchmarks/alfworld.py [--quick] [--json]

Games are generated, played on both engines turn by turn, and every frame is compared. Times are CPU
seconds of this process (`time.process_time`), so other work on the machine shifts both sides alike.
A reset is one of a game that was played before; `load` is the first one of a game, with its
translation on disk (ours) or not (stock keeps none).
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import psutil
from reporting import emit

from rocknroll.envs.alfworld import house, pddl
from rocknroll.envs.alfworld.blueprint import draw
from rocknroll.envs.alfworld.config import TASK_TYPES, AlfWorldConfig, TaskType
from rocknroll.envs.alfworld.engine import Engine, MemoisedEngine
from rocknroll.envs.alfworld.game import Game
from rocknroll.envs.alfworld.stock import StockEngine
from rocknroll.envs.alfworld.translation import TranslationStore

T = TypeVar("T")

SMALL = AlfWorldConfig(data="generated")
FULL = AlfWorldConfig(data="generated", max_receptacles=0, objects=(8, 20))


@dataclass
class Clock:
    """CPU seconds by operation."""

    spent: dict[str, list[float]] = field(default_factory=lambda: {"load": [], "reset": [], "step": []})

    def time(self, operation: str, work: Callable[[], T]) -> T:
        """Do `work` and note what it took."""
        before = time.process_time()
        result = work()
        self.spent[operation].append(time.process_time() - before)
        return result

    def median(self, operation: str) -> float:
        """Median CPU seconds."""
        return statistics.median(self.spent[operation])

    def figures(self, name: str) -> dict[str, str]:
        """Median and quartiles in milliseconds."""
        shown = {}
        for operation, times in self.spent.items():
            low, _, high = statistics.quantiles(times, n=4) if len(times) > 1 else (times[0], 0.0, times[0])
            shown[f"{name}_{operation}_ms"] = f"{self.median(operation) * 1e3:.3f} ({low * 1e3:.3f}..{high * 1e3:.3f})"
        return shown


def a_game(task_type: TaskType, config: AlfWorldConfig, seed: int) -> Game:
    """A generated game, in memory."""
    blueprint = draw(task_type, house.scene_numbers(held_out=True), config, random.Random(f"{task_type}{seed}"))
    data = pddl.game_data(blueprint, "benchmark")
    return Game("benchmark", task_type, data["pddl_domain"], data["pddl_problem"], data["grammar"], "game")


def compare(config: AlfWorldConfig, seeds: int, resets: int, steps: int, folder: Path) -> tuple[Clock, Clock]:
    """Play every task type on both engines; frames must be equal."""
    ours, stock = Clock(), Clock()
    store = TranslationStore(folder)
    fast, slow = MemoisedEngine(store), StockEngine()
    for seed in range(seeds):
        for task_type in TASK_TYPES:
            game = a_game(task_type, config, seed)
            store.get(game.domain, game.problem)  # as generation leaves it: translated, on disk
            play(game, fast, slow, ours, stock, resets, steps, random.Random(seed))
    fast.close()
    slow.close()
    return ours, stock


def play(
    game: Game, fast: Engine, slow: Engine, ours: Clock, stock: Clock, resets: int, steps: int, rng: random.Random
) -> None:
    """Random episodes of one game, half of the commands such as change the world."""
    ours.time("load", lambda: fast.load(game))
    stock.time("load", lambda: slow.load(game))
    for _ in range(resets):
        frame = ours.time("reset", fast.reset)
        assert frame == stock.time("reset", slow.reset), "the engines disagree after a reset"
        for _ in range(steps):
            eventful = [command for command in frame.commands if command.split()[0] not in {"go", "look", "help"}]
            command = rng.choice(eventful if eventful and rng.random() < 0.5 else frame.commands)
            frame = ours.time("step", lambda command=command: fast.step(command))  # type: ignore[misc]
            assert frame == stock.time("step", lambda command=command: slow.step(command)), command  # type: ignore[misc]


def memory(folder: Path, resets: int) -> dict[str, Any]:
    """Growth of this process over many resets of twelve games on our engine."""
    engine = MemoisedEngine(TranslationStore(folder))
    games = [a_game(task_type, SMALL, seed) for task_type in TASK_TYPES for seed in range(2)]

    def round_of(count: int) -> None:
        for number in range(count):
            engine.load(games[number % len(games)])
            engine.reset()

    round_of(5 * len(games))
    before = psutil.Process().memory_info().rss
    round_of(resets)
    grown = psutil.Process().memory_info().rss - before
    engine.close()
    return {"resets": resets, "rss_mb": round(before / 2**20, 1), "growth_mb": round(grown / 2**20, 2)}


def main() -> int:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    parser.add_argument("--quick", action="store_true", help="one game of each task type, small scenes only")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        seeds, resets, steps = (1, 2, 6) if arguments.quick else (1, 3, 15)
        ours, stock = compare(SMALL, seeds, resets, steps, folder)
        ratios = {f"{name}_over_stock": stock.median(name) / ours.median(name) for name in ("step", "reset", "load")}
        figures: dict[str, Any] = {
            "frames_compared": len(ours.spent["step"]) + len(ours.spent["reset"]),
            **ours.figures("ours"),
            **stock.figures("stock"),
            "memory": memory(folder, 200 if arguments.quick else 2000),
        }
        if not arguments.quick:
            full_ours, full_stock = compare(FULL, 1, 1, 3, folder)
            for name in ("step", "reset"):
                ratios[f"full_scene_{name}_over_stock"] = full_stock.median(name) / full_ours.median(name)
            figures |= full_ours.figures("full_scene_ours") | full_stock.figures("full_scene_stock")
    emit("alfworld", {name: round(ratio, 2) for name, ratio in ratios.items()}, figures, as_json=arguments.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
