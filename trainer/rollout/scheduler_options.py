"""How a run's batches are collected: the scheduler's settings, checked."""

from __future__ import annotations

import math
from dataclasses import dataclass

from rocknroll.trainer.recipe import Recipe
from rocknroll.trainer.rollout.staleness import Pacing


@dataclass(frozen=True)
class SchedulerOptions:
    """Settings of a `Scheduler`, those of the recipe's `rollout` section in counts.

    Raises:
        ValueError: a setting is out of range, or two of them exclude each other.
    """

    num_groups: int
    group_size: int
    async_ratio: float = 0.0
    extra_groups: int = 0
    """Groups in flight beyond those that pacing admits; under tail batching, those of a short round."""
    extra_members: int = 0
    """Members launched per group beyond `group_size`; under tail batching, those of a short round."""
    max_requeues: int = 0
    """Times a group may lose a race; then a place in a batch is reserved for it."""
    infra_retries: int = 3
    """Times lost members of a group are played again before it is given up, over all the times that it is played."""
    tail_batching: bool = False
    last_batch: int | None = None
    """Index of the run's last batch: nothing starts that it leaves behind, and it leaves the long queue empty."""
    max_filtered: int | None = None
    """Dynamic sampling: flat groups that are set aside for one batch at most; None: off."""
    engines: int = 1
    replicate_prompts: bool = True

    def __post_init__(self) -> None:
        for name, least in _LEAST.items():
            value = getattr(self, name)
            if value is not None and value < least:
                raise ValueError(f"{name} is {value}; it must be at least {least}")
        if self.pacing.async_ratio and self.tail_batching:
            raise ValueError(f"tail batching is for synchronous training, but async_ratio is {self.async_ratio}")
        if self.extra_groups and not (self.max_requeues or self.tail_batching):
            raise ValueError(
                f"extra_groups is {self.extra_groups} while max_requeues is 0: groups can race for the places of a"
                " batch only if those that lose may be played again"
            )
        if self.max_filtered is not None and self.group_size < 2:
            raise ValueError("dynamic sampling compares the members of a group, but group_size is 1")

    @classmethod
    def of(cls, recipe: Recipe) -> SchedulerOptions:
        """What the recipe asks for."""
        rollout = recipe.rollout
        tail, filtering = rollout.tail_batching, rollout.dynamic_sampling
        extra_groups, extra_members = rollout.redundancy.groups, rollout.redundancy.members
        if tail.enabled:
            extra_groups = _spare(tail.eta, rollout.num_groups)
            extra_members = _spare(tail.eta, rollout.group_size)
        return cls(
            num_groups=rollout.num_groups,
            group_size=rollout.group_size,
            async_ratio=rollout.async_ratio,
            extra_groups=extra_groups,
            extra_members=extra_members,
            max_requeues=rollout.max_requeues,
            infra_retries=rollout.infra_retries,
            tail_batching=tail.enabled,
            last_batch=recipe.learner.iterations - 1,
            max_filtered=math.floor(filtering.max_filtered * rollout.num_groups) if filtering.enabled else None,
            engines=recipe.engine.replicas,
            replicate_prompts=rollout.prompt_replication,
        )

    @property
    def pacing(self) -> Pacing:
        """The rules of admission and staleness that these options ask for."""
        return Pacing(self.num_groups, self.async_ratio, self.last_batch)


_LEAST = {
    "num_groups": 1,
    "group_size": 1,
    "extra_groups": 0,
    "extra_members": 0,
    "max_requeues": 0,
    "infra_retries": 0,
    "last_batch": 0,
    "max_filtered": 0,
    "engines": 1,
}
"""Smallest value of each count."""


def _spare(eta: float, wanted: int) -> int:
    """⌈η·wanted⌉ − wanted; η is a decimal fraction, of which a float falls short or goes beyond."""
    return math.ceil(round(eta * wanted, 9)) - wanted
