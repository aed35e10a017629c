"""One forward pass over many contexts at once, each with its own number of new tokens.

The new tokens of all contexts lie in one packed row, so prefill and decode share every matrix
product and nothing is padded. Only attention looks at contexts one by one: contexts that bring a
single token are attended together, the others each by themselves against their own slot.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class Row:
    """The new tokens of one context: positions `start` to `start + len(tokens)` of slot `slot`."""

    slot: int
    start: int
    tokens: Sequence[int]

    @property
    def end(self) -> int:
        return self.start + len(self.tokens)


class KVStore:
    """Keys and values of all slots: [layers, 2, slots, kv_heads, max_length, head_dim]."""

    def __init__(
        self,
        *,
        layers: int,
        slots: int,
        kv_heads: int,
        max_length: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        # Zeros, not empty: a masked position weighs 0, and 0 times a leftover NaN would be NaN.
        self.data = torch.zeros(layers, 2, slots, kv_heads, max_length, head_dim, dtype=dtype, device=device)
        self.kv_heads, self.max_length, self.head_dim = kv_heads, max_length, head_dim

    def copy(self, source: int, target: int, length: int) -> None:
        """Give slot `target` the first `length` positions of slot `source`."""
        self.data[:, :, target, :, :length] = self.data[:, :, source, :, :length]


class RaggedBatch:
    """The packed new tokens of some contexts, and attention over their slots."""

    def __init__(self, rows: Sequence[Row], store: KVStore) -> None:
        device = store.data.device
        # Single tokens first, by slot, so that they can be attended as one block of the store.
        self.rows = sorted(rows, key=lambda row: (len(row.tokens) > 1, row.slot if len(row.tokens) == 1 else 0))
        self.store = store
        self.ids = torch.tensor([token for row in self.rows for token in row.tokens], device=device)
        self.positions = torch.tensor([p for row in self.rows for p in range(row.start, row.end)], device=device)
        self.last = torch.tensor([len(row.tokens) for row in self.rows], device=device).cumsum(0) - 1
        """Index of each context's last new token in the packed row."""
        heads = store.kv_heads
        first = torch.tensor([row.slot for row in self.rows for _ in row.tokens], device=device) * heads
        lines = (first[:, None] + torch.arange(heads, device=device)) * store.max_length + self.positions[:, None]
        self._lines = lines.flatten()
        """[T * kv_heads]: line of the store, seen as [slots * kv_heads * max_length, head_dim]."""
        self._single = [row for row in self.rows if len(row.tokens) == 1]
        self._several = self.rows[len(self._single) :]
        self._block = self._fits_block()
        self._masks: dict[tuple[int, int | None], Tensor] = {}

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float, window: int | None = None
    ) -> Tensor:
        """Store the new keys and values, then attend causally within each context.

        Args:
            query: [T, heads, head_dim], after rotary embedding; key, value: [T, kv_heads, head_dim].
            window: a query sees this many positions, itself included; None: all before it.

        Returns:
            [T, heads, head_dim].
        """
        keys, values = self.store.data[layer]
        width = self.store.head_dim
        keys.view(-1, width).index_copy_(0, self._lines, key.reshape(-1, width))
        values.view(-1, width).index_copy_(0, self._lines, value.reshape(-1, width))
        out = torch.empty_like(query)
        done = len(self._single)
        if self._block:
            out[:done] = self._attend_block(query[:done], keys, values, scale, window)
            rest, offset = self._several, done
        else:
            rest, offset = self.rows, 0
        for row in rest:
            stop = offset + len(row.tokens)
            out[offset:stop] = self._attend_row(row, query[offset:stop], keys, values, scale, window)
            offset = stop
        return out

    def _fits_block(self) -> bool:
        """Whether attending the whole block of slots costs less than attending each single token by itself.

        A block computes the slots in between and pads to the longest; a call of its own costs about
        as much as 280 positions, and then 0.7 of what a position costs in a block (measured).
        """
        if len(self._single) < 2:
            return False
        span = self._single[-1].slot - self._single[0].slot + 1
        longest = max(row.end for row in self._single)
        return span * longest <= sum(280 + 0.7 * row.end for row in self._single)

    def _attend_block(self, query: Tensor, keys: Tensor, values: Tensor, scale: float, window: int | None) -> Tensor:
        """All contexts with a single new token: [D, heads, head_dim] -> the same."""
        low, high = self._single[0].slot, self._single[-1].slot + 1
        span, heads, width = high - low, self.store.kv_heads, self.store.head_dim
        longest = max(row.end for row in self._single)
        picked = None
        if span != len(self._single):
            picked = torch.tensor([row.slot - low for row in self._single], device=query.device)
            query = query.new_zeros(span, *query.shape[1:]).index_copy_(0, picked, query)
        grouped = query.reshape(span * heads, -1, width)
        block_keys = keys[low:high].view(span * heads, -1, width)[:, :longest]
        block_values = values[low:high].view(span * heads, -1, width)[:, :longest]
        mask = self._block_mask(low, span, longest, window, query.dtype)
        scores = torch.baddbmm(mask, grouped, block_keys.transpose(1, 2), alpha=scale)
        weights = torch.softmax(scores, dim=-1, dtype=torch.float32).to(query.dtype)
        out = torch.bmm(weights, block_values).view(span, -1, width)
        return out if picked is None else out.index_select(0, picked)

    def _block_mask(self, low: int, span: int, longest: int, window: int | None, dtype: torch.dtype) -> Tensor:
        """[span * kv_heads, 1, longest], 0 where a slot's token sees the position, else -inf."""
        cached = self._masks.get((-1, window))
        if cached is None:
            device = self.store.data.device
            ends = [1] * span  # a slot without a token sees one position, so that its softmax stays a number
            for row in self._single:
                ends[row.slot - low] = row.end
            end = torch.tensor(ends, device=device)[:, None]
            position = torch.arange(longest, device=device)
            hidden = position >= end
            if window is not None:
                hidden |= position < end - window
            mask = torch.zeros(span, longest, dtype=dtype, device=device).masked_fill_(hidden, -torch.inf)
            cached = mask.repeat_interleave(self.store.kv_heads, dim=0)[:, None]
            self._masks[-1, window] = cached
        return cached

    def _attend_row(
        self, row: Row, query: Tensor, keys: Tensor, values: Tensor, scale: float, window: int | None
    ) -> Tensor:
        """One context with any number of new tokens: [n, heads, head_dim] -> the same."""
        grouped_query = query.shape[1] != self.store.kv_heads
        out = F.scaled_dot_product_attention(
            query.transpose(0, 1)[None],
            keys[row.slot, :, : row.end][None],
            values[row.slot, :, : row.end][None],
            attn_mask=self._row_mask(row, window),
            scale=scale,
            enable_gqa=grouped_query,
        )
        return out[0].transpose(0, 1)

    def _row_mask(self, row: Row, window: int | None) -> Tensor | None:
        """[n, end], true where a new token sees the position; None when it sees all."""
        if len(row.tokens) == 1 and window is None:
            return None
        cached = self._masks.get((row.slot, window))
        if cached is None:
            device = self.store.data.device
            own = torch.arange(row.start, row.end, device=device)[:, None]
            position = torch.arange(row.end, device=device)
            cached = position <= own
            if window is not None:
                cached &= position > own - window
            self._masks[row.slot, window] = cached
        return cached
