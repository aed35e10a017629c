"""Redundant groups: of n members that do the same work, the first m to finish win (pure).

Every method takes an event with its time; what has to be done about it is collected as decisions,
which the shell (`race.py`) takes and carries out. Members that die, or are found slow by
`slowness.py`, are replaced while that helps. Invariants: at most n members run at a time; every member
that was launched and neither won nor died is cancelled exactly once; a group that is over decides nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from rocknroll.sandbox.errors import SpecInvalid


class Fate(StrEnum):
    """What became of a member."""

    RUNNING = "running"
    WON = "won"
    DIED = "died"
    CANCELLED = "cancelled"


class Outcome(StrEnum):
    OPEN = "open"
    WON = "won"
    FAILED = "failed"


@dataclass(frozen=True)
class Launch:
    """Give this member a sandbox of its own and let it work."""

    member: int


@dataclass(frozen=True)
class Cancel:
    """Stop this member and recycle its sandbox."""

    member: int
    reason: str


Decision = Launch | Cancel


class Group:
    """`size` members of which the first `wanted` to finish win.

    `replacements`: how many members may be launched beyond the first `size`; None is `size`, so that a group whose
    every member dies twice gives up. `deadline_s`: the group has failed at this time; None: never.

    Raises:
        SpecInvalid: more winners than members, or none.
    """

    def __init__(
        self, size: int, wanted: int, replacements: int | None = None, deadline_s: float | None = None
    ) -> None:
        if not 1 <= wanted <= size:
            raise SpecInvalid(f"of a group of {size}, {wanted} members cannot win; it takes 1 to {size}")
        self.size, self.wanted, self.deadline_s = size, wanted, deadline_s
        self.fates: dict[int, Fate] = {}
        self.winners: list[int] = []
        """In the order in which they finished."""
        self.outcome = Outcome.OPEN
        self.reason = ""
        """Why it failed; empty otherwise."""
        self._replacements = size if replacements is None else replacements
        self._last_loss = ""
        self._decisions: list[Decision] = []

    @property
    def running(self) -> list[int]:
        return [member for member, fate in self.fates.items() if fate is Fate.RUNNING]

    def take(self) -> list[Decision]:
        """The decisions since the last call, in order."""
        taken, self._decisions = self._decisions, []
        return taken

    def start(self, now_s: float) -> None:
        """Launch the first members; once."""
        if not self.fates:
            for _ in range(self.size):
                self._launch()
            self.tick(now_s)

    def tick(self, now_s: float) -> None:
        """Fail at the deadline."""
        if self.outcome is Outcome.OPEN and self.deadline_s is not None and now_s >= self.deadline_s:
            self._fail("the deadline has passed")

    def finished(self, member: int, now_s: float) -> bool:
        """A member did its work; True when that counts, which it does not after the deadline or its cancellation."""
        self.tick(now_s)
        if not self._runs(member):
            return False
        self.fates[member] = Fate.WON
        self.winners.append(member)
        if len(self.winners) == self.wanted:
            self.outcome = Outcome.WON
            self._cancel_all("others were faster")
        return True

    def died(self, member: int, now_s: float, reason: str) -> None:
        """A member was lost to its sandbox, not to its work: another one is launched in its place."""
        self.tick(now_s)
        if self._runs(member):
            self.fates[member] = Fate.DIED
            self._last_loss = reason
            self._replace()

    def suspected(self, member: int, now_s: float, reason: str) -> None:
        """A member is slow: it is replaced, unless there is nobody left to replace it with."""
        self.tick(now_s)
        if self._runs(member) and self._replacements:
            self._cancel(member, reason)
            self._replace()

    def abandon(self, reason: str) -> None:
        """Nothing can come of it any more."""
        if self.outcome is Outcome.OPEN:
            self._fail(reason)

    def _runs(self, member: int) -> bool:
        return self.outcome is Outcome.OPEN and self.fates.get(member) is Fate.RUNNING

    def _launch(self) -> None:
        member = len(self.fates)
        self.fates[member] = Fate.RUNNING
        self._decisions.append(Launch(member))

    def _replace(self) -> None:
        if self._replacements:
            self._replacements -= 1
            self._launch()
        elif len(self.running) + len(self.winners) < self.wanted:
            lost = sum(fate is Fate.DIED for fate in self.fates.values())
            self._fail(f"{lost} members died, the last one because: {self._last_loss}")

    def _cancel(self, member: int, reason: str) -> None:
        self.fates[member] = Fate.CANCELLED
        self._decisions.append(Cancel(member, reason))

    def _cancel_all(self, reason: str) -> None:
        # A member whose launch nobody has seen yet needs neither a launch nor a cancellation.
        unseen = {decision.member for decision in self._decisions if isinstance(decision, Launch)}
        self._decisions = [decision for decision in self._decisions if not isinstance(decision, Launch)]
        for member in self.running:
            if member in unseen:
                self.fates[member] = Fate.CANCELLED
            else:
                self._cancel(member, reason)

    def _fail(self, reason: str) -> None:
        self.outcome = Outcome.FAILED
        self.reason = f"{len(self.winners)} of {self.wanted} wanted members finished; {reason}"
        self._cancel_all(reason)
