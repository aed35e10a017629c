"""Files of any size, in chunks, so that neither side holds one whole."""

from __future__ import annotations

from collections.abc import AsyncIterator

from rocknroll.sandbox.agent.frames import MAX_BODY_BYTES
from rocknroll.sandbox.leased import LeasedSandbox


async def read_chunks(sandbox: LeasedSandbox, path: str) -> AsyncIterator[bytes]:
    """The content of a file, at least one chunk.

    Raises:
        FileFailed: there is no such file.
    """
    offset = 0
    while True:
        _, chunk = await sandbox.request("read", {"path": path, "offset": offset})
        yield chunk
        offset += len(chunk)
        if len(chunk) < MAX_BODY_BYTES:
            return


async def write_chunks(sandbox: LeasedSandbox, path: str, data: AsyncIterator[bytes], mode: int | None) -> None:
    """Create or overwrite a file.

    Raises:
        FileFailed: it cannot be written there.
    """
    fields = {"path": path} if mode is None else {"path": path, "mode": mode}
    offset, pending = 0, bytearray()
    async for part in data:
        pending += part
        while len(pending) >= MAX_BODY_BYTES:
            await sandbox.request("write", {**fields, "offset": offset}, bytes(pending[:MAX_BODY_BYTES]))
            offset += MAX_BODY_BYTES
            del pending[:MAX_BODY_BYTES]
    if pending or offset == 0:
        await sandbox.request("write", {**fields, "offset": offset}, bytes(pending))
