"""Opens where a recipe's episodes are played: a fleet for each domain, on this machine or on the nodes of a cluster, or
what its family opens itself. No model."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

from rocknroll.envs import faulty
from rocknroll.envs.places import env_spec
from rocknroll.envs.text import OutsideFamily
from rocknroll.sandbox.cluster import choose_cluster
from rocknroll.sandbox.fleet import STARTS_PER_CORE, Fleet
from rocknroll.sandbox.nodes import cluster_runtime
from rocknroll.sandbox.runtimes.process import ProcessRuntime
from rocknroll.sandbox.spec import RestartPolicy, SandboxSpec
from rocknroll.trainer.domains import Domain, Domains
from rocknroll.trainer.recipe import EnvSection, FaultsSection, Recipe
from rocknroll.trainer.rollout.environments import FleetEnvironments, part_of

if TYPE_CHECKING:
    from rocknroll.sandbox.runtimes.ray import RayRuntime

RESTARTS = RestartPolicy(limit=200, backoff_limit_s=1.0)
"""A slot that loses its sandbox again and again is not given up in the middle of a run, for what a run bears is
said by its failure rate; a fleet in which nothing starts any more is still found out within minutes."""

NAME_CHARS = 40
"""That the name of a sandbox may have."""


@asynccontextmanager
async def open_environments(
    recipe: Recipe, domains: Domains, share: float = 1.0
) -> AsyncIterator[tuple[Mapping[str, Fleet], FleetEnvironments]]:
    """Where the recipe's episodes are played, and the fleets of the domains that have one; these begin with `share` of
    their sandboxes.

    Raises:
        ClusterUnavailable: the cluster that is meant does not answer, does not fit, or has too little room.
    """
    async with AsyncExitStack() as stack:
        inside = [domain for domain in domains if not isinstance(domain.family, OutsideFamily)]
        shared = await _on_cluster(recipe, inside, stack)
        fleets = {
            domain.name: await stack.enter_async_context(
                Fleet(
                    sandbox_spec(domain),
                    size=part_of(_sandboxes(domain, recipe), share),
                    runtime=shared or ProcessRuntime(),
                    store=None,
                    max_starting=None if shared is None else STARTS_PER_CORE * shared.cores,
                    owns_runtime=shared is None,
                )
            )
            for domain in inside
        }
        outside = {
            domain.name: await stack.enter_async_context(domain.family.places(_sandboxes(domain, recipe)))
            for domain in domains
            if isinstance(domain.family, OutsideFamily)
        }
        environments = FleetEnvironments(
            fleets,
            sizes={domain.name: _sandboxes(domain, recipe) for domain in domains},
            lease_s=recipe.sandbox.lease_s,
            step_timeout_s=recipe.sandbox.step_timeout_s,
            reset_timeout_s=recipe.sandbox.reset_timeout_s,
            wait_s=recipe.rollout.episode_timeout_s,
            faulty=[domain.name for domain in domains if _is_faulty(domain.section.env)],
            outside=outside,
        )
        yield fleets, environments


async def _on_cluster(recipe: Recipe, domains: Sequence[Domain], stack: AsyncExitStack) -> RayRuntime | None:
    """The nodes of the cluster that is meant, open; None when it is this machine."""
    choice = choose_cluster(recipe.cluster.address)
    if not choice.address or not domains:
        return None
    runtime = cluster_runtime(choice)
    stack.push_async_callback(runtime.close)
    return await runtime.open(sum(_sandboxes(domain, recipe) for domain in domains))


def sandbox_spec(domain: Domain) -> SandboxSpec:
    """A sandbox that plays the domain, under the faults that the recipe asks for."""
    env, family = domain.section.env, domain.family
    inside = env_spec(family)
    if _is_faulty(env):
        kwargs = {"entry_point": inside.entry_point, "kwargs": inside.kwargs, "faults": env.faults.model_dump()}
        modules = (inside.entry_point.partition(":")[0], *inside.modules)
        inside = inside.model_copy(update={"entry_point": faulty.ENTRY_POINT, "kwargs": kwargs, "modules": modules})
    return SandboxSpec(
        name=domain.title.replace(":", ".")[-NAME_CHARS:],
        env=inside,
        reuse="reset",
        readable=tuple(family.data_folders()),
        restart=RESTARTS,
    )


def _sandboxes(domain: Domain, recipe: Recipe) -> int:
    return domain.section.sandboxes or recipe.sandbox.count


def _is_faulty(env: EnvSection) -> bool:
    return env.faults != FaultsSection()
