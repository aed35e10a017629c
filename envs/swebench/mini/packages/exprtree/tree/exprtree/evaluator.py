"""A tree to its value, exactly: ints, Fractions and booleans, no floats."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from fractions import Fraction
from operator import add, floordiv, ge, gt, le, lt, mod, mul, sub
from typing import Any, NamedTuple

from exprtree.nodes import Call, Literal, Name, Node, Unary, Value, exact, same_value
from exprtree.syntax import EvalError

Values = Mapping[str, Value]
Functions = Mapping[str, Callable[..., Value]]
ARITHMETIC: Functions = {"+": add, "-": sub, "*": mul, "/": Fraction, "//": floordiv, "%": mod, "^": pow}
OPERATORS: Functions = {"<": lt, "<=": le, ">": gt, ">=": ge, **ARITHMETIC}
FUNCTIONS: Functions = {
    "abs": lambda x: abs(x),
    "floor": lambda x: math.floor(x),
    "max": lambda x, *more: max((x, *more)),
    "min": lambda x, *more: min((x, *more)),
}
"""What every expression may call; takes numbers only."""


def evaluate(tree: Node, values: Values | None = None, functions: Functions | None = None) -> Value:
    """The value of a tree: an int, a Fraction that is not whole, or a bool.

    `values` are the variables. `functions` are added to `FUNCTIONS` and may replace them; whatever one of them raises
    comes out unchanged. Raises EvalError if the expression has no value: an unknown name, a wrong type or number of
    arguments, a division by zero…
    """
    return _Evaluation(values or {}, {**FUNCTIONS, **(functions or {})}).value(tree)


def binary_value(op: str, left: Value, right: Value, position: int) -> Value:
    """Value of an operator that always needs both of its operands; raises EvalError if there is none."""
    if op in ("==", "!="):
        return same_value(left, right) == (op == "==")
    if isinstance(left, bool) or isinstance(right, bool):
        raise EvalError(f"{op!r} takes numbers", position)
    if op == "^" and isinstance(right, Fraction):
        raise EvalError("the exponent is not an integer", position)
    try:
        return exact(OPERATORS[op](Fraction(left), right))
    except ZeroDivisionError:
        raise EvalError("division by zero", position) from None


def _accepts(function: Callable[..., Value], arguments: list[Value]) -> bool:
    """Whether a function takes that many arguments; True if it does not tell, as some of Python's own."""
    try:
        inspect.signature(function).bind(*arguments)
    except TypeError:
        return False
    except ValueError:
        return True
    return True


class _Evaluation(NamedTuple):
    values: Values
    functions: Functions

    def value(self, node: Node) -> Value:
        if isinstance(node, Literal):
            return exact(node.value)
        if isinstance(node, Name):
            if node.name not in self.values:
                raise EvalError(f"unknown name {node.name!r}", node.position)
            return _checked(self.values[node.name], node)
        if isinstance(node, Call):
            return self.call(node)
        if isinstance(node, Unary):
            if node.op == "not":
                return not self.truth(node.operand, node)
            return binary_value("-", 0, self.value(node.operand), node.position)
        if node.op in ("and", "or"):
            left = self.truth(node.left, node)
            return left if left == (node.op == "or") else self.truth(node.right, node)
        return binary_value(node.op, self.value(node.left), self.value(node.right), node.position)

    def truth(self, operand: Node, node: Any) -> bool:
        value = self.value(operand)
        if not isinstance(value, bool):
            raise EvalError(f"{node.op!r} takes booleans", node.position)
        return value

    def call(self, node: Call) -> Value:
        name = node.function
        if name not in self.functions:
            raise EvalError(f"unknown function {name!r}", node.position)
        function = self.functions[name]
        arguments = [self.value(argument) for argument in node.arguments]
        if not _accepts(function, arguments):
            raise EvalError(f"{name}() does not take {len(arguments)} argument(s)", node.position)
        if function is FUNCTIONS.get(name) and any(isinstance(argument, bool) for argument in arguments):
            raise EvalError(f"{name}() takes numbers", node.position)
        return _checked(function(*arguments), node)


def _checked(value: Any, node: Node) -> Value:
    if not isinstance(value, (int, Fraction)):
        raise EvalError(f"{value!r} is no int, Fraction or bool", node.position)
    return exact(value)
