"""Builds the rollout side of a recipe: family, model, engine, fleet, scheduler, loop."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from rocknroll.envs.registry import family as make_family
from rocknroll.sandbox.fleet import Fleet
from rocknroll.sandbox.runtimes.process import ProcessRuntime
from rocknroll.sandbox.spec import EnvSpec, SandboxSpec
from rocknroll.trainer.engines.base import Engine
from rocknroll.trainer.engines.local import LocalEngine
from rocknroll.trainer.policy import load_policy
from rocknroll.trainer.recipe import Recipe
from rocknroll.trainer.render import make_renderer
from rocknroll.trainer.rollout.environments import FleetEnvironments
from rocknroll.trainer.rollout.episode import Player, PlayOptions
from rocknroll.trainer.rollout.loop import RolloutLoop
from rocknroll.trainer.rollout.meter import Meter
from rocknroll.trainer.rollout.scheduler import Scheduler, SchedulerOptions
from rocknroll.trainer.rollout.tasks import TaskOrder


@dataclass(frozen=True)
class Parts:
    """The running rollout side."""

    fleet: Fleet
    engine: Engine
    scheduler: Scheduler
    loop: RolloutLoop
    meter: Meter


@asynccontextmanager
async def assemble(recipe: Recipe, model_folder: Path, concurrency: int) -> AsyncIterator[Parts]:
    """Start everything the recipe names; stop it all on the way out."""
    family = make_family(recipe.env.name, recipe.env.config)
    model, tokenizer = load_policy(str(model_folder), recipe.policy.dtype)
    renderer = make_renderer(tokenizer, family.instructions)
    rollout = recipe.rollout
    max_length = min(int(model.config.max_position_embeddings), recipe.engine.max_length)
    engine = LocalEngine(
        model, slots=recipe.engine.slots, max_length=max_length, threads=recipe.engine.threads, seed=recipe.seed
    )
    spec = SandboxSpec(
        name=recipe.env.name,
        env=EnvSpec(entry_point=family.entry_point, kwargs=dict(family.env_kwargs())),
        reuse="reset",
        readable=tuple(family.data_folders()),
    )
    scheduler = Scheduler(
        TaskOrder(family.tasks("train"), recipe.seed, family.disguise_task),
        SchedulerOptions.of(recipe),
    )
    async with Fleet(spec, size=recipe.sandbox.count, runtime=ProcessRuntime(), store=None) as fleet:
        environments = FleetEnvironments(
            fleet, lease_s=recipe.sandbox.lease_s, step_timeout_s=recipe.sandbox.step_timeout_s
        )
        options = PlayOptions(
            max_action_tokens=rollout.max_action_tokens,
            max_length=max_length,
            temperature=rollout.temperature,
            constrained=rollout.constrained,
            invalid_action_penalty=rollout.invalid_action_penalty,
            turn_penalty=rollout.turn_penalty,
            progress_reward=rollout.progress_reward,
            step_latency_s=rollout.step_latency_s,
        )
        loop = RolloutLoop(
            scheduler,
            Player(environments, engine, renderer, options),
            concurrency=concurrency,
            seed=recipe.seed,
            max_infra_error_rate=rollout.max_infra_error_rate,
        )
        await loop.start()
        try:
            yield Parts(fleet, engine, scheduler, loop, Meter(concurrency))
        finally:
            await loop.stop()
            await engine.close()
