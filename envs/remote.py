"""A Gymnasium environment whose body runs in a leased sandbox.

Whatever goes wrong with the infrastructure or inside the environment raises a SandboxError; it is
never a reward and never the end of an episode.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rocknroll.envs.wire import NotTransportable, dumps, loads
from rocknroll.sandbox.errors import SpecInvalid
from rocknroll.sandbox.leased import LeasedSandbox
from rocknroll.sandbox.preload import env_request
from rocknroll.sandbox.spec import EnvSpec

Info = dict[str, Any]


class RemoteEnv:
    """An environment in a sandbox that the caller holds. Without `entry_point` it is the one of the sandbox's spec.

    Several, by `name`, live side by side in one sandbox, each in a process of its own; the spec's is "0".
    """

    def __init__(
        self,
        sandbox: LeasedSandbox,
        entry_point: str | None = None,
        kwargs: Mapping[str, Any] | None = None,
        step_timeout_s: float = 30.0,
        name: str = "0",
        reset_timeout_s: float | None = None,
    ) -> None:
        """`reset_timeout_s`: `step_timeout_s` unless given."""
        env = sandbox.env
        if entry_point is not None:
            env = (
                EnvSpec(entry_point=entry_point, kwargs=dict(kwargs or {}))
                if env is None
                else env.model_copy(update={"entry_point": entry_point, "kwargs": dict(kwargs or {})})
            )
        if env is None:
            raise SpecInvalid("the sandbox's spec has no environment; name an entry_point")
        self._sandbox, self._env, self._step_timeout_s = sandbox, env, step_timeout_s
        self._timeouts_s = {"reset": reset_timeout_s or step_timeout_s, "step": step_timeout_s}
        self._name = name
        self._made = env == sandbox.env and name == "0"

    async def make(self) -> dict[str, Any]:
        """Make the environment unless an equal one is there already, and describe its spaces (`space_wire.decode`).
        `reset` does it by itself.

        Raises:
            EnvError: its class cannot be imported or its constructor raised. SandboxError: the sandbox was lost.
        """
        header, body = env_request(self._env, self._sandbox.python)
        _, spaces = await self._sandbox.request(
            "env.make", {**header, "env": self._name}, body, self._env.make_timeout_s
        )
        self._made = True
        described: dict[str, Any] = loads(spaces)
        return described

    async def reset(self, seed: int | None = None, options: Mapping[str, Any] | None = None) -> tuple[Any, Info]:
        """Start an episode.

        Raises:
            EnvError, EnvHung, EnvCrashed: the environment failed. LeaseLost, SandboxLost: the sandbox is gone.
        """
        if not self._made:
            await self.make()
        options = None if options is None else dict(options)
        observation, info = await self._ask({"op": "reset", "seed": seed, "options": options})
        return observation, info

    async def step(self, action: Any) -> tuple[Any, float, bool, bool, Info]:
        """One action: observation, reward, terminated, truncated, info.

        Raises:
            EnvError, EnvHung, EnvCrashed: the environment failed. LeaseLost, SandboxLost: the sandbox is gone.
        """
        observation, reward, terminated, truncated, info = await self._ask({"op": "step", "action": action})
        return observation, reward, terminated, truncated, info

    async def close(self) -> None:
        """Close an environment that was made here. One that came with the sandbox stays, for the next holder."""
        if self._made and (self._env != self._sandbox.env or self._name != "0"):
            self._made = False
            await self._sandbox.request("env.close", {"env": self._name}, dumps({"op": "close"}), self._step_timeout_s)

    async def _ask(self, request: dict[str, Any]) -> Any:
        try:
            body = dumps(request)
        except NotTransportable as error:
            raise SpecInvalid(str(error)) from None
        op = request["op"]
        _, answer = await self._sandbox.request(f"env.{op}", {"env": self._name}, body, self._timeouts_s[op])
        return loads(answer)
