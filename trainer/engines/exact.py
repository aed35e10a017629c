"""Shapes at which matrix products and attention give a row the same bits in whatever company it is computed.

A library picks a kernel by shape, and kernels add up in different orders. Measured with MKL on AVX2
(torch 2.13): a row has the same bits for any number of rows from 4 on and other bits for 1 to 3;
products with few columns differ; a sum of 193 to 383 terms is cut in half, a longer one every 192.
PyTorch's CPU attention takes 32 or 64 queries and 512 positions at a time. So numbers of rows are
filled up to 4, and lengths are such that no part of 512 is cut in half; padding adds exact zeros.
Other hardware may have other borders: `probe.py` finds out whether a forward is exact where it runs.
"""

from __future__ import annotations

import torch
from torch import Tensor

MIN_ROWS = 4
"""Products have at least so many rows; attention takes queries in multiples of it."""
LENGTH_STEP = 16
"""Lengths of contexts are multiples of this: partial vectors are summed differently."""
ATTENTION_BLOCK = 512
"""Positions that attention takes at a time."""
SUM_WHOLE = 192
"""Most terms that are summed in one go, ..."""
SUM_CUT = 384
"""... and from how many on a sum is cut every SUM_WHOLE terms; in between, in the middle."""
MOST_PADDING = SUM_CUT - SUM_WHOLE
"""How much longer a padded length can be."""


def padded_length(length: int) -> int:
    """The next length from `length` on at which attention is exact."""
    rest = length % ATTENTION_BLOCK
    if SUM_WHOLE < rest < SUM_CUT:
        return length - rest + SUM_CUT
    return length + -rest % LENGTH_STEP


def padded_count(count: int) -> int:
    """The next multiple of MIN_ROWS."""
    return count + -count % MIN_ROWS


def padded_index(index: Tensor) -> Tensor:
    """[N], followed by zeros until there are MIN_ROWS entries."""
    missing = MIN_ROWS - len(index)
    return index if missing <= 0 else torch.cat((index, index.new_zeros(missing)))
