"""Trajectories to forward passes without padding.

A pass is one flat row of tokens, `[1, T]`: trajectories one after another, positions restarting at
0, and the table of their boundaries, which `packed_attention` uses to keep them apart. What comes
after the last predicted token of a trajectory cannot influence any loss and is cut off; where attention is
read, or the state after it is valued, the last action token itself stays.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from rocknroll.trainer.trajectory import Trajectory

NO_TOKEN = -1
"""Fills the rows of `PackedPass.allowed` up to the widest set."""


@dataclass(frozen=True)
class PackedPass:
    """One forward pass: S trajectories, T tokens, N action tokens in trajectory order."""

    members: tuple[int, ...]
    """Which of the packed trajectories these are, by index."""
    token_ids: Tensor
    """[1, T] int64."""
    position_ids: Tensor
    """[1, T] int64, restarting at 0 with each trajectory."""
    boundaries: Tensor
    """[S + 1] int64, on the CPU: trajectory s is tokens boundaries[s] up to boundaries[s + 1]."""
    predict: Tensor
    """[N] int64: the position whose logits predict each action token."""
    targets: Tensor
    """[N] int64: the action tokens."""
    mask: Tensor
    """[S, A] bool: which entries of a row-per-trajectory matrix are action tokens; true N times."""
    segments: Tensor
    """[S, A] int64: which contiguous run of its trajectory's action tokens each is in; 0 where there is none."""
    allowed: Tensor | None
    """[N, K] int64: with constrained decoding, the tokens that were allowed, filled up with NO_TOKEN."""

    def rows(self, flat: Tensor) -> Tensor:
        """Values of the N action tokens as a matrix [S, A], 0 where there is no token. Differentiable."""
        return flat.new_zeros(self.mask.shape).masked_scatter(self.mask, flat)


def plan(trajectories: Sequence[Trajectory], pass_tokens: int, *, last: bool = False) -> Iterator[PackedPass]:
    """Pack every trajectory that has action tokens, in order, into passes of at most `pass_tokens` tokens.

    A longer trajectory gets a pass of its own. Constrained and unconstrained ones never share a pass.
    `last`: forward the last action token of each trajectory, too.

    Raises:
        ValueError: a trajectory begins with an action token (nothing predicts it).
    """
    for members in cut(trajectories, pass_tokens, last=last):
        yield pack(trajectories, members, last=last)


def cut(trajectories: Sequence[Trajectory], pass_tokens: int, *, last: bool = False) -> Iterator[list[int]]:
    """The members of each pass of `plan`, by index."""
    for constrained in (False, True):
        members: list[int] = []
        size = 0
        for index, trajectory in enumerate(trajectories):
            if (trajectory.allowed is not None) is not constrained or not trajectory.action_mask.any():
                continue
            length = forwarded_tokens(trajectory) + last
            if members and size + length > pass_tokens:
                yield members
                members, size = [], 0
            members.append(index)
            size += length
        if members:
            yield members


def forwarded_tokens(trajectory: Trajectory) -> int:
    """Tokens up to the one that predicts the last action token."""
    return int(np.flatnonzero(trajectory.action_mask)[-1])


def pack(trajectories: Sequence[Trajectory], members: Sequence[int], *, last: bool = False) -> PackedPass:
    """One pass of these members, which are all constrained or all not, and have action tokens."""
    packed = [trajectories[index] for index in members]
    actions = [np.flatnonzero(trajectory.action_mask) for trajectory in packed]
    for trajectory, positions in zip(packed, actions, strict=True):
        if positions[0] == 0:
            raise ValueError(f"trajectory {trajectory.id} begins with an action token; it needs a prompt")
    lengths = [forwarded_tokens(trajectory) + last for trajectory in packed]
    boundaries = np.concatenate([[0], np.cumsum(lengths)])
    counts = np.array([len(positions) for positions in actions])
    tokens = [trajectory.token_ids[:length] for trajectory, length in zip(packed, lengths, strict=True)]
    targets = [trajectory.token_ids[positions] for trajectory, positions in zip(packed, actions, strict=True)]
    predict = [positions - 1 + start for positions, start in zip(actions, boundaries[:-1], strict=True)]
    mask = torch.from_numpy(np.arange(counts.max())[None, :] < counts[:, None])
    runs = [np.cumsum(np.diff(positions, prepend=positions[0]) > 1) for positions in actions]
    return PackedPass(
        members=tuple(members),
        token_ids=_int64(np.concatenate(tokens))[None],
        position_ids=_int64(np.concatenate([np.arange(length) for length in lengths]))[None],
        boundaries=_int64(boundaries),
        predict=_int64(np.concatenate(predict)),
        targets=_int64(np.concatenate(targets)),
        mask=mask,
        segments=torch.zeros(mask.shape, dtype=torch.int64).masked_scatter(mask, _int64(np.concatenate(runs))),
        allowed=_pack_allowed(packed),
    )


def _pack_allowed(packed: Sequence[Trajectory]) -> Tensor | None:
    if packed[0].allowed is None:
        return None
    sets = [choices for trajectory in packed for choices in trajectory.allowed or ()]
    sizes = np.array([len(choices) for choices in sets])
    table = np.full((len(sets), int(sizes.max())), NO_TOKEN, dtype=np.int64)
    table[np.arange(table.shape[1])[None, :] < sizes[:, None]] = np.concatenate([np.asarray(s) for s in sets])
    return torch.from_numpy(table)


def _int64(array: np.ndarray[tuple[int, ...], np.dtype[np.generic]]) -> Tensor:
    return torch.from_numpy(array.astype(np.int64))
