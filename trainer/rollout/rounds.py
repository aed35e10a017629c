"""What each batch launches: how much beyond its need, from which queue, and who may lose. Pure.

Without tail batching every round is alike. With it (RollPacker, arXiv 2509.21009, for synchronous training) a
*short* round launches ⌈ηP⌉ prompts × ⌈ηR⌉ responses, keeps the first P × R and puts the other prompts in the
long queue; a *long* round plays P prompts of that queue in full, with nothing to spare, and none of them loses.
A prompt thus loses at most once. Of a run's last rounds, as many are long as it takes to leave the queue empty.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from rocknroll.trainer.rollout.scheduler_options import SchedulerOptions

RoundKind = Literal["", "short", "long"]


@dataclass(frozen=True)
class Round:
    """How one batch is collected."""

    kind: RoundKind
    extra_groups: int
    extra_members: int
    takes_waiting: bool
    """Groups that lost a race are admitted, before new ones."""
    max_losses: float
    """A group that lost this often loses no more: a place in a batch is reserved for it."""


def next_kind(batch: int, waiting: int, options: SchedulerOptions) -> RoundKind:
    """The kind of the round for `batch` while `waiting` groups that lost a race wait to be played again."""
    if not options.tail_batching:
        return ""
    after = math.inf if options.last_batch is None else options.num_groups * (options.last_batch - batch)
    if waiting >= options.num_groups or waiting + options.extra_groups > after:
        return "long"
    return "short"


def round_of(kind: RoundKind, options: SchedulerOptions) -> Round:
    """What a round of that kind launches."""
    table = {
        "": Round("", options.extra_groups, options.extra_members, True, options.max_requeues),
        "short": Round("short", options.extra_groups, options.extra_members, False, math.inf),
        "long": Round("long", 0, 0, True, 0),
    }
    return table[kind]
