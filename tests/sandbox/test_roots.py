"""File operations that may not leave the folders that the specification names."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rocknroll.sandbox.errors import PathEscapes
from rocknroll.sandbox.fleet import Fleet

pytestmark = pytest.mark.asyncio
MakeFleet = Callable[..., Fleet]


async def test_links_and_dots_lead_nowhere_else(make_fleet: MakeFleet) -> None:
    async with make_fleet(roots=(".",)) as fleet, await fleet.lease("me") as sandbox:
        await sandbox.write("inside/file", b"mine")
        assert await sandbox.read("inside/file") == b"mine"
        (await sandbox.exec("ln -s /etc out; ln -s /etc/passwd passwd")).check()
        for path in ("/etc/passwd", "inside/../../x", "out/passwd", "passwd"):
            with pytest.raises(PathEscapes):
                await sandbox.read(path)
        for path in ("/tmp/x", "../x", "out/x"):
            with pytest.raises(PathEscapes):
                await sandbox.write(path, b"planted")


async def test_without_roots_all_that_the_sandbox_sees_may_be_read(make_fleet: MakeFleet) -> None:
    async with make_fleet() as fleet, await fleet.lease("me") as sandbox:
        assert b"sandbox" in await sandbox.read("/etc/passwd")
