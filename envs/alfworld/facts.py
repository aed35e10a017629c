"""The facts of a game and conjunctive queries over them, in the order TextWorld would answer.

TextWorld sorts `Proposition` objects anew for every query; here facts are tuples of names, kept
sorted until they change. The order of answers is part of the text ("you see a mug 1, and a pen 2"),
so every rule of the original search is kept: preconditions left to right, facts in sorted order,
distinct placeholders never share an object.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

Signature = tuple[str, tuple[str, ...]]
"""Predicate name (with `not_` in front when negated) and the types of its arguments."""

Placeholder = tuple[str, str]
"""Name and type, as in `o: object`."""

Binding = dict[Placeholder, str]
"""Placeholder -> object id."""

NEGATED = "not_"


@dataclass(frozen=True)
class Condition:
    """One predicate of a query."""

    signatures: tuple[Signature, ...]
    """Its own signature, then those of all combinations of subtypes."""
    parameters: tuple[Placeholder, ...]


Query = tuple[Condition, ...]


class Facts:
    """What is known to hold (and, once changed, what is known not to)."""

    def __init__(self, types: dict[str, str]) -> None:
        """`types`: object id -> type."""
        self._types = types
        self._held: dict[Signature, set[tuple[str, ...]]] = {}
        self._sorted: dict[Signature, list[tuple[str, ...]]] = {}

    def copy(self) -> Facts:
        """An independent copy (a game's start is kept to reset to)."""
        twin = Facts(self._types)
        twin._held = {signature: set(held) for signature, held in self._held.items()}
        twin._sorted = dict(self._sorted)
        return twin

    def add(self, name: str, arguments: tuple[str, ...]) -> None:
        """Note that a fact holds."""
        signature = (name, tuple([self._types[argument] for argument in arguments]))
        self._held.setdefault(signature, set()).add(arguments)
        self._sorted.pop(signature, None)

    def replace(self, name: str, arguments: tuple[str, ...]) -> None:
        """Note that a fact holds and its negation no longer does."""
        types = tuple([self._types[argument] for argument in arguments])
        opposite = name.removeprefix(NEGATED) if name.startswith(NEGATED) else NEGATED + name
        against = self._held.get((opposite, types))
        if against and arguments in against:
            against.discard(arguments)
            self._sorted.pop((opposite, types), None)
        self._held.setdefault((name, types), set()).add(arguments)
        self._sorted.pop((name, types), None)

    def of(self, signature: Signature) -> list[tuple[str, ...]]:
        """Facts with this signature, sorted."""
        found = self._sorted.get(signature)
        if found is None:
            found = self._sorted[signature] = sorted(self._held.get(signature, ()))
        return found

    def __iter__(self) -> Iterator[tuple[str, tuple[str, ...]]]:
        for (name, _), held in self._held.items():
            for arguments in held:
                yield name, arguments

    def answers(self, query: Query, binding: Binding) -> list[Binding]:
        """All extensions of `binding` under which every condition holds."""
        found: list[Binding] = []
        self._search(query, 0, dict(binding), set(binding.values()), found, first_only=False)
        return found

    def holds(self, query: Query, binding: Binding) -> bool:
        """Whether there is an answer."""
        return self._search(query, 0, dict(binding), set(binding.values()), [], first_only=True)

    def _search(
        self, query: Query, depth: int, binding: Binding, used: set[str], found: list[Binding], first_only: bool
    ) -> bool:
        if depth == len(query):
            found.append(dict(binding))
            return True
        condition = query[depth]
        parameters = condition.parameters
        some = False
        for signature in condition.signatures:
            for arguments in self.of(signature):
                fresh: list[Placeholder] = []
                for placeholder, argument in zip(parameters, arguments, strict=True):
                    bound = binding.get(placeholder)
                    if bound is None:
                        if argument in used:
                            break
                        binding[placeholder] = argument
                        used.add(argument)
                        fresh.append(placeholder)
                    elif bound != argument:
                        break
                else:
                    some = self._search(query, depth + 1, binding, used, found, first_only) or some
                for placeholder in fresh:
                    used.discard(binding.pop(placeholder))
                if some and first_only:
                    return True
        return some
