"""Who forwards what: the trajectories of an optimiser step, shared out among the learner's ranks by tokens.

Pure: every rank computes everybody's share from the same batch, so nothing is agreed on by message. All ranks make
equally many passes, because DDP and FSDP2 exchange gradients and weights within a pass; a rank that has fewer of its
own forwards the shortest trajectory once more, and the result counts for nothing.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rocknroll.trainer.packing import PackedPass, cut, forwarded_tokens, pack
from rocknroll.trainer.trajectory import Trajectory


@dataclass(frozen=True)
class RankPass:
    """One forward pass of a rank."""

    packed: PackedPass
    counts: bool
    """False: only made because another rank has one more."""
    final: bool
    """The last one of the step, in which gradients are exchanged."""


def share(lengths: Sequence[int], ranks: int) -> list[tuple[int, ...]]:
    """Indices of each rank's share, ascending: each index once, the loads at most the longest length apart.

    Longest first, each to the rank with the fewest tokens so far (LPT: R. L. Graham, Bounds on multiprocessing timing
    anomalies, 1969), so no rank has more than 4/3 of what the best division would give it.
    """
    shares: list[list[int]] = [[] for _ in range(ranks)]
    loads = [(0, rank) for rank in range(ranks)]
    for index in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        load, rank = heapq.heappop(loads)
        shares[rank].append(index)
        heapq.heappush(loads, (load + lengths[index], rank))
    return [tuple(sorted(own)) for own in shares]


def rank_passes(
    trajectories: Sequence[Trajectory], pass_tokens: int, rank: int, ranks: int, *, last: bool = False
) -> Iterator[RankPass]:
    """The passes of one rank over its share; `last` as for `packing.plan`, and with one rank the passes are those.

    `RankPass.packed.members` are indices into `trajectories`.
    """
    lengths = [forwarded_tokens(t) + last if t.action_mask.any() else 0 for t in trajectories]
    cuts = [
        [[own[i] for i in members] for members in cut([trajectories[i] for i in own], pass_tokens, last=last)]
        for own in share(lengths, ranks)
    ]
    mine, rounds = cuts[rank], max(len(passes) for passes in cuts)
    shortest = min((i for i, length in enumerate(lengths) if length), key=lengths.__getitem__, default=0)
    for number in range(rounds):
        counts = number < len(mine)
        members = mine[number] if counts else [shortest]
        yield RankPass(pack(trajectories, members, last=last), counts, number == rounds - 1)
