"""Checks of a forward pass before it serves anybody: that it is the model's, and whether it is exact.

Exact means that the logits of a token have the same bits however its context was cut into pieces,
whatever was computed beside it, and in whichever slot. That is a property of the kernels that the
library picks on this machine, so it is tried rather than assumed.
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Protocol

import torch
from torch import Tensor

from rocknroll.trainer.engines.ragged import KVStore, RaggedBatch, Row

PROBE_LENGTH = 400
"""Tokens of the longest context that is tried: beyond the length at which sums are cut differently."""


class Probed(Protocol):
    """What the checks need of a forward."""

    def new_store(self, slots: int, max_length: int, exact: bool = False) -> KVStore: ...

    def logits(self, batch: RaggedBatch, last: Tensor) -> Tensor: ...


def run_in_pieces(forward: Probed, ids: Tensor) -> Tensor:
    """Logits [T, V] of 12 tokens that arrive in pieces, at last token by token, beside another context."""
    tokens: list[int] = ids.tolist()
    store = forward.new_store(3, len(tokens))
    pieces = []
    for start, end in ((0, 5), (5, 9), (9, 10), (10, 11), (11, 12)):
        rows = [Row(2, start, tokens[start:end]), Row(0, start, tokens[start:end])]
        batch = RaggedBatch(rows, store)
        logits = forward.logits(batch, torch.arange(batch.count, device=ids.device))
        owners = [row.slot for row in batch.rows for _ in row.tokens]
        pieces.append(logits[[i for i, slot in enumerate(owners) if slot == 2]])
    return torch.cat(pieces)


def is_exact(forward: Probed, vocabulary: int, max_length: int) -> bool:
    """Whether the last tokens of one context have the same bits alone and in company, in one piece and in many."""
    length = min(PROBE_LENGTH, max_length)
    tokens = [(7 * position + 3) % vocabulary for position in range(length)]
    few = range(max(1, length - 6), length + 1)
    whole = ((start, min(start + 256, length)) for start in range(0, length, 256))
    # First in pieces of which none is like another, then token by token.
    cuts = [0, *(end for step in range(1, 40) if (end := step * (step + 1) // 2) < few[0]), *few]
    with ThreadPoolExecutor(1, initializer=torch.set_num_threads, initargs=(1,)) as one_thread:
        alone = one_thread.submit(_last_logits, forward, tokens, whole, company=False)
        together = one_thread.submit(_last_logits, forward, tokens, pairwise(cuts), company=True)
        return torch.equal(alone.result(), together.result())


def _last_logits(forward: Probed, tokens: list[int], pieces: Iterable[tuple[int, int]], company: bool) -> Tensor:
    """Logits [V] behind the context, computed piece by piece in slot 1, beside two others in slots 0 and 3 if any."""
    with torch.inference_mode():
        store = forward.new_store(4, len(tokens), exact=True)
        for start, end in pieces:
            rows = [Row(1, start, tokens[start:end])]
            if company:
                rows += [
                    Row(0, start // 2, tokens[: max(1, (end - start) // 2)]),
                    Row(3, start, tokens[start : start + 1]),
                ]
            batch = RaggedBatch(rows, store)
            place = [row.slot for row in batch.rows].index(1)
            logits = forward.logits(batch, batch.last if company else batch.last[place : place + 1])
        return logits[place if company else 0].clone()
