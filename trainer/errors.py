"""Errors of a run that are the caller's to mend; each message says what, why and what to do.

Others of the kind live with what they are about: `EnvDataError` (envs), `SandboxError` (sandbox),
`EngineError` (engines) and `PolicyError` (policy). The command line gives each an exit code.
"""

from __future__ import annotations


class RecipeError(Exception):
    """A recipe, or an override of one, cannot be used."""


class RunFolderError(Exception):
    """A run folder is in the way, is missing, or cannot be resumed."""


class LearnerRankLost(Exception):
    """A rank of the learner died. The run can be gone on with from its last checkpoint."""


class ClusterTooSmall(Exception):
    """A Ray cluster lacks what a role asks for; the text says which role, and how much of what."""


class LearnerDiverged(Exception):
    """A loss or gradient, of the policy or of a critic, became NaN or infinite. The policy's weights are intact."""
