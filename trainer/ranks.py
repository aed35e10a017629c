"""The ranks of a data-parallel learner, as one of them sees the others.

Rank 0 talks to the rollouts and writes files. Every rank is handed the same batches, works on its share of them
(`sharding.py`), and adds or merges what the shares come to, so that after each step all hold the same state. Python
objects travel over gloo; gradients go through DDP or FSDP2. Rank 0 may be waited for as long as a batch takes; in what
all ranks do at the same time, one that is silent for `learner.rank_timeout_s` has failed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import TCPStore  # type: ignore[attr-defined]
from torch.distributed.tensor import DTensor

from rocknroll.trainer.stream import Batch
from rocknroll.trainer.trajectory import Group

PATIENCE = timedelta(days=30)
"""How long ranks wait for rank 0, which may wait for a batch or play an evaluation; its death they notice at once,
because their connections to it break."""
JOINING = timedelta(minutes=5)
"""How long ranks wait for one another at the start, when all have loaded their libraries and their model."""

T = TypeVar("T")


@dataclass(frozen=True)
class Ranks:
    """This process among the ranks; without arguments it is alone, and every method gives back what it is given."""

    rank: int = 0
    size: int = 1
    objects: Any = None
    """Their process group for objects, of what all do at the same time."""
    patient: Any = None
    """Their process group for waiting for rank 0."""

    @property
    def leads(self) -> bool:
        """Whether this is rank 0."""
        return self.rank == 0

    def broadcast(self, value: T) -> T:
        """What rank 0 was called with."""
        if self.size == 1:
            return value
        self._await_rank_0()
        box = [value if self.leads else None]
        dist.broadcast_object_list(box, src=0, group=self.objects)
        handed: T = box[0]  # type: ignore[assignment]
        return handed

    def merged(self, part: Mapping[int, T]) -> dict[int, T]:
        """The union of every rank's part, at every rank; each key is one rank's."""
        if self.size == 1:
            return dict(part)
        parts: list[Any] = [None] * self.size
        dist.all_gather_object(parts, dict(part), group=self.objects)
        return {key: value for own in parts for key, value in own.items()}

    def collected(self, part: T) -> list[T]:
        """Every rank's value in the order of ranks, at rank 0; elsewhere an empty list."""
        if self.size == 1:
            return [part]
        parts: list[Any] | None = [None] * self.size if self.leads else None
        dist.gather_object(part, parts, dst=0, group=self.objects)
        return parts or []

    def total(self, value: Tensor) -> Tensor:
        """The sum of every rank's tensor, at every rank."""
        if self.size > 1:
            value = value.clone()
            dist.all_reduce(value)
        return value

    def add_gradients(self, model: nn.Module) -> None:
        """Replace the gradients of a model that every rank has whole by their sums over the ranks."""
        if self.size == 1:
            return
        for parameter in model.parameters():
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        dist.all_reduce(flat)
        sizes = [gradient.numel() for gradient in gradients]
        for gradient, summed in zip(gradients, torch.split(flat, sizes), strict=True):
            gradient.copy_(summed.view_as(gradient))

    def wait(self) -> None:
        """Until every rank is here."""
        if self.size > 1:
            self._await_rank_0()
            dist.barrier(group=self.objects)

    def _await_rank_0(self) -> None:
        """So little is sent that rank 0 never waits here for anybody else."""
        dist.broadcast(torch.zeros(1), src=0, group=self.patient)


def whole_state(model: nn.Module) -> dict[str, Tensor]:
    """The state dict of a model; where FSDP2 has sharded it, gathered, so every rank must call this."""
    state: Mapping[str, Tensor] = model.state_dict()
    return {name: value.full_tensor() if isinstance(value, DTensor) else value for name, value in state.items()}


def meeting_point(host: str, size: int) -> TCPStore:
    """Where ranks find one another: a store that rank 0 serves on a free port of `host`, its own machine."""
    return TCPStore(host, 0, size, is_master=True, wait_for_workers=False, timeout=JOINING)


def meeting_at(host: str, port: int, size: int) -> TCPStore:
    """The meeting point that rank 0 serves there."""
    return TCPStore(host, port, size, is_master=False, timeout=JOINING)


@contextmanager
def joined(
    store: TCPStore, rank: int, size: int, device: torch.device, local_rank: int, timeout_s: float
) -> Iterator[Ranks]:
    """Be one of the ranks that meet at `store`, in the environment that torchrun would give, until the end.

    `local_rank`: this rank's number among those of its node. `timeout_s`: for which one may be silent in what all do.

    Raises:
        RuntimeError: the others do not come.
    """
    settings = {
        "RANK": str(rank),
        "LOCAL_RANK": str(local_rank),
        "WORLD_SIZE": str(size),
        "MASTER_ADDR": store.host,
        "MASTER_PORT": str(store.port),
        "ACCELERATE_TORCH_DEVICE": str(device),
    }
    before = {name: os.environ.get(name) for name in settings}
    os.environ.update(settings)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    try:
        backend = "gloo" if device.type == "cpu" else "cpu:gloo,cuda:nccl"
        timeout = timedelta(seconds=timeout_s)
        store.set(f"rank {rank}", "here")
        store.wait([f"rank {each}" for each in range(size)], JOINING)
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=timeout)
        try:
            objects = dist.new_group(backend="gloo", timeout=timeout)
            yield Ranks(rank, size, objects, dist.new_group(backend="gloo", timeout=PATIENCE))
        finally:
            dist.destroy_process_group()
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.__setitem__(name, value)


class FollowingStream:
    """The `stream.Stream` of a rank that is not rank 0: batches come from there, weights go nowhere."""

    def start(self) -> None:
        """Rank 0's starts."""

    def next_batch(self, version: int) -> Batch:
        """Never asked: rank 0 hands batches on."""
        raise AssertionError("only rank 0 asks for batches")

    def ready_groups(self, version: int, seen: int) -> Sequence[Group]:
        """Never asked, as `learner.stream` is refused with several ranks."""
        raise AssertionError("only a learner of one rank asks for groups")

    def publish(self, version: int, state: Mapping[str, Tensor]) -> None:
        """Rank 0 does."""

    def state_dict(self) -> dict[str, Any]:
        """Nothing: rank 0 writes checkpoints."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up what rank 0 wrote: nothing."""

    def stop(self) -> None:
        """Nothing is held."""
