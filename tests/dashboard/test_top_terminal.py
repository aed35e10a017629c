"""`rock top` on a real terminal, under tmux: it starts, follows its size, takes every key, and gives the terminal back.

Needs tmux; where it is missing the tests are skipped, but not in CI.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

HERE = Path(__file__).parent
WAIT_S = 60.0
REST_S = 0.25
SHELL = ("env", "-u", "COLUMNS", "-u", "LINES", "PS1=$ ", "TERM=screen-256color", "sh")
"""Those two variables would be taken for the size of the terminal, whatever that becomes."""
OVERLAYS = ("text to find", "name of a view", "y yes", "Columns: space", "─ Keys ", "Search for commands")
"""What lies over a screen says one of these."""
OPENS = {
    "enter": "Sandbox box-",
    "c": "Columns: space",
    "l": "Output of box-",
    "s": "shell of box-",
    "d": "Description of box-",
    "y": "JSON of box-",
    "ctrl+d": "y yes",
    "slash": "text to find",
    "colon": "name of a view",
    "question_mark": "─ Keys ",
    "1": "manager",
    "3": "SPREAD",
    "4": "CURVE",
    "5": "OUTCOME",
    "6": "DETAIL",
    "7": "SEVERITY",
    "ctrl+p": "Search for commands",
}
"""What is seen after a key; those of a table that are not here only move or arrange it."""
TMUX = shutil.which("tmux")
pytestmark = pytest.mark.skipif(
    TMUX is None and not os.environ.get("ROCKNROLL_REQUIRE_DOCKER"), reason="tmux is not installed"
)
KEYS = {
    "slash": "/",
    "question_mark": "?",
    "escape": "Escape",
    "enter": "Enter",
    "space": "Space",
    "down": "Down",
    "up": "Up",
    "left": "Left",
    "right": "Right",
    "home": "Home",
    "end": "End",
    "pagedown": "PageDown",
    "pageup": "PageUp",
    "tab": "Tab",
    "colon": ":",
}
"""tmux's names of keys where they are not Textual's."""


def tmux_key(key: str) -> str:
    """`ctrl+d` → `C-d`, `shift+left` → `S-Left`."""
    head, _, last = key.rpartition("+")
    prefix = {"": "", "ctrl": "C-", "shift": "S-"}[head]
    return "BTab" if key == "shift+tab" else prefix + KEYS.get(last, last)


class Terminal:
    """A tmux server of its own, with one window that runs a shell."""

    def __init__(self, folder: Path) -> None:
        self._socket, self.folder = folder / "tmux", folder
        self.tmux("new-session", "-d", "-x", "80", "-y", "24", *SHELL)

    def tmux(self, *arguments: str) -> str:
        command = ["tmux", "-S", str(self._socket), "-f", os.devnull, *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=WAIT_S).stdout

    def keys(self, *keys: str) -> None:
        self.tmux("send-keys", *keys)

    def type(self, text: str) -> None:
        self.tmux("send-keys", "-l", text)
        self.keys("Enter")

    def shown(self) -> str:
        return self.tmux("capture-pane", "-p")

    def until(self, condition: Callable[[str], bool], what: str) -> str:
        """The screen, once it is so."""
        deadline_s = time.monotonic() + WAIT_S
        while not condition(shown := self.shown()):
            assert time.monotonic() < deadline_s, f"never: {what}\n{shown}"
            time.sleep(0.02)
        return shown

    def at_rest(self) -> str:
        """The screen, once it has not changed for a moment."""
        before, now = "", self.shown()
        deadline_s = time.monotonic() + WAIT_S
        while now != before:
            assert time.monotonic() < deadline_s, f"it never comes to rest\n{now}"
            time.sleep(REST_S)
            before, now = now, self.shown()
        return now

    def settings(self) -> str:
        """Those of the terminal, as stty tells them."""
        pane = self.tmux("display-message", "-p", "#{pane_tty}").strip()
        with Path(pane).open() as tty:
            return subprocess.run(["stty", "-g"], stdin=tty, capture_output=True, text=True, check=True).stdout

    def modes(self) -> str:
        """Alternate screen, mouse and cursor, as tmux knows them."""
        return self.tmux(
            "display-message", "-p", "#{alternate_on} #{mouse_any_flag} #{mouse_all_flag} #{cursor_flag} #{keypad_flag}"
        )

    def start(self) -> int:
        """Start the dashboard on the pretended fleet; returns its pid."""
        pid_file = self.folder / "pid"
        pid_file.unlink(missing_ok=True)
        self.type(f"clear; {sys.executable} {HERE / 'top_pretended.py'} {pid_file}; echo code $?")
        self.until(lambda shown: "7 Alerts" in shown and "q Quit" in shown, "the dashboard started")
        return int(pid_file.read_text())


@contextmanager
def opened() -> Iterator[Terminal]:
    with tempfile.TemporaryDirectory(prefix="t-") as folder:
        terminal = Terminal(Path(folder))
        try:
            terminal.until(lambda shown: "$" in shown, "a shell")
            yield terminal
        finally:
            with suppress(subprocess.CalledProcessError):  # it has been closed
                terminal.tmux("kill-server")


@pytest.fixture(scope="module")
def terminal() -> Iterator[Terminal]:
    with opened() as terminal:
        yield terminal


def ended(terminal: Terminal, code: int) -> str:
    return terminal.until(lambda shown: f"code {code}\n" in shown, f"it ended with {code}")


def resized(terminal: Terminal, width: int, height: int) -> None:
    """Another size, and the footer on its last line."""
    terminal.tmux("resize-window", "-x", str(width), "-y", str(height))
    terminal.until(lambda shown: "q Quit" in shown.split("\n")[height - 1], f"{width} by {height}")


def back_at_the_table(terminal: Terminal) -> None:
    """Leave whatever a key has opened, as a person would: look, press, look again."""
    deadline_s = time.monotonic() + WAIT_S
    while "of 30 ·" not in (shown := terminal.at_rest()) or any(mark in shown for mark in OVERLAYS):
        assert time.monotonic() < deadline_s, shown
        terminal.keys("Enter" if "shell of" in shown else "2" if "manager" in shown else "Escape")


def opened_by(terminal: Terminal, key: str, sign: str) -> None:
    """Press a key until it is seen what it opens: on a slow machine it may reach what was open before."""
    deadline_s = time.monotonic() + WAIT_S
    while True:
        terminal.keys(tmux_key(key))
        if sign in terminal.at_rest() or sign in terminal.at_rest():
            return
        assert time.monotonic() < deadline_s, f"{key} has not opened {sign!r}\n{terminal.shown()}"
        back_at_the_table(terminal)


def test_it_starts_follows_the_size_takes_every_key_of_its_help_and_quits(terminal: Terminal) -> None:
    before = terminal.settings(), terminal.modes()
    terminal.start()
    assert terminal.modes() != before[1]
    resized(terminal, 130, 40)
    terminal.until(lambda shown: any("Fleet" in line and "Run alfworld" in line for line in shown.splitlines()), "wide")
    resized(terminal, 80, 24)
    terminal.keys("2")
    terminal.until(lambda shown: "LAST ERROR" in shown, "the table")
    asked = [sys.executable, str(HERE / "top_pretended.py"), "--keys"]
    keys = subprocess.run(asked, capture_output=True, text=True, check=True, timeout=WAIT_S).stdout.split()
    assert {"l", "s", "d", "ctrl+d", "slash", "space"} <= set(keys)
    for key in keys:
        if key not in ("q", "ctrl+c", "ctrl+q"):
            if key in OPENS:
                opened_by(terminal, key, OPENS[key])
                back_at_the_table(terminal)
            else:
                terminal.keys(tmux_key(key))
    assert OPENS.keys() <= set(keys)
    terminal.keys("q")
    ended(terminal, 0)
    assert (terminal.settings(), terminal.modes()) == before


@pytest.mark.parametrize("how", ["ctrl-c", "kill"])
def test_after_an_interrupt_the_terminal_is_as_it_was(terminal: Terminal, how: str) -> None:
    before = terminal.settings(), terminal.modes()
    pid = terminal.start()
    if how == "kill":
        os.kill(pid, signal.SIGTERM)
    else:
        terminal.keys("C-c")
    ended(terminal, 0 if how == "kill" else 130)
    assert (terminal.settings(), terminal.modes()) == before


def test_after_an_exception_the_terminal_is_as_it_was_and_no_secret_is_told(terminal: Terminal) -> None:
    before = terminal.settings(), terminal.modes()
    os.kill(terminal.start(), signal.SIGUSR1)
    shown = ended(terminal, 1)
    assert "Unexpected ZeroDivisionError" in shown and "hush-hush" not in shown
    assert (terminal.settings(), terminal.modes()) == before


def test_it_ends_with_its_terminal() -> None:
    with opened() as own:
        pid = own.start()
        own.tmux("kill-server")
        deadline_s = time.monotonic() + WAIT_S
        while psutil.pid_exists(pid):
            assert time.monotonic() < deadline_s, "it goes on without a terminal"
            time.sleep(0.05)
