"""Settings of the judge family; imports nothing heavy."""

from __future__ import annotations

from typing import Self

from pydantic import BaseModel, ConfigDict, Field, NonNegativeFloat, PositiveFloat, PositiveInt, model_validator

from rocknroll.envs.reasoning.config import Count
from rocknroll.envs.reasoning.sources import DataSetting, HeldOut

RUBRIC = (
    "Grade how well the answer does what the task asks: whether it is right, whether it is complete, whether it keeps"
    " to everything that the task demands of its form, and whether it is clear. The lowest score is for an answer that"
    " is empty, wrong or about something else, the highest for one that could not be better."
)


class JudgeColumns(BaseModel):
    """Names of the columns in rows of data."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    question: str = "question"
    reference: str = "reference"
    """A good answer, which the judge is shown and the expert gives; rows may lack it."""
    rubric: str = "rubric"
    """What to grade by, in place of the setting `rubric`; rows may lack it."""
    id: str = ""
    """Empty: rows are numbered."""
    kind: str = ""
    """What metrics are split by; empty: all are `judge`."""


class JudgeConfig(BaseModel):
    """Which tasks there are, those of `data` or else generated ones, and who grades the answers by what."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    base_url: str = Field(default="http://127.0.0.1:8000/v1", pattern=r"^https?://")
    """Of an OpenAI-compatible endpoint, up to and without `/chat/completions`; the default is vLLM's."""
    model: str = ""
    """Empty: the only model that the endpoint serves."""
    api_key_env: str = ""
    """Name of the environment variable with the key; empty: none is sent."""
    temperature: NonNegativeFloat = 0.0
    max_tokens: PositiveInt = 1024
    """Of a judge's reply."""
    timeout_s: PositiveFloat = 60.0
    """For one reply."""
    retries: Count = 4
    """After an answer of 429 or 5xx, none in time, a broken connection, or a reply that is no verdict."""
    backoff_s: PositiveFloat = 0.5
    """Before the first retry, doubled before each further one; a `Retry-After` that is longer is kept to, ..."""
    max_backoff_s: PositiveFloat = 30.0
    """... up to here."""
    concurrency: PositiveInt = 32
    """Requests at once."""

    rubric: str = RUBRIC
    scale: tuple[float, float] = (0.0, 10.0)
    """Lowest and highest score; they become the rewards 0 and 1."""
    passing: float = 7.0
    """Score from which on a task counts as won."""
    longest_answer: PositiveInt = 20_000
    """Characters; a longer answer gets the lowest score, unread."""

    data: DataSetting = ""
    columns: JudgeColumns = JudgeColumns()
    held_out: HeldOut = 0.1
    """Share of a single source that is not trained on, by a hash of the question."""
    skip_wrong_rows: bool = False
    seed: int = 0
    """Of generated tasks, as the next three."""
    train_tasks: PositiveInt = 600
    seen_tasks: Count = 64
    """Other demands about subjects that are trained on."""
    unseen_tasks: Count = 64
    """Subjects that no training task has."""

    @model_validator(mode="after")
    def _scale_in_order(self) -> Self:
        low, high = self.scale
        if not low < high:
            raise ValueError(f"`scale` ({low:g}, {high:g}) must be the lowest and the highest score, in this order")
        if not low <= self.passing <= high:
            raise ValueError(f"`passing` ({self.passing:g}) must lie within `scale` ({low:g}, {high:g})")
        return self
