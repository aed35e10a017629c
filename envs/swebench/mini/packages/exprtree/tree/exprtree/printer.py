"""A tree to its text, with as few parentheses as the parser needs to read the same back."""

from __future__ import annotations

from fractions import Fraction

from exprtree.nodes import Binary, Call, Literal, Name, Node, Unary
from exprtree.syntax import ATOM, BINARY_LEVELS, MULTIPLY, SIGN, UNARY_LEVELS, operand_levels


def to_text(tree: Node) -> str:
    """The text that `parse` reads back as this tree.

    But for constants that no expression has: a fraction or a negative number becomes an operation of the same value.
    """
    if isinstance(tree, Literal):
        return str(tree.value).lower().replace("/", " / ")
    if isinstance(tree, Name):
        return tree.name
    if isinstance(tree, Call):
        return f"{tree.function}({', '.join(map(to_text, tree.arguments))})"
    if isinstance(tree, Unary):
        space = " " if tree.op == "not" else ""
        return f"{tree.op}{space}{_operand(tree.operand, UNARY_LEVELS[tree.op])}"
    left, right = operand_levels(tree.op)
    return f"{_operand(tree.left, left)} {tree.op} {_operand(tree.right, right)}"


def _operand(node: Node, least: int) -> str:
    text = to_text(node)
    return f"({text})" if _level(node) < least else text


def _level(node: Node) -> int:
    """How tightly the text of a node holds together."""
    if isinstance(node, Binary):
        return BINARY_LEVELS[node.op]
    if isinstance(node, Unary):
        return UNARY_LEVELS[node.op]
    if isinstance(node, Literal) and isinstance(node.value, Fraction) and node.value.denominator != 1:
        return MULTIPLY
    if isinstance(node, Literal) and node.value < 0:
        return SIGN
    return ATOM
