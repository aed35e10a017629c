"""TextWorld's context-sensitive grammar, compiled once per text and evaluated without copies.

Parsing is TextWorld's own (rules, expressions and queries); only the evaluation is written anew. The
original parses the same query strings at every step and deep-copies each symbol's context, which is
where nine tenths of its time go.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import CodeType
from typing import Any

from textworld.envs.pddl import logic as stock_logic
from textworld.envs.pddl import textgen as stock_textgen
from textworld.logic import Rule, Type, TypeHierarchy

from rocknroll.envs.alfworld.facts import Binding, Condition, Facts, Query

TASK_MARK = "(the task of this game)"
"""Stands for the task in a compiled grammar; plain text to the parsers."""

_BEFORE_TASK = '"Your task is to: '

_PLAIN = re.compile(r"[^\\;|<>\[\]#{}\t]+")
"""A task without any character that JSON or TextWorld's grammar would read as more than text."""

TypeTable = tuple[tuple[str, tuple[str, ...]], ...]
"""Types of a domain: name and supertypes, in the order in which they are declared."""


@dataclass(frozen=True)
class Scope:
    """What a symbol is evaluated in."""

    facts: Facts
    entities: Mapping[str, Any]
    """Object id -> TextWorld's `EntityInfo`."""
    variables: Mapping[str, Any]
    """Name in the grammar -> `EntityInfo`."""
    binding: Binding

    def extended(self, answer: Binding) -> Scope:
        """The scope in which a query's answer is bound as well."""
        names = {name: self.entities[entity] for (name, _), entity in answer.items()}
        return Scope(self.facts, self.entities, {**self.variables, **names}, answer)


Symbol = Callable[[Scope], str]


@dataclass(frozen=True)
class Production:
    """One alternative of a rule."""

    condition: Query | None
    symbols: tuple[Symbol, ...]


@dataclass(frozen=True)
class ActionText:
    """What the grammar says about an action of the domain."""

    template: Symbol
    template_reads: frozenset[str]
    """Predicates that the command's text depends on."""
    feedback: Symbol


class Grammar:
    """A compiled grammar. Pure: texts depend on the scope alone."""

    def __init__(self, text: str, types: TypeTable) -> None:
        """
        Raises:
            Exception: whatever TextWorld's parsers raise on a text that is no grammar.
        """
        actions, grammar = stock_logic._parse_and_convert(text, rule_name="pddlStart")
        self._types = TypeHierarchy()
        for name, supertypes in types:
            try:
                self._types.add(Type(name, supertypes))
            except ValueError:
                continue  # PDDL's root type may be declared again; TextWorld keeps the first, too
        self._queries: dict[str, Query] = {}
        self.reads: set[str] = set()
        """Every predicate that some text depends on."""
        self._rules = {
            name: tuple(
                Production(self.query(rule.condition) if rule.condition else None, self._compile(rule.rhs))
                for rule in rules
            )
            for name, rules in grammar._rules.items()
        }
        self.actions = {name.lower(): self._action(action) for name, action in actions.items()}

    def intro(self, scope: Scope) -> str:
        """The first observation."""
        return self._rule(scope, "#intro#", "intro")

    def _action(self, action: Any) -> ActionText:
        before, self.reads = self.reads, set()
        template = self._sequence(action.template)
        template_reads = frozenset(self.reads)
        self.reads |= before
        return ActionText(template, template_reads, self._sequence(action.feedback_rule))

    def query(self, expression: str) -> Query:
        """A conjunctive query in TextWorld's syntax, compiled."""
        if expression not in self._queries:
            self._queries[expression] = tuple(
                Condition(
                    tuple(
                        (predicate.signature.name, tuple(kind.name for kind in kinds))
                        for kinds in self._types.multi_subtypes([self._types.get(t) for t in predicate.signature.types])
                    ),
                    tuple((placeholder.name, placeholder.type) for placeholder in predicate.parameters),
                )
                for predicate in Rule.parse_conjunctive_query(expression).preconditions
            )
        self.reads.update(name for condition in self._queries[expression] for name, _ in condition.signatures)
        return self._queries[expression]

    def _sequence(self, text: str) -> Symbol:
        symbols = self._compile(stock_textgen._parse_and_convert(text, rule_name="symbols"))
        return lambda scope: "".join([symbol(scope) for symbol in symbols])

    def _compile(self, symbols: list[Any]) -> tuple[Symbol, ...]:
        return tuple(self._symbol(symbol) for symbol in symbols)

    def _symbol(self, symbol: Any) -> Symbol:
        match symbol:
            case stock_textgen.TerminalSymbol():
                text = str(symbol)
                return lambda scope: text
            case stock_textgen.NonterminalSymbol():
                shown, name = f"#{symbol}#", str(symbol)
                return lambda scope: self._rule(scope, shown, name)
            case stock_textgen.EvalSymbol():
                return _evaluation(compile(symbol.expression, "<grammar>", "eval"))
            case stock_textgen.ListSymbol():
                return self._list(symbol.symbol)
            case stock_textgen.ConditionalSymbol():
                expression, scopes = self._conditional(symbol)
                return lambda scope: "".join([expression(inner) for inner in scopes(scope)])
            case _:
                raise TypeError(f"the grammar has a symbol of unknown kind {type(symbol).__name__}")

    def _conditional(self, symbol: Any) -> tuple[Symbol, Callable[[Scope], list[Scope]]]:
        expression = self._symbol(symbol.expression)
        if not symbol.given:
            return expression, lambda scope: [scope]
        query = self.query(symbol.given)
        return expression, lambda scope: [
            scope.extended(answer) for answer in scope.facts.answers(query, scope.binding)
        ]

    def _list(self, symbol: Any) -> Symbol:
        expression, scopes = self._conditional(symbol)

        def text(scope: Scope) -> str:
            parts = [expression(inner) for inner in scopes(scope)]
            if not parts:
                return self._rule(scope, "#list_empty#", "list_empty")
            if len(parts) == 1:
                return parts[0]
            last = self._rule(scope, "#list_last_separator#", "list_last_separator")
            if len(parts) == 2:
                return parts[0] + last + parts[1]
            return self._rule(scope, "#list_separator#", "list_separator").join(parts[:-1]) + last + parts[-1]

        return text

    def _rule(self, scope: Scope, shown: str, name: str) -> str:
        for production in self._rules.get(name, ()):
            if production.condition is None or scope.facts.holds(production.condition, scope.binding):
                return "".join([symbol(scope) for symbol in production.symbols])
        raise LookupError(f"the grammar has no production for {shown} that applies here")


def _evaluation(code: CodeType) -> Symbol:
    return lambda scope: str(eval(code, {}, scope.variables))


@lru_cache(maxsize=16)
def compiled(text: str, types: TypeTable) -> Grammar:
    """The compiled grammar, made once per text; callers hold the lock that guards TextWorld's parsers."""
    return Grammar(text, types)


def without_task(text: str) -> tuple[str, str]:
    """Split a game's grammar into what all games share (with `TASK_MARK` for the task) and its own task.

    A text whose task cannot be told apart for certain comes back whole, with an empty task.
    """
    before, found, after = text.partition(_BEFORE_TASK)
    task, quote, rest = after.partition('"')
    if not quote or TASK_MARK in text or _BEFORE_TASK in rest or not _PLAIN.fullmatch(task):
        return text, ""
    return f"{before}{found}{TASK_MARK}{quote}{rest}", task
