"""Settings of the math family; imports nothing heavy."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, PositiveFloat, PositiveInt

from rocknroll.envs.reasoning.config import Count
from rocknroll.envs.reasoning.sources import DataSetting, HeldOut


class MathColumns(BaseModel):
    """Names of the columns in rows of data."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    question: str = "question"
    answer: str = "answer"
    """A number, an expression, LaTeX with or without `\\boxed{…}`, or a derivation that ends in `#### 42`."""
    id: str = ""
    """Empty: rows are numbered."""
    kind: str = ""
    """What metrics are split by; empty: all are `math`."""


class MathConfig(BaseModel):
    """Which problems there are: those of `data`, or else generated ones."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    data: DataSetting = ""
    columns: MathColumns = MathColumns()
    held_out: HeldOut = 0.1
    """Share of a single source that is not trained on, by a hash of the question."""
    skip_wrong_rows: bool = False

    seed: int = 0
    """Of generated problems, as all below."""
    train_problems: PositiveInt = 8000
    seen_problems: Count = 256
    """New stories around numbers that training problems have, too."""
    unseen_problems: Count = 256
    """Numbers that no training problem of the same kind has."""
    largest_number: Annotated[int, Field(ge=5)] = 30
    """In a question."""
    largest_value: Annotated[int, Field(ge=5)] = 100
    """Of a result, on the way to the answer, too; all are whole and none is negative."""
    verify_timeout_s: PositiveFloat = 5.0
    """An answer that takes longer to compare is wrong."""
