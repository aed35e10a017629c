"""One math question, one answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium

from rocknroll.envs import spaces
from rocknroll.envs.reasoning.math_config import MathConfig
from rocknroll.envs.reasoning.math_family import MathFamily
from rocknroll.envs.reasoning.math_verdict import verdict
from rocknroll.envs.text import EnvDataError, Task


class MathEnv(gymnasium.Env[str, str]):
    """Reward 1 for a right answer, else 0; then the episode is over."""

    metadata: dict[str, Any] = {"render_modes": ["ansi"], "render_fps": 1}  # noqa: RUF012

    def __init__(
        self, config: Mapping[str, Any] | None = None, split: str = "train", render_mode: str | None = None
    ) -> None:
        """`config`: fields of `MathConfig`. `split`: where questions come from when `reset` names none."""
        self.config = MathConfig.model_validate(dict(config or {}))
        self.split = split
        self.render_mode = render_mode
        self.observation_space = spaces.text()
        self.action_space = spaces.text()
        self._tasks: list[Task] = []
        self._open = False
        self._text = ""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Ask a question: that of `options` (`question` and `answer`), or one of the split, drawn by the seed.

        Raises:
            EnvDataError: the options are not those of a question, or the split has none.
        """
        super().reset(seed=seed)
        chosen = options or self._drawn()
        if set(chosen) != {"question", "answer"} or not all(isinstance(value, str) for value in chosen.values()):
            raise EnvDataError(f"reset got {dict(chosen)!r}; math takes `question` and `answer`, both text")
        self._text, self._answer = chosen["question"], chosen["answer"]
        self._question = self._text
        self._open = True
        return self._text, {"won": False}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Judge the response."""
        if not self._open:
            raise gymnasium.error.ResetNeeded("call reset() before step(): a question takes one answer")
        self._open = False
        judged = verdict(action, self._question, self._answer, self.config.verify_timeout_s)
        self._text = judged.why
        info = {"won": judged.correct, "invalid_action": not judged.answered}
        return judged.why, float(judged.correct), True, False, info

    def render(self) -> str | None:
        """The last observation."""
        return self._text if self.render_mode == "ansi" else None

    def _drawn(self) -> Mapping[str, Any]:
        if not self._tasks:
            self._tasks = list(MathFamily(self.config).tasks(self.split))
        if not self._tasks:
            raise EnvDataError(f"the split {self.split!r} has no math question")
        return self._tasks[int(self.np_random.integers(len(self._tasks)))].options
