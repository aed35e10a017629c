"""Batch-level rollouts against env-level asynchronous ones, with redundancy, and with an asynchronous ratio.

Real ALFWorld in process sandboxes, the embedded engine, the learner; every environment step waits for a
truncated normal N(10 s, σ), scaled down by `--scale`. One policy plays everything. The four ways add up:

    sync         every turn of a batch waits for its slowest environment; then the learner trains
    env_async    no turn barrier: an episode goes on as soon as its own environment has answered
    redundant    more groups and members are started than needed; the last to finish are cancelled
    total        the next batches are played while the learner trains (async ratio)

Throughput is trained trajectories per wall second between the first batch and the last. The curve over σ
compares `sync` with `env_async` for rollouts alone (nothing is trained). With faults (2% of the episodes'
environments hang, 5% are slow) redundancy is measured a second time. The engine is not bit-exact in any of them:
synchronous runs are by default, and pay for it.
"""

from __future__ import annotations

import reporting  # isort: skip  (first: it mends the import path)

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from reporting.training import train

from rocknroll.envs.registry import family as make_family
from rocknroll.trainer.controller import write_weights
from rocknroll.trainer.policy import load_policy
from rocknroll.trainer.recipe import Recipe
from rocknroll.trainer.rollout.service import RolloutService
from rocknroll.trainer.warmstart import prepare_policy

MEAN_S = 10.0
"""Mean wait of a step before scaling, as in the published measurements."""

PUBLISHED = {1: 1.23, 10: 2.27}
"""Trajectory-level over batch-level rollouts, N(10 s, σ) per turn (RollArt, arXiv 2512.22560, section 7.3)."""

NUM_GROUPS, GROUP_SIZE = 8, 6
SPARE_GROUPS, SPARE_MEMBERS = 2, 1
SPARE = {"redundancy": {"groups": SPARE_GROUPS, "members": SPARE_MEMBERS}, "max_requeues": 2}

WAYS: Mapping[str, Mapping[str, Any]] = {
    "sync": {"async_ratio": 0, "turn_barrier": True},
    "env_async": {"async_ratio": 0},
    "redundant": {"async_ratio": 0, **SPARE},
    "total": {"async_ratio": 2, **SPARE},
}


def recipe(way: str, sigma: float, scale: float, iterations: int, faults: Mapping[str, float] | None = None) -> Recipe:
    """The same run in one of the four ways."""
    sandboxes = NUM_GROUPS * GROUP_SIZE
    if way != "sync":  # the same slots for all the others
        sandboxes = (NUM_GROUPS + SPARE_GROUPS) * (GROUP_SIZE + SPARE_MEMBERS)
    latency = {"latency_s": MEAN_S / scale, "latency_std_s": sigma / scale}
    return Recipe.model_validate(
        {
            "env": {
                "config": {"train_games": 96, "seen_games": 6, "unseen_games": 6, "max_steps": 20},
                "faults": {**latency, **(faults or {})},
            },
            "warmstart": {"games": 96, "epochs": 6, "batch_tokens": 2048},
            "sandbox": {"count": sandboxes, "step_timeout_s": 12 * MEAN_S / scale},
            "engine": {"slots": sandboxes, "bit_exact": False},
            "rollout": {
                "num_groups": NUM_GROUPS,
                "group_size": GROUP_SIZE,
                "constrained": True,
                "infra_retries": 100,
                "max_infra_error_rate": 1.0,
                **WAYS[way],
            },
            "learner": {"iterations": iterations, "epochs": 1, "minibatches": 2},
            "report_to": [],
        }
    )


def trained_per_s(settings: Recipe, policy: Path, folder: Path) -> float:
    """Trajectories trained per second behind the first batch."""
    return train(settings, policy, folder)[0]


def played_per_s(settings: Recipe, policy: Path, folder: Path) -> float:
    """Trajectories per second of synchronous rollouts alone: each batch starts when the one before it is complete."""
    model, _ = load_policy(str(policy), settings.policy.dtype)
    weights = write_weights(model.state_dict(), folder / "weights.safetensors")
    service = RolloutService(settings, policy)
    try:
        service.ready()
        times = []
        for version in range(settings.learner.iterations):
            service.next_batch(version)
            times.append(time.perf_counter())
            service.publish(version + 1, weights)
    finally:
        service.stop()
    return (len(times) - 1) * NUM_GROUPS * GROUP_SIZE / (times[-1] - times[0])


Measure = Callable[[Recipe, Path, Path], float]


class Bench:
    """Rates by what was measured, taken in turns."""

    def __init__(self, policy: Path, scale: float, iterations: int) -> None:
        self._policy = policy
        self._scale = scale
        self._iterations = iterations
        self.rates: dict[tuple[str, float, str], list[float]] = {}

    def take(self, measure: Measure, way: str, sigma: float, faults: Mapping[str, float] | None = None) -> None:
        """One run."""
        settings = recipe(way, sigma, self._scale, self._iterations, faults)
        with tempfile.TemporaryDirectory() as folder:
            rate = measure(settings, self._policy, Path(folder))
        label = f"{measure.__name__}{' with faults' if faults else ''}"
        print(f"{label:<28} sigma {sigma:>4g}  {way:<10} {rate:7.2f} trajectories/s", file=sys.stderr, flush=True)
        self.rates.setdefault((label, sigma, way), []).append(rate)

    def ratio(self, label: str, sigma: float, faster: str, slower: str) -> tuple[float, list[float]]:
        """Median and spread of the paired ratios."""
        pairs = zip(self.rates[label, sigma, faster], self.rates[label, sigma, slower], strict=True)
        ratios = [fast / slow for fast, slow in pairs]
        return round(statistics.median(ratios), 3), [round(min(ratios), 3), round(max(ratios), 3)]


def main() -> int:
    """Measure and print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    parser.add_argument("--quick", action="store_true", help="one round of short runs, three points of the curve")
    parser.add_argument("--scale", type=float, default=20.0, help="how much faster than the stated seconds (20)")
    arguments = parser.parse_args()
    rounds, iterations = (1, 4) if arguments.quick else (2, 4)
    sigmas = (1.0, 5.0, 10.0) if arguments.quick else (1.0, 3.0, 5.0, 7.0, 10.0)
    base = recipe("sync", 10.0, arguments.scale, iterations)
    family = make_family("alfworld", base.env.config)
    family.prepare()
    policy = prepare_policy(base, [family], lambda phase, done, total: None)
    bench = Bench(policy, arguments.scale, iterations)
    faults = {"hang_rate": 0.001, "slow_fraction": 0.05, "slow_factor": 5.0}  # of 20 steps: 2%
    for _ in range(rounds):
        for way in WAYS:
            bench.take(trained_per_s, way, 10.0)
        for way in ("env_async", "redundant"):
            bench.take(trained_per_s, way, 10.0, faults)
        for sigma in sigmas:
            for way in ("sync", "env_async"):
                bench.take(played_per_s, way, sigma)
    pairs = {
        "env_async_over_sync": ("env_async", "sync"),
        "redundant_over_env_async": ("redundant", "env_async"),
        "total_over_sync": ("total", "sync"),
    }
    measured = {name: bench.ratio("trained_per_s", 10.0, *pair) for name, pair in pairs.items()}
    faulty = bench.ratio("trained_per_s with faults", 10.0, "redundant", "env_async")
    curve = {sigma: bench.ratio("played_per_s", sigma, "env_async", "sync") for sigma in sigmas}
    figures = {
        "by_sigma": {f"{sigma:g}": median for sigma, (median, _) in curve.items()},
        "by_sigma_spread": {f"{sigma:g}": spread for sigma, (_, spread) in curve.items()},
        "published_by_sigma": PUBLISHED,
        "redundant_over_env_async_with_faults": faulty[0],
        "redundant_over_env_async_with_faults_spread": faulty[1],
        "spread": {name: spread for name, (_, spread) in measured.items()},
        "trajectories_per_s": {
            f"{label}, sigma {sigma:g}, {way}": round(statistics.median(rates), 3)
            for (label, sigma, way), rates in bench.rates.items()
        },
        "rounds": rounds,
        "iterations": iterations,
        "mean_s": MEAN_S,
        "scale": arguments.scale,
        "episodes_per_batch": NUM_GROUPS * GROUP_SIZE,
    }
    reporting.emit("async", {name: median for name, (median, _) in measured.items()}, figures, arguments.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
