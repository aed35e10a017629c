"""What is drawn, as text with its colours, compared with what was drawn before; a frozen clock and a seeded source.

`ROCKNROLL_UPDATE_PICTURES=1 pytest tests/dashboard/test_top_pictures.py` draws them anew; look at them before a commit.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from pretence import ALERT, NOW, Pretence, fleet, run, sandboxes
from test_top_keys import opened, screen
from waiting_top import until

from rocknroll.dashboard.demo.pictures import draw
from rocknroll.dashboard.snapshot import Snapshot

PICTURES = Path(__file__).parent / "pictures"
UPDATE = "ROCKNROLL_UPDATE_PICTURES"


@pytest.fixture(autouse=True)
def utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Times of day are those of one place."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def normalised(svg: str) -> str:
    """Without the random ids that Rich gives to classes and clips."""
    return re.sub(r"terminal-\d+", "terminal-0", svg)


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("key", "name", "sign"), [("1", "overview", "No alerts|Alerts"), ("2", "sandboxes", "LAST ERROR")]
)
@pytest.mark.parametrize("size", [(80, 24), (160, 50)], ids=["80x24", "160x50"])
async def test_a_picture_is_as_it_was(key: str, name: str, sign: str, size: tuple[int, int]) -> None:
    source = Pretence(Snapshot(NOW, fleet(sandboxes(40, ill=7), alerts=(ALERT,)), run()))
    async with opened(source, size, interval_s=3600) as (app, pilot):
        await pilot.press(key)
        await until(pilot, lambda: re.search(sign, screen(app)) is not None or size[1] == 24)
        await pilot.pause()
        drawn = normalised(app.export_screenshot(title="rock top"))
    file = PICTURES / f"{name}-{size[0]}x{size[1]}.svg"
    if os.environ.get(UPDATE):
        file.parent.mkdir(exist_ok=True)
        file.write_text(drawn, encoding="utf-8")
    assert drawn == file.read_text(encoding="utf-8"), f"{file.name} is drawn differently; see {UPDATE} in this file"


@pytest.mark.asyncio
async def test_the_readmes_pictures_are_the_demo_as_it_is_now(tmp_path: Path) -> None:
    await draw(tmp_path)
    kept = Path(__file__).parents[2] / "docs" / "pictures"
    assert {file.name for file in kept.iterdir()} == {file.name for file in tmp_path.iterdir()}
    for file in tmp_path.iterdir():
        assert file.read_text() == (kept / file.name).read_text(), f"{file.name} is out of date: `make pictures`"
