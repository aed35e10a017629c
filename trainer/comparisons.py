"""The other policies that the one being trained is compared with, and their log-probabilities of a batch.

π_prox is the weights as they are when a batch arrives; the reference is the policy at the start of
RL; past versions are kept for as long as their tokens may still arrive. Each exists only where the
learner's settings ask for it, and all that is needed to go on exactly is in the checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from safetensors.torch import load_model, save_model
from torch import Tensor
from transformers.modeling_utils import PreTrainedModel

from rocknroll.trainer.checkpoint import CheckpointError
from rocknroll.trainer.credit.assignment import Credit
from rocknroll.trainer.experience import Experience
from rocknroll.trainer.learner_section import LearnerSection
from rocknroll.trainer.objectives.catalogue import USES_PROXIMAL
from rocknroll.trainer.passes import Passes
from rocknroll.trainer.ranks import whole_state
from rocknroll.trainer.snapshots import Snapshots, frozen


class Comparisons:
    """Made before the first step, while `policy` is what RL starts from."""

    def __init__(
        self,
        policy: PreTrainedModel,
        section: LearnerSection,
        passes: Passes,
        max_staleness: int,
        credit: Credit | None = None,
    ) -> None:
        self._policy = policy
        self._passes = passes
        self._credit = credit
        self._mismatch = section.mismatch.mode != "off"
        self._proximal = self._mismatch or section.objective in USES_PROXIMAL
        self._reference = frozen(policy) if section.kl_coef > 0 else None
        self._snapshots = Snapshots(max_staleness if self._mismatch else 0, lambda: frozen(policy))

    def score(self, experience: Experience) -> None:
        """Fill in the log-probabilities that the losses of `experience` compare, before its first step.

        With one step π_prox is left out: the step's own forward gives the same, and assigns the credit (`in_step`).
        """
        members = experience.with_gradient
        proximal = None
        if self._credit is not None:
            model = self._credit.begin(experience.version, self._policy)
            if self.in_step(experience) is None:
                scored = self._passes.score(model, experience, members, self._credit)
                proximal = scored if model is self._policy else None
                experience.metrics |= self._credit.metrics()
        if self._proximal and not experience.one_step:
            experience.proximal = proximal or self._passes.score(self._policy, experience, members)
        if self._mismatch:
            experience.past = self._passes.score_past(self._snapshots, experience)
        if self._reference is not None:
            experience.reference = self._passes.score(self._reference, experience, members)

    def in_step(self, experience: Experience) -> Credit | None:
        """The credit that the batch's one step assigns in its own forward; None where it was assigned before."""
        return None if self._credit is None or self._credit.copied or not experience.one_step else self._credit

    def keep(self, version: int) -> None:
        """The policy's weights are still those of `version`, and about to change."""
        self._snapshots.keep(version, self._policy)

    def begin(self, checkpoints: Path, resumed: bool, *, write: bool = True) -> None:
        """Write the reference beside a new run's checkpoints, unless another rank does, or take it from there.

        Raises:
            CheckpointError: a run that is resumed began without one.
        """
        if self._reference is None:
            return
        file = checkpoints / "reference.safetensors"
        if not resumed:
            if write:
                file.parent.mkdir(parents=True, exist_ok=True)
                save_model(self._reference, str(file))
        elif file.exists():
            load_model(self._reference, file)
        else:
            raise CheckpointError(f"{file} is missing: this run began with `learner.kl_coef=0`, so keep it at 0")

    def published(self, version: int) -> Mapping[str, Tensor]:
        """The weights that are `version` to those who play: the policy's own, unless it is in the middle of a batch
        and those it began the batch with are kept."""
        kept = self._snapshots.weights(version)
        return whole_state(self._policy) if kept is None else kept

    def save(self, checkpoint: Path) -> None:
        """Write the past versions into a checkpoint."""
        self._snapshots.save(checkpoint)
        if self._credit is not None:
            self._credit.save(checkpoint)

    def load(self, checkpoint: Path, version: int) -> None:
        """Take up what `save` wrote when the learner was at `version`.

        Raises:
            CheckpointError: they are not there, and are needed.
        """
        if not self._snapshots.load(checkpoint) and self._snapshots.count and version:
            raise CheckpointError(
                f"{checkpoint} has no weights of earlier versions: this run began with `learner.mismatch.mode=off` or"
                " `rollout.async_ratio=0`, so keep it at that"
            )
        if self._credit is not None:
            self._credit.load(checkpoint, version)
