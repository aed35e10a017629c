"""How much of a game's goal is reached: ALFRED's goal-condition success, with holding as a first step.

ALFRED (Shridhar et al. 2020, section 5) reports the share of goal conditions that hold besides
success itself. Here each thing that the goal asks for counts once for being in hand or in place, once
for the state asked for (clean, hot, cool), and once for being in place in that state; a lamp counts
once for being lit. The share is a function of the state alone, so a reward of its changes is
potential-based shaping and leaves the best policies the best (Ng, Harada and Russell 1999).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

Fact = tuple[str, tuple[str, ...]]

STATES = {"isclean", "ishot", "iscool"}


@dataclass(frozen=True)
class Goal:
    """What a problem asks for, by type names as they stand in facts."""

    kind: str
    """Type of the thing to place or to look at."""
    count: int
    target: str | None
    """Type of the receptacle; None where nothing is to be placed."""
    state: str | None
    """Predicate that the thing must have (one of STATES)."""
    lamp: str | None
    """Type of the lamp to be lit."""


def read_goal(problem: str) -> Goal | None:
    """The goal of a PDDL problem; None when it has no form that ALFWorld's tasks have."""
    goal = problem[problem.find("(:goal") :].lower()
    kinds = re.findall(r"\(objecttype \?(\w+) (\w+)\)", goal)
    lit = re.findall(r"\(istoggled \?(\w+)\)", goal)
    lamps = [kind for variable, kind in kinds if variable in lit]
    things = [kind for variable, kind in kinds if variable not in lit]
    targets = re.findall(r"\(receptacletype \?\w+ (\w+)\)", goal)
    states = [state for state in sorted(STATES) if f"({state} " in goal]
    if not things or len(set(things)) > 1 or len(set(targets)) > 1 or not (targets or lamps):
        return None
    return Goal(
        kind=things[0],
        count=len(things),
        target=targets[0] if targets else None,
        state=states[0] if states else None,
        lamp=lamps[0] if lamps else None,
    )


def progress(goal: Goal, facts: Iterable[Fact]) -> float:
    """Share of the goal that holds, from 0 to 1; 1 exactly in won states of placing tasks."""
    kinds: dict[str, str] = {}
    places: dict[str, str] = {}
    inside: dict[str, str] = {}
    held: set[str] = set()
    stated: set[str] = set()
    lit: set[str] = set()
    for name, arguments in facts:
        if name in ("objecttype", "receptacletype"):
            (kinds if name == "objecttype" else places)[arguments[0]] = arguments[1]
        elif name == "inreceptacle":
            inside[arguments[0]] = arguments[1]
        elif name == "holds":
            held.add(arguments[1])
        elif name == goal.state:
            stated.add(arguments[0])
        elif name == "istoggled":
            lit.add(arguments[0])
    things = [thing for thing, kind in kinds.items() if kind == goal.kind]
    if goal.lamp is not None:
        return (bool(held & set(things)) + any(kinds.get(lamp) == goal.lamp for lamp in lit)) / 2
    steps = 2 if goal.state is None else 3
    most = 0
    for target in (place for place, kind in places.items() if kind == goal.target):
        reached = []
        for thing in things:
            ready = goal.state is None or thing in stated
            placed = ready and inside.get(thing) == target
            reached.append((thing in held or placed) + (goal.state is not None and ready) + placed)
        most = max(most, sum(sorted(reached, reverse=True)[: goal.count]))
    return most / (steps * goal.count)
