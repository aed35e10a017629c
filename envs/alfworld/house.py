"""What the installed package knows about houses: scenes, what stands in them, what fits where.

Everything is read at run time and sorted, so that a seed means the same game on every machine.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cache

from rocknroll.envs.alfworld import package

LAMPS = ("DeskLamp", "FloorLamp")
"""The package calls them toggleable; layouts also list a `Lamp` that nothing can be done with."""

BASINS = {"Sink": "SinkBasin", "Bathtub": "BathtubBasin"}
"""Layouts name the fixture; things are put into its basin."""

TOOLS = {
    "pick_clean_then_place_in_recep": ("Cleanable", "SinkBasin"),
    "pick_heat_then_place_in_recep": ("Heatable", "Microwave"),
    "pick_cool_then_place_in_recep": ("Coolable", "Fridge"),
}
"""Task type -> the affordance it needs and the receptacle that does it (as in the package's PDDL domain)."""


@dataclass(frozen=True, order=True)
class Receptacle:
    """A place to put things."""

    id: str
    kind: str
    location: str
    """Where one stands to use it. Each has its own: the domain has no way to turn from one receptacle to
    another at the same place, so a shared one would hide the other from a player."""


@dataclass(frozen=True)
class Scene:
    """One floor plan."""

    number: int
    room: str
    receptacles: tuple[Receptacle, ...]
    objects: tuple[str, ...]
    """Kinds of portable objects that occur here."""
    lamps: tuple[str, ...]


@cache
def fits() -> dict[str, frozenset[str]]:
    """Kind of object -> kinds of (fixed) receptacles that hold it."""
    known = package.constants()
    movable = set(known.MOVABLE_RECEPTACLES)
    homes: dict[str, set[str]] = {}
    for receptacle, objects in known.VAL_RECEPTACLE_OBJECTS.items():
        if receptacle not in movable:
            for kind in objects:
                homes.setdefault(kind, set()).add(receptacle)
    return {kind: frozenset(places) for kind, places in sorted(homes.items()) if not kind.endswith("Sliced")}


def affords(kind: str, affordance: str) -> bool:
    """Whether `kind` is `Cleanable`, `Heatable`, `Coolable`, `Sliceable` or `Toggleable`."""
    return kind in package.constants().VAL_ACTION_OBJECTS[affordance]


def openable(kind: str) -> bool:
    """Whether receptacles of this kind start closed."""
    return kind in package.constants().OPENABLE_CLASS_SET


def scene_numbers(held_out: bool) -> tuple[int, ...]:
    """Floor plans for training, or those that training never sees."""
    known = package.constants()
    return tuple(known.TEST_SCENE_NUMBERS if held_out else known.TRAIN_SCENE_NUMBERS)


def room_of(number: int) -> str:
    """`Kitchen`, `LivingRoom`, `Bedroom` or `Bathroom`."""
    for room, numbers in package.constants().SCENE_TYPE.items():
        if number in numbers:
            return str(room)
    raise ValueError(f"floor plan {number} belongs to no room")


@cache
def scene(number: int) -> Scene:
    """Read one floor plan."""
    layouts = package.folder() / "gen" / "layouts"
    kinds = sorted(set(json.loads((layouts / f"FloorPlan{number}-objects.json").read_text(encoding="utf-8"))))
    points: dict[str, list[float]] = json.loads(
        (layouts / f"FloorPlan{number}-openable.json").read_text(encoding="utf-8")
    )
    fixed = set(package.constants().RECEPTACLES) - set(package.constants().MOVABLE_RECEPTACLES)
    places = [
        (name.split("|", 1)[0], name, (x, z, rotation, horizon)) for name, (x, z, rotation, horizon) in points.items()
    ]
    mapped = {BASINS.get(kind, kind) for kind, _, _ in places}
    for kind in (kind for kind in kinds if kind in fixed and kind not in mapped):
        fixture = next((fixture for fixture, basin in BASINS.items() if basin == kind), kind)
        places.append((fixture, f"{fixture}|+00.00|+00.00|+00.00", (0.0, 0.0, 0.0, 0.0)))
    receptacles: list[Receptacle] = []
    for index, (kind, name, (x, z, rotation, horizon)) in enumerate(places):
        point = f"loc|{round(x * 4)}|{round(z * 4)}|{round(rotation / 90)}|{round(horizon)}"
        shared = any(receptacle.location == point for receptacle in receptacles)
        basin = BASINS.get(kind)
        receptacles.append(
            Receptacle(f"{name}|{basin}" if basin else name, basin or kind, f"{point}|{index}" if shared else point)
        )
    return Scene(
        number=number,
        room=room_of(number),
        receptacles=tuple(sorted(r for r in receptacles if r.kind in fixed)),
        objects=tuple(kind for kind in kinds if kind in fits() and kind not in LAMPS),
        lamps=tuple(kind for kind in LAMPS if kind in kinds),
    )


def symbol(name: str) -> str:
    """A name as PDDL can hold it, in the package's own spelling."""
    spelled = {"-": "_minus_", "|": "_bar_", "+": "_plus_", ".": "_dot_", ",": "_comma_"}
    return re.sub(r"[-|+.,]", lambda match: spelled[match[0]], name)
