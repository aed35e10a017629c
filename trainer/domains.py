"""The environments of a run, by domain: their families, tasks and renderers.

A run of one environment (`env`) has a single domain with the name ""; tasks, trajectories and results
say which domain they are of, and "" stands for the only one. Made from the recipe alone, so that every
process of a run can make its own. Imports nothing heavy.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rocknroll.envs.registry import family as make_family
from rocknroll.envs.text import EnvDataError, Family, Task
from rocknroll.trainer.recipe import DomainSection, Recipe
from rocknroll.trainer.render import Renderer, make_renderer
from rocknroll.trainer.rollout.tasks import MixedOrder, Share, TaskOrder


@dataclass(frozen=True)
class Domain:
    """One environment of a run."""

    name: str
    """As in `Task.domain`; "" for the only environment of a run."""
    section: DomainSection
    family: Family

    @property
    def title(self) -> str:
        """What people read: its name, or the environment's."""
        return self.name or self.section.env.name

    def tasks(self, split: str) -> list[Task]:
        """Tasks of a split in the family's order, marked as this domain's."""
        return [replace(task, domain=self.name) for task in self.family.tasks(split)]

    def order(self, seed: int) -> TaskOrder:
        """The order of its own training tasks.

        Raises:
            EnvDataError: there are none.
        """
        tasks = self.tasks("train")
        if not tasks:
            raise EnvDataError(
                f"{self.title} has no task to train on: its split `train` is empty. Give it some, or, if it is only to"
                " be evaluated, the ratio [[0, 0]]."
            )
        return TaskOrder(tasks, seed, self.family.disguise_task)


class Domains:
    """All environments of a run, in the recipe's order."""

    def __init__(self, recipe: Recipe) -> None:
        """Cheap; each family's `prepare` makes its data.

        Raises:
            UnknownFamily, pydantic.ValidationError, EnvDataError: as `envs.registry.family`; `check_environment`
                says the same in the recipe's words.
        """
        self._recipe = recipe
        self._domains = {
            name: Domain(name, section, make_family(section.env.name, section.env.config))
            for name, section in recipe.sources.items()
        }

    def __iter__(self) -> Iterator[Domain]:
        return iter(self._domains.values())

    def __len__(self) -> int:
        return len(self._domains)

    def __getitem__(self, name: str) -> Domain:
        """The domain of a task (`domains[task.domain]`)."""
        return self._domains[name]

    @property
    def names(self) -> Sequence[str]:
        return tuple(self._domains)

    @property
    def families(self) -> Sequence[Family]:
        return tuple(domain.family for domain in self)

    def order(self) -> TaskOrder | MixedOrder:
        """The training tasks of the run, one for each group, a function of recipe and data alone.

        Raises:
            EnvDataError: a domain that is trained on has no tasks.
        """
        trained = [domain for domain in self if domain.section.trained_on]
        if len(trained) == 1:
            return trained[0].order(self._recipe.seed)
        shares = {
            domain.name: Share(domain.order(_own_seed(self._recipe.seed, domain.name)), domain.section.ratio)
            for domain in trained
        }
        return MixedOrder(shares, self._recipe.rollout.num_groups)

    def renderers(self, tokenizer: Any) -> Mapping[str, Renderer]:
        """What shows a domain's episodes to the policy, by domain: chat models are told its family's instructions.

        Raises:
            PolicyError: the tokenizer cannot show an episode.
        """
        return {domain.name: make_renderer(tokenizer, domain.family.instructions) for domain in self}


def _own_seed(seed: int, name: str) -> int:
    """Domains with the same tasks come in different orders, and adding one changes no other's."""
    return int(np.random.SeedSequence([seed, *name.encode()]).generate_state(1)[0])
