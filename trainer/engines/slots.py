"""Which trajectory's context lives in which KV slot. Pure bookkeeping: no tensors, no clock, no threads.

A slot keeps the context of one trajectory between its turns. When a new trajectory finds no free
slot, the idle one that rested longest loses its context, which is then computed again on its next
turn. A context that another slot already begins with is copied rather than computed.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

MIN_SHARED = 16
"""Copying a shorter common prefix between slots costs more than computing it."""


@dataclass
class Slot:
    """One row of the KV store."""

    index: int
    tokens: list[int] = field(default_factory=list)
    """The whole context as far as it is known."""
    cached: int = 0
    """How many of its tokens have keys and values in the store, ..."""
    generation: int = 0
    """... and which of the engine's weight sets computed them: they are valid for no other."""
    busy: bool = False
    """A request is generating here."""
    released: bool = False
    """Its trajectory is over; free it when the request ends."""

    @property
    def pending(self) -> int:
        """Tokens that the next forward pass has yet to see."""
        return len(self.tokens) - self.cached

    def take(self, prompt: list[int], generation: int) -> int:
        """Make `prompt` the context (the list is the slot's from here on), keep what this generation has
        cached of it, and return how many tokens that saves. The last one is always computed: its logits are wanted.
        """
        known = self.cached if generation == self.generation else 0
        kept = shared_prefix(self.tokens, prompt, min(known, len(prompt) - 1))
        self.tokens, self.cached, self.generation = prompt, kept, generation
        return kept

    def forget(self, generation: int) -> None:
        """Nothing that is cached is valid any more; `generation` computes it anew."""
        self.cached, self.generation = 0, generation


class SlotTable:
    """The slots of an engine and whose they are."""

    def __init__(self, count: int) -> None:
        self.slots = tuple(Slot(index) for index in range(count))
        self._owners: OrderedDict[str, Slot] = OrderedDict()
        """Trajectory id -> slot, the longest unused first."""
        self._free = list(reversed(self.slots))

    def claim(self, trajectory_id: str) -> Slot | None:
        """A slot for a request of this trajectory, now busy; None when it has to wait."""
        slot = self._owners.get(trajectory_id)
        if slot is None:
            slot = self._unowned()
            if slot is None:
                return None
            self._owners[trajectory_id] = slot
        elif slot.busy:
            return None
        slot.busy = True
        slot.released = False
        self._owners.move_to_end(trajectory_id)
        return slot

    def owns(self, trajectory_id: str) -> bool:
        """Whether the trajectory's context still has its slot."""
        return trajectory_id in self._owners

    def settle(self, trajectory_id: str) -> None:
        """The request in this trajectory's slot ended."""
        slot = self._owners[trajectory_id]
        slot.busy = False
        if slot.released:
            self.release(trajectory_id)

    def release(self, trajectory_id: str) -> None:
        """The trajectory is over. Its context stays readable for siblings until the slot is claimed again."""
        slot = self._owners.get(trajectory_id)
        if slot is None:
            return
        if slot.busy:
            slot.released = True
            return
        del self._owners[trajectory_id]
        self._free.append(slot)

    def donor(self, slot: Slot) -> tuple[Slot, int] | None:
        """The slot that has most of this slot's missing context by the same weights, and up to which token."""
        best, length = None, slot.cached + MIN_SHARED - 1
        limit = len(slot.tokens) - 1
        for other in self.slots:
            reach = min(other.cached, limit) if other.generation == slot.generation else 0
            if other is not slot and reach > length and other.tokens[:length] == slot.tokens[:length]:
                shared = shared_prefix(other.tokens, slot.tokens, reach)
                if shared > length:
                    best, length = other, shared
        return None if best is None else (best, length)

    def _unowned(self) -> Slot | None:
        if self._free:
            return self._free.pop()
        for trajectory_id, slot in self._owners.items():
            if not slot.busy:
                del self._owners[trajectory_id]
                return slot
        return None


def shared_prefix(left: list[int], right: list[int], limit: int) -> int:
    """How many of the first `limit` tokens are equal."""
    if left[:limit] == right[:limit]:
        return limit
    return next(i for i in range(limit) if left[i] != right[i])
