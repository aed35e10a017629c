"""Tokens to a tree, by precedence climbing (Pratt)."""

from __future__ import annotations

from exprtree.nodes import Binary, Call, Literal, Name, Node, Unary
from exprtree.syntax import BINARY_LEVELS, COMPARISONS, OR, UNARY_LEVELS, ParseError, Token, operand_levels, tokenize


def parse(text: str) -> Node:
    """The tree of an expression; raises ParseError if the text is none."""
    parser = _Parser(tokenize(text))
    tree = parser.expression(OR)
    if parser.token.kind != "end":
        raise parser.unexpected()
    return tree


class _Parser:
    def __init__(self, tokens: list[Token]) -> None:
        self.rest = iter(tokens)
        self.token = next(self.rest)

    @property
    def operator(self) -> str:
        """The operator at hand; empty if there is something else."""
        return self.token.text if self.token.kind == "operator" else ""

    def advance(self) -> Token:
        token, self.token = self.token, next(self.rest)
        return token

    def accept(self, operator: str) -> bool:
        return self.operator == operator and bool(self.advance())

    def unexpected(self) -> ParseError:
        what = repr(self.token.text) if self.token.text else "end"
        return ParseError(f"unexpected {what}", self.token.position)

    def expression(self, least: int) -> Node:
        """The longest expression from here on whose operators all bind at level `least` or tighter."""
        left = self.operand(least)
        while BINARY_LEVELS.get(self.operator, -1) >= least:
            operator = self.advance()
            right = self.expression(operand_levels(operator.text)[1])
            left = Binary(operator.text, left, right, operator.position)
            if operator.text in COMPARISONS and self.operator in COMPARISONS:
                raise ParseError("comparisons do not chain", self.token.position)
        return left

    def operand(self, least: int) -> Node:
        if UNARY_LEVELS.get(self.operator, -1) >= least:
            sign = self.advance()
            return Unary(sign.text, self.expression(UNARY_LEVELS[sign.text]), sign.position)
        if self.accept("("):
            return self.closed(self.expression(OR))
        if self.token.kind in ("operator", "end"):
            raise self.unexpected()
        token = self.advance()
        if token.kind == "boolean":
            return Literal(token.text == "true", token.position)
        if token.kind == "number":
            return Literal(int(token.text), token.position)
        if not self.accept("("):
            return Name(token.text, token.position)
        arguments = [] if self.operator == ")" else [self.expression(OR)]
        while arguments and self.accept(","):
            arguments.append(self.expression(OR))
        return self.closed(Call(token.text, tuple(arguments), token.position))

    def closed(self, node: Node) -> Node:
        """The node, once its closing parenthesis is there."""
        if not self.accept(")"):
            raise self.unexpected()
        return node
