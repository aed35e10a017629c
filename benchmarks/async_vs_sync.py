"""Asynchronous against synchronous training on real ALFWorld, with a waiting time in every step.

The same recipe runs with `rollout.async_ratio=0` and `=1`, alternating, from the same policy; only
the ratio differs (the engine is bit-exact on neither side; by default synchronous runs pay for
that). Throughput is trained episodes per wall second between the first batch and the last, so
start-up counts on neither side. Both sides have twice as many sandboxes as a batch has episodes: a
synchronous trainer cannot use the second half, an asynchronous one plays the next batch in it.
The policy is hardly trained, so most episodes run to their limit and both sides play equally long ones.
"""

from __future__ import annotations

import reporting  # isort: skip  (first: it mends the import path)

import argparse
import statistics
import sys
import tempfile
from pathlib import Path

from reporting.training import train

from rocknroll.envs.registry import family as make_family
from rocknroll.trainer.recipe import Recipe
from rocknroll.trainer.warmstart import prepare_policy


def recipe(async_ratio: float, latency_s: float, iterations: int) -> Recipe:
    """Small groups on a few games; everything but the ratio is the same on both sides."""
    return Recipe.model_validate(
        {
            "env": {
                "config": {"train_games": 48, "seen_games": 6, "unseen_games": 6},
                "faults": {"latency_s": latency_s},
            },
            "warmstart": {"games": 48, "epochs": 1},
            "sandbox": {"count": 32},
            "engine": {"slots": 32, "bit_exact": False},
            "rollout": {
                "num_groups": 4,
                "group_size": 4,
                "constrained": True,
                "async_ratio": async_ratio,
            },
            "learner": {"iterations": iterations, "epochs": 4, "minibatches": 2},
            "report_to": [],
        }
    )


def main() -> int:
    """Measure pairs and print their ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    parser.add_argument("--quick", action="store_true", help="one pair of short runs")
    parser.add_argument("--latency-s", type=float, default=0.1, help="waiting time injected into every step")
    arguments = parser.parse_args()
    pairs, iterations = (1, 5) if arguments.quick else (3, 9)
    settings = {ratio: recipe(ratio, arguments.latency_s, iterations) for ratio in (0.0, 1.0)}
    family = make_family("alfworld", settings[0.0].env.config)
    family.prepare()
    policy = prepare_policy(settings[0.0], [family], lambda phase, done, total: None)
    rates: dict[float, list[float]] = {0.0: [], 1.0: []}
    idle: dict[float, float] = {}
    for pair in range(pairs):
        for ratio in settings:
            with tempfile.TemporaryDirectory() as folder:
                rate, row = train(settings[ratio], policy, Path(folder))
            rates[ratio].append(rate)
            idle[ratio] = row["idle/learner"]
            print(f"pair {pair + 1}/{pairs}  async_ratio={ratio:g}: {rate:.2f} episodes/s", file=sys.stderr)
    ratios = [fast / slow for slow, fast in zip(rates[0.0], rates[1.0], strict=True)]
    figures = {
        "episodes_per_s_sync": round(statistics.median(rates[0.0]), 3),
        "episodes_per_s_async": round(statistics.median(rates[1.0]), 3),
        "ratio_spread": [round(min(ratios), 3), round(max(ratios), 3)],
        "pairs": pairs,
        "iterations": iterations,
        "latency_s": arguments.latency_s,
        "idle_learner_sync": round(idle[0.0], 3),
        "idle_learner_async": round(idle[1.0], 3),
    }
    reporting.emit("async_vs_sync", {"async_over_sync": round(statistics.median(ratios), 3)}, figures, arguments.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
