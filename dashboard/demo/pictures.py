"""Draws the README's pictures from the demo, with a clock that stands: `make pictures`.

The same seed gives the same pictures, so they change when the dashboard does and not before.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from rocknroll.dashboard.app import Dashboard
from rocknroll.dashboard.demo.source import DemoSource

FOLDER = Path("docs/pictures")
SIZE = (120, 36)
NOW = 1_790_000_000.0
PAGES = {"overview": (), "sandboxes": ("2",), "training": ("4",), "alerts": ("7",)}
"""Pictures, and the keys that lead to what they show."""


async def draw(folder: Path) -> None:
    """Write one SVG for each of `PAGES`."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, keys in PAGES.items():
        app = Dashboard(DemoSource(0, lambda: NOW), interval_s=0.1, clock=lambda: NOW)
        async with app.run_test(size=SIZE) as pilot:
            while app.verdict is None:
                await pilot.pause(0.05)
            await pilot.press(*keys)
            await pilot.pause(0.5)
            (folder / f"{name}.svg").write_text(app.export_screenshot(title="rock demo"), encoding="utf-8")


if __name__ == "__main__":
    asyncio.run(draw(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER))
