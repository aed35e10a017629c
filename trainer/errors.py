"""Errors of a run that are the caller's to mend; each message says what, why and what to do.

Others of the kind live with what they are about: `EnvDataError` (envs), `SandboxError` (sandbox),
`EngineError` (engines) and `PolicyError` (policy). The command line gives each an exit code.
"""

from __future__ import annotations


class RecipeError(Exception):
    """A recipe, or an override of one, cannot be used."""


class RunFolderError(Exception):
    """A run folder is in the way, is missing, or cannot be resumed."""


class LearnerDiverged(Exception):
    """A loss or gradient, of the policy or of a critic, became NaN or infinite. The policy's weights are intact."""
