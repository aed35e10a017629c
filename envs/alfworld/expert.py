"""A handcoded expert that reads what the agent reads, and nothing else.

It keeps beliefs (what lies where, what is open, what it holds) from the text alone, looks for things
where things of that kind belong, and can go on after any detour: beliefs follow every command, its own
or not. So it labels states that a policy or a mistake has led to, too.
"""

from __future__ import annotations

import random
import re
from collections.abc import Collection
from dataclasses import dataclass, field
from functools import cache

from rocknroll.envs.alfworld import package
from rocknroll.envs.alfworld.config import TASK_TYPES
from rocknroll.envs.alfworld.house import TOOLS, fits, openable

MOVE = "move {thing} to {place}"
"""How the installed grammar puts things down; official games with their own grammar say it otherwise."""

NOTHING = "Nothing happens."
"""The engine's answer to a command that is not admissible."""

_NAMED = re.compile(r"\ban? ([a-z]+ \d+)")
_CONTENTS = re.compile(r"(?:On the ([a-z]+ \d+)|The ([a-z]+ \d+) is open\. In it), you see ([^.]*)\.")
_CLOSED = re.compile(r"The ([a-z]+ \d+) is closed\.")
_ARRIVED = re.compile(r"You arrive at (?:loc \d+|([a-z]+ \d+))\.")
_SHUT = re.compile(r"You close the ([a-z]+ \d+)\.")
_TAKEN = re.compile(r"You pick up the ([a-z]+ \d+) from the ([a-z]+ \d+)\.")
_PUT = re.compile(r"You (?:move|put) the ([a-z]+ \d+) (?:to|in/on|in|on) the ([a-z]+ \d+)\.")
_TREATED = re.compile(r"You (clean|heat|cool) the ([a-z]+ \d+) using the")
_TASK = re.compile(r"Your task is to: (.*?)\.?\s*$", re.DOTALL)


@dataclass(frozen=True)
class Goal:
    """What a task sentence asks for; names of kinds in lower case."""

    task_type: str
    thing: str
    place: str = ""
    lamp: str = ""
    verb: str = ""
    """`clean`, `heat` or `cool` before it is put down."""
    station: str = ""
    """Kind of receptacle that does it."""
    count: int = 1


@cache
def _sentences() -> tuple[tuple[str, re.Pattern[str]], ...]:
    return tuple(
        (
            task_type,
            re.compile(re.sub(r"\\{(\w+)\\}", r"(?P<\1>\\w+)", re.escape(template))),
        )
        for task_type in TASK_TYPES
        for template in package.goals().gdict[task_type]["templates"]
    )


def read_goal(sentence: str) -> Goal:
    """Understand a task sentence made from the package's templates.

    Raises:
        ValueError: it is none of them (a human annotation).
    """
    for task_type, pattern in _sentences():
        match = pattern.fullmatch(sentence)
        if match:
            words = match.groupdict()
            affordance, station = TOOLS.get(task_type, ("", ""))
            return Goal(
                task_type=task_type,
                thing=words["obj"],
                place=words.get("recep", ""),
                lamp=words.get("toggle", ""),
                verb={"Cleanable": "clean", "Heatable": "heat", "Coolable": "cool"}.get(affordance, ""),
                station=station.lower(),
                count=2 if task_type == "pick_two_obj_and_place" else 1,
            )
    raise ValueError(f"the expert does not understand the task {sentence!r}")


@cache
def _homes(thing: str) -> frozenset[str]:
    """Kinds of places where things of this kind are found."""
    known = {kind.lower(): {place.lower() for place in places} for kind, places in fits().items()}
    return frozenset(known.get(thing, ()))


@cache
def _closable() -> frozenset[str]:
    return frozenset(place.lower() for place in package.constants().RECEPTACLES if openable(place))


def kind_of(name: str) -> str:
    """`mug 2` -> `mug`."""
    return name.rsplit(" ", 1)[0]


@dataclass
class _Beliefs:
    """What the texts so far imply."""

    places: list[str]
    here: str = ""
    held: str = ""
    contents: dict[str, set[str]] = field(default_factory=dict)
    """Place -> things; a place that was not looked into is absent."""
    opened: set[str] = field(default_factory=set)
    treated: set[str] = field(default_factory=set)
    taken_from: dict[str, str] = field(default_factory=dict)

    def observe(self, text: str) -> None:
        if match := _ARRIVED.search(text):
            self.here = match[1] or self.here
        if match := _TAKEN.search(text):
            self.held = match[1]
            self.taken_from[match[1]] = match[2]
            self.contents.setdefault(match[2], set()).discard(match[1])
        if match := _PUT.search(text):
            self.held = ""
            self.contents.setdefault(match[2], set()).add(match[1])
        if match := _TREATED.search(text):
            self.treated.add(match[2])
        if match := _SHUT.search(text):
            self.opened.discard(match[1])
        if match := _CLOSED.search(text):
            self.opened.discard(match[1])
        for on, inside, things in _CONTENTS.findall(text):
            self.contents[on or inside] = set(_NAMED.findall(things))
            if inside:
                self.opened.add(inside)

    def is_closed(self, place: str) -> bool:
        return kind_of(place) in _closable() and place not in self.opened

    def where(self, thing: str) -> str:
        return next((place for place, things in self.contents.items() if thing in things), "")

    def seen(self, kind: str) -> list[str]:
        return sorted(thing for things in self.contents.values() for thing in things if kind_of(thing) == kind)


class Expert:
    """One episode's expert."""

    def __init__(self, observation: str, move: str = MOVE) -> None:
        """`observation`: the first one, with the list of places and the task.

        Raises:
            ValueError: there is no task in it, or one that the package's templates do not make.
        """
        task = _TASK.search(observation)
        if task is None:
            raise ValueError("the first observation names no task")
        self.goal = read_goal(task[1])
        self._move = move
        self._beliefs = _Beliefs(places=_NAMED.findall(observation[: task.start()]))

    def observe(self, command: str, observation: str) -> None:
        """Take in a command, whoever gave it, and the answer to it."""
        self._beliefs.observe(observation)
        if observation.startswith(NOTHING) and command.startswith("go to "):
            # Two receptacles of an official scene may share a spot: one cannot go there again, only look.
            self._beliefs.here = command.removeprefix("go to ")

    def act(self) -> str:
        """The next command."""
        held = self._beliefs.held
        if held and kind_of(held) != self.goal.thing:
            return self._put_away(held)
        if not held:
            return self._fetch()
        if self.goal.lamp:
            return self._use_lamp()
        if self.goal.verb and held not in self._beliefs.treated:
            return self._treat(held)
        return self._deliver(held)

    def mistake(self, rng: random.Random, admissible: Collection[str]) -> str:
        """A command that a policy could take for sensible here, and that is not admissible.

        It asks for the goal's thing where it is not, or for a step towards the goal too early. Nothing in it
        tells where the thing really is.
        """
        beliefs, goal = self._beliefs, self.goal
        here = beliefs.here or rng.choice(beliefs.places)
        thing = f"{goal.thing} {rng.randint(1, 2)}"
        targets = [place for place in beliefs.places if kind_of(place) == goal.place] or [here]
        commands = [
            f"take {thing} from {here}",
            f"take {thing} from {rng.choice(beliefs.places)}",
            self._move.format(thing=thing, place=rng.choice(targets)),
            f"use {goal.lamp} 1" if goal.lamp else f"open {here}",
            f"{goal.verb} {thing} with {goal.station} 1" if goal.verb else f"go to {here}",
        ]
        # Never empty: one cannot both take a thing and put it down.
        return rng.choice([command for command in commands if command not in admissible])

    def _fetch(self) -> str:
        wanted = [thing for thing in self._beliefs.seen(self.goal.thing) if not self._is_delivered(thing)]
        if not wanted:
            return self._search(self.goal.thing, avoid=self.goal.place)
        here = self._beliefs.here
        thing = min(
            wanted, key=lambda name: (name not in self._beliefs.treated, self._beliefs.where(name) != here, name)
        )
        place = self._beliefs.where(thing)
        return self._reach(place) or f"take {thing} from {place}"

    def _is_delivered(self, thing: str) -> bool:
        place = self._beliefs.where(thing)
        if kind_of(place) != self.goal.place or (self.goal.verb and thing not in self._beliefs.treated):
            return False
        return self.goal.count == 1 or place == self._target()

    def _treat(self, held: str) -> str:
        stations = [place for place in self._beliefs.places if kind_of(place) == self.goal.station]
        if not stations:
            return "look"
        station = self._beliefs.here if self._beliefs.here in stations else stations[0]
        return self._go(station) or f"{self.goal.verb} {held} with {station}"

    def _deliver(self, held: str) -> str:
        target = self._target()
        return (self._reach(target) or self._move.format(thing=held, place=target)) if target else "look"

    def _target(self) -> str:
        """Where to put it: the place that already holds most of them, else the least trouble."""
        beliefs = self._beliefs

        def trouble(place: str) -> tuple[int, bool, bool]:
            there = sum(kind_of(thing) == self.goal.thing for thing in beliefs.contents.get(place, ()))
            return (-there if self.goal.count > 1 else 0, place != beliefs.here, beliefs.is_closed(place))

        candidates = [place for place in beliefs.places if kind_of(place) == self.goal.place]
        return min(candidates, key=trouble, default="")

    def _use_lamp(self) -> str:
        lamps = self._beliefs.seen(self.goal.lamp)
        if not lamps:
            return self._search(self.goal.lamp)
        return self._reach(self._beliefs.where(lamps[0])) or f"use {lamps[0]}"

    def _put_away(self, held: str) -> str:
        """Rid of what was taken by mistake: here if it fits, else where it came from."""
        here = self._beliefs.here
        place = here if kind_of(here) in _homes(kind_of(held)) else self._beliefs.taken_from[held]
        return self._reach(place) or self._move.format(thing=held, place=place)

    def _search(self, kind: str, avoid: str = "") -> str:
        """Look where such things belong, first where nothing has to be opened, last where they are to be put."""
        beliefs = self._beliefs
        unknown = [place for place in beliefs.places if place not in beliefs.contents]
        if not unknown:
            beliefs.contents.clear()
            unknown = [place for place in beliefs.places if place != beliefs.here] or beliefs.places
        homes = _homes(kind)

        def promise(place: str) -> tuple[bool, bool, bool, bool]:
            known_kind = kind_of(place)
            unlikely = bool(homes) and known_kind not in homes
            return (unlikely, known_kind == avoid, place != beliefs.here, known_kind in _closable())

        return self._reach(min(unknown, key=promise))

    def _reach(self, place: str) -> str:
        """The next command on the way to having `place` open before one; empty when it is."""
        if going := self._go(place):
            return going
        if self._beliefs.is_closed(place):
            return f"open {place}"
        return "" if place in self._beliefs.contents else f"examine {place}"

    def _go(self, place: str) -> str:
        return "" if place == self._beliefs.here else f"go to {place}"
