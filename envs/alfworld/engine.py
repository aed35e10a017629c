"""Play a game: TextWorld's planner and grammar, with everything pure done once.

The planner decides what is possible, what an action changes and when the goal is reached; the
grammar says it in words. Nothing is guessed: for any sequence of commands the text, the commands, the
score and the end are those of TextWorld's own environment (tests/envs/test_alfworld_engine.py).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from textworld.generator.game import EntityInfo

from rocknroll.envs.alfworld import package
from rocknroll.envs.alfworld.expert import NOTHING
from rocknroll.envs.alfworld.facts import NEGATED, Binding, Facts
from rocknroll.envs.alfworld.game import Game, broken
from rocknroll.envs.alfworld.grammar import TASK_MARK, ActionText, Scope, compiled, without_task
from rocknroll.envs.alfworld.planner import Fact, Planner
from rocknroll.envs.alfworld.progress import progress, read_goal
from rocknroll.envs.alfworld.translation import TRANSLATOR, Translation, TranslationStore

INTERNAL = "new-axiom@"
"""Prefix of what the translator derives for itself; never part of a text."""


@dataclass(frozen=True)
class Frame:
    """What a player sees after a step."""

    text: str
    commands: tuple[str, ...]
    won: bool
    admitted: bool
    """False when the last command was not among the admissible ones."""
    state_hash: str
    progress: float
    """Share of the goal that is reached (`progress.py`); 0 for a goal of unknown form."""


class Engine(Protocol):
    """One game at a time; not safe to step from two threads at once."""

    def load(self, game: Game) -> None:
        """Make `game` the one that `reset` starts.

        Raises:
            EnvDataError: the game's domain, problem or grammar is broken.
        """

    def reset(self) -> Frame:
        """Start the loaded game anew."""

    def step(self, command: str) -> Frame:
        """Carry one command out."""

    def close(self) -> None:
        """Free what the engine holds; it cannot be used afterwards."""


@dataclass
class _Operator:
    """One grounded action of a game."""

    text: ActionText
    variables: dict[str, EntityInfo]
    binding: Binding
    command: str | None
    """None: depends on facts that change, so it is derived anew for every state."""


class MemoisedEngine:
    """About 100 times faster (benchmarks/alfworld.py) than TextWorld's own environment, with the same answers."""

    def __init__(self, store: TranslationStore) -> None:
        self._store = store
        self._planner = Planner()
        self._game: Game | None = None

    def load(self, game: Game) -> None:
        if game == self._game:
            return
        self._game = None
        shared, self._task = without_task(game.grammar)
        try:
            self._translation = self._store.get(game.domain, game.problem)
        except Exception as error:  # the translator raises whatever its parser stumbles over
            raise broken(
                game.path, f"its domain and problem do not translate ({type(error).__name__}: {error})"
            ) from error
        try:
            with TRANSLATOR:
                self._grammar = compiled(shared, self._translation.types)
        except Exception as error:  # and so does the grammar's
            raise broken(game.path, f"its grammar does not parse ({type(error).__name__}: {error})") from error
        for action in sorted(set(self._translation.parameters) - set(self._grammar.actions)):
            raise broken(game.path, f"its grammar has no text for the action {action} of its domain")
        self._planner.load(self._translation.sas)
        self._initial = Facts(self._translation.objects)
        for name, *arguments in self._translation.initial:
            self._initial.add(name, tuple(arguments))
        for name, found in self._planner.facts():
            if not name.startswith((NEGATED, INTERNAL)):
                self._initial.add(name, found)
        self._entities = named_entities(self._initial, self._translation.objects)
        self._operators: dict[int, _Operator] = {}
        self._problem = hashlib.blake2b(game.problem.encode(), digest_size=12).hexdigest()
        self._relevant = relevant_predicates(self._translation, self._grammar.reads)
        self._goal = read_goal(game.problem)
        self._game = game

    def reset(self) -> Frame:
        self._planner.restart()
        self._facts = self._initial.copy()
        return self._frame(self._grammar.intro(self._scope({}, {})), admitted=True)

    def step(self, command: str) -> Frame:
        index = self._by_command.get(command.strip())
        if index is None:
            return self._frame(NOTHING, admitted=False)
        for name, arguments in self._planner.apply(index):
            if not name.removeprefix(NEGATED).startswith(INTERNAL):
                self._facts.replace(name, arguments)
        operator = self._operators[index]
        return self._frame(operator.text.feedback(self._scope(operator.variables, operator.binding)), admitted=True)

    def name(self, entity: str) -> str:
        """What players call an object of the loaded game."""
        return str(self._entities[entity].name)

    def close(self) -> None:
        self._game = None
        self._planner.close()

    def _frame(self, text: str, admitted: bool) -> Frame:
        self._by_command: dict[str, int] = {}
        for index in self._planner.applicable():
            self._by_command.setdefault(self._command(index), index)
        return Frame(
            text=text.replace(TASK_MARK, self._task),
            commands=tuple(sorted(self._by_command)),
            won=self._planner.won(),
            admitted=admitted,
            state_hash=state_hash(self._problem, self._facts, self._relevant),
            progress=progress(self._goal, self._facts) if self._goal is not None else 0.0,
        )

    def _command(self, index: int) -> str:
        operator = self._operators.get(index)
        if operator is None:
            operator = self._operators[index] = self._ground(self._planner.name(index))
        if operator.command is not None:
            return operator.command
        return operator.text.template(self._scope(operator.variables, operator.binding))

    def _ground(self, name: str) -> _Operator:
        action, *arguments = name.split()
        parameters = self._translation.parameters[action]
        text = self._grammar.actions[action]
        # The translator appends parameters of its own (existential quantifiers); names stop before those.
        operator = _Operator(
            text=text,
            variables={
                parameter: self._entities[argument]
                for (parameter, _), argument in zip(parameters, arguments, strict=False)
            },
            binding=dict(zip(parameters, arguments, strict=False)),
            command=None,
        )
        if not {predicate.removeprefix(NEGATED) for predicate in text.template_reads} & self._translation.changing:
            operator.command = text.template(self._scope(operator.variables, operator.binding))
        return operator

    def _scope(self, variables: dict[str, EntityInfo], binding: Binding) -> Scope:
        return Scope(self._facts, self._entities, variables, binding)


def named_entities(facts: Iterable[Fact], types: dict[str, str]) -> dict[str, Any]:
    """Every object that occurs in a fact, under the name the package gives it (`apple 1`)."""
    entities = {argument: EntityInfo(argument, types[argument]) for _, arguments in facts for argument in arguments}
    names = package.naming().Demangler(game_infos=entities)
    for entity in entities.values():
        entity.name = names.demangle_alfred_name(entity.id)
        entity.definite, entity.indefinite = "the", "a"
    return entities


def state_hash(problem: str, facts: Iterable[Fact], relevant: frozenset[str]) -> str:
    """Hash of a state and its goal: the changeable facts on which the future (actions, goal, texts) depends.

    What is merely recorded, such as which receptacles were looked at, is left out: two states with the
    same hash answer every sequence of commands alike.
    """
    lines = sorted([f"{name}({','.join(arguments)})" for name, arguments in facts if name in relevant])
    return hashlib.blake2b("\n".join([problem, *lines]).encode(), digest_size=12).hexdigest()


def relevant_predicates(translation: Translation, reads: Iterable[str]) -> frozenset[str]:
    """Predicates that belong into `state_hash`; negated ones only where a text reads the negation."""
    read = set(reads)
    positive = {name for name in translation.changing if name in translation.decisive or name in read}
    negative = {
        name for name in read if name.startswith(NEGATED) and name.removeprefix(NEGATED) in translation.changing
    }
    return frozenset(positive | negative)
