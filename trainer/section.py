"""What all sections of a recipe have in common. Imports nothing heavy."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt

Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
Cores = Annotated[tuple[NonNegativeInt, ...], Field(min_length=1)] | None
"""CPU cores that a part of the run is held to, by number; None: wherever the kernel puts it."""


class Section(BaseModel):
    """Base of all sections: unknown keys are errors, values are immutable."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
