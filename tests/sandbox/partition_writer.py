"""A holder on the far side of a partition: writes under its token, again and again, and notes what was taken.

Each line of the log is a time (of the clock that all namespaces of a machine share) and `taken`, or why it was refused.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable

from rocknroll.sandbox.channel import Channel
from rocknroll.sandbox.errors import SandboxError, SandboxLost

PAUSE_S = 0.02


class Direct:
    """To a relay, without a fleet."""

    def __init__(self, host: str, port: int, key: str) -> None:
        self._address, self._key = (host, port), key

    async def dial(self, factory: Callable[[], asyncio.Protocol]) -> asyncio.WriteTransport:
        transport, _ = await asyncio.get_running_loop().create_connection(factory, *self._address)
        transport.write(self._key.encode())
        return transport

    async def account(self, end: OSError | None) -> SandboxLost:
        return SandboxLost(f"cut off: {end}")


async def write(host: str, port: int, key: str, secret: str, token: int) -> None:
    while True:
        try:
            channel = await Channel.connect(Direct(host, port, key), secret, 5.0)
            while True:
                header = {"token": token, "argv": ["sh", "-c", "echo mine >> note"], "timeout_s": 5.0}
                await channel.request("exec", header, timeout_s=5.0)
                print(time.monotonic(), "taken", flush=True)
                await asyncio.sleep(PAUSE_S)
        except (SandboxError, OSError) as error:
            print(time.monotonic(), json.dumps(str(error)), flush=True)
            await asyncio.sleep(10 * PAUSE_S)


if __name__ == "__main__":
    asyncio.run(write(sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4], int(sys.argv[5])))
