"""`rock top` on a real fleet of process sandboxes: find the ill one, read why, restart it, see it READY again."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import pytest_asyncio
from services import serving
from test_top_keys import opened, said, screen
from waiting_top import until

from rocknroll.dashboard.dialogs import Confirm
from rocknroll.dashboard.fleet_source import FleetSource
from rocknroll.dashboard.pages import SandboxPage, TextPage
from rocknroll.dashboard.snapshot import SandboxFacts
from rocknroll.dashboard.source import SourceAway, SourceRefused
from rocknroll.dashboard.sources import READ_ONLY, ReadOnly
from rocknroll.sandbox.client import AsyncClient
from rocknroll.sandbox.site import Site

MANY, FEW = 200, 8
"""Real sandboxes."""


@pytest.fixture
def size() -> int:
    return FEW


@pytest_asyncio.fixture
async def site(folder: Path, size: int) -> AsyncIterator[Site]:
    # No health probes while the test looks: they would only make the machine busier.
    pools = {"box": {"size": size, "reuse": "reset", "restart": {"limit": 1}, "health": {"interval_s": 600}}}
    async with serving(folder, pools) as site:
        await site.wait_ready()
        yield site


def address(folder: Path) -> Path:
    return folder / "state" / "rock.sock"


@pytest.mark.asyncio
@pytest.mark.parametrize("size", [MANY])
async def test_the_ill_sandbox_among_many_is_found_restarted_and_ready_again(folder: Path, site: Site) -> None:
    source = FleetSource(address(folder))
    ill = "box-37"
    instance = site.fleets["box"].instance(ill)
    assert instance is not None
    await instance.kill()  # with `restart.limit: 1` one loss is enough for quarantine
    async with opened(source, interval_s=0.5) as (app, pilot):

        def states() -> dict[str, str]:
            fleet = None if app.seen is None else app.seen.fleet
            return {} if fleet is None else {one.id: one.state for one in fleet.sandboxes}

        await until(pilot, lambda: states().get(ill) == "QUARANTINED")
        await until(pilot, lambda: f"degraded because 1 of {MANY} sandboxes is QUARANTINED ({ill}" in screen(app))
        await pilot.press("2", "S")
        grid = app.view.grid
        assert grid is not None
        await pilot.press("g", "enter")
        assert isinstance(app.screen, SandboxPage)
        await until(pilot, lambda: "quarantined" in screen(app) and "lost" in screen(app))
        await pilot.press("d")
        await until(pilot, lambda: isinstance(app.screen, TextPage) and "QUARANTINED" in app.screen.shown)
        await pilot.press("escape", "l")
        await until(pilot, lambda: isinstance(app.screen, TextPage))
        await pilot.press("escape", "r")
        await until(pilot, lambda: states().get(ill) == "READY")
        await until(pilot, lambda: app.verdict is not None and not any(ill in why for why in app.verdict.reasons))
        await pilot.press("escape", "ctrl+d")
        await until(pilot, lambda: isinstance(app.screen, Confirm))
        await pilot.press("y")
        await until(pilot, lambda: states().get(ill) == "QUARANTINED")
        assert "taken out of service by an operator" in str(site.snapshot()[37]["last_error"])
    await source.close()


@pytest.mark.asyncio
async def test_a_snapshot_is_one_request_and_tells_what_holders_do(folder: Path, site: Site) -> None:
    async with AsyncClient(address(folder)) as client:
        lease = await client.lease("box", owner="g7.1")
        await lease.exec("true")
        source = FleetSource(address(folder))
        sent: list[str] = []
        wire = source._client._wire
        stream, send = wire.stream, wire.send

        def counted(method: str, path: str, *rest: object, **more: object) -> contextlib.AbstractAsyncContextManager:
            sent.append(path)
            return stream(method, path, *rest, **more)

        async def counted_send(call: object) -> object:
            sent.append(call.path)
            return await send(call)

        wire.stream, wire.send = counted, counted_send
        seen = await source.snapshot()
        assert sent == ["/v1/overview"]
        assert seen.fleet is not None and len(seen.fleet.sandboxes) == FEW
        held = next(one for one in seen.fleet.sandboxes if one.id == lease.id)
        assert held.lease is not None and held.lease.owner == "g7.1"
        assert held.active is not None and seen.at - held.active < 60
        assert (held.memory_bytes or 0) > 1 << 20
        assert seen.fleet.execs is not None and seen.fleet.execs.count == 1
        assert seen.fleet.starts is not None and seen.fleet.starts.count >= FEW
        await lease.release()
        await source.close()


@pytest.mark.asyncio
async def test_readonly_leaves_a_fleet_as_it_is(folder: Path, site: Site) -> None:
    async with opened(ReadOnly(FleetSource(address(folder)))) as (app, pilot):
        await pilot.press("2", "r")
        await until(pilot, said(app)(READ_ONLY))
    assert all(row["restarts"] == 0 for row in site.snapshot())
    read_only = ReadOnly(FleetSource(address(folder)))
    for act in (read_only.restart, read_only.remove):
        with pytest.raises(SourceRefused, match="only looks"):
            await act("box-0")
    with pytest.raises(SourceRefused, match="only looks"):
        read_only.shell_command("box-0")


@pytest.mark.asyncio
async def test_a_manager_that_ends_and_comes_back_is_found_again(folder: Path) -> None:
    source = FleetSource(address(folder))
    pools = {"box": {"size": 1}}
    shown: Callable[[], bool]
    async with contextlib.AsyncExitStack() as stack:
        manager = contextlib.AsyncExitStack()
        await manager.enter_async_context(serving(folder, pools))
        app, pilot = await stack.enter_async_context(opened(source))
        await manager.aclose()
        shown = lambda: "nobody answers" in screen(app) and app.screen.has_class("away")  # noqa: E731
        await until(pilot, shown)
        with pytest.raises(SourceAway):
            await source.snapshot()
        async with serving(folder, pools):
            await until(pilot, lambda: not app.away and not app.screen.has_class("away"))
            assert isinstance(app.seen and app.seen.fleet and app.seen.fleet.sandboxes[0], SandboxFacts)


@pytest.mark.asyncio
async def test_what_does_not_exist_is_refused_and_not_away(folder: Path) -> None:
    async with serving(folder, {"box": {"size": 1}}):
        source = FleetSource(address(folder))
        with pytest.raises(SourceRefused, match="no sandbox"):
            await source.restart("moon")
        await source.close()
