"""Opens where a recipe's episodes are played: a fleet for each domain, or what its family opens itself. No model."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager

from rocknroll.envs import faulty
from rocknroll.envs.places import env_spec
from rocknroll.envs.text import OutsideFamily
from rocknroll.sandbox.fleet import Fleet
from rocknroll.sandbox.runtimes.process import ProcessRuntime
from rocknroll.sandbox.spec import RestartPolicy, SandboxSpec
from rocknroll.trainer.domains import Domain, Domains
from rocknroll.trainer.recipe import EnvSection, FaultsSection, Recipe
from rocknroll.trainer.rollout.environments import FleetEnvironments, part_of

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
    their sandboxes."""
    async with AsyncExitStack() as stack:
        fleets = {
            domain.name: await stack.enter_async_context(
                Fleet(
                    sandbox_spec(domain),
                    size=part_of(_sandboxes(domain, recipe), share),
                    runtime=ProcessRuntime(),
                    store=None,
                )
            )
            for domain in domains
            if not isinstance(domain.family, OutsideFamily)
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
