"""What attention says about each action token: WAAD, FAI and head spans (arXiv 2510.13554, section 3).

With A the row-normalised causal attention of one head, t a query and s a key of the same trajectory:

    WAAD_t = Σ_s A[t,s]·min(t−s, W)                        how far back, at most W, token t looks
    FAI_s  = mean of A[t,s] over t in [s+H_lo, s+H_hi]     how much later tokens look at token s
    span   = mean_t Σ_s A[t,s]·(t−s)                       how far back a head looks, which makes it local or global

Queries are action tokens, keys are all tokens of the trajectory. No map is kept: chosen layers hand their queries and
keys over in the forward that runs anyway (`packed_attention`), and rows are reduced block by block. The exact
reduction computes all of a row's scores. The banded one needs those of the last H_hi positions alone, because a row
sums to 1,

    WAAD_t = W − Σ_{d<W} A[t,t−d]·(W−d),

and the forward's own kernel gives each row's normaliser. It has no spans.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rocknroll.trainer.packing import PackedPass

Reduction = Literal["banded", "exact"]
Array = NDArray[np.float64]

LAYERS = 5
"""Layers that are read, in the middle third."""
BLOCK_ROWS, BLOCK_SCORES = 256, 1 << 16
"""Query rows, and scores of a head, that are computed at once."""


@dataclass(frozen=True)
class Windows:
    """How far the signals look, in tokens."""

    waad: int = 10
    """W: a longer distance counts as this one."""
    fai_from: int = 10
    """H_lo: FAI averages over the queries from so many tokens later, ..."""
    fai_to: int = 100
    """... to so many (H_hi), both included."""

    @property
    def reach(self) -> int:
        """The farthest key whose score the banded reduction needs."""
        return max(self.waad - 1, self.fai_to)


@dataclass(frozen=True)
class HeadSets:
    """Which of the heads that are read look near and which look far, both bool [layers, heads]."""

    near: NDArray[np.bool_]
    far: NDArray[np.bool_]


def attention_layers(config: Any) -> tuple[int, ...]:
    """Which layers of a model attend, by its (text) configuration; none of a state-space model."""
    kinds = getattr(config, "layer_types", None) or getattr(config, "layers_block_type", None)
    if kinds:
        return tuple(i for i, kind in enumerate(kinds) if "attention" in kind and "linear" not in kind)
    return tuple(range(config.num_hidden_layers)) if getattr(config, "num_attention_heads", None) else ()


def read_layers(layers: Sequence[int]) -> tuple[int, ...]:
    """LAYERS of the L that attend (fewer where there are fewer), evenly spaced in [⌊L/3⌋, ⌊2L/3⌋]."""
    count = len(layers)
    places = np.linspace(count // 3, min(count - 1, 2 * count // 3), LAYERS).round()
    return tuple(layers[int(place)] for place in np.unique(places))


def head_sets(spans: Array, share: float) -> HeadSets:
    """The `share` of the heads with the shortest spans [layers, heads] and that with the longest, at least one each.

    Equal spans go by layer and head, so the sets are the same in every run.
    """
    order = np.argsort(spans.ravel(), kind="stable")
    count = max(1, int(share * spans.size))
    near, far = np.zeros(spans.size, dtype=bool), np.zeros(spans.size, dtype=bool)
    near[order[:count]] = True
    far[order[spans.size - count :]] = True
    return HeadSets(near.reshape(spans.shape), far.reshape(spans.shape))


class AttentionReader:
    """Reduces the attention of some layers over one packed pass; results are ready when its forward has ended.

    The pass must contain the last action token of each trajectory (`plan` with `last`).
    """

    def __init__(
        self, packed: PackedPass, layers: Sequence[int], windows: Windows, reduction: Reduction = "banded"
    ) -> None:
        self.layers = frozenset(layers)
        self.reduction = reduction
        self._windows = windows
        self._rows = _Rows(packed.predict + 1, packed.boundaries)
        self._waad: dict[int, Tensor] = {}
        self._fai: dict[int, Tensor] = {}
        self._span: dict[int, Tensor] = {}
        self._blocks: dict[tuple[Reduction, int | None], list[_Block]] = {}

    @torch.no_grad()
    def read(
        self,
        layer: int,
        query: Tensor,
        key: Tensor,
        scale: float,
        sliding_window: int | None = None,
        normaliser: Tensor | None = None,
    ) -> None:
        """Take in one layer's `query` [heads, T, width] and `key` [kv_heads, T, width], after rotary embedding.

        Args:
            normaliser: [heads, T], log of the sum of each row's exponentiated scores; computed where it is missing.
        """
        positions = self._rows.positions.to(query.device)
        wide = torch.promote_types(query.dtype, torch.float32)
        query = query[:, positions]
        if self.reduction == "exact":
            normaliser = None
        elif normaliser is None:
            normaliser = query.new_empty(query.shape[:2], dtype=wide)
            for block in self._blocks_of("exact", sliding_window, query.device, wide):
                normaliser[:, block.rows] = torch.logsumexp(block.scores(query, key, scale), dim=-1)
        else:
            normaliser = normaliser[:, positions].to(wide)
        waad = query.new_empty(query.shape[:2], dtype=wide)
        fai = key.new_zeros(len(query), key.shape[1], dtype=wide)
        span = query.new_zeros(len(query), dtype=wide)
        for block in self._blocks_of(self.reduction, sliding_window, query.device, wide):
            weights = block.scores(query, key, scale)
            if normaliser is None:
                weights = torch.softmax(weights, dim=-1)
                span += (weights * block.distance).sum((1, 2))
            else:
                weights = weights.sub_(normaliser[:, block.rows, None]).exp_()
            waad[:, block.rows] = self._windows.waad - (weights * block.nearness).sum(-1)
            fai[:, block.keys] += (weights * block.counted).sum(1)
        self._waad[layer] = waad
        self._fai[layer] = fai[:, positions] / self._rows.queries_behind(self._windows).to(fai)
        self._span[layer] = span / max(1, len(positions))

    def spans(self) -> Array:
        """Mean over the queries of how far back each head looks, [layers, heads]; for the exact reduction only."""
        return _stacked(self._span)

    def waad(self, heads: NDArray[np.bool_]) -> Array:
        """Mean over these heads [layers, heads]: [N], one for each action token of the pass."""
        return np.asarray(_stacked(self._waad)[heads].mean(0))

    def fai(self, heads: NDArray[np.bool_]) -> Array:
        """Mean over these heads [layers, heads]: [N]; NaN for a token with no query far enough behind it."""
        return np.asarray(_stacked(self._fai)[heads].mean(0))

    def _blocks_of(
        self, reduction: Reduction, sliding_window: int | None, device: torch.device, dtype: torch.dtype
    ) -> list[_Block]:
        """Made once for all layers with the same window."""
        cached = self._blocks.get((reduction, sliding_window))
        if cached is None:
            reach = self._windows.reach if reduction == "banded" else None
            pieces = self._rows.pieces(reach)
            cached = [_Block.of(self._rows, *piece, self._windows, sliding_window, device, dtype) for piece in pieces]
            self._blocks[reduction, sliding_window] = cached
        return cached


class _Rows:
    """The query rows of a pass: `positions` [N] in its packed row, `starts` [N] of their trajectories."""

    def __init__(self, positions: Tensor, boundaries: Tensor) -> None:
        self.positions = positions
        trajectory = torch.searchsorted(boundaries, positions, right=True) - 1
        self.starts = boundaries[trajectory]
        self._stops = boundaries[trajectory + 1]

    def queries_behind(self, windows: Windows) -> Tensor:
        """[N]: how many queries FAI averages over for each action token; NaN for none, so that its mean is none."""
        low = self.positions + windows.fai_from
        high = torch.minimum(self.positions + windows.fai_to, self._stops - 1)
        counts = torch.searchsorted(self.positions, high, right=True) - torch.searchsorted(self.positions, low)
        return torch.where(counts > 0, counts.double(), torch.nan)

    def pieces(self, reach: int | None) -> Iterator[tuple[slice, slice]]:
        """Rows that are reduced at once, and the keys that they need: their last `reach`, or all of their trajectory.

        A piece of all keys is of one trajectory.
        """
        positions, starts = self.positions.tolist(), self.starts.tolist()
        first = [start if reach is None else max(start, p - reach) for p, start in zip(positions, starts, strict=True)]
        begin = 0
        for row in range(len(positions) + 1):
            rows = row - begin
            if row < len(positions) and (
                not rows
                or (
                    rows < BLOCK_ROWS
                    and (rows + 1) * (positions[row] + 1 - first[begin]) <= BLOCK_SCORES
                    and (reach is not None or starts[row] == starts[begin])
                )
            ):
                continue
            if rows:
                yield slice(begin, row), slice(first[begin], positions[row - 1] + 1)
            begin = row


@dataclass(frozen=True)
class _Block:
    """Query rows `rows` (b of them) of a pass against the keys `keys` (k of them) of its packed row; all [b, k]."""

    rows: slice
    keys: slice
    hidden: Tensor
    """-inf where the key is of another trajectory, comes later, or is out of the layer's window; else 0."""
    nearness: Tensor
    """W minus the distance, where that is positive."""
    counted: Tensor
    """1 where FAI counts the query for the key."""
    distance: Tensor

    @classmethod
    def of(
        cls,
        rows: _Rows,
        queries: slice,
        keys: slice,
        windows: Windows,
        sliding_window: int | None,
        device: torch.device,
        dtype: torch.dtype,
    ) -> _Block:
        position = torch.arange(keys.start, keys.stop)
        distance = rows.positions[queries, None] - position
        hidden = (distance < 0) | (position < rows.starts[queries, None])
        if sliding_window is not None:
            hidden |= distance >= sliding_window
        counted = (distance >= windows.fai_from) & (distance <= windows.fai_to)
        return cls(
            queries,
            keys,
            hidden=torch.zeros(hidden.shape, dtype=dtype).masked_fill(hidden, -torch.inf).to(device),
            nearness=(windows.waad - distance).clamp(0, windows.waad).to(device, dtype),
            counted=counted.to(device, dtype),
            distance=distance.to(device, dtype),
        )

    def scores(self, query: Tensor, key: Tensor, scale: float) -> Tensor:
        """Scaled scores [heads, b, k] of `query` [heads, N, width] against `key` [kv_heads, T, width]; -inf if hidden.

        Heads that share keys are rows of one product.
        """
        kv_heads, _, width = key.shape
        own = query[:, self.rows].reshape(kv_heads, -1, width)
        scores = torch.bmm(own, key[:, self.keys].transpose(1, 2)).view(len(query), -1, self.hidden.shape[1])
        return torch.addcmul(self.hidden, scores.to(self.hidden.dtype), self.hidden.new_tensor(scale))


def _stacked(by_layer: dict[int, Tensor]) -> Array:
    """[layers, …], in order of the layers."""
    return np.stack([by_layer[layer].double().cpu().numpy() for layer in sorted(by_layer)])
