"""Play a game from beginning to end: the expert's way, or a known solution."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from rocknroll.envs.alfworld.blueprint import Move
from rocknroll.envs.alfworld.config import AlfWorldConfig, translations
from rocknroll.envs.alfworld.engine import MemoisedEngine
from rocknroll.envs.alfworld.env import AlfWorldEnv
from rocknroll.envs.alfworld.expert import Expert
from rocknroll.envs.alfworld.game import Game, put_template
from rocknroll.envs.alfworld.house import symbol
from rocknroll.envs.alfworld.translation import TranslationStore


class Player:
    """One engine, many games."""

    def __init__(self, config: AlfWorldConfig) -> None:
        self.config = config
        self._environment = AlfWorldEnv(config.model_dump(mode="json"))
        self._engine = MemoisedEngine(TranslationStore(translations(config)))

    def close(self) -> None:
        """Give the planners back."""
        self._environment.close()
        self._engine.close()

    def episode(self, game: str, mistakes: float, seed: int) -> dict[str, Any]:
        """The expert's episode; with probability `mistakes` a mistake comes before a step of its own.

        Steps are `[observation, command, admissible, imitate]`.
        """
        rng = random.Random(f"{seed}/{game}")
        observation, info = self._environment.reset(options={"game": game})
        expert = Expert(observation, put_template(self._environment.game.grammar))
        steps: list[tuple[str, str, list[str], bool]] = []
        ended = False
        while not ended:
            admissible = info["admissible_commands"]
            imitate = rng.random() >= mistakes
            command = expert.act() if imitate else expert.mistake(rng, admissible)
            steps.append((observation, command, admissible, imitate))
            observation, _, terminated, truncated, info = self._environment.step(command)
            expert.observe(command, observation)
            ended = terminated or truncated
        return {"game": game, "kind": info["task_type"], "won": info["won"], "steps": steps}

    def solve(self, game: Game, solution: Sequence[Move]) -> list[str] | None:
        """Carry a known solution out; its commands when they, and nothing less, reach the goal."""
        self._engine.load(game)
        frame = self._engine.reset()
        put = put_template(game.grammar)
        commands = []
        for move in solution:
            if frame.won:
                return None
            thing, place = (
                self._engine.name(symbol(name).lower()) if name else "" for name in (move.thing, move.receptacle)
            )
            command = {
                "go": f"go to {place}",
                "open": f"open {place}",
                "take": f"take {thing} from {place}",
                "put": put.format(thing=thing, place=place),
                "use": f"use {thing}",
            }.get(move.verb, f"{move.verb} {thing} with {place}")
            frame = self._engine.step(command)
            if not frame.admitted:
                return None
            commands.append(command)
        return commands if frame.won else None
