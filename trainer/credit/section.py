"""The settings of credit in a recipe. Imports nothing heavy."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from rocknroll.trainer.section import Fraction, Section


class WindowsSection(Section):
    """How far WAAD and FAI look, in tokens (trainer/credit/signals.py)."""

    waad: PositiveInt = 10
    """W: a longer distance back counts as this one."""
    fai_from: PositiveInt = 10
    """H_lo: attention that a token gets is averaged over the queries from so many tokens later, ..."""
    fai_to: PositiveInt = 100
    """... to so many (H_hi)."""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.fai_from > self.fai_to:
            raise ValueError(
                f"`credit.windows.fai_from` ({self.fai_from}) must not exceed `credit.windows.fai_to` ({self.fai_to}),"
                " because FAI averages over the queries between the two"
            )
        return self


class CreditSection(Section):
    """Larger advantages for the tokens that the rest depends on (docs/credit.md)."""

    kind: Literal["none", "local", "global", "coupled", "random", "entropy", "uniform"] = "none"
    """`local`, `global` and `coupled` read the policy's attention; the others are controls."""
    amplification: Annotated[float, Field(ge=1.0)] = 1.5
    """γ_amp: what the advantage of a chosen token is multiplied by."""
    uniform: PositiveFloat = 1.2
    """What `uniform` multiplies every advantage by."""
    share: Fraction = 0.4
    """q: the share of a trajectory's tokens that are chosen."""
    lookback: PositiveInt = 3
    """k: `coupled` looks for the token that introduces an anchor among so many before it."""
    introduction: Fraction = 0.5
    """α: the part of an introduced anchor's credit that goes to the token that introduces it."""
    positive_only: bool = False
    """Amplify positive advantages alone."""
    windows: WindowsSection = WindowsSection()
    heads: Annotated[float, Field(gt=0.0, le=0.5)] = 0.3
    """Share of the heads that count as near-sighted, and as many as far-sighted."""
    refresh_every: PositiveInt = 10
    """Iterations between classifications of the heads."""
    reduction: Literal["banded", "exact"] = "banded"
    """`banded` computes the scores of the last tokens alone; `exact` all of them."""
    source: Literal["policy", "copy"] = "policy"
    """Whose attention is read: the policy's, in the forward that gives the proximal log-probabilities, or that of a
    copy with the same weights, in a forward of its own."""
