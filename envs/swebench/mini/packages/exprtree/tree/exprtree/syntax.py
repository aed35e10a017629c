"""Operators and how tightly they bind, tokens, and errors that say where in the text they are.

A position is an offset in code points from the start of the text; tokens, nodes and errors all carry one.
"""

from __future__ import annotations

import re
from typing import NamedTuple

OR, AND, NOT, COMPARE, ADD, MULTIPLY, SIGN, POWER, ATOM = range(9)
"""Levels of binding, from loosest to tightest."""
COMPARISONS = dict.fromkeys(("==", "!=", "<", "<=", ">", ">="), COMPARE)
PRODUCTS = dict.fromkeys(("*", "/", "//", "%"), MULTIPLY)
BINARY_LEVELS = {"or": OR, "and": AND, **COMPARISONS, "+": ADD, "-": ADD, **PRODUCTS, "^": POWER}
UNARY_LEVELS = {"not": NOT, "-": SIGN}

KEYWORDS = {"and": "operator", "or": "operator", "not": "operator", "true": "boolean", "false": "boolean"}
TOKEN = re.compile(
    r"""
      (?P<space> \s+ )
    | (?P<number> [0-9]{1,1000} (?! [\w.] ) )
    | (?P<name> [^\W\d]\w* )
    | (?P<operator> // | [<>=!]= | [-+*/%^<>(),] )
    """,
    re.VERBOSE,
)


def operand_levels(op: str) -> tuple[int, int]:
    """Least level at which the left and the right operand stand without parentheses."""
    level = BINARY_LEVELS[op]
    return {POWER: (ATOM, SIGN), COMPARE: (ADD, ADD)}.get(level, (level, level + 1))


class ExprError(Exception):
    """Something is wrong with an expression at `position`."""

    def __init__(self, message: str, position: int) -> None:
        super().__init__(message, position)
        self.message = message
        self.position = position

    def __str__(self) -> str:
        return f"{self.message} (at {self.position})"

    def show(self, text: str) -> str:
        """The line of the text that is wrong, and below it a caret and the message."""
        start = text.rfind("\n", 0, self.position) + 1
        padding = "".join("\t" if char == "\t" else " " for char in text[start : self.position])
        return f"{text[start:].partition(chr(10))[0]}\n{padding}^ {self.message}"


class ParseError(ExprError):
    """The text is not an expression."""


class EvalError(ExprError):
    """The expression has no value."""


class Token(NamedTuple):
    kind: str  # number, boolean, name, operator or end
    text: str
    position: int


def tokenize(text: str) -> list[Token]:
    """The tokens of a text, the last of kind `end`; raises ParseError for what is no token."""
    tokens = []
    position = 0
    while position < len(text):
        match = TOKEN.match(text, position)
        kind, found = (match.lastgroup, match.group()) if match else (None, text[position])
        if kind is None or (kind == "name" and not found.isidentifier()):
            raise ParseError("malformed number" if found in "0123456789" else f"unexpected {found!r}", position)
        if kind == "name":
            kind = KEYWORDS.get(found, "name")
        if kind != "space":
            tokens.append(Token(kind, found, position))
        position += len(found)
    return [*tokens, Token("end", "", len(text))]
