"""Tail batching against plain synchronous rollouts, in real time, with as many trained trajectories a round.

Both sides are the production scheduler and loop, with a player that sleeps for as long as its response is
long. Lengths are log-normal with a median of 560 tokens and a standard deviation of 1 in the logarithm, cut at
16384: the upper quartile is then 1.1k and the longest of a thousand about 25 medians, as RollPacker reports for
reasoning models (arXiv 2509.21009, figure 2a). Most of the variance (0.64) is the prompt's, the rest the
response's, and both sides meet the same lengths. Every slot decodes at one speed however many are busy, and
there are no more slots than a plain round has responses, so that what short rounds launch beyond has to queue.

Measured is rollout time: training, which is the same on both sides, takes none here. A run is whole: its last
rounds flush the long queue, so both sides train on the same prompts. Tail batching trains on what finishes
first; `figures.bias` says what that does to length and reward, where the chance of success is made to fall
with length.
"""

from __future__ import annotations

import reporting  # isort: skip  (first: it mends the import path)

import argparse
import asyncio
import math
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rocknroll.envs.text import Task
from rocknroll.trainer.batch_metrics import rounds
from rocknroll.trainer.rollout.faults import FailureWindow
from rocknroll.trainer.rollout.loop import RolloutLoop
from rocknroll.trainer.rollout.scheduler import Batch, Scheduler, SchedulerOptions
from rocknroll.trainer.rollout.tasks import TaskOrder
from rocknroll.trainer.simulate.world import LogNormal, World
from rocknroll.trainer.trajectory import Outcome, Trajectory, Turn

PROMPTS, RESPONSES, ETA = 16, 8, 1.25
"""P0, R0 and η of the paper, with an eighth of its prompts."""
SLOTS = PROMPTS * RESPONSES
MEDIAN_TOKENS, SIGMA, MOST_TOKENS, PROMPTS_VARIANCE = 560.0, 1.0, 16384, 0.64
ROLLOUT_SHARE = 0.7
"""Of an iteration, in plain synchronous training (RollPacker, table 1: 66 to 72%)."""


class Sleeper:
    """Plays a response by sleeping for as long as decoding it would take."""

    def __init__(self, seed: int, token_s: float) -> None:
        self.version = 0
        self.decoded = 0.0
        """Tokens so far, those of cancelled responses included."""
        self._token_s = token_s
        prompts, responses = SIGMA * math.sqrt(PROMPTS_VARIANCE), SIGMA * math.sqrt(1 - PROMPTS_VARIANCE)
        self._world = World(turns=LogNormal(MEDIAN_TOKENS, prompts), member_factor=LogNormal(1.0, responses), seed=seed)

    async def play(
        self,
        episode_id: str,
        group_id: str,
        task: Task,
        *,
        temperature: float | None = None,
        seed: int | None = None,
        engine: int = 0,
        leave: Callable[[], None] = lambda: None,
    ) -> Trajectory:
        """See `Player.play`."""
        group, member, attempt = map(int, episode_id.removeprefix("g").split("."))
        luck = self._world.luck(group, member, attempt)
        tokens, version = min(MOST_TOKENS, luck.turns), self.version
        began_s = time.perf_counter()
        try:
            await asyncio.sleep(tokens * self._token_s)
        finally:
            self.decoded += min(tokens, (time.perf_counter() - began_s) / self._token_s)
        won = luck.dice.random() < 1 / (1 + tokens / 2000)
        return Trajectory(
            id=episode_id,
            group_id=group_id,
            task_id=task.id,
            task_kind=task.kind,
            # Only the length matters: one element, repeated without memory of its own.
            token_ids=np.broadcast_to(np.int32(0), tokens),
            action_mask=np.broadcast_to(np.bool_(True), tokens),
            logprobs=np.broadcast_to(np.float32(0), tokens),
            versions=np.broadcast_to(np.int32(version), tokens),
            turns=(Turn(0, tokens, float(won), True),),
            outcome=Outcome.COMPLETED,
            success=won,
        )


@dataclass(frozen=True, repr=False)  # asyncio.run writes down what it returns, which takes a minute for a run
class Played:
    """One run."""

    round_s: tuple[float, ...]
    batches: tuple[Batch, ...]
    decoded_tokens: float

    @property
    def wall_s(self) -> float:
        return sum(self.round_s)

    @property
    def prompts(self) -> list[str]:
        """Those that were trained on."""
        return sorted(group.id for batch in self.batches for group in batch.groups)

    def trained(self, kind: str | None = None) -> list[Trajectory]:
        """Trajectories of all rounds, or of those of one kind."""
        groups = (group for batch in self.batches for group in batch.groups)
        return [t for group in groups if kind in (None, group.round_kind) for t in group.trajectories]

    def seconds(self, kind: str) -> list[float]:
        """How long the rounds of a kind took."""
        pairs = zip(self.round_s, self.batches, strict=True)
        return [s for s, batch in pairs if batch.groups[0].round_kind == kind]


async def play(seed: int, count: int, token_s: float, *, tail: bool) -> Played:
    """`count` rounds."""
    options = SchedulerOptions(
        PROMPTS,
        RESPONSES,
        extra_groups=math.ceil(ETA * PROMPTS) - PROMPTS if tail else 0,
        extra_members=math.ceil(ETA * RESPONSES) - RESPONSES if tail else 0,
        tail_batching=tail,
        last_batch=count - 1,
    )
    tasks = [Task(f"t{i}", "prompt") for i in range(PROMPTS * count)]
    player = Sleeper(seed, token_s)
    loop = RolloutLoop(
        Scheduler(TaskOrder(tasks, seed), options),
        player,
        concurrency=SLOTS,
        seed=seed,
        failures=FailureWindow(max_rate=0.0),
    )
    await loop.start()
    took_s: list[float] = []
    batches: list[Batch] = []
    for version in range(count):
        began_s = time.perf_counter()
        batches.append(await loop.next_batch(version))
        took_s.append(time.perf_counter() - began_s)
        player.version = version + 1
        await loop.on_version(version + 1)
    await loop.stop()
    return Played(tuple(took_s), tuple(batches), player.decoded)


def bias(sync: Sequence[Played], tail: Sequence[Played]) -> dict[str, Any]:
    """Mean length and return of what was trained on: plain, and by kind of round."""
    by_kind: dict[str, float] = {}
    for kind in ("short", "long"):
        groups = [g for run in tail for batch in run.batches for g in batch.groups if g.round_kind == kind]
        figures = rounds(groups)
        by_kind |= {f"{kind}_{what}": figures[f"round/{kind}_{what}"] for what in ("tokens", "reward")}
    return {
        "sync_tokens": round(_mean_tokens(sync), 1),
        "tail_tokens": round(_mean_tokens(tail), 1),
        **{key: round(value, 3) for key, value in by_kind.items()},
        "sync_reward": round(_mean_reward(sync), 3),
        "tail_reward": round(_mean_reward(tail), 3),
    }


def _mean_tokens(runs: Sequence[Played]) -> float:
    return statistics.mean(len(t.token_ids) for run in runs for t in run.trained())


def _mean_reward(runs: Sequence[Played]) -> float:
    return statistics.mean(t.reward for run in runs for t in run.trained())


def _thrown_away(runs: Sequence[Played]) -> float:
    """Share of the decoded tokens that nobody trained on."""
    trained = sum(len(t.token_ids) for run in runs for t in run.trained())
    return 1 - trained / sum(run.decoded_tokens for run in runs)


def main() -> int:
    """Play both sides for each seed and print the ratio of their times."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    parser.add_argument("--quick", action="store_true", help="two seeds of ten rounds")
    parser.add_argument("--token-s", type=float, default=2e-4, help="seconds for which a token sleeps")
    arguments = parser.parse_args()
    seeds, count = (2, 10) if arguments.quick else (5, 20)
    sync: list[Played] = []
    tail: list[Played] = []
    for seed in range(seeds):
        for runs, tails in ((sync, False), (tail, True)):
            runs.append(asyncio.run(play(seed, count, arguments.token_s, tail=tails)))
        print(f"seed {seed}: {sync[-1].wall_s:.2f} s plain, {tail[-1].wall_s:.2f} s tail batching", file=sys.stderr)
    ratios = [plain.wall_s / other.wall_s for plain, other in zip(sync, tail, strict=True)]
    ratio = statistics.median(ratios)
    figures = {
        "ratio_spread": [round(min(ratios), 3), round(max(ratios), 3)],
        "whole_iteration_if_rollout_is_70_percent": round(1 / (1 - ROLLOUT_SHARE + ROLLOUT_SHARE / ratio), 3),
        "round_s_sync": round(statistics.mean(s for run in sync for s in run.round_s), 3),
        "round_s_short": round(statistics.mean(s for run in tail for s in run.seconds("short")), 3),
        "round_s_long": round(statistics.mean(s for run in tail for s in run.seconds("long")), 3),
        "long_rounds": sum(len(run.seconds("long")) for run in tail) / (seeds * count),
        "same_prompts": all(plain.prompts == other.prompts for plain, other in zip(sync, tail, strict=True)),
        "trained_a_round": PROMPTS * RESPONSES,
        "tokens_thrown_away": round(_thrown_away(tail), 3),
        "bias": bias(sync, tail),
        "seeds": seeds,
        "rounds": count,
        "slots": SLOTS,
        "token_s": arguments.token_s,
    }
    reporting.emit("tail_batching", {"tail_over_sync": round(ratio, 3)}, figures, arguments.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
