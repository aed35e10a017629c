"""The Gymnasium environment: one ALFWorld game at a time, text in, text out.

Runs inside a sandbox. Everything it returns is JSON. Which game is played comes with
`reset(options={"game": path})`, and with `"renaming": seed` its things go by other names. Without a game the
seeded generator picks one of those that are configured.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium

from rocknroll.envs import spaces
from rocknroll.envs.alfworld.config import AlfWorldConfig, translations
from rocknroll.envs.alfworld.engine import Engine, Frame, MemoisedEngine
from rocknroll.envs.alfworld.expert import Expert
from rocknroll.envs.alfworld.game import Game, put_template, read
from rocknroll.envs.alfworld.renaming import Renaming
from rocknroll.envs.alfworld.translation import TranslationStore
from rocknroll.envs.text import EnvDataError

TASK = "Your task is to: "
BANNER = "-= Welcome to TextWorld, ALFRED! =-\n\n"


class AlfWorldEnv(gymnasium.Env[str, str]):
    """Household tasks. Reward 1 when the task is done, else 0; truncated after `max_steps`."""

    metadata: dict[str, Any] = {"render_modes": ["ansi"], "render_fps": 1}  # noqa: RUF012

    def __init__(
        self, config: Mapping[str, Any] | None = None, split: str = "train", render_mode: str | None = None
    ) -> None:
        """`config`: fields of `AlfWorldConfig`. `split`: where games come from when `reset` names none."""
        self.config = AlfWorldConfig.model_validate(dict(config or {}))
        self.split = split
        self.render_mode = render_mode
        self.observation_space = spaces.text()
        self.action_space = spaces.text()
        self._engine: Engine = self._make_engine()
        self._frame: Frame | None = None

    def _make_engine(self) -> Engine:
        if self.config.engine == "stock":
            from rocknroll.envs.alfworld.stock import StockEngine

            return StockEngine()
        return MemoisedEngine(TranslationStore(translations(self.config)))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Start a game.

        Raises:
            EnvDataError: the game's files are missing or broken.
        """
        super().reset(seed=seed)
        self._game = self._choose(options or {})
        self._engine.load(self._game)
        self._steps = 0
        self._frame = self._engine.reset()
        text = self._frame.text if self.config.banner else self._frame.text.removeprefix(BANNER)
        self._reminder = f"\n{text[text.rindex(TASK) :]}" if self.config.repeat_task and TASK in text else ""
        self._text = self._show(text)
        self._expert = Expert(text, put_template(self._game.grammar)) if self.config.expert_action else None
        return self._text, self._info(self._frame)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Carry one command out. An inadmissible one costs a step and changes nothing."""
        if self._frame is None:
            raise gymnasium.error.ResetNeeded("call reset() before step()")
        command = self._renaming.mean(action) if self._renaming is not None else action
        self._frame = frame = self._engine.step(command)
        self._steps += 1
        self._text = self._show(frame.text + self._reminder)
        if self._expert is not None:
            self._expert.observe(command, frame.text)
        return (
            self._text,
            float(frame.won),
            frame.won,
            not frame.won and self._steps >= self.config.max_steps,
            self._info(frame),
        )

    def render(self) -> str | None:
        """The last observation."""
        return self._text if self.render_mode == "ansi" and self._frame is not None else None

    @property
    def game(self) -> Game:
        """The game being played."""
        return self._game

    def close(self) -> None:
        """Give the planner back to the pool."""
        self._engine.close()

    def _show(self, text: str) -> str:
        return self._renaming.show(text) if self._renaming is not None else text

    def _choose(self, options: Mapping[str, Any]) -> Game:
        unknown = set(options) - {"game", "renaming"}
        if unknown:
            raise EnvDataError(
                f"reset got the unknown option {sorted(unknown)[0]!r}; ALFWorld knows only `game`, "
                "a path to game.tw-pddl, and `renaming`, the seed of other names for its things"
            )
        self._renaming = Renaming(int(options["renaming"])) if "renaming" in options else None
        path = options.get("game")
        if path is None:
            from rocknroll.envs.alfworld.games import library

            games = library(self.config).games(self.split)
            path = games[int(self.np_random.integers(len(games)))].path
        return read(str(path), self.config.refresh_grammar)

    def _info(self, frame: Frame) -> dict[str, Any]:
        info: dict[str, Any] = {
            "admissible_commands": sorted(map(self._show, frame.commands)),
            "won": frame.won,
            "task_type": self._game.task_type,
            "state_hash": frame.state_hash,
            "progress": frame.progress,
            "invalid_action": not frame.admitted,
            "game": self._game.path,
            "grammar": self._game.grammar_source,
        }
        if self._expert is not None:
            info["expert_action"] = self._show(self._expert.act())
        return info
