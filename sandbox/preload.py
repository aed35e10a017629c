"""What has to happen in a fresh instance before it counts as READY: its environment is made, its command has run."""

from __future__ import annotations

import json
from typing import Any

from rocknroll.sandbox.channel import Channel
from rocknroll.sandbox.errors import StartFailed, StartTimeout
from rocknroll.sandbox.spec import EnvSpec, SandboxSpec

OUTPUT_CHARS = 4_000


def env_request(env: EnvSpec, python: tuple[str, ...]) -> tuple[dict[str, Any], bytes]:
    """Header and body of `env.make`. The agent keeps an environment that was made by an equal body."""
    header = {"module": env.host, "argv": [*python, "-m", env.host], "timeout_s": env.make_timeout_s}
    body = {"op": "make", "entry_point": env.entry_point, "kwargs": env.kwargs}
    return header, json.dumps(body, sort_keys=True).encode()


async def preload(channel: Channel, python: tuple[str, ...], spec: SandboxSpec, token: int) -> None:
    """Make the environment, then run the command.

    Raises:
        EnvError: the environment cannot be made. StartFailed: the command failed.
        SandboxError: the instance was lost meanwhile.
    """
    if spec.env is not None:
        header, body = env_request(spec.env, python)
        await channel.request(
            "env.make", {"token": token, **header}, body, spec.env.make_timeout_s + spec.start_timeout_s
        )
    if spec.command:
        timeout_s = spec.start_timeout_s
        header = {"token": token, "argv": spec.command, "timeout_s": timeout_s}
        done, output = await channel.request("exec", header, b"", 2 * timeout_s)
        if done["timed_out"]:
            raise StartTimeout(f"the command {spec.command} did not end within {timeout_s:g} s")
        if done["exit_code"] != 0:
            text = output[-OUTPUT_CHARS:].decode(errors="replace")
            raise StartFailed(f"the command {spec.command} ended with code {done['exit_code']}: {text}")
