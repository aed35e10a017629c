"""Tests turned around: the same names, and assertions that right code must fail.

Code under test runs in the process that reports on it, so a report alone proves nothing. But the code does not know
which of its tests have been turned around this time: that a test wants 4 instead of 3 shows nowhere but in what right
code returns. An object that equals everything passes a test and fails its negation, so equations get another value
instead of being negated.
"""

from __future__ import annotations

import ast
import random
import re
from collections.abc import Collection
from typing import Any

_NEGATIONS = {
    "assertTrue": "assertFalse",
    "assertFalse": "assertTrue",
    "assertIs": "assertIsNot",
    "assertIsNot": "assertIs",
    "assertIsNone": "assertIsNotNone",
    "assertIsNotNone": "assertIsNone",
    "assertIn": "assertNotIn",
    "assertNotIn": "assertIn",
    "assertIsInstance": "assertNotIsInstance",
    "assertNotIsInstance": "assertIsInstance",
    "assertNotEqual": "assertEqual",
    "assertLess": "assertGreaterEqual",
    "assertLessEqual": "assertGreater",
    "assertGreater": "assertLessEqual",
    "assertGreaterEqual": "assertLess",
}
"""Methods of `unittest.TestCase` and what fails where they pass."""
_EQUAL = ("assertEqual", "assertListEqual", "assertDictEqual", "assertTupleEqual", "assertSetEqual", "assertCountEqual")
Function = ast.FunctionDef | ast.AsyncFunctionDef


class CannotPoison(ValueError):
    """The source is not Python, or has no such test."""


def poisoned(source: str, tests: Collection[str], rng: random.Random) -> str:
    """A test module in which some tests are turned around; everything else stays as it is, letter by letter.

    Args:
        tests: functions as they are named in test ids, `test_a` or `TestB::test_a`, without parameters.

    Raises:
        CannotPoison: there is no such function, it is expected to fail, or the source cannot be parsed.
    """
    try:
        tree = ast.parse(source)
    except SyntaxError as error:
        raise CannotPoison(f"the test module is not Python: {error}") from None
    found = dict(_functions(tree.body, ""))
    if missing := set(tests) - set(found):
        raise CannotPoison(f"the test module has no test {', '.join(sorted(missing))}")
    for name in tests:
        if any("xfail" in ast.unparse(mark) for mark in found[name].decorator_list):
            raise CannotPoison(f"the test {name} is expected to fail, so its failure would prove nothing")
    lines = re.findall(r"[^\n]*\n|[^\n]+", source)  # as Python counts them, unlike `splitlines`
    for name in sorted(tests, key=lambda name: found[name].lineno, reverse=True):
        function = found[name]
        first = min([function.lineno, *(decorator.lineno for decorator in function.decorator_list)]) - 1
        indent = lines[first][: len(lines[first]) - len(lines[first].lstrip())]
        turned = ast.unparse(ast.fix_missing_locations(_turned(function, rng)))
        lines[first : function.end_lineno] = [f"{indent}{line}\n" for line in turned.splitlines()]
    return "".join(lines)


def _functions(body: list[ast.stmt], prefix: str) -> list[tuple[str, Function]]:
    """Functions and methods by their name in test ids; of several with one name the last counts, as in Python."""
    found: list[tuple[str, Function]] = []
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found.append((f"{prefix}{node.name}", node))
        elif isinstance(node, ast.ClassDef):
            found += _functions(node.body, f"{prefix}{node.name}::")
    return found


def _turned(function: Function, rng: random.Random) -> Function:
    """The function with every assertion turned around; one without any fails at its end."""
    turner = _Turner(rng)
    turned = turner.visit(function)
    assert isinstance(turned, Function)
    if not turner.count:
        turned.body.append(ast.parse("raise AssertionError").body[0])
    return turned


class _Turner(ast.NodeTransformer):
    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self.count = 0

    def visit_Assert(self, node: ast.Assert) -> ast.Assert:
        self.count += 1
        test = node.test
        if isinstance(test, ast.Compare) and isinstance(test.ops[-1], ast.Eq):
            # Of a chain `a == b == c` the last link alone decides, if the others hold.
            test.comparators[-1] = self._another(test.comparators[-1])
        elif isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            node.test = test.operand
        else:
            node.test = ast.UnaryOp(ast.Not(), test)
        return node

    def visit_Call(self, node: ast.Call) -> ast.Call:
        self.generic_visit(node)
        method = node.func
        if not isinstance(method, ast.Attribute):
            return node
        if method.attr in _EQUAL and len(node.args) >= 2:
            method.attr, node.args[1] = "assertEqual", self._another(node.args[1])
        elif method.attr in _NEGATIONS:
            method.attr = _NEGATIONS[method.attr]
        else:
            return node
        self.count += 1
        return node

    def _another(self, node: ast.expr) -> ast.expr:
        """An expression with another value, that looks as if it might be the right one."""
        try:
            value = ast.literal_eval(node)
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
            return ast.List([node], ast.Load())
        return ast.parse(repr(_other(value, self._rng)), mode="eval").body


def _other(value: Any, rng: random.Random) -> Any:
    """A literal of the same kind with another value."""
    match value:
        case bool():
            return not value
        case int():
            return value + rng.choice((-1, 1))
        case float():
            return value + 1.0 if abs(value) < 2**50 else 0.5
        case str() if value:
            at = rng.randrange(len(value))
            return f"{value[:at]}{'b' if value[at] == 'a' else 'a'}{value[at + 1 :]}"
        case list() | tuple() if value:
            at = rng.randrange(len(value))
            items = [_other(item, rng) if place == at else item for place, item in enumerate(value)]
            return items if isinstance(value, list) else tuple(items)
        case dict() if value:
            at = rng.choice(list(value))
            return {key: _other(item, rng) if key is at else item for key, item in value.items()}
        case _:
            return [value]
