"""The nodes of a tree.

Nodes are immutable and hashable; two are equal if they are the same expression, wherever in the text it stands.
`position` is where a name, a literal, a function's name or an operator begins.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from typing import Union

Value = Union[int, Fraction, bool]


def exact(value: Value) -> Value:
    """The value, as an int if it is a whole Fraction."""
    return value.numerator if isinstance(value, Fraction) and value.denominator == 1 else value


def same_value(left: Value, right: Value) -> bool:
    """Whether two values are equal; a boolean never equals a number."""
    return isinstance(left, bool) == isinstance(right, bool) and left == right


@dataclass(frozen=True)
class Literal:
    value: Value
    position: int = field(default=0, compare=False)

    def __eq__(self, other: object) -> bool:
        return same_value(self.value, other.value) if isinstance(other, Literal) else NotImplemented


@dataclass(frozen=True)
class Name:
    name: str
    position: int = field(default=0, compare=False)


@dataclass(frozen=True)
class Unary:
    op: str
    operand: Node
    position: int = field(default=0, compare=False)


@dataclass(frozen=True)
class Binary:
    op: str
    left: Node
    right: Node
    position: int = field(default=0, compare=False)


@dataclass(frozen=True)
class Call:
    function: str
    arguments: tuple[Node, ...]
    position: int = field(default=0, compare=False)


Node = Union[Literal, Name, Unary, Binary, Call]
