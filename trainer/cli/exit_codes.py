"""What `roll` exits with, and which error with what. `docs/exit-codes.md` says the same; a test compares."""

from __future__ import annotations

from rocknroll.sandbox.cli.boundary import Boundary, DocumentedCode


class ExitCode(DocumentedCode):
    """The exit codes of `roll`."""

    OK = 0, "done"
    UNEXPECTED = 1, "an error nobody foresaw; `--debug` shows the traceback"
    USAGE = 2, "the command line is wrong"
    RECIPE = 3, "a recipe or an override cannot be used"
    DATA = 4, "an environment's data is missing, incomplete or corrupt"
    POLICY = 5, "a model or tokenizer cannot be used, or training diverged"
    RUN_FOLDER = 6, "a run folder is in the way, missing, broken or not resumable"
    INFRASTRUCTURE = 7, "sandboxes, the engine or a learner rank failed too often, or cannot start here"
    INTERRUPTED = 130, "stopped by Ctrl-C; a run can be resumed"


boundary = Boundary(
    ExitCode,
    {
        "rocknroll.trainer.errors.RecipeError": ExitCode.RECIPE,
        "rocknroll.trainer.errors.RunFolderError": ExitCode.RUN_FOLDER,
        "rocknroll.trainer.storage.StorageError": ExitCode.RUN_FOLDER,
        "rocknroll.trainer.rollout.ledger_file.LedgerError": ExitCode.RUN_FOLDER,
        "rocknroll.trainer.checkpoint.CheckpointError": ExitCode.RUN_FOLDER,
        "rocknroll.trainer.errors.LearnerDiverged": ExitCode.POLICY,
        "rocknroll.trainer.render.PolicyError": ExitCode.POLICY,
        "rocknroll.envs.text.EnvDataError": ExitCode.DATA,
        "rocknroll.trainer.engines.base.EngineError": ExitCode.INFRASTRUCTURE,
        "rocknroll.trainer.errors.ClusterTooSmall": ExitCode.INFRASTRUCTURE,
        "rocknroll.trainer.errors.LearnerRankLost": ExitCode.INFRASTRUCTURE,
        "rocknroll.trainer.rollout.loop.RolloutFailed": ExitCode.INFRASTRUCTURE,
        "rocknroll.sandbox.errors.SandboxError": ExitCode.INFRASTRUCTURE,
    },
)
