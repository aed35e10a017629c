"""Between the text of a file and its document. What was not changed is written as it was read."""

from __future__ import annotations

import re
from itertools import zip_longest

from inikit.document import Document, Entry, Line, Section
from inikit.errors import ParseError
from inikit.quoting import BLANK, COMMENT, INLINE, read_piece, write_piece

STEP = "    "
"""How much deeper than its key a value goes on."""

_LINE = re.compile(r"[^\n]*\n|[^\n]+")
_HEADER = re.compile(r"\[([^\]]*)\][ \t]*([#;].*)?", re.DOTALL)


def is_key(text: str) -> bool:
    """Whether a text can stand in front of `=`."""
    marked = text.startswith(("[", *COMMENT)) or INLINE.search(text)
    return _is_name(text, "=") and not marked


def is_section(text: str) -> bool:
    """Whether a text can stand in a header."""
    return _is_name(text, "]")


def _is_name(text: str, end: str) -> bool:
    return text != "" and text == text.strip(BLANK) and not any(sign in text for sign in end + "\r\n")


def parse(text: str) -> Document:
    """Read a file.

    Raises:
        ParseError: a line is neither entry, header, comment nor blank, or a name comes twice.
    """
    lines = _LINE.findall(text)
    document = Document("\r\n" if lines and lines[0].endswith("\r\n") else "\n")
    section = document.sections[""]
    at = 0
    while at < len(lines):
        end = at + 1
        if lines[at].startswith("["):
            name = _read_header(lines[at], at + 1)
            if name in document.sections:
                raise ParseError(f"section {name!r} comes twice", at + 1)
            section = document.sections[name] = Section(lines[at])
        elif not _bare(lines[at]) or _is_comment(lines[at]):
            section.items.append(Line(lines[at]))
        else:
            end = _entry_end(lines, at)
            entry = _read_entry(lines[at:end], at + 1)
            if section.find(entry.key):
                raise ParseError(f"key {entry.key!r} comes twice", at + 1)
            section.items.append(entry)
        at = end
    return document


def _bare(line: str) -> str:
    return line.strip(BLANK + "\r\n")


def _is_comment(line: str) -> bool:
    return _bare(line).startswith(COMMENT)


def _indent(line: str) -> str:
    return line[: len(line) - len(line.lstrip(BLANK))]


def _entry_end(lines: list[str], start: int) -> int:
    """Index behind the last line of the value that starts at `start`."""
    depth = len(_indent(lines[start]))
    end = start + 1
    for at in range(start + 1, len(lines)):
        if _is_comment(lines[at]):
            continue
        if not _bare(lines[at]) or len(_indent(lines[at])) <= depth:
            break
        end = at + 1
    return end


def _read_header(line: str, number: int) -> str:
    match = _HEADER.fullmatch(_bare(line))
    name = match[1].strip(BLANK) if match else ""
    if not is_section(name):
        raise ParseError("bad section header", number)
    return name


def _read_entry(lines: list[str], number: int) -> Entry:
    left, equals, first = lines[0].partition("=")
    if not equals or not is_key(left.strip(BLANK)):
        raise ParseError("expected `key = value`", number)
    notes, pieces = [], []
    for offset, source in enumerate([first, *lines[1:]]):
        if offset and _is_comment(source):
            notes.append(_bare(source))
            continue
        try:
            pieces.append(read_piece(source.rstrip("\r\n")))
        except ValueError as error:
            raise ParseError(str(error), number + offset) from None
    if len(pieces) > 1 and not pieces[0].text and not pieces[0].quoted:
        opening = pieces.pop(0).comment.strip(BLANK)
        notes = [opening, *notes] if opening else notes
    value = "\n".join(piece.text for piece in pieces)
    comments = [piece.comment for piece in pieces]
    return Entry(left.strip(BLANK), value, _indent(lines[0]), comments, notes, "".join(lines))


def render(document: Document) -> str:
    """The text of a file; parsing it gives the same values."""
    chunks: list[str] = []
    for section in document.sections.values():
        chunks.append(section.header)
        chunks += [item.text if isinstance(item, Line) else _entry(item, document.newline) for item in section.items]
    chunks = [chunk for chunk in chunks if chunk]
    ended = [chunk if chunk.endswith("\n") else chunk + document.newline for chunk in chunks[:-1]]
    return "".join(ended + chunks[-1:])


def _entry(entry: Entry, newline: str) -> str:
    if entry.source is not None:
        return entry.source
    pieces = [write_piece(piece) for piece in entry.value.split("\n")]
    if len(pieces) > 1:
        pieces = [piece or '""' for piece in pieces]
    lines: list[str] = []
    for piece, comment in zip_longest(pieces, entry.comments, fillvalue=""):
        start = STEP if lines else entry.key + (" = " if piece else " =")
        lines.append(entry.indent + start + piece + comment + newline)
    return "".join(lines)
