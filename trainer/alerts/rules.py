"""The rules of training: what goes wrong with a run while every part of it seems to work."""

from __future__ import annotations

from rocknroll.sandbox.alerts.fleet import FLEET_RULES, changed
from rocknroll.sandbox.alerts.rule import Rule
from rocknroll.trainer.alerts.section import TrainingRuleChanges

STALL = Rule(
    name="stall",
    reads="time since an episode or an iteration was finished, in usual iterations",
    threshold=3.0,
    clear_s=1.0,
    severity="critical",
    what="Nothing was finished for {value:.1f} × the usual time of an iteration: {detail}.",
    why="Rollouts or learner wait for something that does not come.",
    remedy="See what each process waits for (`py-spy dump --pid PID` shows it), then stop the run by Ctrl-C, mend it,"
    " and go on with `roll train --resume`.",
)
STALENESS_PINNED = Rule(
    name="staleness_pinned",
    reads="least share of trajectories that were as old as the asynchronous ratio allows, in the last batches in which"
    " slots stood idle for it",
    threshold=0.9,
    clear_s=1.0,
    what="At least {value:.0%} of a batch is as stale as `rollout.async_ratio` allows, and slots stand idle: {detail}.",
    why="The learner is what the run waits for, so a high ratio makes the data old and nothing faster.",
    remedy="Lower `rollout.async_ratio`, or give the learner more (`learner.ranks`, fewer episodes a batch).",
)
ENTROPY_COLLAPSE = Rule(
    name="entropy_collapse",
    reads="entropy of the policy over the last batches, as a share of that of the first",
    threshold=0.1,
    below=True,
    margin=0.5,
    clear_s=1.0,
    what="The policy's entropy has collapsed to {value:.1%} of what it was: {detail}.",
    why="A policy that always does the same explores nothing any more, and groups without differences teach nothing.",
    remedy="Go back to a checkpoint from before, and lower `learner.learning_rate` or raise `learner.entropy_coef`.",
)
CHEATING = Rule(
    name="cheating",
    reads="files that graders put back and contradictions that they found, for each episode of the last batches",
    threshold=0.25,
    margin=0.5,
    clear_s=1.0,
    what="The policy tampers with what grades it {value:.2f} times an episode: {detail}.",
    why="The graders undo and count it, but what pays in training is what a policy learns.",
    remedy="Read such episodes with `roll inspect RUN --list`, and close the way that they found.",
)

TRAINING_RULES = (STALL, STALENESS_PINNED, ENTROPY_COLLAPSE, CHEATING)


def training_rules(changes: TrainingRuleChanges) -> list[Rule]:
    """All rules of a run as its recipe wants them, those of its sandboxes included."""
    return changed((*FLEET_RULES, *TRAINING_RULES), changes)
