"""One trajectory as a person wants to read it: turn by turn, what was seen, done, paid and how sure the policy was."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from rocknroll.trainer.trajectory import Trajectory

Decode = Callable[[Sequence[int]], str]
"""Token ids to text, special tokens included."""


def headline(iteration: int, trajectory: Trajectory) -> str:
    """Everything about an episode that fits on one line."""
    solved = "solved" if trajectory.success else "not solved"
    return (
        f"{trajectory.id:<12} iteration {iteration:<4} {trajectory.outcome:<11} {solved:<10}"
        f" reward {trajectory.reward:+.2f}  {len(trajectory.turns):>2} turns  {trajectory.task_kind}"
    )


def as_lines(iteration: int, trajectory: Trajectory, decode: Decode) -> Iterator[str]:
    """The whole episode."""
    versions = trajectory.versions[trajectory.action_mask]
    sampled_by = f"policy versions {versions.min()} to {versions.max()}" if versions.size else "nothing sampled"
    yield headline(iteration, trajectory)
    yield f"task {printable(trajectory.task_id)}, group {trajectory.group_id}"
    yield f"{trajectory.token_ids.size} tokens, {versions.size} sampled by {sampled_by}"
    if trajectory.timings_s:
        yield "seconds: " + ", ".join(f"{cause} {s:.2f}" for cause, s in sorted(trajectory.timings_s.items()))
    if trajectory.error:
        yield f"error: {printable(trajectory.error)}"
    seen_until = 0
    for number, turn in enumerate(trajectory.turns, start=1):
        yield ""
        yield from _indented(decode(trajectory.token_ids[seen_until : turn.start].tolist()))
        admitted = "" if turn.valid else "  not admitted"
        action = printable(decode(trajectory.token_ids[turn.start : turn.end].tolist()))
        yield f"{number:>3}> {action}   reward {turn.reward:+.2f}{admitted}"
        yield f"     {_tokens(trajectory, turn.start, turn.end, decode)}"
        seen_until = turn.end
    if rest := decode(trajectory.token_ids[seen_until:].tolist()):
        yield ""
        yield from _indented(rest)


def as_json(iteration: int, trajectory: Trajectory, decode: Decode) -> dict[str, Any]:
    """The same for programs; arrays have one entry for each token of the turn's action."""
    starts = [0, *(turn.end for turn in trajectory.turns)]
    return {
        "id": trajectory.id,
        "iteration": iteration,
        "group_id": trajectory.group_id,
        "task_id": trajectory.task_id,
        "task_kind": trajectory.task_kind,
        "outcome": trajectory.outcome.value,
        "success": trajectory.success,
        "reward": trajectory.reward,
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
            }
            for start, turn in zip(starts, trajectory.turns, strict=False)
        ],
    }


def _tokens(trajectory: Trajectory, start: int, end: int, decode: Decode) -> str:
    """Each token with its probability, and the policy version where it changes."""
    parts, version = [], None
    for at in range(start, end):
        if int(trajectory.versions[at]) != version:
            version = int(trajectory.versions[at])
            parts.append(f"[v{version}]")
        probability = float(np.exp(trajectory.logprobs[at]))
        parts.append(f"{printable(decode([int(trajectory.token_ids[at])])).strip()}:{probability:.2f}")
    return " ".join(parts)


def _indented(text: str) -> Iterator[str]:
    for line in text.strip().splitlines():
        yield f"     | {printable(line)}"


def printable(text: str) -> str:
    """Text of an environment or a model, without control characters that a terminal would obey."""
    return "".join(c if c.isprintable() else " " for c in text)
