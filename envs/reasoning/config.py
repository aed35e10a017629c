"""Settings of the Countdown family; imports nothing heavy."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, PositiveInt, model_validator

SPLITS = ("train", "seen", "unseen")

Count = Annotated[int, Field(ge=0)]
Few = Annotated[int, Field(ge=2, le=6)]


class CountdownConfig(BaseModel):
    """Which puzzles there are, and what their expert writes."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    seed: int = 0
    train_puzzles: PositiveInt = 20_000
    seen_puzzles: Count = 512
    """New targets for numbers that training puzzles have, too."""
    unseen_puzzles: Count = 512
    """Numbers that no training puzzle has."""
    numbers: tuple[Few, Few] = (3, 4)
    """Fewest and most numbers of a puzzle."""
    largest_number: PositiveInt = 99
    largest_value: PositiveInt = 999
    """No target, and no result on the way to it, is larger; all are whole and none is negative."""
    format_reward: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0
    """For an expression that uses the numbers as asked and has another value."""
    detours: Count = 2
    """Most attempts in vain that the expert shows before the one that succeeds."""
    gives_up: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0
    """Chance that the expert answers with an attempt in vain instead of going on: what is then left for RL to learn
    is to check, and to persist."""

    @model_validator(mode="after")
    def _possible(self) -> Self:
        fewest, most = self.numbers
        if fewest > most:
            raise ValueError(f"`numbers` ({fewest}, {most}) must be the fewest and the most, in this order")
        if self.largest_value < self.largest_number:
            raise ValueError(
                f"`largest_value` ({self.largest_value}) must be at least `largest_number` ({self.largest_number}),"
                " because the given numbers are values, too"
            )
        return self
