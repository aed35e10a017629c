"""What crosses the WebSocket of an OpenEnv server, as its version 0.10 has it: requests, replies and error codes.

A request is `{"type": "reset" | "step" | "state" | "close", "data": {…}}`, its reply `{"type": "observation" |
"state" | "error", "data": {…}}`. Errors of ours carry `kind`, by which a client has the same exception again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt

from rocknroll.envs.wire import NotTransportable
from rocknroll.sandbox.errors import (
    EnvError,
    FleetClosed,
    FleetExhausted,
    LeaseTimeout,
    RuntimeUnavailable,
    SandboxError,
    from_wire,
)

CODES: tuple[tuple[type[SandboxError], str], ...] = (
    (LeaseTimeout, "CAPACITY_REACHED"),
    (FleetExhausted, "FACTORY_ERROR"),
    (FleetClosed, "FACTORY_ERROR"),
    (RuntimeUnavailable, "FACTORY_ERROR"),
    (SandboxError, "EXECUTION_ERROR"),
)
"""The first row that an error is an instance of says its code."""


class Message(BaseModel):
    """Base: what is not known is an error, not ignored."""

    model_config = ConfigDict(extra="forbid")


class Reset(Message):
    """Which episode to begin: a task by its id, or by its place in a split, or one that the seed draws."""

    seed: NonNegativeInt | None = None
    episode_id: str | None = Field(default=None, max_length=255)
    task: str | None = None
    split: Literal["train", "seen", "unseen"] = "train"
    index: NonNegativeInt | None = None


class TextAction(Message):
    """What the policy says or does."""

    text: str
    metadata: dict[str, Any] = {}


class TextObservation(Message):
    """What it reads. `done` is `terminated` or `truncated`; `metadata` is Gymnasium's info."""

    text: str
    terminated: bool = False
    truncated: bool = False
    done: bool = False
    reward: float | None = None
    metadata: dict[str, Any] = {}

    def frame(self) -> dict[str, Any]:
        """The reply."""
        data = {"observation": self.model_dump(exclude={"done", "reward"}), "reward": self.reward, "done": self.done}
        return {"type": "observation", "data": {**data, "metadata": self.metadata}}


class EpisodeState(Message):
    """Where a session stands."""

    episode_id: str | None = None
    step_count: NonNegativeInt = 0
    task: str | None = None


def plain(info: Mapping[str, Any]) -> dict[str, Any]:
    """An info as JSON.

    Raises:
        NotTransportable: it holds something that JSON does not have.
    """
    try:
        passed: dict[str, Any] = json.loads(json.dumps(dict(info)))
    except (TypeError, ValueError) as error:
        raise NotTransportable(f"the environment's info does not fit into JSON: {error}") from None
    return passed


def error_frame(code: str, message: str, **more: Any) -> dict[str, Any]:
    """A reply that says what went wrong."""
    return {"type": "error", "data": {"message": message, "code": code, **more}}


def failure_frame(error: SandboxError) -> dict[str, Any]:
    """The reply for an infrastructure failure: never an observation, never a reward."""
    code = next(code for kind, code in CODES if isinstance(error, kind))
    return error_frame(code, str(error), kind=error.kind)


def failure_of(data: Mapping[str, Any]) -> SandboxError:
    """The exception that an error reply stands for, of our server or another."""
    message, code = str(data.get("message", "no reason given")), str(data.get("code", "UNKNOWN"))
    if "kind" in data:
        return from_wire({"kind": data["kind"], "message": message})
    if code == "CAPACITY_REACHED":
        return LeaseTimeout(message)
    if code == "FACTORY_ERROR":
        return FleetExhausted(message)
    return EnvError(f"{code}: {message}", code)
