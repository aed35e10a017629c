"""What a mutation is, where in a source one may sit, and a package's files with some of them.

A mutation replaces one span of a file's text; everything else stays as it is, letter by letter. Which there are is
`mutators.py`'s. Left alone are annotations, decorators and f-strings (before Python 3.12 the parser does not know where
the parts of an f-string stand). All here is pure.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from rocknroll.envs.swebench.mini.package import Edit, Tree

Span = tuple[int, int]
"""Where a text begins and ends, in characters from the start of the file."""
Change = tuple[Span, str]
"""A span and what stands there instead."""
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Mutation:
    """One change of one file."""

    kind: str
    path: str
    function: str
    """The function or method that it is in, `Class.method`; of nested ones the outermost. Empty outside of any."""
    line: int
    """From 1, of its first character."""
    start: int
    end: int
    """Its span, in characters from the start of the file."""
    before: str
    after: str


@dataclass(frozen=True)
class Place:
    """A node, and where it stands."""

    node: ast.AST
    parent: ast.AST
    block: Sequence[ast.AST]
    """The statements among which it is one; empty for other nodes."""
    function: str
    scope: Function | None
    """The innermost function around it."""


class Source:
    """A text with its tree, its tokens, and where each of them stands."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tree = ast.parse(text)
        self._lines = re.findall(r"[^\n]*\n|[^\n]+", text)  # as Python counts them, unlike `splitlines`
        self._starts = [0]
        for line in self._lines:
            self._starts.append(self._starts[-1] + len(line))
        tokens = tokenize.generate_tokens(io.StringIO(text, newline="").readline)
        self._tokens = [
            (self._starts[token.start[0] - 1] + token.start[1], self._starts[token.end[0] - 1] + token.end[1])
            for token in tokens
            if token.type in (tokenize.OP, tokenize.NAME, tokenize.NUMBER, tokenize.STRING)
        ]

    def span(self, node: ast.AST) -> Span:
        """Of a node that has a position, without parentheses around it."""
        assert isinstance(node, ast.expr | ast.stmt | ast.keyword | ast.ExceptHandler)
        assert node.end_lineno is not None and node.end_col_offset is not None
        return self._offset(node.lineno, node.col_offset), self._offset(node.end_lineno, node.end_col_offset)

    def of(self, node: ast.AST) -> str:
        start, end = self.span(node)
        return self.text[start:end]

    def line(self, offset: int) -> int:
        return self.text.count("\n", 0, offset) + 1

    def operator(self, left: ast.AST, right: ast.AST) -> Span:
        """What stands between two operands."""
        first, last = self.span(left)[1], self.span(right)[0]
        found = [span for span in self._between(first, last) if self.text[slice(*span)] not in "()"]
        return found[0][0], found[-1][1]

    def comma_before(self, node: ast.AST) -> int | None:
        """Where the comma right before a node stands, if there is one."""
        start = self.span(node)[0]
        before = [span for span in self._tokens if span[1] <= start][-1]
        return before[0] if self.text[slice(*before)] == "," else None

    def whole_lines(self, first: ast.AST, last: ast.AST) -> Span | None:
        """The lines from one statement to another, with comments right above; None where others share them."""
        start, end = self.span(first)[0], self.span(last)[1]
        begin, finish = self.text.rfind("\n", 0, start) + 1, self.text.find("\n", end)
        finish = len(self.text) if finish < 0 else finish + 1
        behind = self.text[end:finish].strip()
        if self.text[begin:start].strip() or (behind and not behind.startswith("#")):
            return None
        while self.text[: max(0, begin - 1)].rpartition("\n")[2].strip().startswith("#"):
            begin = self.text.rfind("\n", 0, begin - 1) + 1
        return begin, finish

    def _between(self, first: int, last: int) -> list[Span]:
        return [span for span in self._tokens if first <= span[0] and span[1] <= last]

    def _offset(self, line: int, column_bytes: int) -> int:
        text = self._lines[line - 1]
        column = column_bytes if text.isascii() else len(text.encode()[:column_bytes].decode())
        return self._starts[line - 1] + column


def places(source: Source) -> Iterator[Place]:
    """Every node that may be changed, in the order of the text."""
    return _places(source.tree, source.tree, (), "", "", None)


_UNTOUCHED = ("annotation", "returns", "decorator_list", "type_params", "ctx", "op", "ops")


def _places(
    node: ast.AST, parent: ast.AST, block: Sequence[ast.AST], classes: str, function: str, scope: Function | None
) -> Iterator[Place]:
    yield Place(node, parent, block, function, scope)
    if isinstance(node, ast.JoinedStr):
        return
    if isinstance(node, ast.ClassDef) and not function:
        classes = f"{classes}{node.name}."
    if isinstance(node, Function):
        function, scope = function or f"{classes}{node.name}", node
    for name, value in ast.iter_fields(node):
        if name in _UNTOUCHED:
            continue
        children = value if isinstance(value, list) else [value]
        inner = children if children and isinstance(children[0], ast.stmt) else ()
        for child in children:
            if isinstance(child, ast.AST):
                yield from _places(child, node, inner, classes, function, scope)


def changed(tree: Tree, mutations: Iterable[Mutation]) -> dict[str, str]:
    """The files of a package that mutations change, as they are then.

    Raises:
        ValueError: a mutation does not fit its file, or two of them overlap.
    """
    found: dict[str, str] = {}
    begin: dict[str, int] = {}
    for one in sorted(mutations, key=lambda one: (one.path, -one.start)):
        text = found.get(one.path, tree[one.path])
        if text[one.start : one.end] != one.before or one.end > begin.get(one.path, one.end):
            raise ValueError(f"{one.path}: the mutation of line {one.line} does not fit, or meets another one")
        found[one.path] = text[: one.start] + one.after + text[one.end :]
        begin[one.path] = one.start
    return found


def edits_of(tree: Tree, files: Mapping[str, str]) -> tuple[Edit, ...]:
    """An edit for each changed file: the lines that differ, and as many around them as make that place the only one."""
    return tuple(_edit(path, tree[path], files[path]) for path in sorted(files))


def _edit(path: str, right: str, wrong: str) -> Edit:
    old, new = right.splitlines(keepends=True), wrong.splitlines(keepends=True)
    shorter = min(len(old), len(new))
    above = next((at for at in range(shorter) if old[at] != new[at]), shorter)
    rest = shorter - above
    below = next((at for at in range(rest) if old[-1 - at] != new[-1 - at]), rest)
    while True:
        block = "".join(old[above : len(old) - below])
        if block and right.count(block) == 1:
            return Edit(path=path, right=block, wrong="".join(new[above : len(new) - below]))
        above, below = max(0, above - 1), max(0, below - 1)
