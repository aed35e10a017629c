"""A training run without ledger, evaluation or report, timed batch by batch."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

from rocknroll.trainer.controller import ServiceStream
from rocknroll.trainer.learner import Learner
from rocknroll.trainer.policy import load_policy
from rocknroll.trainer.recipe import Recipe
from rocknroll.trainer.rollout.service import RolloutService


def train(settings: Recipe, policy: Path, folder: Path) -> tuple[float, Mapping[str, float]]:
    """Trajectories trained per second behind the first batch, and the metrics of the last.

    The first batch is left out, so that neither start-up nor a cold cache counts.
    """
    model, tokenizer = load_policy(str(policy), settings.policy.dtype)
    times: list[float] = []
    rows: list[Mapping[str, float]] = []
    service = RolloutService(settings, policy)
    try:
        service.ready()
        stream = ServiceStream(service, folder / "weights.safetensors")
        learner = Learner(
            model=model,
            tokenizer=tokenizer,
            stream=stream,
            section=settings.learner,
            credit=settings.credit,
            critics=settings.critics,
            run_dir=folder,
            report_to=settings.report_to,
            checkpoint_every=settings.learner.iterations,
            on_iteration=lambda row: (times.append(time.perf_counter()), rows.append(row))[0],
        )
        learner.learn()
        if stream.failure is not None:
            raise stream.failure
    finally:
        service.stop()
    trained = (len(times) - 1) * settings.rollout.num_groups * settings.rollout.group_size
    return trained / (times[-1] - times[0]), rows[-1]
