"""Draws the README's pictures from the demo, with a clock that stands: `make pictures`.

The same seed gives the same pictures, so they change when the dashboard does and not before.
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
import time
from pathlib import Path

from rocknroll.dashboard.app import Dashboard
from rocknroll.dashboard.demo.source import DemoSource

SIZE = (120, 36)
NOW = 1_790_000_000.0
PAGES = {"overview": "1", "sandboxes": "2", "training": "4", "alerts": "7"}
"""Pictures, and the key that leads to what they show."""
LOOK_S = 0.05
"""Between two looks whether something is drawn."""
SETTLED_S = 1.0
"""For a page to be drawn whole: nothing on it moves after that, for the clock stands."""


async def draw(folder: Path) -> None:
    """Write one SVG for each of `PAGES`."""
    folder.mkdir(parents=True, exist_ok=True)
    app = Dashboard(DemoSource(0, lambda: NOW), interval_s=3600.0, clock=lambda: NOW)
    async with app.run_test(size=SIZE) as pilot:
        while app.verdict is None:
            await pilot.pause(LOOK_S)
        for name, key in PAGES.items():
            await pilot.press(key)
            await pilot.pause(SETTLED_S)
            svg = re.sub(r"terminal-\d+", f"terminal-{name}", app.export_screenshot(title="rock demo"))
            (folder / f"{name}.svg").write_text(svg, encoding="utf-8")


if __name__ == "__main__":
    os.environ["TZ"] = "UTC"  # times of day are those of one place
    time.tzset()
    asyncio.run(draw(Path(sys.argv[1])))
