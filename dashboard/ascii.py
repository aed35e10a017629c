"""For terminals and fonts without Unicode: what stands for the characters that are drawn with (pure)."""

from __future__ import annotations

from unicodedata import normalize

from rich.cells import cell_len

_BLOCKS = dict(zip("▁▂▃▄▅▆▇█", "_..--==#", strict=True))
_DRAWN = {
    **_BLOCKS,
    **dict.fromkeys("─━═╌╍┄┅┈┉╴╶╸╺▔", "-"),
    **dict.fromkeys("│┃║╎╏┆┇┊┋▏▕▎▍▌▐▊▋▉", "|"),
    **dict.fromkeys("┌┐└┘├┤┬┴┼╭╮╰╯╔╗╚╝╠╣╦╩╬┏┓┗┛┣┫┳┻╋", "+"),
    **dict.fromkeys("●•∙·○◉◌■□▪▫", "*"),
    **dict.fromkeys("…", "."),
    **dict.fromkeys("–—‐‑−", "-"),
    **dict.fromkeys("↑▲△", "^"),
    **dict.fromkeys("↓▼▽", "v"),
    **dict.fromkeys("←◀◁", "<"),
    **dict.fromkeys("→▶▷", ">"),
    **dict.fromkeys("✓✔", "+"),
    **dict.fromkeys("✗✘×", "x"),
    **dict.fromkeys("‘’′", "'"),
    **dict.fromkeys("“”″", '"'),
    "σ": "s",
    "γ": "g",
    "π": "p",
    "\xa0": " ",
}


def to_ascii(text: str) -> str:
    """The same text in as many cells; what nothing stands for is `?`."""
    return text if text.isascii() else "".join(map(_one, text))


def _one(character: str) -> str:
    if character.isascii():
        return character
    cells = cell_len(character)
    plain = _DRAWN.get(character) or normalize("NFKD", character).encode("ascii", "ignore").decode()
    return plain if len(plain) == cells else "?" * cells
