"""Pages over the main screen: one sandbox, a text, one episode turn by turn."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, ClassVar, cast

from rich.style import Style
from rich.text import Text
from textual import work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import Screen
from textual.widgets import Footer, Sparkline, Static

from rocknroll.dashboard.figures import UNKNOWN
from rocknroll.dashboard.layouts import BAD_EVENTS, clock
from rocknroll.dashboard.snapshot import AlertFacts, Description, Episode, SandboxFacts, Snapshot, Token
from rocknroll.dashboard.source import SourceAway, SourceRefused
from rocknroll.dashboard.text import duration, one_line, plain, size

if TYPE_CHECKING:
    from rocknroll.dashboard.app import Dashboard

LABEL_CHARS = 12
SIGNED = ("advantage", "value")
_BLACK = "rgb(0,0,0)"


class Page(Screen[None]):
    """Scrolls with the keys of a table, and closes with escape."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "app.leave", "Back"),
        Binding("j,down", "scroll(1)", "Down", show=False),
        Binding("k,up", "scroll(-1)", "Up", show=False),
        Binding("g,home", "scroll(-1000000)", "First", show=False),
        Binding("G,end", "scroll(1000000)", "Last", show=False),
    ]

    def action_scroll(self, lines: int) -> None:
        self.query_one(VerticalScroll).scroll_relative(y=lines, animate=False)

    def say(self, place: str, text: Text) -> None:
        """Write it there, unless the page has been left meanwhile."""
        for found in self.query(place).results(Static):
            found.update(text)


class TextPage(Page):
    """A text, fetched again every `interval_s` where it comes from a function; `follow` stays at its end."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("w", "wrap", "Wrap")]

    def __init__(
        self, title: str, text: str | Callable[[], Awaitable[str]], interval_s: float = 1.0, follow: bool = False
    ) -> None:
        super().__init__()
        self._title, self._text, self._interval_s, self._follow = title, text, interval_s, follow
        self._wrapped = True
        self.shown = ""

    def compose(self) -> ComposeResult:
        yield Static(Text(self._title, style="bold"), classes="page-title")
        with VerticalScroll():
            yield Static(id="text")
        yield Footer(show_command_palette=False, compact=True)

    def on_mount(self) -> None:
        if isinstance(self._text, str):
            self._say(self._text)
        else:
            self._fetch()
            self.set_interval(self._interval_s, self._fetch)

    def _fetch(self) -> None:
        """Unless that is under way: what takes longer than the interval would never be done."""
        if not any(worker.group == "text" and not worker.is_finished for worker in self.workers if worker.node is self):
            self._fetch_now()

    @work(group="text")
    async def _fetch_now(self) -> None:
        assert not isinstance(self._text, str)
        try:
            text = await self._text()
        except (SourceAway, SourceRefused) as error:
            self.say(".page-title", Text(f"{self._title}: {one_line(str(error))}", style="bold"))
            return
        if self.query("#text"):  # the page may have been left meanwhile
            self._say(text)

    def _say(self, text: str) -> None:
        text = plain(text)
        if text == self.shown and text:
            return
        self.shown = text
        box = self.query_one(VerticalScroll)
        at_end = box.scroll_y >= box.max_scroll_y
        self.query_one("#text", Static).update(Text(text or "(nothing)", no_wrap=not self._wrapped))
        if self._follow and at_end:
            box.scroll_end(animate=False)

    def action_wrap(self) -> None:
        self._wrapped = not self._wrapped
        text, self.shown = self.shown, ""
        self._say(text)


class SandboxPage(Page):
    """All about one sandbox: facts, use of CPU and memory over the last minute, events, output."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("l", "logs", "Logs"),
        Binding("s", "shell", "Shell"),
        Binding("d", "describe", "Describe"),
        Binding("y", "raw", "Raw", show=False),
        Binding("r", "restart", "Restart"),
        Binding("ctrl+d", "remove", "Remove", show=False),
    ]

    def __init__(self, sandbox_id: str) -> None:
        super().__init__()
        self._named = sandbox_id
        self._facts: SandboxFacts | None = None

    @property
    def dashboard(self) -> Dashboard:
        return cast("Dashboard", self.app)

    def compose(self) -> ComposeResult:
        yield Static(Text(f"Sandbox {one_line(self._named)}", style="bold"), classes="page-title")
        with VerticalScroll():
            yield Static(id="facts")
            yield Static("cpu", classes="curve-label")
            yield Sparkline(id="cpu-curve", summary_function=max)
            yield Static("memory", classes="curve-label")
            yield Sparkline(id="memory-curve", summary_function=max)
            yield Static(id="playing")
            yield Static(id="history")
            yield Static(id="output")
        yield Footer(show_command_palette=False, compact=True)

    def on_mount(self) -> None:
        if self.dashboard.seen is not None:
            self.show(self.dashboard.seen)

    def show(self, seen: Snapshot) -> None:
        """What a snapshot says of it; the rest is fetched."""
        if not self.query("#facts"):  # not there yet, or left
            return
        found = () if seen.fleet is None else seen.fleet.sandboxes
        self._facts = next((one for one in found if one.id == self._named), None)
        place = self.query_one("#facts", Static)
        if self._facts is None:
            place.update(Text("It is not there any more."))
            return
        place.update(facts_text(self._facts, seen.at))
        used = [row[self._named] for row in self.dashboard.used if self._named in row]
        self.query_one("#cpu-curve", Sparkline).data = [cpu for cpu, _ in used]
        self.query_one("#memory-curve", Sparkline).data = [memory for _, memory in used]
        self._fetch()

    def _fetch(self) -> None:
        """Unless that is under way: what takes longer than the interval would never be done."""
        if not any(
            worker.group == "describe" and not worker.is_finished for worker in self.workers if worker.node is self
        ):
            self._fetch_now()

    @work(group="describe")
    async def _fetch_now(self) -> None:
        try:
            description = await self.dashboard.source.describe(self._named)
        except (SourceAway, SourceRefused) as error:
            self.say("#output", Text(one_line(str(error))))
            return
        self.say("#playing", playing_text(description))
        self.say("#history", events_text(description))
        self.say("#output", output_text(description))

    def action_logs(self) -> None:
        self.dashboard.read_logs(self._named)

    def action_describe(self) -> None:
        self.dashboard.read_description(self._named)

    def action_raw(self) -> None:
        self.dashboard.read_raw(self._named)

    def action_shell(self) -> None:
        if self._facts is not None:
            self.dashboard.open_shell(self._facts)

    def action_restart(self) -> None:
        if self._facts is not None:
            self.dashboard.restart([self._facts])

    def action_remove(self) -> None:
        if self._facts is not None:
            self.dashboard.remove([self._facts])


class EpisodePage(Page):
    """One trajectory: what was seen, done and paid, and its tokens coloured by a signal."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("c,right", "signal(1)", "Next signal"),
        Binding("left", "signal(-1)", "Signal before", show=False),
    ]

    def __init__(self, trajectory_id: str, fetch: Callable[[str], Awaitable[Episode]]) -> None:
        super().__init__()
        self._named, self._fetch_one = trajectory_id, fetch
        self._episode: Episode | None = None
        self.signal = ""

    def compose(self) -> ComposeResult:
        yield Static(Text(f"Trajectory {one_line(self._named)}", style="bold"), classes="page-title")
        with VerticalScroll():
            yield Static("reading …", id="episode")
        yield Footer(show_command_palette=False, compact=True)

    def on_mount(self) -> None:
        self._fetch()

    @work(exclusive=True, group="episode")
    async def _fetch(self) -> None:
        try:
            self._episode = await self._fetch_one(self._named)
        except (SourceAway, SourceRefused) as error:
            self.say("#episode", Text(one_line(str(error))))
            return
        # What was computed for this run says more than the probability, which there always is.
        self.signal = next((name for name in ("gamma", "sigma", "advantage") if name in self._episode.signals), "")
        self.signal = self.signal or self._episode.signals[0]
        self._draw()

    def action_signal(self, step: int) -> None:
        if self._episode is not None:
            signals = self._episode.signals
            self.signal = signals[(signals.index(self.signal) + step) % len(signals)]
            self._draw()

    def _draw(self) -> None:
        assert self._episode is not None
        self.say("#episode", episode_text(self._episode, self.signal))


def facts_text(one: SandboxFacts, at: float) -> Text:
    """The sandbox's row, a fact a line."""
    lease = UNKNOWN
    if one.lease is not None:
        lease = f"{one_line(one.lease.owner)} #{one.lease.token}, {duration(one.lease.deadline - at)} left"
    memory = UNKNOWN if one.memory_bytes is None else size(one.memory_bytes)
    if one.memory_limit_bytes is not None:
        memory += f" of {size(one.memory_limit_bytes)}"
    cpu = UNKNOWN if one.cpu is None else f"{one.cpu:.2f} cores"
    rows = {
        "state": one.state if one.since is None else f"{one.state} for {duration(at - one.since)}",
        "pool": f"{one_line(one.pool)} ({one_line(one.image or one.runtime)})",
        "node": f"{one_line(one.node or UNKNOWN)}, pid {one.pid or UNKNOWN}",
        "lease": lease,
        "task": one_line(one.task or UNKNOWN),
        "step": UNKNOWN if one.step is None else str(one.step),
        "idle": UNKNOWN if one.active is None else duration(at - one.active),
        "cpu": cpu if one.cpu_limit is None else f"{cpu} of {one.cpu_limit:g}",
        "memory": memory,
        "restarts": str(one.restarts),
        "last error": one_line(one.last_error or UNKNOWN),
    }
    text = Text()
    for label, value in rows.items():
        text.append(f"{label:{LABEL_CHARS}}", "dim")
        text.append(f"{value}\n")
    return text


def playing_text(description: Description) -> Text:
    """The episode that is played in it, turn by turn, where that is told: sandboxes of `roll train`."""
    if not description.get("begun"):
        return Text()
    text = Text("Playing ", style="bold")
    text.append(f"{one_line(description['task'])}\n", "not bold")
    text.append(f"{plain(description['begun']).strip()}\n", "dim not bold")
    for turn in description["turns"]:
        text.append(f"> {one_line(turn['action'])}", "cyan not bold")
        text.append(f"  {turn['reward']:+g}\n" if turn["reward"] else "\n", "not bold")
        text.append(f"{plain(turn['observation']).strip()}\n", "dim not bold")
    return text


def events_text(description: Description) -> Text:
    """Its newest events, newest first."""
    text = Text("Events", style="bold")
    for event in reversed(description["events"]):
        text.append(f"\n{clock(event['time'])}  ", "dim not bold")
        text.append(f"{one_line(event['kind']):17}", "red not bold" if event["kind"] in BAD_EVENTS else "not bold")
        text.append(one_line(event["detail"]), "not bold")
    return text


def output_text(description: Description) -> Text:
    """What it printed last."""
    text = Text("\nOutput\n", style="bold")
    text.append(plain(description["output"]).rstrip() or "(nothing)", "not bold")
    return text


def description_text(description: Description) -> str:
    """As `rock describe` tells it."""
    lines = [
        f"{key:12} {UNKNOWN if description[key] is None else description[key]}" for key in _ROW if key in description
    ]
    lines += ["", "spec", *(f"  {key:20} {value}" for key, value in description["spec"].items())]
    lines += ["", "events"]
    lines += [f"  {clock(one['time'])}  {one['kind']:17} {one_line(one['detail'])}" for one in description["events"]]
    return "\n".join([*lines, "", "output", description["output"]])


_ROW = ("id", "pool", "state", "runtime", "image", "node", "pid", "restarts", "lease", "last_error")


def raw_text(description: Description) -> str:
    """As the service sent it."""
    return json.dumps(dict(description), indent=2)


def alert_text(alert: AlertFacts) -> str:
    over = "It lasts." if alert.resolved is None else f"It was over at {clock(alert.resolved)}."
    return f"{alert.severity}: {alert.rule} of {alert.subject}, since {clock(alert.since)}. {over}\n\n{alert.text}"


def episode_text(episode: Episode, signal: str) -> Text:
    """Turn by turn; below each action its tokens, coloured by `signal`."""
    facts = episode.facts
    solved = "solved" if facts.success else "not solved"
    text = Text()
    text.append(
        f"{one_line(facts.outcome)}, {solved}, reward {facts.reward:+.2f}, iteration {facts.iteration}\n", "bold"
    )
    text.append(f"task {one_line(facts.task)}, group {one_line(facts.group)}, {facts.tokens} tokens")
    if facts.staleness is not None:
        text.append(f", {facts.staleness} versions behind")
    if episode.timings_s:
        told = ", ".join(f"{one_line(cause)} {s:.2f}" for cause, s in sorted(episode.timings_s.items()))
        text.append(f"\nseconds: {told}")
    if episode.error or facts.cause:
        text.append(f"\nlost to {one_line(facts.cause or 'infrastructure')}: {one_line(episode.error)}", "red")
    text.append(
        f"\ntokens by {signal} (c: {', '.join(name for name in episode.signals if name != signal) or 'no other'})"
    )
    text.append("; * anchor, ^ introduces one\n", "dim")
    for number, turn in enumerate(episode.turns, start=1):
        _say_seen(text, turn.observation)
        text.append(f"{number:>3}> {one_line(turn.action)}", "bold")
        text.append(f"   reward {turn.reward:+.2f}{'' if turn.valid else '  not admitted'}   {turn.spoke}\n     ")
        for token in turn.tokens:
            _say_token(text, token, signal)
        text.append("\n")
    _say_seen(text, episode.rest)
    return text


def _say_seen(text: Text, observation: str) -> None:
    for line in plain(observation).strip().splitlines():
        text.append(f"     | {line}\n", "dim")


def _say_token(text: Text, token: Token, signal: str) -> None:
    value = token.values.get(signal)
    shown = UNKNOWN if value is None else f"{value:+.3f}" if signal in SIGNED else f"{value:.3g}"
    colour = token.colours.get(signal)
    style = Style() if colour is None else Style.parse(f"{_BLACK} on rgb({colour[0]},{colour[1]},{colour[2]})")
    text.append(f"{one_line(token.text)}{token.marks}:{shown}", style)
    text.append(" ")
