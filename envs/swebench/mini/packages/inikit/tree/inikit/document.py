"""A configuration file in memory: sections of entries, with every other line kept where it stands."""

from __future__ import annotations

from dataclasses import dataclass, field

from inikit.quoting import BLANK


@dataclass(eq=False)
class Line:
    """A blank line or a comment line, as it is in the file."""

    text: str


@dataclass(eq=False)
class Entry:
    """A key with its value, before expansion.

    `comments` are those behind the lines of the value (an empty text for a line without), `notes` the comment lines
    between them. `source` is the entry as it was read, or None when it has to be written anew.
    """

    key: str
    value: str
    indent: str = ""
    comments: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    source: str | None = None


@dataclass(eq=False)
class Section:
    """What stands below a header, up to the next one."""

    header: str = ""
    items: list[Line | Entry] = field(default_factory=list)

    def entries(self) -> list[Entry]:
        return [item for item in self.items if isinstance(item, Entry)]

    def find(self, key: str) -> Entry | None:
        """The entry of a key, whatever its case."""
        return next((entry for entry in self.entries() if entry.key.casefold() == key.casefold()), None)

    def put(self, key: str, value: str) -> None:
        """Change an entry or add one. Comments that lose their line of the value move above the entry."""
        entry = self.find(key)
        if entry is None:
            self._add(Entry(key, value))
        elif value != entry.value:
            kept = value.count("\n") + 1
            loose = entry.notes + [comment.strip(BLANK) for comment in entry.comments[kept:] if comment]
            at = self.items.index(entry)
            self.items[at:at] = [Line(entry.indent + comment) for comment in loose]
            entry.value, entry.source = value, None
            entry.comments, entry.notes = entry.comments[:kept], []

    def _add(self, entry: Entry) -> None:
        """Behind the last entry; in a section without one, behind the comment that opens it."""
        entries = self.entries()
        if entries:
            entry.indent = entries[-1].indent
            self.items.insert(self.items.index(entries[-1]) + 1, entry)
        else:
            blank = (at for at, item in enumerate(self.items) if is_blank(item))
            self.items.insert(next(blank, len(self.items)), entry)

    def remove(self, key: str) -> bool:
        """Take the lines of an entry out; false if there is none."""
        entry = self.find(key)
        if entry is not None:
            self.items.remove(entry)
        return entry is not None


@dataclass(eq=False)
class Document:
    """The sections of a file in their order; the first has the name "" and no header."""

    newline: str = "\n"
    sections: dict[str, Section] = field(default_factory=lambda: {"": Section()})

    def section(self, name: str) -> Section:
        """A section, appended below a blank line if there is none of this name."""
        if name not in self.sections:
            end = list(self.sections.values())[-1]
            if (end.header or end.items) and not (end.items and is_blank(end.items[-1])):
                end.items.append(Line(self.newline))
            self.sections[name] = Section(f"[{name}]{self.newline}")
        return self.sections[name]


def is_blank(item: Line | Entry) -> bool:
    return isinstance(item, Line) and not item.text.strip()
