"""The sandboxes of a run for those who watch it: `fleet.json`, written anew every two seconds while they play.

It has what the service's `/v1/overview` has of a fleet, and of each sandbox the `task` and the newest `turns` of what
is played in it. Who reads it judges by its time (`at`) whether it still holds: a killed run leaves its last one behind.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rocknroll.sandbox.fleet import Fleet
from rocknroll.sandbox.overview import event_json, pool_state, sandboxes_and_figures
from rocknroll.sandbox.usage import Usage

EVERY_S = 2.0
EVENTS = 200
TURNS = 8
"""The newest of an episode that are shown."""
TEXT_CHARS = 600
"""Of an observation or action."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class PlayedTurn:
    """What was done, and what came of it."""

    action: str
    observation: str
    reward: float


@dataclass
class Played:
    """The episode that is played in a sandbox."""

    task: str
    begun: str = ""
    """What the policy read first."""
    turns: deque[PlayedTurn] = field(default_factory=lambda: deque(maxlen=TURNS))

    def begin(self, observation: str) -> None:
        self.begun = observation[:TEXT_CHARS]
        self.turns.clear()

    def add(self, action: str, observation: str, reward: float) -> None:
        """A turn was played."""
        self.turns.append(PlayedTurn(action[:TEXT_CHARS], observation[:TEXT_CHARS], reward))


@asynccontextmanager
async def shown(fleets: Mapping[str, Fleet], playing: Mapping[str, Played], file: Path | None) -> AsyncIterator[None]:
    """Keep the file up to date within the context; without a file nothing is shown.

    `fleets`: by the name of their pools; `playing`: by id of the sandbox.
    """
    if file is None:
        yield
        return
    showing = asyncio.create_task(_show(fleets, playing, file))
    try:
        yield
    finally:
        showing.cancel()
        await asyncio.wait({showing})
        file.unlink(missing_ok=True)


async def _show(fleets: Mapping[str, Fleet], playing: Mapping[str, Played], file: Path) -> None:
    usage, began, well = Usage(), time.time(), True
    while True:
        seen = await overview(fleets, playing, usage, began)
        try:
            await asyncio.to_thread(_write, file, seen)
            well = True
        except OSError as error:  # the run goes on without being seen rather than not at all
            if well:
                _log.warning("%s cannot be written, so `rock top` does not see the sandboxes: %s", file, error)
            well = False
        await asyncio.sleep(EVERY_S)


async def overview(
    fleets: Mapping[str, Fleet], playing: Mapping[str, Played], usage: Usage, began: float
) -> dict[str, Any]:
    """As the service's, without alerts, which are the run's."""
    found = await sandboxes_and_figures(fleets.values(), usage)
    for row in found["sandboxes"]:
        if (played := playing.get(row["id"])) is not None:
            turns = [asdict(turn) for turn in played.turns]
            row |= {"task": played.task, "begun": played.begun, "turns": turns}
    return {
        "at": time.time(),
        "began": began,
        "pools": [
            {
                "name": name,
                "runtime": fleet.runtime.name,
                "image": fleet.spec.image or None,
                "size": sum(pool_state(fleet)["states"].values()),
                "ready": None,
                **pool_state(fleet),
            }
            for name, fleet in fleets.items()
        ],
        "events": _events(list(fleets.values())),
        "alerts": [],
        **found,
    }


def _events(fleets: list[Fleet]) -> list[dict[str, Any]]:
    """The newest of all fleets, oldest first; each has a record of its own, so numbers are made distinct."""
    rows = [
        {**event_json(event), "seq": event.seq * len(fleets) + number}
        for number, fleet in enumerate(fleets)
        for event in fleet.newest_events(EVENTS)
    ]
    return sorted(rows, key=lambda row: (row["time"], row["seq"]))[-EVENTS:]


def _write(file: Path, seen: Mapping[str, Any]) -> None:
    """At once or not at all, for whoever reads it meanwhile."""
    draft = file.with_suffix(".tmp")
    draft.write_text(json.dumps(seen), encoding="utf-8")
    draft.replace(file)
