"""The mistakes that people make, as mutations of Python source.

A mutator looks at one node of the syntax tree and gives every change of its kind that can be made there; none has to
matter, for whether it does is up to the tests.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence

from rocknroll.envs.swebench.mini.mutations import Change, Function, Mutation, Place, Source, places

_JUMPS = (ast.Return, ast.Raise, ast.Continue, ast.Break)


def mutations_of(path: str, text: str) -> list[Mutation]:
    """Every mutation of a file, in an order that depends on the text alone; each gives another text.

    Raises:
        SyntaxError: the text is not Python.
    """
    source = Source(text)
    found = []
    for place in places(source):
        for kind, mutate in MUTATORS.items():
            for (start, end), after in mutate(source, place):
                before, line = text[start:end], source.line(start)
                if before != after:
                    found.append(Mutation(kind, path, place.function, line, start, end, before, after))
    return found


_BOUNDARIES: dict[type[ast.cmpop], str] = {ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">"}
_OPPOSITES: dict[type[ast.cmpop], str] = {
    ast.Lt: ">=",
    ast.LtE: ">",
    ast.Gt: "<=",
    ast.GtE: "<",
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.Is: "is not",
    ast.IsNot: "is",
    ast.In: "not in",
    ast.NotIn: "in",
}


def _boundary(source: Source, place: Place) -> Iterator[Change]:
    if isinstance(node := place.node, ast.Compare):
        operands = [node.left, *node.comparators]
        for index, operator in enumerate(node.ops):
            if type(operator) in _BOUNDARIES:
                yield source.operator(operands[index], operands[index + 1]), _BOUNDARIES[type(operator)]


def _inverted(source: Source, place: Place) -> Iterator[Change]:
    node = place.node
    tests: list[ast.expr] = []
    if isinstance(node, ast.If | ast.While | ast.IfExp):
        tests = [node.test]
    elif isinstance(node, ast.comprehension):
        tests = node.ifs
    for test in tests:
        yield source.span(test), _negated(source, test)


def _negated(source: Source, test: ast.expr) -> str:
    text, start = source.of(test), source.span(test)[0]
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return text.removeprefix("not").lstrip()
    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        first, last = source.operator(test.left, test.comparators[0])
        return f"{text[: first - start]}{_OPPOSITES[type(test.ops[0])]}{text[last - start :]}"
    simple = isinstance(test, ast.Name | ast.Attribute | ast.Call | ast.Subscript | ast.Constant)
    return f"not {text}" if simple else f"not ({text})"


def _connective(source: Source, place: Place) -> Iterator[Change]:
    if isinstance(node := place.node, ast.BoolOp):
        for left, right in zip(node.values, node.values[1:], strict=False):
            yield source.operator(left, right), "or" if isinstance(node.op, ast.And) else "and"


_ORDERED = (ast.Sub, ast.Div, ast.FloorDiv, ast.Mod, ast.Pow, ast.LShift, ast.RShift)
_SEQUENCES = (ast.JoinedStr, ast.List, ast.Tuple)


def _is_sequence(node: ast.expr) -> bool:
    return isinstance(node, _SEQUENCES) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def _swapped_operands(source: Source, place: Place) -> Iterator[Change]:
    node = place.node
    if not isinstance(node, ast.BinOp):
        return
    sequence = _is_sequence(node.left) or _is_sequence(node.right)
    formats = isinstance(node.op, ast.Mod) and sequence
    if (isinstance(node.op, _ORDERED) and not formats) or (isinstance(node.op, ast.Add) and sequence):
        (start, end), (first, last) = source.span(node), source.operator(node.left, node.right)
        left, right = source.text[start:first].rstrip(), source.text[last:end].lstrip()
        left, right = _operand(source, left, node.left), _operand(source, right, node.right)
        yield (start, end), f"{right} {source.text[first:last]} {left}"


def _operand(source: Source, text: str, node: ast.expr) -> str:
    """An operand as it stands, in parentheses where it could fall apart in another place."""
    loose = isinstance(node, ast.BinOp | ast.UnaryOp | ast.Await) and text == source.of(node)
    return f"({text})" if loose else text


_OPERATORS: dict[type[ast.operator], str] = {
    ast.Add: "-",
    ast.Sub: "+",
    ast.Mult: "+",
    ast.FloorDiv: "*",
    ast.Mod: "//",
    ast.BitAnd: "|",
    ast.BitOr: "&",
}


def _operator(source: Source, place: Place) -> Iterator[Change]:
    node = place.node
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        if not _is_sequence(node.left) and not _is_sequence(node.right):
            yield source.operator(node.left, node.right), _OPERATORS[type(node.op)]
    elif isinstance(node, ast.AugAssign) and type(node.op) in _OPERATORS and not _is_sequence(node.value):
        yield source.operator(node.target, node.value), f"{_OPERATORS[type(node.op)]}="


def _constant(source: Source, place: Place) -> Iterator[Change]:
    value = _integer(place.node)
    if value is None or isinstance(place.parent, ast.Slice) or source.of(place.node) != str(value):
        return
    yield source.span(place.node), str(value + 1)
    negative = isinstance(place.parent, ast.UnaryOp) and isinstance(place.parent.op, ast.USub)
    if value or not negative:
        yield source.span(place.node), str(value - 1)


def _integer(node: ast.AST | None) -> int | None:
    return node.value if isinstance(node, ast.Constant) and type(node.value) is int else None


def _flag(source: Source, place: Place) -> Iterator[Change]:
    if isinstance(place.node, ast.Constant) and isinstance(place.node.value, bool):
        yield source.span(place.node), str(not place.node.value)


def _bound(source: Source, place: Place) -> Iterator[Change]:
    node = place.node
    if isinstance(node, ast.Slice):
        for bound in (node.lower, node.upper):
            if bound is not None:
                yield source.span(bound), ""
                yield from _shifted(source, bound)
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "range":
        for bound in node.args[:2]:
            if _integer(bound) is None and not isinstance(bound, ast.Starred):
                yield from _shifted(source, bound)


def _shifted(source: Source, bound: ast.expr) -> Iterator[Change]:
    """A bound one too low or too high."""
    span, text = source.span(bound), source.of(bound)
    if (value := _integer(bound)) is not None:
        yield span, str(value + 1)
        if value:
            yield span, str(value - 1)
    elif isinstance(bound, ast.BinOp) and isinstance(bound.op, ast.Add | ast.Sub) and _integer(bound.right) == 1:
        yield span, source.of(bound.left)
    elif isinstance(bound, ast.Name | ast.Attribute | ast.Call | ast.Subscript | ast.BinOp):
        yield span, f"{text} + 1"
        yield span, f"{text} - 1"


def _removed(source: Source, place: Place) -> Iterator[Change]:
    """A statement taken out; the last one of a block leaves a `pass`."""
    if len(place.block) == 1:
        yield source.span(place.node), "pass"
    elif (lines := source.whole_lines(place.node, place.node)) is not None:
        yield lines, ""


def _guard(source: Source, place: Place) -> Iterator[Change]:
    node = place.node
    if isinstance(node, ast.If) and not node.orelse and len(node.body) <= 2 and isinstance(node.body[-1], _JUMPS):
        if source.of(node).startswith("elif"):
            return
        yield from _removed(source, place)


def _statement(source: Source, place: Place) -> Iterator[Change]:
    node = place.node
    if isinstance(node, ast.Expr):
        value = node.value.value if isinstance(node.value, ast.Await) else node.value
        wanted = isinstance(value, ast.Call)
    elif isinstance(node, ast.Assign):
        wanted = all(_was_bound(target, place) for target in node.targets)
    else:
        in_handler = isinstance(node, ast.Raise) and isinstance(place.parent, ast.ExceptHandler)
        wanted = in_handler or isinstance(node, ast.AugAssign | ast.Delete)
    if wanted:
        yield from _removed(source, place)


def _was_bound(target: ast.expr, place: Place) -> bool:
    """Whether a target can have had a value before this assignment."""
    if isinstance(target, ast.Name):
        return place.scope is not None and target.id in _variables(place.scope, target.lineno)
    return not place.function.endswith("__init__")


_NEAR_LINES = 2
"""Variables are confused where both are in sight."""


def _variable(source: Source, place: Place) -> Iterator[Change]:
    node, called = place.node, isinstance(place.parent, ast.Call) and place.parent.func is place.node
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and place.scope is not None and not called:
        known = _variables(place.scope, node.lineno)
        if node.id in known:
            near = _named_near(place.scope, node.lineno)
            for name, kind in known.items():
                if name in near and (not kind or not known[node.id] or kind == known[node.id]):
                    yield source.span(node), name


def _named_near(scope: Function, line: int) -> set[str]:
    """Variables that a function names within a few lines of one."""
    found: set[str] = set()
    for node in ast.walk(scope):
        if isinstance(node, ast.Name | ast.arg) and abs(node.lineno - line) <= _NEAR_LINES:
            found.add(node.id if isinstance(node, ast.Name) else node.arg)
    return found


def _variables(scope: Function, line: int) -> dict[str, str]:
    """Parameters of a function and what is assigned above a line of it, each with its annotation, or empty.

    The receiver of methods is left out.
    """
    arguments = scope.args
    found = {
        one.arg: ast.unparse(one.annotation) if one.annotation is not None else ""
        for one in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
    }
    found |= {name: "" for name in _assigned(scope.body, line) if name not in found}
    return {name: kind for name, kind in found.items() if name not in ("self", "cls", "_")}


def _assigned(nodes: Sequence[ast.AST], line: int) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.lineno < line:
            yield node.id
        if not isinstance(node, Function | ast.Lambda | ast.ClassDef | ast.comprehension):
            yield from _assigned(list(ast.iter_child_nodes(node)), line)


_UNORDERED_CALLS = ("isinstance", "issubclass", "hasattr", "getattr", "min", "max")
"""With swapped arguments these raise at once, or do the same."""


def _swapped_arguments(source: Source, place: Place) -> Iterator[Change]:
    node = place.node
    if not isinstance(node, ast.Call) or (isinstance(node.func, ast.Name) and node.func.id in _UNORDERED_CALLS):
        return
    for left, right in zip(node.args, node.args[1:], strict=False):
        if not isinstance(left, ast.Starred) and not isinstance(right, ast.Starred):
            (start, first), (last, end) = source.span(left), source.span(right)
            yield (start, end), f"{source.of(right)}{source.text[first:last]}{source.of(left)}"


def _forgotten(source: Source, place: Place) -> Iterator[Change]:
    if isinstance(node := place.node, ast.Call):
        for keyword in node.keywords:
            comma = source.comma_before(keyword)
            if keyword.arg is not None and comma is not None:
                yield (comma, source.span(keyword)[1]), ""


def _branch(source: Source, place: Place) -> Iterator[Change]:
    node = place.node
    if isinstance(node, ast.IfExp):
        yield source.span(node), source.of(node.body)
        yield source.span(node), source.of(node.orelse)
    elif isinstance(node, ast.If) and node.orelse and not source.of(node.orelse[0]).startswith("elif"):
        body, lines = source.whole_lines(node.body[-1], node.body[-1]), source.whole_lines(node, node.orelse[-1])
        if body is not None and lines is not None:
            yield (body[1], lines[1]), ""


def _copy(source: Source, place: Place) -> Iterator[Change]:
    node = place.node
    if isinstance(node, ast.Call) and not node.keywords:
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        if name in ("list", "dict", "set", "tuple", "copy", "deepcopy") and len(node.args) == 1:
            if isinstance(node.args[0], ast.Name | ast.Attribute | ast.Subscript | ast.Call):
                yield source.span(node), source.of(node.args[0])
        elif isinstance(node.func, ast.Attribute) and node.func.attr == "copy" and not node.args:
            yield source.span(node), source.of(node.func.value)
    elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load) and source.of(node.slice) == ":":
        yield source.span(node), source.of(node.value)


_METHODS: dict[str, tuple[str, ...]] = {
    "startswith": ("endswith",),
    "endswith": ("startswith",),
    "strip": ("lstrip", "rstrip"),
    "lstrip": ("rstrip", "strip"),
    "rstrip": ("lstrip", "strip"),
    "removeprefix": ("removesuffix", "lstrip"),
    "removesuffix": ("removeprefix", "rstrip"),
    "partition": ("rpartition",),
    "rpartition": ("partition",),
    "split": ("rsplit",),
    "find": ("rfind",),
    "ljust": ("rjust",),
    "rjust": ("ljust",),
    "casefold": ("upper", "title"),
    "lower": ("upper",),
    "append": ("extend",),
    "extend": ("append",),
    "add": ("discard",),
    "discard": ("add",),
    "popleft": ("pop",),
    "keys": ("values",),
    "fullmatch": ("match", "search"),
    "match": ("search",),
    "search": ("match",),
    "min": ("max",),
    "max": ("min",),
    "any": ("all",),
    "all": ("any",),
    "sorted": ("list",),
    "sum": ("max",),
    "bisect_left": ("bisect_right",),
    "bisect_right": ("bisect_left",),
    "takewhile": ("dropwhile", "filterfalse"),
}


def _method(source: Source, place: Place) -> Iterator[Change]:
    if isinstance(node := place.node, ast.Call):
        end = source.span(node.func)[1]
        name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
        for other in _METHODS.get(name, ()):
            yield (end - len(name), end), other


_ERRORS: dict[str, tuple[str, ...]] = {
    "BaseException": ("Exception",),
    "Exception": ("BaseException", "ValueError"),
    "ValueError": ("Exception", "TypeError", "UnicodeError"),
    "TypeError": ("Exception", "ValueError"),
    "KeyError": ("LookupError", "IndexError"),
    "IndexError": ("LookupError", "KeyError"),
    "OSError": ("Exception", "FileNotFoundError"),
    "FileNotFoundError": ("OSError", "PermissionError"),
    "ZeroDivisionError": ("ArithmeticError", "ValueError"),
    "OverflowError": ("ArithmeticError", "ValueError"),
    "StopIteration": ("Exception",),
}
"""Wider and narrower types, and those that are easily mistaken for each other."""


def _error(source: Source, place: Place) -> Iterator[Change]:
    node = place.node
    kind = node.type if isinstance(node, ast.ExceptHandler) else node.exc if isinstance(node, ast.Raise) else None
    kind = kind.func if isinstance(kind, ast.Call) else kind
    if isinstance(kind, ast.Name):
        for other in _ERRORS.get(kind.id, ()):
            yield source.span(kind), other
    elif isinstance(kind, ast.Tuple) and len(kind.elts) > 1:
        for left_out in kind.elts:
            rest = [source.of(one) for one in kind.elts if one is not left_out]
            yield source.span(kind), rest[0] if len(rest) == 1 else f"({', '.join(rest)})"


MUTATORS: dict[str, Callable[[Source, Place], Iterator[Change]]] = {
    "comparison off by one": _boundary,
    "inverted condition": _inverted,
    "wrong connective": _connective,
    "swapped operands": _swapped_operands,
    "wrong operator": _operator,
    "constant off by one": _constant,
    "flipped flag": _flag,
    "wrong bound": _bound,
    "missing guard": _guard,
    "missing statement": _statement,
    "wrong variable": _variable,
    "swapped arguments": _swapped_arguments,
    "forgotten argument": _forgotten,
    "missing branch": _branch,
    "missing copy": _copy,
    "wrong method": _method,
    "wrong exception type": _error,
}
"""All kinds of mutations by their names."""
