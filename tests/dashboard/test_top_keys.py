"""`rock top` as a person uses it, with a pretended fleet of 200: finding, reading, acting, and not being able to."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from pretence import ALERT, NOW, WHY, Pretence, fleet, run, sandboxes
from textual.pilot import Pilot
from waiting_top import until

from rocknroll.dashboard.app import Dashboard
from rocknroll.dashboard.dialogs import ColumnPicker, Confirm, Help
from rocknroll.dashboard.grid import GUTTER, HEADER
from rocknroll.dashboard.pages import EpisodePage, SandboxPage, TextPage
from rocknroll.dashboard.snapshot import Snapshot
from rocknroll.dashboard.source import Source
from rocknroll.dashboard.sources import READ_ONLY, ReadOnly
from rocknroll.dashboard.verdict import Level

ILL = 137
FRAME = {"#292929", "#c5c8c6"}
"""Colours of Rich's pictures, whatever is drawn in them."""


def of_200() -> Pretence:
    return Pretence(Snapshot(NOW, fleet(sandboxes(200, ill=ILL), alerts=(ALERT,)), run()))


@asynccontextmanager
async def opened(
    source: Source, size: tuple[int, int] = (100, 30), interval_s: float = 0.2
) -> AsyncIterator[tuple[Dashboard, Pilot[None]]]:
    """The application, once it has seen something."""
    app = Dashboard(source, interval_s=interval_s, clock=lambda: NOW + 14)
    async with app.run_test(size=size) as pilot:
        await until(pilot, lambda: app.verdict is not None)
        yield app, pilot


def screen(app: Dashboard) -> str:
    """What is on the screen, as text."""
    return "\n".join("".join(part.text for part in strip) for strip in app.screen._compositor.render_strips())


def said(app: Dashboard) -> Callable[[str], Callable[[], bool]]:
    return lambda text: lambda: any(text in note.message for note in app._notifications)


@pytest.mark.asyncio
async def test_the_one_that_is_ill_is_found_read_and_restarted() -> None:
    source = of_200()
    async with opened(source) as (app, pilot):
        assert f"degraded because 1 of 200 sandboxes is QUARANTINED (box-{ILL}" in screen(app)
        await pilot.press("2", "S")
        grid = app.view.grid
        assert grid is not None
        await pilot.press("slash", *"quarantined", "enter")
        assert [one.id for one in grid.listing.visible] == [f"box-{ILL}"]
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, SandboxPage) and "8 failures in 300 s" in screen(app))
        assert WHY in screen(app)
        await pilot.press("l")
        await until(pilot, lambda: isinstance(app.screen, TextPage) and "boot" in app.screen.shown)
        source.output += "one more line\n"
        await until(pilot, lambda: isinstance(app.screen, TextPage) and "one more line" in app.screen.shown)
        await pilot.press("escape", "r")
        await until(pilot, lambda: source.done == [("restart", f"box-{ILL}")])
        await until(pilot, lambda: app.verdict is not None and app.verdict.level is Level.HEALTHY)
        await pilot.press("escape", "escape")
        await until(pilot, lambda: not grid.listing.filter and len(grid.listing.visible) == 200)
        assert all(one.state != "QUARANTINED" for one in grid.listing.visible)


@pytest.mark.asyncio
async def test_the_cursor_and_the_marks_stay_with_their_sandboxes() -> None:
    source = of_200()
    async with opened(source) as (app, pilot):
        await pilot.press("2")
        grid = app.view.grid
        assert grid is not None
        await pilot.press("j", "j", "k", "space")
        assert (grid.listing.marks, grid.listing.cursor_key) == ({"box-1"}, "box-2")
        await pilot.press("S")
        assert grid.listing.visible[0].id == f"box-{ILL}" and grid.listing.cursor_key == "box-2"
        await pilot.press("g")
        assert grid.listing.cursor_key == f"box-{ILL}"
        await pilot.press("G", "shift+right", "shift+right", "O")
        assert grid.listing.sorted_by == "step" and grid.listing.current is not None
        await pilot.press("N", "slash", "exclamation_mark", *"leased", "enter")
        assert grid.listing.visible and all(one.state != "LEASED" for one in grid.listing.visible)
        await pilot.press("escape", "e")
        assert [one.id for one in grid.listing.visible] == [f"box-{ILL}"]
        await pilot.press("c")
        await until(pilot, lambda: isinstance(app.screen, ColumnPicker))
        await pilot.press("space", "enter")
        assert "state" not in [column.key for column in grid.listing.columns]


@pytest.mark.asyncio
async def test_the_mouse_moves_opens_and_sorts() -> None:
    async with opened(of_200()) as (app, pilot):
        await pilot.press("2")
        grid = app.view.grid
        assert grid is not None
        await pilot.click(grid, offset=(5, HEADER + 3))
        assert grid.listing.cursor_key == "box-3"
        state = GUTTER + grid.listing.columns[0].width + 1
        await pilot.click(grid, offset=(state, 0))
        assert grid.listing.sorted_by == "state" and grid.listing.visible[0].id == f"box-{ILL}"
        await pilot.click(grid, offset=(state, 0))
        assert grid.listing.reverse and grid.listing.visible[-1].id == f"box-{ILL}"
        await pilot.press("S", "g")
        await pilot.click(grid, offset=(5, HEADER), times=2)
        await until(pilot, lambda: isinstance(app.screen, SandboxPage) and f"box-{ILL}" in screen(app))


@pytest.mark.asyncio
async def test_removing_asks_first_and_is_for_all_that_are_marked() -> None:
    source = of_200()
    async with opened(source) as (app, pilot):
        await pilot.press("2", "space", "space", "ctrl+d")
        await until(pilot, lambda: isinstance(app.screen, Confirm))
        await pilot.press("n")
        await until(pilot, lambda: not isinstance(app.screen, Confirm))
        assert source.done == []
        await pilot.press("ctrl+d")
        await until(pilot, lambda: isinstance(app.screen, Confirm))
        await pilot.press("y")
        await until(pilot, lambda: source.done == [("remove", "box-0"), ("remove", "box-1")])


@pytest.mark.asyncio
async def test_readonly_refuses_every_key_that_would_change_something() -> None:
    source = of_200()
    async with opened(ReadOnly(source)) as (app, pilot):
        await pilot.press("2", "slash", *"quarantined", "enter")
        for number, key in enumerate(("r", "s", "ctrl+d"), start=1):
            await pilot.press(key)
            if isinstance(app.screen, Confirm):
                await pilot.press("y")
            await until(pilot, lambda number=number: sum(READ_ONLY in n.message for n in app._notifications) == number)
    assert source.done == []


@pytest.mark.asyncio
async def test_a_manager_that_dies_is_told_its_last_state_kept_and_its_return_noticed() -> None:
    source = of_200()
    async with opened(source) as (app, pilot):
        await pilot.press("2")
        before, source.snapshot_now = source.snapshot_now, None
        await until(pilot, lambda: app.screen.has_class("away"))
        shown = screen(app)
        assert "down because nobody answers; what is shown is 14s old" in shown and "box-0 " in shown
        source.snapshot_now = before
        await until(pilot, lambda: not app.screen.has_class("away"))
        await until(pilot, said(app)("answers again"))
        assert "degraded because" in screen(app)


@pytest.mark.asyncio
async def test_the_help_lists_the_keys_of_what_has_the_focus() -> None:
    async with opened(of_200()) as (app, pilot):
        await pilot.press("2", "question_mark")
        await until(pilot, lambda: isinstance(app.screen, Help))
        assert isinstance(app.screen, Help)
        listed = {key for line in app.screen.lines for key, _ in line.keys}
        assert {"l", "s", "d", "y", "r", "ctrl+d", "space", "N", "A", "S", "O", "slash", "q", "j", "G"} <= listed
        await pilot.press("escape", "1", "question_mark")
        await until(pilot, lambda: isinstance(app.screen, Help))
        assert isinstance(app.screen, Help)
        assert "ctrl+d" not in {key for line in app.screen.lines for key, _ in line.keys}


@pytest.mark.asyncio
async def test_jumping_takes_the_beginning_of_a_views_name() -> None:
    async with opened(of_200()) as (app, pilot):
        for word, name in (("ev", "events"), ("al", "alerts"), ("gr", "groups"), ("traj", "trajectories")):
            await pilot.press("colon", *word, "enter")
            await until(pilot, lambda name=name: app.view.id == name)
        await until(pilot, lambda: app.view.grid is not None and len(app.view.grid.listing.visible) == 2)
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, EpisodePage) and "take apple" in screen(app))
        await pilot.press("c")
        assert isinstance(app.screen, EpisodePage) and app.screen.signal == "probability"
        await pilot.press("colon", *"moon", "enter")
        await until(pilot, said(app)("no view 'moon'"))


@pytest.mark.asyncio
async def test_the_curves_follow_the_run() -> None:
    source = of_200()
    async with opened(source) as (app, pilot):
        await pilot.press("4")
        grid = app.view.grid
        assert grid is not None and grid.listing.visible[0].name == "batch/success"
        await until(pilot, lambda: "batch/success" in screen(app).split("CURVE")[0])
        assert source.snapshot_now is not None
        source.snapshot_now = replace(source.snapshot_now, run=run(iterations=13))
        await until(pilot, lambda: len(grid.listing.visible[0].points) == 13)


@pytest.mark.asyncio
async def test_what_agents_write_neither_drives_the_terminal_nor_is_markup() -> None:
    source = of_200()
    hostile = "\x1b[2J\x1b]0;owned\x07[red]not markup[/red]\u202egnp.exe\ud800 end"
    assert source.snapshot_now is not None and source.snapshot_now.fleet is not None
    first = replace(source.snapshot_now.fleet.sandboxes[0], state="DEAD", last_error=hostile)
    source.snapshot_now = Snapshot(NOW, fleet((first, *source.snapshot_now.fleet.sandboxes[1:])))
    source.output = f"{hostile}\n[bold]line[/bold]\n"
    async with opened(source, (160, 40)) as (app, pilot):
        for keys in (("1",), ("2",), ("enter",), ("l",), ("escape", "d"), ("escape", "y")):
            await pilot.press(*keys)
            await pilot.pause()
            shown = screen(app)
            assert not {"\x1b", "\x07", "\u202e", "\ud800"} & set(shown)
        await pilot.press("escape", "l")
        await until(pilot, lambda: "[bold]line[/bold]" in screen(app) and "[red]not markup[/red]" in screen(app))


@pytest.mark.asyncio
async def test_ascii_draws_nothing_else() -> None:
    app = Dashboard(of_200(), ascii_only=True, interval_s=0.2)
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: app.verdict is not None)
        for key in ("1", "2", "4", "question_mark"):
            await pilot.press(key)
            await pilot.pause()
            assert screen(app).isascii()


def colours(app: Dashboard) -> set[str]:
    """Every colour that is drawn now, but those of the picture's frame and of blanks that have none."""
    svg = app.export_screenshot()
    return {*re.findall(r"-r\d+ { fill: (#\w{6})", svg), *re.findall(r'<rect fill="(#\w{6})" x="[^"]*" y', svg)} - FRAME


@pytest.mark.asyncio
@pytest.mark.parametrize("key", ["1", "2", "4", "7"])
async def test_no_color_takes_the_colours(monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    async with opened(of_200()) as (app, pilot):
        await pilot.press(key)
        await pilot.pause()
        assert any(len({one[1:3], one[3:5], one[5:]}) > 1 for one in colours(app))
    monkeypatch.setenv("NO_COLOR", "1")
    async with opened(of_200()) as (app, pilot):
        await pilot.press(key)
        await pilot.pause()
        assert colours(app) and all(one[1:3] == one[3:5] == one[5:] for one in colours(app))


@pytest.mark.asyncio
async def test_a_theme_colours_what_is_drawn() -> None:
    drawn = []
    for theme in ("textual-dark", "textual-light", "nord"):
        app = Dashboard(of_200(), theme=theme, interval_s=0.2)
        async with app.run_test(size=(100, 30)) as pilot:
            await until(pilot, lambda app=app: app.verdict is not None)
            await pilot.press("2")
            await pilot.pause()
            drawn.append(colours(app))
            app.theme = "gruvbox"  # as the command palette does
            await pilot.pause()
            drawn.append(colours(app))
    assert drawn[1] == drawn[3] == drawn[5], "a theme that is chosen later leaves nothing of the one before"
    assert len({frozenset(one) for one in drawn}) == 4


@pytest.mark.asyncio
@pytest.mark.parametrize("size", [(80, 24), (160, 50)])
async def test_every_view_fits(size: tuple[int, int]) -> None:
    async with opened(of_200(), size) as (app, pilot):
        for number in range(1, 8):
            await pilot.press(str(number))
            lines = screen(app).splitlines()
            assert len(lines) == size[1] and "7 Alerts" in lines[1]
            assert "q Quit" in lines[-1]
