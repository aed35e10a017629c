"""One forward pass over many contexts at once, each with its own number of new tokens.

The new tokens of all contexts lie in one packed row, so prefill and decode share every matrix
product and nothing is padded. Only attention looks at contexts one by one: contexts that bring a
single token are attended together, the others each by themselves against their own slot.

An exact store is read at the shapes that `exact.py` explains, so that a token's result has the same
bits in whatever company it is computed. That costs 14 to 20% of the speed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from rocknroll.trainer.engines.exact import MIN_ROWS, MOST_PADDING, padded_count, padded_length


@dataclass(frozen=True)
class Row:
    """The new tokens of one context: positions `start` to `start + len(tokens)` of slot `slot`."""

    slot: int
    start: int
    tokens: Sequence[int]

    @property
    def end(self) -> int:
        return self.start + len(self.tokens)


@dataclass(frozen=True)
class _Piece:
    """A row that is attended by itself: tokens `first` to `stop` of the packed row."""

    first: int
    stop: int
    slot: int
    start: int
    end: int


MASK_ROWS = 256
"""Rows up to this length get their causal mask without computing it."""


class KVStore:
    """Keys and values of all slots: [layers, 2, slots, kv_heads, length, head_dim]."""

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
        exact: bool = False,
    ) -> None:
        self.exact = exact
        self.length = padded_length(max_length) if exact else max_length
        """Positions of a slot: those that a context may have, and padding that is read but never seen."""
        # Zeros, not empty: a masked position weighs 0, and 0 times a leftover NaN would be NaN.
        self.data = torch.zeros(layers, 2, slots, kv_heads, self.length, head_dim, dtype=dtype, device=device)
        self.kv_heads, self.head_dim = kv_heads, head_dim
        # The causal masks of all row shapes up to a length are views of this one.
        later = torch.full((MASK_ROWS, MASK_ROWS + MOST_PADDING), -torch.inf, dtype=dtype, device=device).triu_(1)
        self._causal = torch.cat((later.new_zeros(MASK_ROWS, self.length), later), dim=1)

    def causal(self, start: int, count: int, length: int) -> Tensor:
        """[count, length]: 0 where the tokens at positions `start`, `start + 1`, … see a position, else -inf."""
        if count <= MASK_ROWS:
            return self._causal[:count, self.length - start : self.length - start + length]
        mask = torch.full((count, length), -torch.inf, dtype=self.data.dtype, device=self.data.device)
        return mask.triu_(start + 1)

    def copy(self, source: int, target: int, length: int) -> None:
        """Give slot `target` the first `length` positions of slot `source`."""
        self.data[:, :, target, :, :length] = self.data[:, :, source, :, :length]

    def clear(self, slot: int) -> None:
        """Take out what must never be read, not even with weight 0, because it may not be numbers."""
        self.data[:, :, slot] = 0.0


class RaggedBatch:
    """The packed new tokens of some contexts, and attention over their slots.

    With an exact store, `ids` and `positions` [T] end with MIN_ROWS - 1 tokens of padding, so that a
    few rows more can be read behind those of any context.
    """

    def __init__(self, rows: Sequence[Row], store: KVStore) -> None:
        device = store.data.device
        # Single tokens first, by slot, so that they can be attended as one block of the store.
        self.rows = sorted(rows, key=lambda row: (len(row.tokens) > 1, row.slot if len(row.tokens) == 1 else 0))
        self.store = store
        ids = [token for row in self.rows for token in row.tokens]
        positions = [p for row in self.rows for p in range(row.start, row.end)]
        padding = [0] * (MIN_ROWS - 1 if store.exact else 0)
        self.count = len(ids)
        """Tokens without padding."""
        self.ids = torch.tensor(ids + padding, device=device)
        self.positions = torch.tensor(positions + padding, device=device)
        self.last = torch.tensor([len(row.tokens) for row in self.rows], device=device).cumsum(0) - 1
        """Index of each context's last new token in the packed row."""
        heads = store.kv_heads
        first = torch.tensor([row.slot for row in self.rows for _ in row.tokens], device=device) * heads
        lines = (first[:, None] + torch.arange(heads, device=device)) * store.length
        self._lines = (lines + self.positions[: self.count, None]).flatten()
        """[count * kv_heads]: line of the store, seen as [slots * kv_heads * length, head_dim]."""
        self._single = [row for row in self.rows if len(row.tokens) == 1]
        self._ends = [row.end for row in self._single]
        self._block = self._fits_block()
        self._pieces: list[_Piece] = []
        place = 0
        for row in self.rows:
            stop = place + len(row.tokens)
            if len(row.tokens) > 1 or not self._block:
                self._pieces.append(_Piece(place, stop, row.slot, row.start, row.end))
            place = stop
        self._masks: dict[tuple[int, int | None], Tensor] = {}

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float, window: int | None = None
    ) -> Tensor:
        """Store the new keys and values, then attend causally within each context.

        Args:
            query: [T, heads, head_dim], after rotary embedding; key, value: [T, kv_heads, head_dim].
            window: a query sees this many positions, itself included; None: all before it.

        Returns:
            [T, heads, head_dim]; what stands in rows of padding is a number, but means nothing.
        """
        keys, values = self.store.data[layer]
        width, count = self.store.head_dim, self.count
        keys.view(-1, width).index_copy_(0, self._lines, key[:count].reshape(-1, width))
        values.view(-1, width).index_copy_(0, self._lines, value[:count].reshape(-1, width))
        out = torch.empty_like(query)
        out[count:] = 0.0
        if self._block:
            done = len(self._single)
            attend_block = self._attend_exact_block if self.store.exact else self._attend_block
            out[:done] = attend_block(query, keys, values, scale, window)
        if self._pieces:
            self._attend_pieces(query, keys, values, scale, window, out)
        return out

    def _fits_block(self) -> bool:
        """Whether attending the whole block of slots costs less than attending each single token by itself.

        A block computes the slots in between and pads to the longest; a call of its own costs about
        as much as 280 positions, and then 0.7 of what a position costs in a block (measured).
        """
        if len(self._single) < 2:
            return False
        span = self._single[-1].slot - self._single[0].slot + 1
        return span * self._length(max(self._ends)) <= 280 * len(self._ends) + 0.7 * sum(self._ends)

    def _length(self, end: int) -> int:
        """How many positions are read for a context that ends at `end`."""
        return padded_length(end) if self.store.exact else end

    def _attend_block(self, query: Tensor, keys: Tensor, values: Tensor, scale: float, window: int | None) -> Tensor:
        """All contexts with a single new token, which come first in `query`: [D, heads, head_dim]."""
        low, high = self._single[0].slot, self._single[-1].slot + 1
        span, heads, width = high - low, self.store.kv_heads, self.store.head_dim
        longest, query = max(self._ends), query[: len(self._single)]
        picked = None
        if span != len(self._single):
            picked = torch.tensor([row.slot - low for row in self._single], device=query.device)
            query = query.new_zeros(span, *query.shape[1:]).index_copy_(0, picked, query)
        grouped = query.reshape(span * heads, -1, width)
        block_keys = keys[low:high].view(span * heads, -1, width)[:, :longest]
        block_values = values[low:high].view(span * heads, -1, width)[:, :longest]
        mask = self._block_mask(low, span, longest, window, query.dtype)
        mask = mask.expand(-1, heads, -1, -1).reshape(span * heads, 1, longest)
        scores = torch.baddbmm(mask, grouped, block_keys.transpose(1, 2), alpha=scale)
        weights = torch.softmax(scores, dim=-1, dtype=torch.float32).to(query.dtype)
        out = torch.bmm(weights, block_values).view(span, -1, width)
        return out if picked is None else out.index_select(0, picked)

    def _attend_exact_block(
        self, query: Tensor, keys: Tensor, values: Tensor, scale: float, window: int | None
    ) -> Tensor:
        """The same by the kernel that attends pieces, with MIN_ROWS queries for each slot."""
        low, high = self._single[0].slot, self._single[-1].slot + 1
        span, done, length = high - low, len(self._single), padded_length(max(self._ends))
        heads, width = self.store.kv_heads, self.store.head_dim
        group = query.shape[1] // heads
        # The queries that share keys are rows; the rows to make them MIN_ROWS are whatever stands behind.
        rows = max(group, MIN_ROWS)
        own = query.new_zeros(span + MIN_ROWS, *query.shape[1:])
        picked = None
        if span == done:
            own[:done] = query[:done]
        else:
            picked = torch.tensor([row.slot - low for row in self._single], device=query.device)
            own.index_copy_(0, picked, query[:done])
        out = F.scaled_dot_product_attention(
            own.as_strided((span, heads, rows, width), (heads * group * width, group * width, width, 1)),
            keys[low:high, :, :length],
            values[low:high, :, :length],
            attn_mask=self._block_mask(low, span, length, window, query.dtype).expand(span, heads, rows, length),
            scale=scale,
        )
        out = out[:, :, :group].reshape(span, -1, width)
        return out if picked is None else out.index_select(0, picked)

    def _block_mask(self, low: int, span: int, length: int, window: int | None, dtype: torch.dtype) -> Tensor:
        """[span, 1, 1, length], 0 where a slot's token sees the position, else -inf."""
        cached = self._masks.get((-1, window))
        if cached is None:
            device = self.store.data.device
            ends = [1] * span  # a slot without a token sees one position, so that its softmax stays a number
            for row, token_end in zip(self._single, self._ends, strict=True):
                ends[row.slot - low] = token_end
            end = torch.tensor(ends, device=device)[:, None]
            position = torch.arange(length, device=device)
            hidden = position >= end
            if window is not None:
                hidden |= position < end - window
            mask = torch.zeros(span, length, dtype=dtype, device=device).masked_fill_(hidden, -torch.inf)
            cached = self._masks[-1, window] = mask[:, None, None]
        return cached

    def _attend_pieces(
        self, query: Tensor, keys: Tensor, values: Tensor, scale: float, window: int | None, out: Tensor
    ) -> None:
        """Every piece against its own slot: [T, heads, head_dim] in and out."""
        grouped = query.shape[1] != self.store.kv_heads
        by_head, out_by_head = query.transpose(0, 1)[None], out.transpose(0, 1)[None]
        for piece in self._pieces:
            # Rows that pad a piece are the next piece's, which then writes its own result over them.
            slot, length = slice(piece.slot, piece.slot + 1), self._length(piece.end)
            count = piece.stop - piece.first
            stop = piece.first + (padded_count(count) if self.store.exact else count)
            out_by_head[:, :, piece.first : stop] = F.scaled_dot_product_attention(
                by_head[:, :, piece.first : stop],
                keys[slot, :, :length],
                values[slot, :, :length],
                attn_mask=self._piece_mask(piece, stop - piece.first, length, window),
                scale=scale,
                enable_gqa=grouped,
            )

    def _piece_mask(self, piece: _Piece, count: int, length: int, window: int | None) -> Tensor | None:
        """[count, length], added to the scores; None when every position is seen."""
        if window is None:
            return None if count == 1 else self.store.causal(piece.start, count, length)
        cached = self._masks.get((piece.slot, window))
        if cached is None:
            causal = self.store.causal(piece.start, count, length)
            own = torch.arange(piece.start, piece.start + count, device=causal.device)[:, None]
            # Padding sees what the last token sees: a row without any position would not be numbers.
            too_old = torch.arange(length, device=causal.device) <= own.clamp(max=piece.end - 1) - window
            cached = self._masks[piece.slot, window] = causal.masked_fill(too_old, -torch.inf)
        return cached
