"""The pool: what exists against what is wanted, as a state machine under any clock (pure).

Every method takes an event with its time and changes the members; what has to be done about it is
collected as decisions, which the shell (`fleet.py`) takes and carries out. A start or probe that
reports back names its generation, and reports of an instance that was given up meanwhile are ignored.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field

from rocknroll.sandbox.decisions import Decision, Discard, Note, Probe, Revoke, Start
from rocknroll.sandbox.lease import Lease, Tokens, grant, heartbeat
from rocknroll.sandbox.lifecycle import LIVE, Event, State, advance
from rocknroll.sandbox.spec import SandboxSpec

UNAVAILABLE_RETRY_S = 1.0
"""Between two tries while the runtime itself does not answer."""
TRIM_AFTER_S = 30.0
"""An instance more than wanted is kept this long: the next lease may want it."""
REMOVED = "taken out of service by an operator"
SUSPICION_SPEEDUP = 4
"""A SUSPECT sandbox is probed this many times as often, so that doubt ends soon either way."""


@dataclass
class Member:
    """One slot of the pool. Instances come and go in it, counted by `generation`."""

    id: str
    window: int
    state: State = State.STARTING
    generation: int = 0
    lease: Lease | None = None
    in_flight: bool = False
    """A start of this generation was decided and has not reported back."""
    probing: bool = False
    misses: deque[bool] = field(default_factory=deque)
    failures_s: deque[float] = field(default_factory=deque)
    start_after_s: float = 0.0
    probe_at_s: float = 0.0
    since_s: float = 0.0
    restarts: int = 0
    last_error: str = ""
    leaving: bool = False
    """The pool has shrunk: it goes as soon as nobody holds it."""


class Pool:
    """Members of one spec, at most `max_starting` of them starting at once.

    All `size` members are kept up, or with `ready` only as many as are leased or waited for and `ready` beyond them.
    """

    def __init__(
        self,
        spec: SandboxSpec,
        size: int,
        max_starting: int,
        rng: random.Random | None = None,
        tokens: Tokens | None = None,
        ready: int | None = None,
    ) -> None:
        self.spec = spec
        self.tokens = tokens or Tokens()
        self.members: dict[str, Member] = {}
        self.waiting = 0
        """How many wait for a lease; the shell keeps it."""
        self.fatal = ""
        """Why no start of this spec can succeed; empty while there is hope."""
        self._max_starting = max_starting
        self._rng = rng or random.Random()
        self._ever_started = False
        self._excess_since_s: float | None = None
        self._decisions: list[Decision] = []
        self.resize(size, ready, 0.0)

    def resize(self, size: int, ready: int | None, now_s: float) -> None:
        """Another number of members; those that are too many go when nobody holds them."""
        self._size, self._ready = size, ready
        names = [f"{self.spec.name}-{index}" for index in range(size)]
        for name in names:
            self.members.setdefault(name, Member(name, self.spec.health.window, since_s=now_s)).leaving = False
        for member in self.members.values():
            member.leaving = member.id not in names

    def take(self) -> list[Decision]:
        """The decisions since the last call, in order."""
        taken, self._decisions = self._decisions, []
        return taken

    def tick(self, now_s: float) -> None:
        """Do what is due: reclaim expired leases, end back-offs, start, probe, give up what is too many."""
        for member in list(self.members.values()):
            if member.leaving and member.lease is None:
                self._retire(member, now_s)
                continue
            if member.lease is not None and member.lease.expired(now_s):
                self._note(member, "lease_expired", member.lease.owner)
                self._recycle(member, now_s, "its lease expired")
            if member.state is State.DEAD and now_s >= member.start_after_s:
                self._move(member, Event.RESTARTED, now_s)
                member.restarts += 1
            if member.state in LIVE and not member.probing and now_s >= member.probe_at_s:
                member.probing = True
                self._decisions.append(Probe(member.id, member.generation))
        self._trim(now_s)
        starting = sum(member.in_flight for member in self.members.values())
        missing = self._wanted() - self._up()
        for member in self._waiting_for_start(now_s)[: max(0, missing)]:
            if starting >= self._max_starting:
                break
            floor = self.tokens.next()
            starting += 1
            member.generation += 1
            member.in_flight = True
            self._decisions.append(Start(member.id, member.generation, floor))

    def next_wakeup_s(self) -> float | None:
        """When `tick` has something to do if nothing else happens; None: never."""
        times: list[float] = []
        for member in self.members.values():
            if member.lease is not None:
                times.append(member.lease.deadline_s)
            if member.state is State.DEAD:
                times.append(member.start_after_s)
            if member.state in LIVE and not member.probing:
                times.append(member.probe_at_s)
        if self._excess_since_s is not None:
            times.append(self._excess_since_s + TRIM_AFTER_S)
        return min(times, default=None)

    def remember(self, sandbox_id: str, generation: int, restarts: int, last_error: str, quarantined: bool) -> None:
        """What an earlier manager knew of a member, before the first tick. Without `adopt` its instance is gone."""
        member = self.members[sandbox_id]
        member.generation, member.restarts, member.last_error = generation, restarts, last_error
        self._ever_started = self._ever_started or (generation > 0 and not quarantined)
        if quarantined:
            self._move(member, Event.QUARANTINED, 0.0, last_error)

    def adopt(self, sandbox_id: str, lease: Lease | None, now_s: float) -> None:
        """The remembered instance still answers, and `lease` on it is still held."""
        member = self.members[sandbox_id]
        self._ever_started = True
        member.probe_at_s = now_s
        self._move(member, Event.ADOPTED, now_s)
        if lease is not None:
            member.lease = lease
            self._move(member, Event.LEASED, now_s, f"{lease.owner} token={lease.token}, as before")

    def started(self, sandbox_id: str, generation: int, now_s: float) -> bool:
        """A start succeeded; False when nobody waits for that instance any more."""
        member = self.members.get(sandbox_id)
        if member is None or not self._current(member, generation) or not member.in_flight:
            return False
        member.in_flight = False
        member.misses.clear()
        member.probing = False
        member.probe_at_s = now_s + self.spec.health.interval_s * self._rng.uniform(0.5, 1.0)
        self._ever_started = True
        self._move(member, Event.STARTED, now_s)
        return True

    def start_failed(self, sandbox_id: str, generation: int, now_s: float, error: str, permanent: bool = False) -> None:
        """A start failed; a permanent error before any success condemns the whole pool."""
        member = self.members.get(sandbox_id)
        if member is None or not self._current(member, generation) or not member.in_flight:
            return
        member.in_flight = False
        self._fail(member, Event.START_FAILED, now_s, error)
        if permanent and not self._ever_started:
            self.fatal = error
            for other in self.members.values():
                if other.state is State.STARTING and not other.in_flight:
                    self._move(other, Event.START_FAILED, now_s)
                if other.state is State.DEAD:
                    other.last_error = error
                    self._move(other, Event.QUARANTINED, now_s)

    def unavailable(self, sandbox_id: str, generation: int, now_s: float, error: str) -> None:
        """The runtime does not answer (its daemon restarts, say): no failure of the slot, and tried for ever.

        Before any success it condemns the pool.
        """
        member = self.members.get(sandbox_id)
        if not self._ever_started:
            self.start_failed(sandbox_id, generation, now_s, error, permanent=True)
        elif member is not None and self._current(member, generation) and member.in_flight:
            member.in_flight = False
            member.last_error = error
            member.start_after_s = now_s + UNAVAILABLE_RETRY_S
            self._move(member, Event.START_FAILED, now_s, error)

    def explained(self, sandbox_id: str, generation: int, why: str) -> None:
        """Why an instance that was lost ended; learnt when its successor may be starting already."""
        member = self.members.get(sandbox_id)
        if member is not None and member.generation - generation in (0, 1) and member.last_error:
            member.last_error = f"{member.last_error}; {why}"
            self._note(member, "autopsy", why)

    def lost(self, sandbox_id: str, generation: int, now_s: float, reason: str) -> None:
        """The process of an instance is gone, or its channel closed."""
        member = self.members.get(sandbox_id)
        if member is not None and self._current(member, generation) and member.state in LIVE:
            self._lose(member, now_s, reason)

    def spent(self, sandbox_id: str, generation: int, now_s: float, kind: str, reason: str) -> None:
        """The work inside ended badly (a hung or crashed environment): a fresh instance, without blaming the slot."""
        member = self.members.get(sandbox_id)
        if member is not None and self._current(member, generation) and member.state in LIVE:
            member.last_error = reason
            self._note(member, kind, reason)
            self._recycle(member, now_s, reason)

    def probed(self, sandbox_id: str, generation: int, ok: bool, now_s: float) -> None:
        """One missed probe makes SUSPECT, never DEAD; `failures` of the last `window` make DEAD."""
        member = self.members.get(sandbox_id)
        if member is None or not self._current(member, generation) or member.state not in LIVE:
            return
        health = self.spec.health
        member.probing = False
        member.misses.append(not ok)
        while len(member.misses) > health.window:
            member.misses.popleft()
        if not ok and sum(member.misses) >= health.failures:
            self._lose(member, now_s, f"missed {sum(member.misses)} of its last {len(member.misses)} probes")
            return
        if not ok:
            self._move(member, Event.PROBE_MISSED, now_s)
        elif member.state is State.SUSPECT:
            self._move(member, Event.RECOVERED_LEASED if member.lease else Event.RECOVERED_IDLE, now_s)
        wait_s = health.interval_s if ok else health.interval_s / SUSPICION_SPEEDUP
        member.probe_at_s = now_s + wait_s

    def grant(self, owner: str, ttl_s: float, now_s: float, sandbox_id: str | None = None) -> Lease | None:
        """Lease the sandbox that has been READY for longest, or the named one; None when there is none."""
        ready = [member for member in self.members.values() if member.state is State.READY and not member.leaving]
        ready = [member for member in ready if sandbox_id in (None, member.id)]
        if not ready:
            return None
        member = min(ready, key=lambda candidate: candidate.since_s)
        member.lease = grant(self.tokens, member.id, owner, ttl_s, now_s)
        self._move(member, Event.LEASED, now_s, f"{owner} token={member.lease.token}")
        return member.lease

    def heartbeat(self, sandbox_id: str, token: int, now_s: float, ttl_s: float | None = None) -> Lease:
        """Extend a lease.

        Raises:
            LeaseLost: the token does not hold it any more.
        """
        member = self.members.get(sandbox_id)
        extended = heartbeat(None if member is None else member.lease, token, now_s, ttl_s)
        assert member is not None
        member.lease = extended
        return extended

    def release(self, sandbox_id: str, token: int, now_s: float, recycle: bool) -> None:
        """End a lease by its holder; `recycle` (or a spec that says fresh) gives the instance up.

        Raises:
            LeaseLost: the token does not hold it any more.
        """
        member = self.members.get(sandbox_id)
        heartbeat(None if member is None else member.lease, token, now_s)
        assert member is not None
        if recycle or self.spec.reuse == "fresh":
            member.lease = None
            self._recycle(member, now_s, "recycled by its holder" if recycle else "reuse is fresh")
        else:
            member.lease = None
            self._move(member, Event.RELEASED, now_s)

    def restart(self, sandbox_id: str, now_s: float) -> None:
        """An operator's wish: a fresh instance, out of quarantine if need be."""
        member = self.members[sandbox_id]
        self.fatal = ""
        member.failures_s.clear()
        if member.state in LIVE:
            self._recycle(member, now_s, "restarted by an operator")
        elif member.state in (State.QUARANTINED, State.DEAD):
            self._move(member, Event.RESTARTED, now_s)
            member.restarts += 1

    def remove(self, sandbox_id: str, now_s: float) -> None:
        """An operator's wish: it ends, and its place stays empty until a restart."""
        member = self.members[sandbox_id]
        self._give_up(member, REMOVED)
        member.last_error = REMOVED
        self._move(member, Event.REMOVED, now_s)

    def stop(self, now_s: float) -> None:
        """Everything ends; leases are revoked, instances discarded."""
        for member in self.members.values():
            if member.state is not State.STOPPED:
                self._give_up(member, "the fleet is closing")
                self._move(member, Event.STOPPED, now_s)

    def failures(self, now_s: float) -> dict[str, int]:
        """How often each member failed within its restart window; those that did not are left out."""
        begin_s = now_s - self.spec.restart.window_s
        counts = {member.id: sum(at_s > begin_s for at_s in member.failures_s) for member in self.members.values()}
        return {sandbox_id: count for sandbox_id, count in counts.items() if count}

    def exhausted(self) -> str:
        """Why no member can ever be READY again; empty while one can."""
        if any(member.state not in (State.QUARANTINED, State.STOPPED) for member in self.members.values()):
            return ""
        errors = [member.last_error for member in self.members.values() if member.last_error]
        return self.fatal or (errors[-1] if errors else "every sandbox is stopped")

    def _wanted(self) -> int:
        """How many instances there should be now."""
        if self._ready is None:
            return len(self.members)
        leased = sum(member.lease is not None for member in self.members.values())
        return min(self._size, leased + self.waiting + self._ready)

    def _up(self) -> int:
        """How many there are, or will be once they have started."""
        return sum(member.in_flight or member.state in LIVE for member in self.members.values())

    def _trim(self, now_s: float) -> None:
        """Give up idle instances beyond what is wanted, once they have been too many for a while."""
        excess = self._up() - self._wanted()
        idle = [member for member in self.members.values() if member.state is State.READY]
        if excess <= 0 or not idle:
            self._excess_since_s = None
        elif self._excess_since_s is None:
            self._excess_since_s = now_s
        elif now_s >= self._excess_since_s + TRIM_AFTER_S:
            for member in sorted(idle, key=lambda candidate: candidate.since_s)[:excess]:
                self._recycle(member, now_s, "more than wanted")
            self._excess_since_s = None

    def _retire(self, member: Member, now_s: float) -> None:
        self._give_up(member, "the pool has shrunk")
        self._move(member, Event.STOPPED, now_s)
        del self.members[member.id]

    def _waiting_for_start(self, now_s: float) -> list[Member]:
        waiting = [
            m for m in self.members.values() if m.state in (State.STARTING, State.RESTARTING) and not m.in_flight
        ]
        return sorted(waiting, key=lambda member: member.since_s)

    def _current(self, member: Member, generation: int) -> bool:
        return member.generation == generation

    def _lose(self, member: Member, now_s: float, reason: str) -> None:
        self._give_up(member, reason, lost=True)
        self._fail(member, Event.LOST, now_s, reason)

    def _recycle(self, member: Member, now_s: float, reason: str) -> None:
        self._give_up(member, reason)
        self._move(member, Event.RECYCLED, now_s, reason)

    def _give_up(self, member: Member, reason: str, lost: bool = False) -> None:
        if member.lease is not None:
            self._decisions.append(Revoke(member.lease, reason))
            member.lease = None
        if member.state in LIVE or member.in_flight:
            self._decisions.append(Discard(member.id, member.generation, lost))
        member.in_flight = False

    def _fail(self, member: Member, event: Event, now_s: float, reason: str) -> None:
        policy = self.spec.restart
        member.last_error = reason
        member.failures_s.append(now_s)
        while member.failures_s and member.failures_s[0] <= now_s - policy.window_s:
            member.failures_s.popleft()
        self._move(member, event, now_s, reason)
        if len(member.failures_s) >= policy.limit:
            self._move(member, Event.QUARANTINED, now_s, f"{len(member.failures_s)} failures in {policy.window_s:g} s")
            return
        member.start_after_s = now_s + self._backoff_s(len(member.failures_s))

    def _backoff_s(self, failures: int) -> float:
        policy = self.spec.restart
        if failures <= 1:
            return 0.0
        wait_s = min(policy.backoff_limit_s, policy.backoff_s * 2.0 ** min(failures - 2, 60))
        return wait_s * (1.0 - policy.jitter * self._rng.random())

    def _move(self, member: Member, event: Event, now_s: float, detail: str = "") -> None:
        member.state = advance(member.state, event)
        member.since_s = now_s
        self._note(member, event.value, detail)

    def _note(self, member: Member, kind: str, detail: str = "") -> None:
        self._decisions.append(Note(member.id, kind, detail))
