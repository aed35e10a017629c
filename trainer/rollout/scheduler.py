"""Which episode plays next, and which groups make the next batch: a pure state machine.

It owns no task, client or clock: the shell (`loop.py`) tells it what happened, carries out what it says in
`drain`, and journals `state_dict`; the simulator drives the same class. Invariants: a group is handed out for
training once, whole, and never staler than ⌈α⌉; what can no longer be trained on is cut off as soon as that is
certain, so no complete group is ever thrown away for its age; a group that has lost often enough has a place
reserved; every admitted group is consumed, or reported as filtered or dropped.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from rocknroll.envs.text import Task
from rocknroll.trainer.rollout.events import (
    Aborted,
    BatchTaken,
    Episode,
    Event,
    Failed,
    GroupDropped,
    GroupFiltered,
    GroupRequeued,
    Kept,
    Started,
    Surplus,
    Why,
)
from rocknroll.trainer.rollout.open_group import Candidate, OpenGroup, Playing
from rocknroll.trainer.rollout.placement import Placement
from rocknroll.trainer.rollout.rounds import next_kind, round_of
from rocknroll.trainer.rollout.scheduler_options import SchedulerOptions
from rocknroll.trainer.trajectory import Group, Outcome, Trajectory

__all__ = ["Batch", "Order", "Scheduler", "SchedulerOptions"]


class Order(Protocol):
    """An endless sequence of tasks, the same in every run with the same seed."""

    def __getitem__(self, index: int, /) -> Task: ...


@dataclass(frozen=True)
class Batch:
    """Groups handed out for training; `index` is the policy version that trains on them."""

    index: int
    groups: tuple[Group, ...]


class Scheduler:
    """Admits groups in task order, paces them by version, collects their members into batches."""

    def __init__(self, order: Order, options: SchedulerOptions) -> None:
        self._order = order
        self.options = options
        self._pacing = options.pacing
        self._placement = Placement(options.engines, options.replicate_prompts)
        self._version = 0
        self._reached = 0
        """The latest version so far. After a restore the learner may be behind it, and nothing starts until it is
        there again: what is in flight was admitted to start with it, and would be too old with an earlier one."""
        self._may_go_back = False
        self._batch = 0
        self._round = round_of(next_kind(0, 0, options), options)
        self._next_index = 0
        self._open: dict[int, OpenGroup] = {}
        """In order of admission."""
        self._complete: list[int] = []
        """Indices of the complete ones, in order of completion."""
        self._waiting: deque[Candidate] = deque()
        """Groups that lost a race, in order of losing it (under tail batching: the long queue)."""
        self._queue: deque[tuple[int, int]] = deque()
        """(group, member) of the open groups that start next."""
        self._filtered_for_batch = 0
        self._totals: Counter[str] = Counter()
        self._events: list[Event] = []

    @property
    def version(self) -> int:
        """Policy version that the engines play with."""
        return self._version

    @property
    def batches_taken(self) -> int:
        """Batches handed out so far, which is the index of the one being collected."""
        return self._batch

    def on_version(self, version: int) -> None:
        """The learner published new weights. After a restore it may begin with an older version, once.

        Raises:
            ValueError: the version went back, or no batch was taken for it.
        """
        if version < self._version and not self._may_go_back:
            raise ValueError(f"policy version went back from {self._version} to {version}")
        if version > self._batch:
            raise ValueError(f"policy version {version} cannot exist: only {self._batch} batches were taken")
        self._may_go_back = False
        self._version = version
        self._reached = max(self._reached, version)
        self._settle()

    def next_episode(self) -> Episode | None:
        """The episode to start in a free slot, or None while nothing may start."""
        if self._version < self._pacing.front(self._reached, self._batch):
            return None
        if not self._queue and not self._admit():
            return None
        index, member = self._queue.popleft()
        group = self._open[index]
        episode = group.episode(member, self._placement.start(group.engine))
        group.playing[member] = Playing(episode, self._version)
        self._events.append(Started(episode, self._version))
        return episode

    def finished(self, episode: Episode, trajectory: Trajectory) -> None:
        """Record how an episode ended."""
        group = self._open.get(episode.group)
        playing = group.playing.get(episode.member) if group is not None else None
        if group is None or playing is None or playing.episode.attempt != episode.attempt:
            self._events.append(Surplus(episode))
            return
        del group.playing[episode.member]
        self._placement.end(playing.episode.engine)
        if trajectory.outcome in (Outcome.COMPLETED, Outcome.TRUNCATED):
            self._keep(group, playing.episode, trajectory)
        elif trajectory.outcome is Outcome.ABORTED:
            self._events.append(Aborted(playing.episode, Why.INTERRUPTED))
            self._play_again(group, episode.member)
        else:
            self._fail(group, playing.episode, trajectory)
        self._settle()

    def ready_groups(self) -> tuple[Group, ...]:
        """The complete groups of the batch being collected, in order of completion.

        Raises:
            ValueError: the run is asynchronous, so which batch a group belongs to is decided when one is taken.
        """
        if self.options.async_ratio:
            raise ValueError("groups are handed out before their batch in synchronous runs only (async_ratio 0)")
        return tuple(self._open[index].as_group(self._round.kind) for index in self._complete)

    def take_batch(self) -> Batch | None:
        """The groups to train on now, those due first at the front, or None while one that belongs in is unfinished."""
        if len(self._complete) < self.options.num_groups:
            return None
        by_age = sorted(self._complete, key=lambda index: (self._due(self._open[index]), index))
        taken, left = by_age[: self.options.num_groups], by_age[self.options.num_groups :]
        reserved = [self._due(g) for g in self._unfinished() if g.losses >= self._round.max_losses]
        if self._pacing.must_wait(reserved, [self._due(self._open[index]) for index in left], self._batch):
            return None
        kind = self._round.kind
        groups = [self._open.pop(index) for index in taken]
        self._complete = [index for index in self._complete if index in self._open]
        self._events.append(BatchTaken(self._batch, tuple(g.kept_ids() for g in groups), kind))
        batch = Batch(self._batch, tuple(g.as_group(kind) for g in groups))
        self._batch += 1
        self._filtered_for_batch = 0
        self._settle()
        self._round = round_of(next_kind(self._batch, len(self._waiting), self.options), self.options)
        return batch

    def drain(self) -> list[Event]:
        """What happened since the last drain, in order."""
        events, self._events = self._events, []
        return events

    def backlog(self) -> int:
        """Episodes that would start now if there were slots for all of them; an estimate where groups wait that have
        lost a race, because those that have a place reserved change what may follow."""
        if self._version < self._pacing.front(self._reached, self._batch):
            return 0
        groups = 0
        if self._closed() < self._freshest_due():
            losses = [candidate.losses for candidate in self._waiting] if self._round.takes_waiting else []
            while len(self._open) + groups < self._places(losses[groups] if groups < len(losses) else 0):
                groups += 1
        return len(self._queue) + groups * self._members()

    def counts(self) -> Mapping[str, int]:
        """Groups by where they stand, for the ledger and the status line; `playing` counts episodes."""
        consumed = self._batch * self.options.num_groups
        return {
            "admitted": consumed + len(self._open),
            "open": len(self._open) - len(self._complete),
            "buffered": len(self._complete),
            "consumed": consumed,
            "waiting": len(self._waiting),
            "requeued": self._totals["requeued"],
            "filtered": self._totals["filtered"],
            "dropped": self._totals["dropped"],
            "playing": sum(len(group.playing) for group in self._open.values()),
        }

    def state_dict(self) -> dict[str, Any]:
        """JSON from which a killed run goes on: every index below `next_index` that is neither open nor waiting
        is done with; what is being played is queued first, under the attempt that it has."""
        playing = [[group.index, member] for group in self._open.values() for member in sorted(group.playing)]
        return {
            "version": self._version,
            "reached": self._reached,
            "batches_taken": self._batch,
            "round": self._round.kind,
            "next_index": self._next_index,
            "open": [group.state_dict() for group in self._open.values()],
            "complete": list(self._complete),
            "waiting": [list(candidate) for candidate in self._waiting],
            "queue": playing + [list(place) for place in self._queue],
            "filtered_for_batch": self._filtered_for_batch,
            "totals": dict(self._totals),
        }

    def load_state_dict(self, state: Mapping[str, Any], trajectories: Mapping[str, Trajectory]) -> None:
        """Go on where `state_dict` was taken; `trajectories` by id, those of the kept episodes of open groups.

        Raises:
            ValueError: a kept trajectory is missing.
        """
        self._version = state["version"]
        self._reached = state["reached"]
        self._may_go_back = True
        self._batch = state["batches_taken"]
        self._round = round_of(state["round"], self.options)
        self._next_index = state["next_index"]
        groups = [OpenGroup.restored(saved, self._order[saved["index"]], trajectories) for saved in state["open"]]
        self._open = {group.index: group for group in groups}
        self._complete = list(state["complete"])
        self._waiting = deque(Candidate(*candidate) for candidate in state["waiting"])
        self._queue = deque((index, member) for index, member in state["queue"])
        self._filtered_for_batch = state["filtered_for_batch"]
        self._totals = Counter(state["totals"])
        self._placement = Placement(self.options.engines, self.options.replicate_prompts)
        self._events = []

    def _admit(self) -> bool:
        """Open the next group, unless pacing holds it back or it could not be trained on in time.

        A group that is to have a place reserved waits for one that is free: it pushes out nobody who is in flight.
        """
        waits = self._round.takes_waiting and bool(self._waiting)
        candidate = self._waiting[0] if waits else Candidate(self._next_index)
        if len(self._open) >= self._places(candidate.losses) or self._closed() >= self._freshest_due():
            return False
        if waits:
            self._waiting.popleft()
        else:
            self._next_index += 1
        members = self._members()
        self._open[candidate.group] = OpenGroup(
            candidate.group,
            self._order[candidate.group],
            losses=candidate.losses,
            retries=candidate.retries,
            engine=self._placement.of_group(),
            attempts=[candidate.attempt] * members,
        )
        self._queue.extend((candidate.group, member) for member in range(members))
        return True

    def _places(self, losses: int) -> int:
        """Groups that may be open, for one that has lost so often."""
        spare = self._round.extra_groups if losses < self._round.max_losses else 0
        return self._pacing.places(self._reached, self._batch) + spare

    def _members(self) -> int:
        return self.options.group_size + self._round.extra_members

    def _keep(self, group: OpenGroup, episode: Episode, trajectory: Trajectory) -> None:
        group.keep(episode.member, trajectory)
        self._events.append(Kept(episode, trajectory))
        if len(group.kept) < self.options.group_size:
            return
        self._cut_off(group, Why.REDUNDANT)
        budget = self.options.max_filtered
        if budget is not None and self._filtered_for_batch < budget and group.flat():
            self._filtered_for_batch += 1
            self._totals["filtered"] += 1
            self._close(group, GroupFiltered)
        else:
            self._complete.append(group.index)

    def _fail(self, group: OpenGroup, episode: Episode, trajectory: Trajectory) -> None:
        """A spare member makes up for a lost one; only when there is none left the lost one is played again."""
        queued = sum(index == group.index for index, _ in self._queue)
        needed = len(group.kept) + len(group.playing) + queued < self.options.group_size
        retried = needed and group.retries < self.options.infra_retries
        self._events.append(Failed(episode, trajectory, retried))
        if retried:
            group.retries += 1
            self._play_again(group, episode.member)
        elif needed:
            self._totals["dropped"] += 1
            self._cut_off(group, Why.DROPPED)
            self._close(group, GroupDropped)

    def _play_again(self, group: OpenGroup, member: int) -> None:
        group.attempts[member] += 1
        self._queue.appendleft((group.index, member))

    def _settle(self) -> None:
        """Cut off the groups that cannot be trained on in time any more: they lose now, not later."""
        for group in [g for g in self._open.values() if self._due(g) < self._batch]:
            self._lose(group, Why.STALE)
        closed = self._closed()
        why = Why.REDUNDANT if closed >= self._freshest_due() else Why.STALE
        for group in self._unfinished():
            if group.losses < self._round.max_losses and self._due(group) <= closed:
                self._lose(group, why)

    def _lose(self, group: OpenGroup, why: Why) -> None:
        self._totals["requeued"] += 1
        self._waiting.append(group.lost())
        self._cut_off(group, why)
        self._close(group, lambda index, discarded: GroupRequeued(index, why, discarded))

    def _close(self, group: OpenGroup, event: Callable[[int, tuple[str, ...]], Event]) -> None:
        """Give up an open group: what it has kept is thrown away."""
        del self._open[group.index]
        self._complete = [index for index in self._complete if index != group.index]
        self._events.append(event(group.index, group.kept_ids()))

    def _cut_off(self, group: OpenGroup, why: Why) -> None:
        for playing in group.playing.values():
            self._placement.end(playing.episode.engine)
            self._events.append(Aborted(playing.episode, why))
        group.playing.clear()
        self._queue = deque(place for place in self._queue if place[0] != group.index)

    def _unfinished(self) -> list[OpenGroup]:
        complete = set(self._complete)
        return [group for group in self._open.values() if group.index not in complete]

    def _due(self, group: OpenGroup) -> int:
        """Last batch that the group can be trained in; one that has not started is as fresh as what starts next."""
        start = group.start()
        return self._freshest_due() if start is None else start + self._pacing.bound

    def _freshest_due(self) -> int:
        return self._pacing.front(self._reached, self._batch) + self._pacing.bound

    def _closed(self) -> int:
        """See `Pacing.closed`."""
        complete = set(self._complete)
        certain = (g for g in self._open.values() if g.index in complete or g.losses >= self._round.max_losses)
        return self._pacing.closed([self._due(group) for group in certain], self._reached, self._batch)


def kept_episodes(state: Mapping[str, Any]) -> set[str]:
    """Ids of the trajectories that `load_state_dict` asks for, given what `state_dict` returned."""
    return {f"g{group['index']}.{m}.{group['attempts'][m]}" for group in state["open"] for m in group["kept"]}
