"""What the steps of a batch need besides the weights that they train, computed once, before the first of them.

Advantages, where there are critics from their values, and the log-probabilities that losses compare; what a checkpoint
taken within a batch holds of them is put back as it was.
"""

from __future__ import annotations

from rocknroll.trainer.checkpoint import CheckpointError, PendingBatch
from rocknroll.trainer.comparisons import Comparisons
from rocknroll.trainer.critics import Critics
from rocknroll.trainer.experience import Experience, learnable, prepare
from rocknroll.trainer.learner_section import LearnerSection
from rocknroll.trainer.stream import Batch
from rocknroll.trainer.valuation import Valuation


class Preparation:
    """`seed` decides how a batch is cut into minibatches."""

    def __init__(self, section: LearnerSection, comparisons: Comparisons, critics: Critics | None, seed: int) -> None:
        self._section, self._comparisons, self._critics, self._seed = section, comparisons, critics, seed

    def prepared(self, batch: Batch, version: int, *, score: bool = True) -> Experience:
        """The batch ready to be learned from by policy `version`; `score`: with the log-probabilities to compare."""
        valuation = None if self._critics is None else self._critics.judge(learnable(batch), version)
        experience = self._experience(batch, version, valuation)
        if score:
            self._comparisons.score(experience)
        return experience

    def restored(self, pending: PendingBatch, version: int) -> Experience:
        """The batch that a checkpoint was taken within.

        Raises:
            CheckpointError: the recipe now divides it into another number of steps.
        """
        batch = Batch(groups=pending.groups, metrics=pending.metrics)
        experience = self._experience(batch, version, pending.valuation)
        if len(experience.minibatches) != pending.steps:
            raise CheckpointError(
                f"the checkpoint was taken within a batch of {pending.steps} optimiser steps, and the recipe now asks "
                f"for {len(experience.minibatches)}: resume with the `epochs` and `minibatches` it was started with"
            )
        experience.steps_done = pending.steps_done
        experience.proximal, experience.reference, experience.past = pending.proximal, pending.reference, pending.past
        experience.gamma = pending.gamma
        return experience

    def _experience(self, batch: Batch, version: int, valuation: Valuation | None) -> Experience:
        critics = None if self._critics is None else self._critics.section
        return prepare(batch, self._section, version=version, seed=self._seed, critics=critics, valuation=valuation)
