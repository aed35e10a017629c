"""The application: a worker polls the source and posts what it saw; screens draw it and never wait for anything.

State that is shown comes from `Seen` messages alone. While nobody answers, the last state stays on the screen, greyed
and said to be old, and the poller goes on trying.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import ClassVar

import typer
from rich.text import Text
from textual import on, work
from textual.app import App, ComposeResult, SuspendNotSupported
from textual.binding import Binding, BindingType
from textual.filter import LineFilter
from textual.message import Message
from textual.widgets import ContentSwitcher, Footer, Input, Static
from textual.worker import WorkerFailed

from rocknroll.dashboard.ascii_filter import AsciiFilter
from rocknroll.dashboard.dialogs import ColumnPicker, Confirm, Help, KeyLine
from rocknroll.dashboard.grid import Grid
from rocknroll.dashboard.pages import SandboxPage, TextPage, description_text, raw_text
from rocknroll.dashboard.prompt import Prompt
from rocknroll.dashboard.snapshot import SandboxFacts, Snapshot
from rocknroll.dashboard.source import Source, SourceAway, SourceRefused
from rocknroll.dashboard.text import duration, one_line
from rocknroll.dashboard.verdict import Level, Verdict, judge
from rocknroll.dashboard.view import View, say
from rocknroll.dashboard.views import VIEWS
from rocknroll.sandbox.cli.exit_codes import ExitCode

HISTORY = 60
"""Snapshots of which the use of CPU and memory is kept, for a sandbox's own page."""
NARROW, WIDE = 0, 110
HUNG_UP_S = 2
"""To end in order after the terminal has gone; then the kernel ends it."""
NOTICE_S = 6.0
NOT_TYPED = "super+"
"""Keys of desktop terminals that most others cannot send."""


class Seen(Message):
    """A look that succeeded."""

    def __init__(self, snapshot: Snapshot, verdict: Verdict) -> None:
        self.snapshot, self.verdict = snapshot, verdict
        super().__init__()


class Lost(Message):
    """A look that failed: nobody answers, or what answers cannot be shown."""

    def __init__(self, why: str, at: float) -> None:
        self.why, self.at = why, at
        super().__init__()


class Dashboard(App[None]):
    """`clock` is only asked how old the last state is while nobody answers."""

    CSS_PATH = "style.tcss"
    TITLE = "rock top"
    HORIZONTAL_BREAKPOINTS = [(NARROW, "-narrow"), (WIDE, "-wide")]  # noqa: RUF012 (as Textual declares it)
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("slash", "filter", "Filter", key_display="/"),
        Binding("colon", "jump", "Jump", key_display=":"),
        Binding("question_mark", "keys", "Keys", key_display="?"),
        Binding("escape", "leave", "Back", show=False),
        Binding("q", "quit", "Quit"),
        Binding("ctrl+c", "interrupt", "Quit", show=False, priority=True),
        *(
            Binding(str(number), f"view('{name}')", f"{name.capitalize()}", show=False)
            for number, name in enumerate(VIEWS, start=1)
        ),
    ]

    def __init__(
        self,
        source: Source,
        *,
        ascii_only: bool = False,
        theme: str | None = None,
        interval_s: float = 1.0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__()
        self.source = source
        self.seen: Snapshot | None = None
        self.verdict: Verdict | None = None
        self.away = ""
        self.used: deque[dict[str, tuple[float, float]]] = deque(maxlen=HISTORY)
        """(cores, bytes) of each sandbox, one entry a snapshot."""
        self.interrupted = False
        self.failure: BaseException | None = None
        self._interval_s, self._clock = interval_s, clock
        self._ascii = [AsciiFilter()] if ascii_only else []
        if theme is not None:
            self.theme = theme

    def compose(self) -> ComposeResult:
        yield Static(id="verdict")
        yield Static(id="tabs")
        with ContentSwitcher(initial="overview", id="views"):
            for name, make in VIEWS.items():
                yield make(name)
        yield Prompt()
        yield Footer(show_command_palette=False, compact=True)

    def on_mount(self) -> None:
        self.action_view("overview")
        self._say_verdict()
        self.poll()

    def get_line_filters(self) -> Sequence[LineFilter]:
        return [*super().get_line_filters(), *self._ascii]

    @property
    def view(self) -> View:
        """The one that is shown."""
        switcher = self.screen_stack[0].query_one("#views", ContentSwitcher)
        return switcher.get_child_by_id(switcher.current or "overview", View)

    @work(exclusive=True, group="poll")
    async def poll(self) -> None:
        """Look, post what was seen, wait, for ever. Answers that come late delay the next look."""
        while True:
            try:
                seen = await self.source.snapshot()
            except (SourceAway, SourceRefused) as error:
                self.post_message(Lost(str(error), self._clock()))
            else:
                self.post_message(Seen(seen, judge(seen)))
            await asyncio.sleep(self._interval_s)

    @on(Seen)
    def _take(self, message: Seen) -> None:
        if self.away:
            self.notify("The manager answers again.", timeout=NOTICE_S, markup=False)
        self.seen, self.verdict, self.away = message.snapshot, message.verdict, ""
        self._remember_use(message.snapshot)
        self._show()

    @on(Lost)
    def _miss(self, message: Lost) -> None:
        self.away = one_line(message.why)
        if self.seen is None:
            self.seen = Snapshot(message.at, away=self.away)
        self.verdict = Verdict(Level.DOWN, (self._old(message.at),))
        self._show()

    def _old(self, at: float) -> str:
        if self.seen is None or (self.seen.fleet is None and self.seen.run is None):
            return self.away
        return f"nobody answers; what is shown is {duration(at - self.seen.at)} old. {self.away}"

    def _remember_use(self, seen: Snapshot) -> None:
        if seen.fleet is not None:
            self.used.append({one.id: (one.cpu or 0.0, float(one.memory_bytes or 0)) for one in seen.fleet.sandboxes})

    def _show(self) -> None:
        """Draw what is known on whatever is shown. What arrives while the application ends is not drawn any more."""
        if self.seen is None or not self.is_running:
            return
        self.screen_stack[0].set_class(bool(self.away), "away")
        self._say_verdict()
        self.view.show(self.seen)
        for screen in self.screen_stack:
            if isinstance(screen, SandboxPage):
                screen.show(self.seen)

    def _say_verdict(self) -> None:
        line = self.screen_stack[0].query_one("#verdict", Static)
        for level in Level:
            line.set_class(self.verdict is not None and self.verdict.level is level, str(level))
        say(line, "looking …" if self.verdict is None else str(self.verdict))
        tabs = Text()
        for number, name in enumerate(VIEWS, start=1):
            tabs.append(f"{number} {name.capitalize()}", "reverse" if name == self.view.id else "")
            tabs.append(" ")
        say(self.screen_stack[0].query_one("#tabs", Static), tabs)

    def action_view(self, name: str) -> None:
        """Show one of the views, with what is known."""
        while len(self.screen_stack) > 1:
            self.pop_screen()
        switcher = self.screen_stack[0].query_one("#views", ContentSwitcher)
        switcher.current = name
        self.view.focus_content()
        self._show()

    def action_filter(self) -> None:
        if len(self.screen_stack) == 1 and self.view.grid is not None:
            self._prompt("filter", self.view.grid.listing.filter, [])

    def action_jump(self) -> None:
        self.action_view(self.view.id or "overview")
        self._prompt("jump", "", [*VIEWS, "quit"])

    def action_keys(self) -> None:
        lines: dict[tuple[str, str], list[tuple[str, str]]] = {}
        for key, active in self.screen.active_bindings.items():
            if active.enabled and active.binding.description and not key.startswith(NOT_TYPED):
                shown = self.get_key_display(active.binding)
                lines.setdefault((active.binding.action, active.binding.description), []).append((key, shown))
        self.push_screen(
            Help([KeyLine(tuple(keys), description) for (_, description), keys in lines.items()], self.source.title)
        )

    def action_leave(self) -> None:
        """Undo one thing: a page, a filter, marks, a view."""
        grid = self.view.grid
        if len(self.screen_stack) > 1:
            self.pop_screen()
        elif grid is not None and grid.listing.filter:
            grid.set_filter("")
        elif grid is not None and grid.listing.marks:
            grid.clear_marks()
        else:
            self.action_view("overview")

    def action_interrupt(self) -> None:
        """Ctrl-C: end, and say so by the exit code."""
        self.interrupted = True
        self.exit()

    def _prompt(self, purpose: str, value: str, choices: Sequence[str]) -> None:
        self.screen_stack[0].query_one(Prompt).open(purpose, value, choices)

    @on(Input.Changed, "#prompt")
    def _typed(self, event: Input.Changed) -> None:
        prompt = self.screen_stack[0].query_one(Prompt)
        if prompt.purpose == "filter" and self.view.grid is not None:
            self.view.grid.set_filter(event.value)

    @on(Input.Submitted, "#prompt")
    def _entered(self, event: Input.Submitted) -> None:
        prompt = self.screen_stack[0].query_one(Prompt)
        purpose, word = prompt.purpose, event.value.strip().casefold()
        prompt.close()
        self.view.focus_content()
        if purpose != "jump" or not word:
            return
        found = [name for name in (*VIEWS, "quit") if name.startswith(word)]
        if not found:
            self.complain(f"there is no view {event.value.strip()!r}; there are: {', '.join(VIEWS)}")
        elif found[0] == "quit":
            self.exit()
        else:
            self.action_view(found[0])

    @on(Prompt.Dismissed)
    def _dismissed(self, event: Prompt.Dismissed) -> None:
        if event.purpose == "filter" and self.view.grid is not None:
            self.view.grid.set_filter("")
        self.view.focus_content()

    @on(Grid.ColumnsWanted)
    def _pick_columns(self, event: Grid.ColumnsWanted) -> None:
        grid = event.grid

        def chosen(keys: Sequence[str] | None) -> None:
            if keys is not None:
                grid.set_columns(keys)

        shown = {column.key for column in grid.listing.columns}
        choices = [(column.key, column.title, column.key in shown) for column in grid.listing.layout.columns[1:]]
        self.push_screen(ColumnPicker(choices), chosen)

    def open_sandbox(self, one: SandboxFacts) -> None:
        """Its own page."""
        page = SandboxPage(one.id)
        self.push_screen(page)
        if self.seen is not None:
            page.show(self.seen)

    def read_logs(self, sandbox_id: str) -> None:
        """What it prints, as it comes."""
        self._read(f"Output of {one_line(sandbox_id)}", lambda: self.source.logs(sandbox_id), follow=True)

    def read_description(self, sandbox_id: str) -> None:
        """As `rock describe` tells it."""

        async def fetch() -> str:
            return description_text(await self.source.describe(sandbox_id))

        self._read(f"Description of {one_line(sandbox_id)}", fetch)

    def read_raw(self, sandbox_id: str) -> None:
        """As the service sends it."""

        async def fetch() -> str:
            return raw_text(await self.source.describe(sandbox_id))

        self._read(f"JSON of {one_line(sandbox_id)}", fetch)

    def show_group(self, group_id: str) -> None:
        """The trajectories of a group."""
        self.action_view("trajectories")
        if self.view.grid is not None:
            self.view.grid.set_filter(group_id)

    def _read(self, title: str, fetch: Callable[[], Awaitable[str]], follow: bool = False) -> None:
        self.push_screen(TextPage(title, fetch, self._interval_s, follow))

    def restart(self, chosen: Sequence[SandboxFacts]) -> None:
        """Restart them; ask first when somebody would lose a lease by it."""
        held = [one for one in chosen if one.lease is not None]
        if held:
            names = ", ".join(f"{one_line(one.id)} ({one_line(one.lease.owner)})" for one in held if one.lease)
            self._confirm(f"Restart {_names(chosen)}? Leases are lost: {names}.", "restart", chosen)
        else:
            self._act("restart", chosen)

    def remove(self, chosen: Sequence[SandboxFacts]) -> None:
        """Take them out of service, once that is confirmed."""
        question = f"Remove {_names(chosen)}? They end, leases on them are lost, and their places stay empty until `r`."
        self._confirm(question, "remove", chosen)

    def open_shell(self, one: SandboxFacts) -> None:
        """Leave the terminal to a shell in the sandbox, and come back when it ends."""
        try:
            command = self.source.shell_command(one.id)
            with self.suspend(), _interrupts_ignored():
                code = subprocess.run(command, check=False).returncode
                if code == ExitCode.NOT_RUN:
                    input("No shell was opened. Press Enter to go back to the dashboard.")
        except SourceRefused as refused:
            self.complain(str(refused))
        except SuspendNotSupported:
            self.complain("this terminal cannot be lent to a shell; run `rock shell ID` in another")

    def complain(self, text: str) -> None:
        """Tell the person in front that something was not done."""
        self.notify(one_line(text), severity="error", timeout=NOTICE_S, markup=False)

    def _confirm(self, question: str, action: str, chosen: Sequence[SandboxFacts]) -> None:
        def answered(yes: bool | None) -> None:
            if yes:
                self._act(action, chosen)

        self.push_screen(Confirm(question), answered)

    @work(group="actions")
    async def _act(self, action: str, chosen: Sequence[SandboxFacts]) -> None:
        work_on = {"restart": self.source.restart, "remove": self.source.remove}[action]
        for one in chosen:
            try:
                await work_on(one.id)
            except (SourceAway, SourceRefused) as error:
                self.complain(f"{one.id}: {error}")
                return
        done = {"restart": "Restarting", "remove": "Removed"}[action]
        self.notify(f"{done} {_names(chosen)}.", timeout=NOTICE_S, markup=False)

    def _handle_exception(self, error: Exception) -> None:
        self.failure = self.failure or (error.error if isinstance(error, WorkerFailed) else error)
        super()._handle_exception(error)

    def _fatal_error(self) -> None:
        """End without a word: `run_dashboard` raises the error. Textual would print all local variables with it."""
        self._close_messages_no_wait()


def run_dashboard(source: Source, *, ascii_only: bool, theme: str | None, interval_s: float) -> None:
    """The application on this terminal until it is left, which is then as it was.

    Raises:
        KeyboardInterrupt: it was left by Ctrl-C.
    """
    app = Dashboard(source, ascii_only=ascii_only, interval_s=interval_s)
    if theme is not None and theme not in app.available_themes:
        raise typer.BadParameter(f"there is no theme {theme!r}; there are: {', '.join(sorted(app.available_themes))}")
    if theme is not None:
        app.theme = theme
    asyncio.run(_run(app))
    if app.failure is not None:
        raise app.failure
    if app.interrupted:
        raise KeyboardInterrupt("The fleet goes on without the dashboard.")


async def _run(app: Dashboard) -> None:
    """Run it; a signal to end leaves it in order, so that the terminal is given back."""

    def end(interrupted: bool) -> None:
        app.interrupted = app.interrupted or interrupted
        app.exit()

    def hung_up(number: int, frame: object) -> None:
        """The terminal is gone. Textual may wait for ever for what cannot be written there any more."""
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(HUNG_UP_S)
        loop.call_soon_threadsafe(end, False)

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, end, number == signal.SIGINT)
    before = signal.signal(signal.SIGHUP, hung_up)
    try:
        await app.run_async()
    finally:
        signal.signal(signal.SIGHUP, before)
        await app.source.close()


@contextlib.contextmanager
def _interrupts_ignored() -> Iterator[None]:
    """Ctrl-C is the shell's meanwhile; a handler, because children would inherit that it is ignored."""
    before = signal.signal(signal.SIGINT, lambda number, frame: None)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _names(chosen: Sequence[SandboxFacts]) -> str:
    return one_line(", ".join(one.id for one in chosen), 60)
