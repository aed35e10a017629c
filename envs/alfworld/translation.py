"""PDDL -> what the planner runs on. Pure, slow (50 ms for a small scene, 400 ms for a full one), so kept on disk.

A translation holds the SAS text for the planner and, of the translated task, the few things that
TextWorld reads: initial facts, types, parameters of actions, predicates that actions can change.
"""

from __future__ import annotations

import gc
import hashlib
import json
import sys
import tempfile
import threading
import zlib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import fast_downward

from rocknroll.envs.alfworld import package

TRANSLATOR = threading.RLock()
"""TextWorld's parsers and the translator keep global state: one thread at a time."""

FORMAT = 1
"""Part of the key: raise it when `Translation` changes."""


@dataclass(frozen=True)
class Translation:
    """One game's problem, translated."""

    sas: str
    types: tuple[tuple[str, tuple[str, ...]], ...]
    """Declared types and their supertypes."""
    objects: dict[str, str]
    """Object id -> type."""
    initial: tuple[tuple[str, ...], ...]
    """Initial facts: predicate, then arguments."""
    parameters: dict[str, tuple[tuple[str, str], ...]]
    """Action -> its parameters (name without `?`, type)."""
    changing: frozenset[str]
    """Predicates that some action changes."""
    decisive: frozenset[str]
    """Predicates that some action's applicability or the goal depends on."""


def translate(domain: str, problem: str) -> Translation:
    """Translate exactly as TextWorld does for play (nothing pruned)."""
    with TRANSLATOR:
        collecting, argv = gc.isenabled(), sys.argv
        gc.disable()  # half a million short-lived objects: the collector costs a fifth of the time and finds nothing
        try:
            task, sas = fast_downward.pddl2sas(domain, problem)
        finally:
            sys.argv = argv
            if collecting:
                gc.enable()
    return Translation(
        sas=sas,
        types=tuple((kind.name, tuple(kind.supertype_names)) for kind in task.types),
        objects={thing.name: thing.type_name for thing in task.objects},
        initial=tuple(fact for fact in map(_fact, task.init) if fact),
        parameters={
            action.name: tuple((parameter.name.strip("?"), parameter.type_name) for parameter in action.parameters)
            for action in task.actions
        },
        changing=frozenset(effect.literal.predicate for action in task.actions for effect in action.effects),
        decisive=frozenset(
            literal.predicate
            for condition in (
                task.goal,
                *(action.precondition for action in task.actions),
                *(effect.condition for action in task.actions for effect in action.effects),
                *(axiom.condition for axiom in task.axioms),
            )
            for literal in _literals(condition)
        ),
    )


def _fact(fact: Any) -> tuple[str, ...]:
    """As TextWorld reads the initial state: equality, costs and distances are no facts."""
    if isinstance(fact, fast_downward.translate.pddl.conditions.Atom):
        return () if fact.predicate == "=" else (fact.predicate, *fact.args)
    value = str(fact.expression.value)
    if fact.fluent.symbol == "total-cost" or value.isdigit():
        return ()
    return (value, *fact.fluent.args)


def _literals(condition: Any) -> list[Any]:
    if isinstance(condition, fast_downward.translate.pddl.conditions.Literal):
        return [condition]
    return [literal for part in getattr(condition, "parts", ()) for literal in _literals(part)]


class TranslationStore:
    """Translations on disk, by content of domain, problem and package versions. Written atomically; safe to share."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def get(self, domain: str, problem: str) -> Translation:
        """Read or make a translation. A damaged file is made again; a folder that cannot be written is only read."""
        path = self._path(domain, problem)
        try:
            return _decode(path.read_bytes())
        except (OSError, ValueError, KeyError, TypeError, zlib.error):
            made = translate(domain, problem)
        self._write(path, _encode(made))
        return made

    def _path(self, domain: str, problem: str) -> Path:
        parts = json.dumps([FORMAT, package.versions(), domain, problem], sort_keys=True)
        key = hashlib.sha256(parts.encode()).hexdigest()[:32]
        return self._folder / key[:2] / key

    def _write(self, path: Path, content: bytes) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
                file.write(content)
            Path(file.name).replace(path)
        except OSError:
            return  # a read-only or full cache costs time at the next load, nothing else


def _encode(translation: Translation) -> bytes:
    fields = asdict(translation) | {"changing": sorted(translation.changing), "decisive": sorted(translation.decisive)}
    return zlib.compress(json.dumps(fields).encode(), 6)


def _decode(content: bytes) -> Translation:
    fields = json.loads(zlib.decompress(content))
    return Translation(
        sas=fields["sas"],
        types=tuple((name, tuple(supertypes)) for name, supertypes in fields["types"]),
        objects=fields["objects"],
        initial=tuple(map(tuple, fields["initial"])),
        parameters={name: tuple(map(tuple, pairs)) for name, pairs in fields["parameters"].items()},
        changing=frozenset(fields["changing"]),
        decisive=frozenset(fields["decisive"]),
    )
