"""A tree to a smaller tree of the same value.

The result has the value of the original wherever the original has one; elsewhere (`x / 0 * 0`) it may have one, too.
"""

from __future__ import annotations

from dataclasses import replace

from exprtree.evaluator import binary_value
from exprtree.nodes import Binary, Call, Literal, Name, Node, Unary
from exprtree.syntax import COMPARISONS, EvalError

NEGATED = {"==": "!=", "!=": "==", "<": ">=", ">=": "<", ">": "<=", "<=": ">"}
ABSORBING = {"and": False, "or": True}
ON_ITSELF = {"-": 0, "==": True, "!=": False, "<": False, "<=": True, ">": False, ">=": True}
"""Value of an operator whose operands are the same."""
RIGHT_NEUTRAL = {"+": Literal(0), "-": Literal(0), "*": Literal(1), "/": Literal(1), "^": Literal(1)}


def simplify(tree: Node) -> Node:
    """The tree with constants folded, and without operations that change nothing; nodes keep their positions.

    Functions are taken to be pure, and are not called. Never raises for an expression that has no value.
    """
    if isinstance(tree, (Literal, Name)):
        return tree
    if isinstance(tree, Call):
        return replace(tree, arguments=tuple(map(simplify, tree.arguments)))
    if isinstance(tree, Unary):
        return _unary(replace(tree, operand=simplify(tree.operand)))
    tree = replace(tree, left=simplify(tree.left), right=simplify(tree.right))
    return _logic(tree) if tree.op in ABSORBING else _arithmetic(tree)


def _unary(node: Unary) -> Node:
    operand = node.operand
    if isinstance(operand, Unary) and operand.op == node.op:
        return operand.operand
    if isinstance(operand, Literal) and isinstance(operand.value, bool) == (node.op == "not"):
        return Literal(not operand.value if node.op == "not" else -operand.value, node.position)
    if node.op == "not" and isinstance(operand, Binary) and operand.op in COMPARISONS:
        return replace(operand, op=NEGATED[operand.op])
    return node


def _logic(node: Binary) -> Node:
    for side, other in ((node.left, node.right), (node.right, node.left)):
        if isinstance(side, Literal) and isinstance(side.value, bool):
            return side if side.value == ABSORBING[node.op] else other
    return node.left if node.left == node.right else node


def _arithmetic(node: Binary) -> Node:
    left, right = node.left, node.right
    if isinstance(left, Literal) and isinstance(right, Literal):
        try:
            return Literal(binary_value(node.op, left.value, right.value, node.position), node.position)
        except EvalError:
            return node
    if left == right and node.op in ON_ITSELF:
        return Literal(ON_ITSELF[node.op], node.position)
    if RIGHT_NEUTRAL.get(node.op) == right:
        return left
    if node.op in ("+", "*") and RIGHT_NEUTRAL[node.op] == left:
        return right
    if node.op == "*" and Literal(0) in (left, right):
        return Literal(0, node.position)
    return node
