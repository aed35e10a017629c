"""Causes of lost episodes, and when too many of them stop a run."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from rocknroll.sandbox import errors
from rocknroll.sandbox.errors import KINDS, EnvError, SandboxError
from rocknroll.trainer.engines.base import EngineError
from rocknroll.trainer.recipe import Recipe
from rocknroll.trainer.rewards.workers import RewardFailed
from rocknroll.trainer.rollout.faults import (
    FAILURE_WINDOW,
    HOPELESS,
    INFRASTRUCTURE,
    Cause,
    EpisodeTimeout,
    FailureWindow,
    cause_of,
    describe,
)
from rocknroll.trainer.trajectory import Outcome, Trajectory


def trajectory(cause: str = "", error: str = "") -> Trajectory:
    nothing = np.zeros(0)
    return Trajectory(
        id="e",
        group_id="g",
        task_id="t",
        task_kind="kind",
        token_ids=nothing.astype(np.int32),
        action_mask=nothing.astype(np.bool_),
        logprobs=nothing.astype(np.float32),
        versions=nothing.astype(np.int32),
        turns=(),
        outcome=Outcome.INFRA_ERROR if cause else Outcome.COMPLETED,
        success=False,
        cause=cause,
        error=error,
    )


def window(*causes: str, max_rate: float = 0.5, size: int = 4) -> FailureWindow:
    subject = FailureWindow(max_rate, size)
    for cause in causes:
        subject.observe(trajectory(cause, f"Error: {cause}"))
    return subject


@pytest.mark.parametrize(
    ("failure", "cause"),
    [
        (errors.EnvError("x"), Cause.ENV_ERROR),
        (errors.EnvHung("x"), Cause.ENV_HUNG),
        (errors.EnvCrashed("x"), Cause.ENV_CRASHED),
        (errors.SandboxLost("x"), Cause.SANDBOX_LOST),
        (errors.RequestTimeout("x"), Cause.SANDBOX_LOST),
        (errors.LeaseLost("x"), Cause.LEASE_LOST),
        (errors.StaleToken("x"), Cause.LEASE_LOST),
        (errors.StartTimeout("x"), Cause.START_FAILED),
        (errors.LeaseTimeout("x"), Cause.START_FAILED),
        (errors.ProtocolError("x"), Cause.SANDBOX_ERROR),
        (EpisodeTimeout("x"), Cause.EPISODE_TIMEOUT),
        (EngineError("x"), Cause.ENGINE_ERROR),
        (RewardFailed("x"), Cause.REWARD_ERROR),
    ],
)
def test_a_failure_has_the_cause_that_fits_it_best(failure: Exception, cause: Cause) -> None:
    assert cause_of(failure) is cause


@pytest.mark.parametrize("kind", KINDS)
def test_every_failure_of_a_sandbox_has_a_cause(kind: str) -> None:
    failure: SandboxError = KINDS[kind]("x")
    assert isinstance(failure, INFRASTRUCTURE)
    assert cause_of(failure) in Cause


@pytest.mark.parametrize("bug", [KeyError("admissible_commands"), TimeoutError(), AssertionError()])
def test_a_fault_of_this_program_has_none(bug: Exception) -> None:
    assert not isinstance(bug, INFRASTRUCTURE)
    with pytest.raises(LookupError):
        cause_of(bug)


def test_what_every_further_episode_would_meet_is_hopeless() -> None:
    assert isinstance(errors.FleetExhausted("x"), HOPELESS)
    assert not isinstance(errors.SandboxLost("x"), HOPELESS)


def test_an_error_of_an_environment_brings_its_traceback_along() -> None:
    text = describe(EnvError("ValueError: no such drawer\nsecond line", "ValueError", "Traceback …\n  in step\n"))
    assert text == "EnvError: ValueError: no such drawer\nTraceback …\n  in step\n"


def test_an_environment_cannot_write_on_the_terminal() -> None:
    assert "\x1b" not in describe(EnvError("\x1b[2Jgone", "ValueError", "\x1b]0;title\x07"))


def test_a_run_goes_on_at_the_accepted_rate_and_stops_beyond_it() -> None:
    assert window("env_error", "", "env_hung", "").verdict() == ""
    assert window("env_error", "env_error", "env_hung", "").verdict()


def test_nothing_is_judged_before_the_window_is_full() -> None:
    assert window("env_error", "env_error", "env_error").verdict() == ""


def test_old_losses_are_forgotten() -> None:
    assert window("env_error", "env_error", "env_error", "env_error", "", "").verdict() == ""


def test_a_run_that_accepts_every_loss_never_stops() -> None:
    assert window(*["env_error"] * 10, max_rate=1.0).verdict() == ""


def test_the_verdict_says_the_rate_the_causes_and_the_last_errors() -> None:
    subject = FailureWindow(0.25, size=6)
    for cause, error in (
        ("sandbox_lost", "SandboxLost: long ago"),
        ("env_error", "EnvError: drawer 1"),
        ("env_error", "EnvError: drawer 2"),
        ("", ""),
        ("env_hung", "EnvHung: 30 s"),
        ("env_error", "EnvError: drawer 2\nTraceback\n  in open"),
    ):
        subject.observe(trajectory(cause, error))
    verdict = subject.verdict()
    assert verdict.startswith("5 of the last 6 episodes (83%) were lost to infrastructure")
    assert "rollout.max_infra_error_rate=0.25" in verdict
    assert "3 × env_error, 1 × sandbox_lost, 1 × env_hung" in verdict
    assert "Last errors: EnvError: drawer 2; EnvHung: 30 s; EnvError: drawer 1." in verdict
    assert "long ago" not in verdict
    assert verdict.endswith("Traceback\n  in open")


@given(st.lists(st.booleans(), max_size=200), st.floats(0, 1))
def test_the_verdict_is_that_of_the_last_episodes_alone(lost: list[bool], max_rate: float) -> None:
    subject = FailureWindow(max_rate)
    for each in lost:
        subject.observe(trajectory("env_error", "EnvError: x") if each else trajectory())
    recent = lost[-FAILURE_WINDOW:]
    too_many = len(recent) == FAILURE_WINDOW and sum(recent) > max_rate * FAILURE_WINDOW
    assert bool(subject.verdict()) == too_many
    assert subject.lost == sum(recent)


def test_waits_that_would_count_as_hangs_are_refused() -> None:
    faults = {"latency_s": 2.0, "slow_fraction": 0.05, "slow_factor": 5.0}
    refused = {"env": {"faults": faults}, "sandbox": {"step_timeout_s": 10.0}}
    with pytest.raises(ValidationError, match=r"wait 10 s, and after `sandbox\.step_timeout_s` \(10 s\) they count"):
        Recipe.model_validate(refused)
    Recipe.model_validate(refused | {"sandbox": {"step_timeout_s": 10.5}})
