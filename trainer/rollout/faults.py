"""What episodes are lost to: one vocabulary of causes, one classifier, and the window that judges the run.

An infrastructure failure costs its own episode, which is counted by cause and played again; it is never
a reward. What the table of causes does not have is a fault of this program and ends the run at once,
as does what every further episode would end in, too.
"""

from __future__ import annotations

import re
from collections import Counter, deque
from enum import StrEnum

from rocknroll.sandbox.errors import (
    EnvCrashed,
    EnvError,
    EnvHung,
    FleetClosed,
    FleetExhausted,
    LeaseLost,
    LeaseTimeout,
    NodeLost,
    SandboxError,
    SandboxLost,
    SpecInvalid,
    StartFailed,
)
from rocknroll.trainer.engines.base import EngineError, EnginesExhausted
from rocknroll.trainer.rewards.workers import RewardFailed
from rocknroll.trainer.trajectory import Outcome, Trajectory

FAILURE_WINDOW = 64
"""Episodes over which the infrastructure failure rate is judged: long enough that one killed sandbox
is noise, short enough that a broken environment stops the run within a minute."""
SHOWN_ERRORS = 3
"""Distinct errors that a stopped run shows: more are rarely about something else."""
LINE_CHARS = 300
TRACEBACK_CHARS = 2_000
CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]")
"""Characters of an environment's text that a terminal would obey; line ends stay."""


class Cause(StrEnum):
    """What an episode was lost to; the metric is `faults/<cause>`."""

    ENV_ERROR = "env_error"
    """The environment raised an exception."""
    ENV_HUNG = "env_hung"
    """A step or a reset took longer than `sandbox.step_timeout_s`."""
    ENV_CRASHED = "env_crashed"
    """The environment's process died."""
    SANDBOX_LOST = "sandbox_lost"
    """The sandbox died or stopped answering."""
    NODE_LOST = "node_lost"
    """The machine that the sandbox ran on died or was cut off."""
    LEASE_LOST = "lease_lost"
    """The lease ran out, because this process stood still."""
    START_FAILED = "start_failed"
    """A sandbox did not come up, or none was free in time."""
    SANDBOX_ERROR = "sandbox_error"
    """Anything else between this process and the sandbox."""
    EPISODE_TIMEOUT = "episode_timeout"
    """The episode took longer than `rollout.episode_timeout_s`."""
    ENGINE_ERROR = "engine_error"
    """A generation failed."""
    REWARD_ERROR = "reward_error"
    """The reward function raised, or its worker died."""


class EpisodeTimeout(Exception):
    """An episode was not over in time; the text says where the time went."""


CAUSES: tuple[tuple[type[Exception], Cause], ...] = (
    (EnvError, Cause.ENV_ERROR),
    (EnvHung, Cause.ENV_HUNG),
    (EnvCrashed, Cause.ENV_CRASHED),
    (NodeLost, Cause.NODE_LOST),
    (SandboxLost, Cause.SANDBOX_LOST),
    (LeaseTimeout, Cause.START_FAILED),
    (LeaseLost, Cause.LEASE_LOST),
    (StartFailed, Cause.START_FAILED),
    (SandboxError, Cause.SANDBOX_ERROR),
    (EpisodeTimeout, Cause.EPISODE_TIMEOUT),
    (EngineError, Cause.ENGINE_ERROR),
    (RewardFailed, Cause.REWARD_ERROR),
)
"""The first row that an exception is an instance of says its cause."""

INFRASTRUCTURE = tuple(kind for kind, _ in CAUSES)
"""Exceptions that cost one episode and not the run."""

HOPELESS = (FleetExhausted, FleetClosed, SpecInvalid, EnginesExhausted)
"""Of these the exceptions that every further episode would meet, too: they end the run at once."""


def cause_of(failure: BaseException) -> Cause:
    """What `failure` counts as.

    Raises:
        LookupError: it is no infrastructure failure.
    """
    for kind, cause in CAUSES:
        if isinstance(failure, kind):
            return cause
    raise LookupError(f"{failure!r} is no infrastructure failure")


def describe(failure: BaseException) -> str:
    """`Type: message` on the first line; behind it the end of the environment's traceback, where there is one."""
    text = f"{type(failure).__name__}: {failure}"
    if isinstance(failure, EnvError) and failure.traceback:
        text = f"{_line(text)}\n{failure.traceback[-TRACEBACK_CHARS:]}"
    return CONTROL.sub("�", text)


class FailureWindow:
    """The last episodes, training and evaluation alike, and whether too many of them were lost (pure)."""

    def __init__(self, max_rate: float, size: int = FAILURE_WINDOW) -> None:
        """`max_rate`: share of the last `size` episodes that may be lost; 1: all of them."""
        self._max_rate = max_rate
        self._recent: deque[tuple[str, str]] = deque(maxlen=size)
        """(cause, error) of each episode, both empty for one that was not lost."""

    def observe(self, trajectory: Trajectory) -> None:
        """An episode ended, lost or not."""
        lost = trajectory.outcome is Outcome.INFRA_ERROR
        self._recent.append((trajectory.cause, trajectory.error) if lost else ("", ""))

    @property
    def lost(self) -> int:
        """How many of the last episodes were lost."""
        return sum(bool(cause) for cause, _ in self._recent)

    def verdict(self) -> str:
        """Why the run has to stop: the rate, the causes, the last errors; empty while it may go on.

        Nothing is judged before the window is full.
        """
        seen = len(self._recent)
        if seen < (self._recent.maxlen or 0) or self.lost <= self._max_rate * seen:
            return ""
        return (
            f"{self.lost} of the last {seen} episodes ({self.lost / seen:.0%}) were lost to infrastructure, more than "
            f"rollout.max_infra_error_rate={self._max_rate:g} accepts: {self._by_cause()}. {self.last_errors()}"
        )

    def last_errors(self) -> str:
        """The last distinct errors, newest first, and what the newest one's traceback says."""
        errors = [error for _, error in reversed(self._recent) if error]
        if not errors:
            return ""
        lines = list(dict.fromkeys(_line(error) for error in errors))[:SHOWN_ERRORS]
        traceback = errors[0].partition("\n")[2].strip()
        return "Last errors: " + "; ".join(lines) + (f". The newest in full:\n{traceback}" if traceback else "")

    def _by_cause(self) -> str:
        counts = Counter(cause for cause, _ in self._recent if cause)
        return ", ".join(f"{count} × {cause}" for cause, count in counts.most_common())


def _line(text: str) -> str:
    """The first line, shortened."""
    first = text.partition("\n")[0].strip()
    return first if len(first) <= LINE_CHARS else first[: LINE_CHARS - 1] + "…"
