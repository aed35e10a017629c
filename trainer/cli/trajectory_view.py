"""One trajectory as a person wants to read it: turn by turn, what was seen, done, paid and how sure the policy was."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rocknroll.trainer.storage import Stored
from rocknroll.trainer.trajectory import Trajectory

Decode = Callable[[Sequence[int]], str]
"""Token ids to text, special tokens included."""


def headline(stored: Stored) -> str:
    """Everything about an episode that fits on one line."""
    trajectory = stored.trajectory
    solved = "solved" if trajectory.success else "not solved"
    kind = f"{trajectory.domain}: {trajectory.task_kind}" if trajectory.domain else trajectory.task_kind
    return (
        f"{trajectory.id:<12} iteration {stored.iteration:<4} {trajectory.outcome:<11} {solved:<10}"
        f" reward {trajectory.reward:+.2f}  {len(trajectory.turns):>2} turns  {printable(kind)}"
    )


def as_lines(stored: Stored, decode: Decode, tokens: Callable[[int, int], str], legend: str = "") -> Iterator[str]:
    """The whole episode; `tokens` says what is known of the tokens of an action, by first and last position."""
    trajectory = stored.trajectory
    versions = trajectory.versions[trajectory.action_mask]
    yield headline(stored)
    yield f"task {printable(trajectory.task_id)}, group {trajectory.group_id}{_round(stored)}"
    yield f"{trajectory.token_ids.size} tokens, {versions.size} sampled by {_speakers(versions)}{_age(stored)}"
    if trajectory.timings_s:
        yield "seconds: " + ", ".join(f"{cause} {s:.2f}" for cause, s in sorted(trajectory.timings_s.items()))
    if trajectory.error or trajectory.cause:
        yield f"lost to {trajectory.cause or 'infrastructure'}: {printable(trajectory.error)}"
    if legend:
        yield legend
    seen_until = 0
    for number, turn in enumerate(trajectory.turns, start=1):
        yield ""
        yield from _indented(decode(trajectory.token_ids[seen_until : turn.start].tolist()))
        admitted = "" if turn.valid else "  not admitted"
        action = printable(decode(trajectory.token_ids[turn.start : turn.end].tolist()))
        spoke = _versions(trajectory, turn.start, turn.end)
        yield f"{number:>3}> {action}   reward {turn.reward:+.2f}{admitted}{f'   {spoke}' if spoke else ''}"
        yield f"     {tokens(turn.start, turn.end)}"
        seen_until = turn.end
    if rest := decode(trajectory.token_ids[seen_until:].tolist()):
        yield ""
        yield from _indented(rest)


def summary_json(stored: Stored) -> dict[str, Any]:
    """What `headline` says, for programs."""
    trajectory = stored.trajectory
    return {
        "id": trajectory.id,
        "iteration": stored.iteration,
        "group_id": trajectory.group_id,
        "task_id": trajectory.task_id,
        "task_kind": trajectory.task_kind,
        "domain": trajectory.domain,
        "round": stored.round_kind,
        "outcome": trajectory.outcome.value,
        "cause": trajectory.cause,
        "success": trajectory.success,
        "reward": trajectory.reward,
        "staleness": stored.staleness,
    }


def as_json(stored: Stored, decode: Decode, insights: Mapping[str, NDArray[np.float64]]) -> dict[str, Any]:
    """The same for programs; arrays have one entry for each token of the turn's action. `insights` [n] each."""
    trajectory = stored.trajectory
    ranks = np.cumsum(trajectory.action_mask) - 1
    starts = [0, *(turn.end for turn in trajectory.turns)]
    return {
        **summary_json(stored),
        "error": trajectory.error,
        "timings_s": trajectory.timings_s,
        "turns": [
            {
                "observation": decode(trajectory.token_ids[start : turn.start].tolist()),
                "action": decode(trajectory.token_ids[turn.start : turn.end].tolist()),
                "reward": turn.reward,
                "valid": turn.valid,
                "token_ids": trajectory.token_ids[turn.start : turn.end].tolist(),
                "logprobs": [round(float(p), 6) for p in trajectory.logprobs[turn.start : turn.end]],
                "versions": trajectory.versions[turn.start : turn.end].tolist(),
                **{name: _rounded(values[ranks[turn.start : turn.end]]) for name, values in insights.items()},
            }
            for start, turn in zip(starts, trajectory.turns, strict=False)
        ],
    }


def _rounded(values: NDArray[np.float64]) -> list[float | None]:
    """JSON has no NaN."""
    return [None if np.isnan(value) else round(float(value), 6) for value in values]


def _speakers(versions: NDArray[np.int32]) -> str:
    """Which policies sampled the tokens."""
    if not versions.size:
        return "nobody"
    first, last = int(versions.min()), int(versions.max())
    return f"policy version {first}" if first == last else f"policy versions {first} to {last}"


def _age(stored: Stored) -> str:
    if stored.staleness is None:
        return ""
    behind = f"{stored.staleness} behind" if stored.staleness else "none behind"
    return f", trained at version {stored.iteration - 1} ({behind})"


def _round(stored: Stored) -> str:
    return f", {stored.round_kind} round" if stored.round_kind else ""


def _versions(trajectory: Trajectory, start: int, end: int) -> str:
    """`v4`, or `v4 then v5` where new weights arrived within the action."""
    spoke = trajectory.versions[start:end].tolist()
    return " then ".join(f"v{version}" for at, version in enumerate(spoke) if at == 0 or version != spoke[at - 1])


def _indented(text: str) -> Iterator[str]:
    for line in text.strip().splitlines():
        yield f"     | {printable(line)}"


def printable(text: str) -> str:
    """Text of an environment or a model, without control characters that a terminal would obey."""
    return "".join(c if c.isprintable() else " " for c in text)
