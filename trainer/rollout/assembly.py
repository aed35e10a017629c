"""Builds the rollout side of a recipe: domains, model, engine, fleets, scheduler, loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from rocknroll.envs.reasoning.timeouts import AdaptiveTimeouts
from rocknroll.sandbox.cluster import choose_cluster
from rocknroll.sandbox.fleet import Fleet
from rocknroll.sandbox.nodes import this_node
from rocknroll.trainer.domains import Domains
from rocknroll.trainer.engines.cores import check_cores, hold
from rocknroll.trainer.engines.devices import engine_cluster
from rocknroll.trainer.engines.making import make_engine
from rocknroll.trainer.engines.pool import EnginePool
from rocknroll.trainer.errors import RecipeError
from rocknroll.trainer.recipe import Recipe
from rocknroll.trainer.rewards.workers import RewardWorkers
from rocknroll.trainer.rollout import autoscale
from rocknroll.trainer.rollout.autoscale import Autoscaler, Load
from rocknroll.trainer.rollout.barrier import TurnBarrier
from rocknroll.trainer.rollout.environments import FleetEnvironments
from rocknroll.trainer.rollout.episode import Player, PlayOptions
from rocknroll.trainer.rollout.faults import FailureWindow
from rocknroll.trainer.rollout.loop import Journal, RolloutLoop
from rocknroll.trainer.rollout.meter import Meter, Reading
from rocknroll.trainer.rollout.opening import open_environments
from rocknroll.trainer.rollout.players import DomainPlayers
from rocknroll.trainer.rollout.scheduler import Scheduler, SchedulerOptions
from rocknroll.trainer.trajectory import Group


@dataclass(frozen=True)
class Parts:
    """The running rollout side."""

    fleets: Mapping[str, Fleet]
    """By domain, of those whose environment runs in its sandbox."""
    environments: FleetEnvironments
    engine: EnginePool
    rewards: RewardWorkers | None
    scheduler: Scheduler
    loop: RolloutLoop
    meter: Meter

    async def ready(self) -> None:
        """Wait until one sandbox of each fleet plays.

        Raises:
            SandboxError: one never will.
        """
        for fleet in self.fleets.values():
            await (await fleet.lease(owner="readiness")).release()

    def metrics(self, groups: Sequence[Group], waited_s: float) -> dict[str, float]:
        """Figures of the interval that the batch `groups` closes; `waited_s`: how long the learner waited for it."""
        measured = self.environments.metrics()
        engine = self.engine.metrics()
        faults = {"slow_environment": measured["slow"], "engine_restart": engine["engine_restarts"]}
        now = Reading(
            self.loop.slot_busy_s(), self.loop.slots_s(), engine, measured["busy_s"], {**self.loop.lost, **faults}
        )
        counts = {f"groups/{where}": float(n) for where, n in self.scheduler.counts().items()}
        scored = {} if self.rewards is None else self.rewards.metrics()
        return self.meter.read(groups, now, waited_s) | counts | {f"reward/{name}": n for name, n in scored.items()}

    def fleets_by_name(self) -> Mapping[str, Fleet]:
        """The fleets by what their sandboxes are called after."""
        return {fleet.spec.name: fleet for fleet in self.fleets.values()}

    def sandbox_pids(self) -> list[int]:
        """Process ids of the live sandboxes of this machine."""
        rows = (row for fleet in self.fleets.values() for row in fleet.snapshot())
        return [row["pid"] for row in rows if row["pid"] is not None and row["node"] == this_node()]


@asynccontextmanager
async def assemble(
    recipe: Recipe, model_folder: Path, journal: Journal | None = None, *, logs: Path | None = None
) -> AsyncIterator[Parts]:
    """Start everything the recipe names; stop it all on the way out.

    The calling thread is held to `sandbox.cores`, so it should have no other work. `logs`: the folder for logs of
    servers.

    Raises:
        EngineError: the engine cannot start.
    """
    domains = Domains(recipe)
    async with AsyncExitStack() as stack:
        nodes = None
        if (cluster := engine_cluster(recipe)) is not None:
            from rocknroll.trainer.engines.vllm.nodes import engine_nodes

            nodes = stack.enter_context(engine_nodes(recipe, cluster))
        engine, tokenizer, max_length = make_engine(recipe, model_folder, logs, nodes)
        scheduler = Scheduler(domains.order(), SchedulerOptions.of(recipe))
        if recipe.sandbox.cores is not None:
            check_cores(recipe.sandbox.cores, "sandbox.cores")
            hold(0, recipe.sandbox.cores)
        stack.push_async_callback(engine.close)
        await engine.ready()
        autoscaler = make_autoscaler(recipe)
        share = 1.0 if autoscaler is None else autoscaler.count / recipe.sandbox.count
        fleets, environments = await stack.enter_async_context(open_environments(recipe, domains, share))
        played_in = TurnBarrier(environments) if recipe.rollout.turn_barrier else environments
        options = play_options(recipe, max_length)
        rewards = await stack.enter_async_context(reward_workers(recipe))
        players = {
            name: Player(played_in, engine, renderer, options, rewards)
            for name, renderer in domains.renderers(tokenizer).items()
        }
        loop = RolloutLoop(
            scheduler,
            DomainPlayers(players),
            concurrency=recipe.sandbox.count if autoscaler is None else autoscaler.count,
            seed=recipe.seed,
            failures=FailureWindow(recipe.rollout.max_infra_error_rate),
            journal=journal,
            engines=recipe.engine.replicas,
        )
        stack.push_async_callback(loop.stop)
        await loop.start()
        if autoscaler is not None:
            await stack.enter_async_context(following(autoscaler, loop, environments))
        yield Parts(fleets, environments, engine, rewards, scheduler, loop, Meter())


def make_autoscaler(recipe: Recipe) -> Autoscaler | None:
    """What decides on the number of environments; None where the recipe fixes it."""
    least = recipe.sandbox.least
    engine_places = recipe.engine.slots * recipe.engine.replicas
    return None if least is None else Autoscaler(least, recipe.sandbox.count, engine_places)


@asynccontextmanager
async def following(autoscaler: Autoscaler, loop: RolloutLoop, environments: FleetEnvironments) -> AsyncIterator[None]:
    """Let the loop and the fleets have as many places as `autoscaler` says."""

    async def follow() -> None:
        while True:
            await asyncio.sleep(autoscale.INTERVAL_S)
            before = autoscaler.count
            load = Load(time.perf_counter(), loop.demand(), loop.slot_busy_s(), environments.metrics()["busy_s"])
            count = autoscaler.observe(load)
            if count != before:
                environments.scale(count / autoscaler.most)
                loop.resize(count)

    def ended(task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (failure := task.exception()) is not None:
            loop.fail(failure)

    task = asyncio.create_task(follow(), name="autoscale")
    task.add_done_callback(ended)
    try:
        yield
    finally:
        task.cancel()


@asynccontextmanager
async def reward_workers(recipe: Recipe) -> AsyncIterator[RewardWorkers | None]:
    """The processes that compute the recipe's own reward; None where it has none.

    Raises:
        RecipeError: they do not find the function, or are to be on a cluster, and there is none.
        ClusterTooSmall: the cluster has too few cores for them.
    """
    section = recipe.reward
    if section.function is None:
        yield None
        return
    timeouts = AdaptiveTimeouts(section.min_timeout_s, section.max_timeout_s, section.timeout_factor)
    async with AsyncExitStack() as stack:
        pool = None
        if section.where == "cluster":
            choice = choose_cluster(recipe.cluster.address)
            if not choice.address:
                raise RecipeError(
                    f"`reward.where` is `cluster`, and {choice}: name a cluster in `cluster.address`, or take `here`"
                )
            from rocknroll.trainer.rewards.nodes import reward_nodes

            pool = await stack.enter_async_context(reward_nodes(section.function, section.workers, choice))
        workers = RewardWorkers(section.function, section.workers, timeouts, pool)
        stack.push_async_callback(workers.close)
        await workers.start()
        yield workers


def play_options(recipe: Recipe, max_length: int) -> PlayOptions:
    """How episodes are played."""
    rollout = recipe.rollout
    return PlayOptions(
        max_action_tokens=rollout.max_action_tokens,
        max_length=max_length,
        temperature=rollout.temperature,
        constrained=rollout.constrained,
        invalid_action_penalty=rollout.invalid_action_penalty,
        turn_penalty=rollout.turn_penalty,
        progress_reward=rollout.progress_reward,
        timeout_s=rollout.episode_timeout_s,
    )
