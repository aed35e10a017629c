"""TextWorld's planner library behind a small typed face.

The library keeps one task and its states as globals, so every user needs a private copy of it; copies
are never unloaded by the operating system's loader, so they are pooled and used again. States that
were visited stay registered in the library: going back to the start is one call, not a new load.
"""

from __future__ import annotations

import threading
from ctypes import Array, c_int
from typing import Any

import fast_downward

from rocknroll.envs.alfworld.facts import NEGATED

Fact = tuple[str, tuple[str, ...]]
"""Predicate (`not_` in front when negated) and arguments."""

FIRST_BUFFER = 64
"""Operators fetched at once before the buffer grows; full scenes have up to a few hundred."""


class _Pool:
    """Libraries that nobody uses right now."""

    def __init__(self) -> None:
        self._idle: list[Any] = []
        self._lock = threading.Lock()

    def take(self) -> Any:
        with self._lock:
            if self._idle:
                return self._idle.pop()
        library = fast_downward.load_lib()
        library.set_state_id.argtypes = [c_int]
        library.set_state_id.restype = None
        library.get_state_id.argtypes = []
        library.get_state_id.restype = c_int
        return library

    def give(self, library: Any) -> None:
        with self._lock:
            self._idle.append(library)


_POOL = _Pool()


class Planner:
    """One task at a time."""

    def __init__(self) -> None:
        self._library: Any = _POOL.take()
        self._buffer: Array[Any] = (fast_downward.Operator * FIRST_BUFFER)()

    def load(self, sas: str) -> None:
        """Start a task at its initial state."""
        self._library.load_sas(sas.encode())
        self._start: int = self._library.get_state_id()
        self._applicable: dict[int, tuple[int, ...]] = {}
        self._names: dict[int, str] = {}
        self._effects: dict[int, int] = {}

    def restart(self) -> None:
        """Back to the initial state."""
        self._library.set_state_id(self._start)

    def facts(self) -> list[Fact]:
        """What the planner says of the current state."""
        atoms = (fast_downward.Atom * self._library.get_state_size())()
        self._library.get_state(atoms)
        return [parse_atom(atom.name) for atom in atoms]

    def applicable(self) -> tuple[int, ...]:
        """Operators that can be carried out now, in the planner's order."""
        state: int = self._library.get_state_id()
        found = self._applicable.get(state)
        if found is not None:
            return found
        count: int = self._library.get_applicable_operators_count()
        if count > len(self._buffer):
            self._buffer = (fast_downward.Operator * (2 * count))()
        self._library.get_applicable_operators(self._buffer)
        ids = []
        for position in range(count):
            operator = self._buffer[position]
            ids.append(operator.id)
            if operator.id not in self._names:
                self._names[operator.id] = operator.name
                self._effects[operator.id] = operator.nb_effect_atoms
        found = self._applicable[state] = tuple(ids)
        return found

    def name(self, operator: int) -> str:
        """`action argument …` of an operator that was applicable before."""
        return self._names[operator]

    def apply(self, operator: int) -> list[Fact]:
        """Carry an operator out; what holds afterwards, in the planner's order."""
        atoms = (fast_downward.Atom * self._effects[operator])()
        self._library.apply_operator(operator, atoms)
        return [parse_atom(atom.name) for atom in atoms]

    def won(self) -> bool:
        """Whether the goal holds."""
        return bool(self._library.check_goal())

    def close(self) -> None:
        """Give the library back; the planner cannot be used afterwards."""
        library, self._library = self._library, None
        if library is not None:
            _POOL.give(library)


def parse_atom(text: str) -> Fact:
    """`Atom p(a, b)` or `NegatedAtom p(a, b)`, as the planner writes them."""
    kind, rest = text.split(" ", 1)
    name, arguments = rest.split("(", 1)
    negation = NEGATED if kind == "NegatedAtom" else ""
    return negation + name, tuple([argument for argument in arguments[:-1].split(", ") if argument])
