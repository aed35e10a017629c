"""Settings of the code family; imports nothing heavy."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, NonNegativeFloat, PositiveFloat, PositiveInt, model_validator

from rocknroll.envs.hiding import RuntimeName
from rocknroll.envs.reasoning.config import Count
from rocknroll.envs.reasoning.sources import DataSetting, HeldOut

MIB = 1 << 20


class CodeColumns(BaseModel):
    """Names of the columns in rows of data."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    question: str = "question"
    tests: str = "input_output"
    """`{"inputs": […], "outputs": […], "fn_name": …}`, or a list of `{"input": …, "output": …, "testtype": …}`; either
    may be JSON text. Without a function's name, inputs and outputs are those of a program."""
    starter: str = "starter_code"
    """Shown below the question, where a row has it."""
    metadata: str = "metadata"
    """Where rows of the second form have `func_name`."""
    solutions: str = "solutions"
    """Right programs, or one; the first is what an expert writes. Rows without have no expert."""
    id: str = ""
    """Empty: rows are numbered."""
    kind: str = ""
    """What metrics are split by, for example `difficulty`; empty: `program` and `function`."""


class CodeConfig(BaseModel):
    """Which problems there are, those of `data` or else generated ones, and how answers to them are tried."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    data: DataSetting = ""
    columns: CodeColumns = CodeColumns()
    held_out: HeldOut = 0.1
    """Share of a single source that is not trained on, by a hash of the question."""
    skip_wrong_rows: bool = False
    max_tests: PositiveInt | None = None
    """Only so many tests of a row, the first ones."""

    seed: int = 0
    """Of generated exercises, as the next three."""
    train_exercises: PositiveInt = 4000
    seen_exercises: Count = 256
    """Other numbers in tasks that are trained on."""
    unseen_exercises: Count = 256
    """Combinations of operations that no training exercise has."""

    partial: bool = False
    """Reward the share of tests that are passed, rather than nothing but all of them. All are run then."""
    tolerance: NonNegativeFloat = 1e-6
    """Relative, or absolute below 1, by which fractional numbers may be off; whole numbers have to be the same."""
    min_timeout_s: PositiveFloat = 2.0
    max_timeout_s: PositiveFloat = 30.0
    timeout_factor: PositiveFloat = 1.5
    """All tests of an answer may take this many times the longest right answer to the problem so far, within the two
    bounds; before the first right one, `max_timeout_s`."""

    runtime: RuntimeName = "process"
    image: str = ""
    """Docker image with Python; empty is the one that `rock image build` makes."""
    packages: bool = False
    """Let programs import what is installed for the interpreter inside, beside the standard library; looking for it
    makes every start slower."""
    sandboxes: PositiveInt | None = None
    """Answers that are tried at once; twice the machine's cores unless given."""
    memory_bytes: Annotated[int, Field(ge=256 * MIB)] = 512 * MIB
    """Of a sandbox."""
    processes: Annotated[int, Field(ge=8)] = 64

    @model_validator(mode="after")
    def _timeouts_in_order(self) -> Self:
        if self.min_timeout_s > self.max_timeout_s:
            raise ValueError(
                f"`min_timeout_s` ({self.min_timeout_s:g}) must not exceed `max_timeout_s` ({self.max_timeout_s:g})"
            )
        return self
