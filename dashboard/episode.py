"""A stored trajectory as the values that a screen shows: turns, and tokens with their signals and colours."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from rocknroll.dashboard.snapshot import Colour, Episode, Token, TrajectoryFacts, TurnFacts
from rocknroll.trainer.cli.token_view import Colouring
from rocknroll.trainer.cli.trajectory_view import Decode
from rocknroll.trainer.credit.section import CreditSection
from rocknroll.trainer.storage import Stored
from rocknroll.trainer.trajectory import Trajectory


def episode_of(
    facts: TrajectoryFacts,
    stored: Stored,
    decode: Decode,
    insights: Mapping[str, NDArray[np.float64]],
    credit: CreditSection,
) -> Episode:
    """`insights`: signals by name, one value for each action token; `credit`: what makes a token an anchor."""
    trajectory = stored.trajectory
    colouring = Colouring.of(stored, insights, credit)
    ranks = np.cumsum(trajectory.action_mask) - 1
    turns = []
    seen_until = 0
    for turn in trajectory.turns:
        positions = range(turn.start, turn.end)
        turns.append(
            TurnFacts(
                observation=decode(trajectory.token_ids[seen_until : turn.start].tolist()),
                action=decode(trajectory.token_ids[turn.start : turn.end].tolist()),
                reward=turn.reward,
                valid=turn.valid,
                tokens=tuple(_token(trajectory, decode, colouring, at, int(ranks[at])) for at in positions),
                spoke=_spoke(trajectory, turn.start, turn.end),
            )
        )
        seen_until = turn.end
    return Episode(
        facts=facts,
        turns=tuple(turns),
        signals=tuple(colouring.values),
        rest=decode(trajectory.token_ids[seen_until:].tolist()),
        error=trajectory.error,
        timings_s=trajectory.timings_s,
    )


def _token(trajectory: Trajectory, decode: Decode, colouring: Colouring, at: int, index: int) -> Token:
    values = {name: float(of[index]) for name, of in colouring.values.items()}
    colours: dict[str, Colour | None] = {name: colouring.colour(name, index) for name in values}
    return Token(
        text=decode([int(trajectory.token_ids[at])]),
        marks=colouring.marks[index],
        values={name: value for name, value in values.items() if not math.isnan(value)},
        colours={name: colour for name, colour in colours.items() if colour is not None},
    )


def _spoke(trajectory: Trajectory, start: int, end: int) -> str:
    """`v4`, or `v4 then v5` where new weights arrived within the action."""
    versions = trajectory.versions[start:end].tolist()
    return " then ".join(f"v{one}" for at, one in enumerate(versions) if at == 0 or one != versions[at - 1])
