"""What a user would write about a mutant: made from what failing tests are called and what pytest said of them.

A statement says what was expected and what came instead. It does not say where the mistake is, and has nothing of the
tests but their names as sentences and the values that they compared.
"""

from __future__ import annotations

import ast
import random
import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from rocknroll.envs.swebench.logs import function_of

MOST_DETAILED = 3
"""Failures of which values are given; of the others only what they are about."""
MOST_NAMED = 10
LONGEST_VALUE = 240
"""Characters of a value that is quoted; longer ones are left out."""
_WIDTH = 110
_FAILING = ("FAILURES", "ERRORS")
_SECTION = re.compile(r"^=+ (.+?) =+$", re.MULTILINE)
_HEADING = re.compile(r"^_+ (\S.*?) _+$", re.MULTILINE)
_WHERE = re.compile(r"^(tests/\S+?):\d+: ", re.MULTILINE)
_EXPLAINED = re.compile(r"^E   .*(?:\n^E   .*)*$", re.MULTILINE)
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
_SCRATCH = re.compile(r"/tmp/pytest-of-[^/]+/pytest-\d+")
_RAISED = re.compile(r"(?!AssertionError|Failed)[A-Za-z_][\w.]*(: .*)?")
_NO_ERROR = re.compile(r"Failed: DID NOT RAISE (?:any of )?(.+)")
_MESSAGE = re.compile(r"^(?:Expected regex|Regex): (.+)\n(?:Actual message|Input): (.+)$", re.MULTILINE)
"""As pytest 9 and 8 say it."""
_TRUTHS = {"False": ("False", "True"), "not True": ("True", "False")}
"""What an assertion of a truth value got and expected."""
_CALL = re.compile(r"[A-Za-z]\w*\([^<]*\)")


@dataclass(frozen=True)
class Failure:
    """What pytest said of the first case of a test function that failed."""

    test: str
    """`tests/test_x.py::test_a`, without parameters."""
    said: tuple[str, ...]
    """Lines of its explanation: what it compared, or the error that came out."""


def failures_of(log: str) -> tuple[Failure, ...]:
    """From the output of `pytest --tb=short`: one failure for each test function, in the order of the output."""
    sections = _SECTION.split(log)
    text = "".join(body for title, body in zip(sections[1::2], sections[2::2], strict=True) if title in _FAILING)
    parts = _HEADING.split(text)
    found: dict[str, Failure] = {}
    for heading, body in zip(parts[1::2], parts[2::2], strict=True):
        where = _WHERE.search(body)
        if where is not None:
            name = function_of(heading.removeprefix("ERROR at setup of ").partition(" ")[0])
            test = f"{where[1]}::{name}"
            # Of errors that led to one another the last is what came out.
            said = [text.split("\n") for text in _EXPLAINED.findall(body)][-1:]
            found.setdefault(test, Failure(test, tuple(_clean(line[4:]) for lines in said for line in lines)))
    return tuple(found.values())


def _clean(line: str) -> str:
    """Without what differs from run to run, and without what a terminal would obey."""
    text = _SCRATCH.sub("/tmp", _ADDRESS.sub("", line))
    return "".join(char if char.isprintable() else "\ufffd" for char in text).strip()


def statement(
    package: str, tree: Mapping[str, str], tests: Sequence[str], failures: Iterable[Failure], rng: random.Random
) -> str:
    """The problem statement of a mutant.

    Args:
        tests: functions that fail, as `tests/test_x.py::test_a`.
        rng: draws the wording, and which failures are told in detail.
    """
    known = {failure.test: failure for failure in failures}
    details = {test: _detail(known.get(test), rng) for test in rng.sample(list(tests), len(tests))}
    told = sorted(details, key=lambda test: not details[test])[:MOST_NAMED]
    names = _public_names(package, tree, told[:MOST_DETAILED])
    listed = [_item(test, details[test] if at < MOST_DETAILED else "", rng) for at, test in enumerate(told)]
    words = {
        "package": package,
        "names": _listed(names) or f"`{package}`",
        "bare": ", ".join(names) or package,
        "topic": _topic(told[0]),
        "count": len(tests),
    }
    more = [rng.choice(_MORE)] if len(tests) > len(told) else []
    title, *text = (part.format(**words) for part in (rng.choice(_TITLES), rng.choice(_OPENINGS), *more))
    opening, *rest = map(_wrapped, [*text, rng.choice(_CLOSINGS)])
    return "\n\n".join([title, opening, "\n".join(listed), *rest]) + "\n"


_TITLES = (
    "{bare}: trouble with “{topic}”",
    "{package}: “{topic}” does not hold",
    "Wrong behaviour of {bare} ({topic})",
    "{bare}: something else than documented ({topic})",
)
_OPENINGS = (
    "I use {names} from {package}, and not everything does what the documentation says. This is what I came across:",
    "Some of my scripts no longer work since I updated {package}. I have boiled it down to {names}:",
    "While I was writing something with {names}, I met the following. It contradicts the documentation of {package}.",
    "Our own checks of {package} fail. They are about {names}, and about this:",
)
_MORE = (
    "There are more cases like these, {count} in all.",
    "That is not all: counting what I do not list here, {count} things go wrong.",
)
_CLOSINGS = (
    "The README and the docstrings say what is right. Everything else works, and should stay as it is.",
    "What I expect is what the docstrings promise. Please leave everything else as it is; we depend on it.",
    "I have not found out where this comes from. All else that I tried works as documented.",
    "It used to work. I would be glad of a fix that does not change anything else.",
)
_UNTOLD = (
    "this does not work as documented.",
    "something else comes out.",
    "not so any more.",
)


def _item(test: str, detail: str, rng: random.Random) -> str:
    """One line, however long: values are not to be broken."""
    topic = _topic(test)
    return f"- {topic[:1].upper()}{topic[1:]}: {detail or rng.choice(_UNTOLD)}"


def _wrapped(text: str) -> str:
    return textwrap.fill(text, _WIDTH, break_long_words=False, break_on_hyphens=False)


def _topic(test: str) -> str:
    """The name of a test as the sentence that it is."""
    return test.rpartition("::")[2].removeprefix("test_").replace("_", " ")


def _listed(names: Sequence[str]) -> str:
    quoted = [f"`{name}`" for name in names]
    return " and ".join(part for part in (", ".join(quoted[:-1]), *quoted[-1:]) if part)


def _code(text: str) -> str:
    quote = "``" if "`" in text else "`"
    return f"{quote}{text}{quote}"


def _detail(failure: Failure | None, rng: random.Random) -> str:
    """What was expected and what came instead, in a sentence; empty where pytest's explanation does not say it."""
    said = failure.said if failure is not None and failure.said else ("",)
    head = said[0].removeprefix("AssertionError: ")
    if (missing := _NO_ERROR.fullmatch(head)) is not None:
        errors = [name.rpartition(".")[2] for name in re.findall(r"[A-Za-z_][\w.]*", missing[1]) if name != "class"]
        return rng.choice(_NOT_RAISED).format(error=_listed(errors))
    if (message := _MESSAGE.search("\n".join(said))) is not None and len(message[0]) <= LONGEST_VALUE:
        return rng.choice(_MESSAGES).format(expected=_code(message[1]), got=_code(message[2]))
    if head.startswith("assert "):
        return _compared(head.removeprefix("assert "), said[1:], rng)
    if _RAISED.fullmatch(said[0]) is not None and len(head) <= LONGEST_VALUE:
        return rng.choice(_ERRORS).format(error=_code(head))
    return ""


_NOT_RAISED = (
    "I expected an error here ({error}), but there was none.",
    "this should raise {error}, and does not raise anything.",
    "no error is raised where it ought to be {error}.",
)
_MESSAGES = (
    "the error says {got}, and not what it should: {expected}.",
    "there is an error, but it says {got} where I expected {expected}.",
)
_ERRORS = (
    "this ends with {error}.",
    "instead of a result I get an error, {error}.",
    "what comes out is {error}.",
)
_VALUES = (
    "I get {got} where I expected {expected}.",
    "the result is {got}; it should be {expected}.",
    "expected {expected}, got {got}.",
)
_RETURNED = (
    "{call} gives {got} where I expected {expected}.",
    "{call} should give {expected}; I get {got}.",
    "I expected {expected} from {call}, and got {got}.",
)


def _compared(text: str, more: Sequence[str], rng: random.Random) -> str:
    sides = _sides(text, " == ") or _sides(text, " is ") or _TRUTHS.get(text)
    if sides is None or max(map(len, sides)) > LONGEST_VALUE:
        return ""
    got, expected = sides
    calls = [line.partition(f"where {got} = ")[2] for line in more]
    call = next((call for call in calls if _CALL.fullmatch(call) and len(call) <= LONGEST_VALUE), "")
    if not call and text in _TRUTHS:
        return ""
    words = {"got": _code(got), "expected": _code(expected), "call": _code(call)}
    return rng.choice(_RETURNED if call else _VALUES).format(**words)


def _sides(text: str, operator: str) -> tuple[str, str] | None:
    """Both sides of a comparison of values, split where each of them is whole; None if that is not one place."""
    places = [match.start() for match in re.finditer(re.escape(operator), text)]
    found = [(text[:place], text[place + len(operator) :]) for place in places]
    whole = [sides for sides in found if all(map(_is_whole, sides))]
    return whole[0] if len(whole) == 1 else None


def _is_whole(text: str) -> bool:
    """Whether brackets and quotes are closed."""
    bare = re.sub(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"", "", text)
    return "'" not in bare and '"' not in bare and all(bare.count(a) == bare.count(b) for a, b in ("()", "[]", "{}"))


def _public_names(package: str, tree: Mapping[str, str], tests: Sequence[str]) -> list[str]:
    """Names that tests have from the package, themselves or by functions and classes of their module."""
    found: dict[str, None] = {}
    for test in tests:
        path, name = test.split("::")[:2]
        module = ast.parse(tree[path])
        imported = {
            (alias.asname or alias.name): alias.name
            for node in ast.walk(module)
            if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == package
            for alias in node.names
        }
        defined = {node.name: node for node in module.body if isinstance(node, _DEFINITIONS)}
        found |= dict.fromkeys(imported[used] for used in _used(name, defined) if used in imported)
    return list(found)[:MOST_DETAILED]


_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def _used(name: str, defined: Mapping[str, ast.AST]) -> list[str]:
    """Names that a function of a module uses, and those that what it uses of the module does, in order."""
    found: dict[str, None] = {}
    waiting = [name]
    while waiting:
        for node in ast.walk(defined[waiting.pop(0)]):
            if isinstance(node, ast.Name) and node.id not in found:
                found[node.id] = None
                waiting += [node.id] if node.id in defined else []
    return list(found)
