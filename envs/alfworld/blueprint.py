"""Draw one solvable household task from a seeded generator.

A blueprint says which receptacles a scene has, where every object lies, what is asked, and one way to
do it that uses this full knowledge. It is solvable by construction; `games` proves it by playing the
solution on the engine.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from rocknroll.envs.alfworld import package
from rocknroll.envs.alfworld.config import AlfWorldConfig, TaskType
from rocknroll.envs.alfworld.house import TOOLS, Receptacle, Scene, affords, fits, openable, scene
from rocknroll.envs.text import EnvDataError

LAMP_PLACES = ("Desk", "SideTable", "Dresser", "Shelf", "DiningTable", "CoffeeTable", "TVStand")
"""The domain can only switch on a lamp that stands in a receptacle."""

MOST_ATTEMPTS = 400
"""Draws of a scene and an object before a configuration is called impossible; a few suffice in practice."""

START = "loc|0|99|0|0"
"""Outside of every floor plan's walls, so away from every receptacle."""

EXTRA_TARGET = 0.25
"""Chance of one more object of the kind that is asked for."""


@dataclass(frozen=True, order=True)
class Thing:
    """An object and where it lies at the start."""

    id: str
    kind: str
    receptacle: Receptacle


@dataclass(frozen=True)
class Move:
    """One step of the known solution; ids, because names exist only once the engine has given them."""

    verb: str
    thing: str = ""
    receptacle: str = ""


@dataclass(frozen=True)
class Blueprint:
    """One task, whole."""

    task_type: TaskType
    scene: int
    start: str
    """Location of the agent, away from every receptacle."""
    receptacles: tuple[Receptacle, ...]
    things: tuple[Thing, ...]
    object_kind: str
    parent_kind: str
    """Target receptacle; empty when a lamp is the target."""
    lamp_kind: str
    sentence: str
    solution: tuple[Move, ...]


def draw(task_type: TaskType, numbers: tuple[int, ...], config: AlfWorldConfig, rng: random.Random) -> Blueprint:
    """Draw a task of this type in one of these scenes.

    Raises:
        EnvDataError: no scene can hold such a task under this configuration.
    """
    rooms = package.constants().GOALS_VALID[task_type]
    candidates = [number for number in numbers if scene(number).room in rooms]
    for _ in range(MOST_ATTEMPTS if candidates else 0):
        found = _attempt(task_type, scene(rng.choice(candidates)), config, rng)
        if found is not None:
            return found
    raise EnvDataError(
        f"no game of type {task_type} fits {config.max_receptacles or 'all'} receptacles and {list(config.objects)} "
        "objects; allow more receptacles or objects, or leave this type out of task_types"
    )


def _attempt(task_type: TaskType, place: Scene, config: AlfWorldConfig, rng: random.Random) -> Blueprint | None:
    by_kind: dict[str, list[Receptacle]] = {}
    for receptacle in place.receptacles:
        by_kind.setdefault(receptacle.kind, []).append(receptacle)
    affordance, tool = TOOLS.get(task_type, ("", ""))
    lamp = ""
    if task_type == "look_at_obj_in_light":
        if not place.lamps:
            return None
        lamp = rng.choice(place.lamps)
    if tool and tool not in by_kind:
        return None

    usable = [
        kind for kind in place.objects if (not affordance or affords(kind, affordance)) and fits()[kind] & set(by_kind)
    ]
    if not usable:
        return None
    asked = rng.choice(usable)
    homes = sorted(fits()[asked] & set(by_kind))
    parent = "" if lamp else rng.choice(homes)
    sources = [kind for kind in homes if kind != parent]
    if not sources or (parent and parent == tool):
        return None

    chosen: list[Receptacle] = []

    def choose(kind: str) -> Receptacle:
        receptacle = rng.choice(by_kind[kind])
        if receptacle not in chosen:
            chosen.append(receptacle)
        return receptacle

    target = choose(parent) if parent else None
    if tool:
        choose(tool)
    lamp_place = choose(rng.choice([kind for kind in LAMP_PLACES if kind in by_kind])) if lamp else None
    wanted = 2 if task_type == "pick_two_obj_and_place" else 1
    for _ in range(wanted):
        choose(rng.choice(sources))
    others = [receptacle for receptacle in place.receptacles if receptacle not in chosen]
    room_left = (config.max_receptacles or len(place.receptacles)) - len(chosen)
    if room_left < 0:
        return None
    chosen += rng.sample(others, min(room_left, len(others)))

    total = rng.randint(*config.objects)
    spots = [receptacle for receptacle in chosen if receptacle.kind in sources]
    things = [_thing(asked, rng.choice(spots), rng) for _ in range(wanted)]
    if lamp_place is not None:
        things.append(_thing(lamp, lamp_place, rng))
    if len(things) < total and rng.random() < EXTRA_TARGET:
        things.append(_thing(asked, rng.choice(spots), rng))
    kinds_here = {receptacle.kind for receptacle in chosen}
    distractors = [kind for kind in place.objects if kind != asked and fits()[kind] & kinds_here]
    while len(things) < total and distractors:
        kind = rng.choice(distractors)
        things.append(_thing(kind, rng.choice([r for r in chosen if r.kind in fits()[kind]]), rng))
    if len(things) < config.objects[0] or len({thing.id for thing in things}) < len(things):
        return None

    template = rng.choice(package.goals().gdict[task_type]["templates"])
    words = {"obj": asked.lower(), "recep": parent.lower(), "toggle": lamp.lower()}
    return Blueprint(
        task_type=task_type,
        scene=place.number,
        start=START,
        receptacles=tuple(sorted(chosen)),
        things=tuple(sorted(things)),
        object_kind=asked,
        parent_kind=parent,
        lamp_kind=lamp,
        sentence=template.format(**words),
        solution=_solution(task_type, things, chosen, target, tool),
    )


def _thing(kind: str, receptacle: Receptacle, rng: random.Random) -> Thing:
    spot = "|".join(f"{rng.uniform(-9.0, 9.0):+06.2f}" for _ in range(3))
    return Thing(f"{kind}|{spot}", kind, receptacle)


def _solution(
    task_type: TaskType, things: list[Thing], chosen: list[Receptacle], target: Receptacle | None, tool: str
) -> tuple[Move, ...]:
    """Fetch, treat, deliver, with every location known; `things` starts with the objects that are asked for."""
    moves: list[Move] = []
    opened: set[str] = set()

    def reach(receptacle: Receptacle) -> None:
        moves.append(Move("go", receptacle=receptacle.id))
        if openable(receptacle.kind) and receptacle.id not in opened:
            opened.add(receptacle.id)
            moves.append(Move("open", receptacle=receptacle.id))

    for thing in things[: 2 if task_type == "pick_two_obj_and_place" else 1]:
        reach(thing.receptacle)
        moves.append(Move("take", thing.id, thing.receptacle.id))
        if tool:
            station = next(receptacle for receptacle in chosen if receptacle.kind == tool)
            moves.append(Move("go", receptacle=station.id))
            moves.append(
                Move({"SinkBasin": "clean", "Microwave": "heat", "Fridge": "cool"}[tool], thing.id, station.id)
            )
        if target is None:
            lamp = things[1]
            moves += [Move("go", receptacle=lamp.receptacle.id), Move("use", lamp.id)]
        else:
            reach(target)
            moves.append(Move("put", thing.id, target.id))
    return tuple(moves)
