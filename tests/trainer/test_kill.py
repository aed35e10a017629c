"""`roll train` killed at random moments and gone on with: nothing is lost, nothing is trained twice, nothing stays.

ROCKNROLL_KILLS says how many runs of either kind are struck (1 unless given); run i is struck at the same moments each
time, until a strike has ended it. What struck it is the property `landed` (`--junitxml`). In synchronous runs the
policy and every trajectory come out bit for bit as in a run that nobody disturbed.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import psutil
import pytest
from rolling import LIMIT_S, Roll, balance, family, rollouts_pid, rows

from rocknroll.trainer.cli.exit_codes import ExitCode
from rocknroll.trainer.run_folder import RunFolder
from rocknroll.trainer.storage import read_trajectories

KILLS = int(os.environ.get("ROCKNROLL_KILLS", "1"))
TRIES = 8
"""Runs that may be over before a strike lands."""
ITERATIONS = 5
RECIPE: Mapping[str, Any] = {
    "env": {
        "config": {"train_games": 12, "seen_games": 0, "unseen_games": 3, "max_steps": 10},
        "faults": {"latency_s": 0.05},
    },
    "policy": {"tiny": {"hidden_size": 32, "layers": 1, "heads": 2, "kv_heads": 1, "head_dim": 16}},
    "warmstart": {"games": 12, "epochs": 1},
    "sandbox": {"count": 6},
    "engine": {"slots": 6},
    # Without a reward for progress so short a warm start would leave nothing to learn from.
    "rollout": {"num_groups": 3, "group_size": 2, "constrained": True, "progress_reward": 1.0, "temperature": 1.3},
    "learner": {"iterations": ITERATIONS, "objective": "grpo", "advantage": "grpo", "entropy_coef": 0.01},
    "eval": {"episodes": 3, "every": 2},
    "checkpoint_every": 2,
    "report_to": [],
}
ENDINGS = {
    "learner": {-signal.SIGKILL},
    "both": {-signal.SIGKILL},
    "rollouts": {ExitCode.INFRASTRUCTURE},
    "ctrl-c": {ExitCode.INTERRUPTED, -signal.SIGINT},  # the latter before the program has begun
}
ASYNCHRONOUS = {"async_ratio": 1.0, "max_requeues": 1, "redundancy": {"groups": 1, "members": 1}}

pytestmark = [pytest.mark.slow, pytest.mark.timeout(4 * LIMIT_S)]


@dataclass(frozen=True)
class Moment:
    """When to strike, and whom."""

    name: str
    come: Callable[[RunFolder], bool]
    then_s: float
    victim: str
    """`learner`, `rollouts` or `both` get SIGKILL; `ctrl-c` is SIGINT to the learner."""


def moment(rng: random.Random) -> Moment:
    number = rng.randrange(ITERATIONS)
    name, come = rng.choice(
        [
            ("the first sandbox", lambda folder: folder.ledger.exists()),
            (f"iteration {number}", lambda folder: len(rows(folder)) >= number),
            (f"batch {number}", lambda folder: (folder.trajectories / f"{number + 1:06d}.parquet").exists()),
            ("a checkpoint", lambda folder: (folder.checkpoints / "staging").exists()),
        ]
    )
    return Moment(name, come, rng.choice([0.0, rng.random()]), rng.choice(["learner", "rollouts", "both", "ctrl-c"]))


def recipe(asynchronous: bool) -> Mapping[str, Any]:
    return {**RECIPE, "rollout": RECIPE["rollout"] | (ASYNCHRONOUS if asynchronous else {"async_ratio": 0.0})}


def strike(roll: Roll, name: str, asynchronous: bool, at: Moment) -> bool:
    """Start the run, strike at the moment, and see that nothing of it stays; whether the strike ended it."""
    folder = roll.folder(name)
    running = roll.start(name, recipe(asynchronous))
    deadline = time.monotonic() + LIMIT_S
    while not at.come(folder) and running.poll() is None and time.monotonic() < deadline:
        time.sleep(0.002)
    time.sleep(at.then_s)
    processes, begun = family(running.pid), folder.exists()
    delivered = bool(processes) and hit(processes, folder, at.victim)
    _, said = running.communicate(timeout=LIMIT_S)
    landed = running.returncode != ExitCode.OK  # otherwise it was over before the moment came
    if landed:
        assert delivered, f"it ended without having been struck: {said}"
        assert running.returncode in ENDINGS[at.victim], said
        if begun and running.returncode in (ExitCode.INFRASTRUCTURE, ExitCode.INTERRUPTED):
            assert "roll train --resume" in said, said
    _, left = psutil.wait_procs(processes, timeout=30)
    assert not left, f"struck at {at.name}, these stayed: {left}"
    return landed


def hit(processes: list[psutil.Process], folder: RunFolder, victim: str) -> bool:
    """Signal what of the run is there; it may have ended, or have begun just now. Whether a signal was delivered."""
    learner, *others = processes
    holder = rollouts_pid(folder)
    rollouts = [process for process in others if process.pid == holder]
    targets = {"learner": [learner], "both": [*rollouts, learner], "rollouts": rollouts, "ctrl-c": [learner]}
    delivered = False
    for process in targets[victim]:
        with suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGINT if victim == "ctrl-c" else signal.SIGKILL)
            delivered = True
    return delivered


@pytest.fixture(scope="module")
def roll(tmp_path_factory: pytest.TempPathFactory) -> Roll:
    return Roll(tmp_path_factory.mktemp("kill"))


@pytest.fixture(scope="module")
def undisturbed(roll: Roll) -> RunFolder:
    roll.to_the_end("undisturbed", recipe(asynchronous=False))
    return roll.folder("undisturbed")


def assert_equal_runs(one: RunFolder, other: RunFolder) -> None:
    ours, theirs = list(read_trajectories(one.trajectories)), list(read_trajectories(other.trajectories))
    assert [(s.iteration, s.trajectory.id) for s in ours] == [(s.iteration, s.trajectory.id) for s in theirs]
    for a, b in zip(ours, theirs, strict=True):
        for name in ("token_ids", "logprobs", "versions", "action_mask"):
            assert np.array_equal(getattr(a.trajectory, name), getattr(b.trajectory, name)), (a.trajectory.id, name)
    model = "policy/model.safetensors"
    assert (one.path / model).read_bytes() == (other.path / model).read_bytes()
    assert one.evaluations() == other.evaluations()


def strike_down(roll: Roll, name: str, asynchronous: bool, rng: random.Random) -> Iterator[str]:
    """What ended the run: one strike, and in every other case one more in the resumed run, if it lasts."""
    wanted, landed = 1 + rng.randrange(2), 0
    for _ in range(TRIES):
        if landed == wanted:
            return
        at = moment(rng)
        if strike(roll, name, asynchronous, at):
            landed += 1
            yield f"{at.victim} at {at.name} + {at.then_s:.2f} s"
        elif landed:
            return
        else:
            shutil.rmtree(roll.folder(name).path)
        balance(roll.folder(name))
    assert landed, f"{TRIES} runs were over before a strike landed"


@pytest.mark.parametrize("case", range(KILLS))
def test_a_synchronous_run_that_was_struck_down_ends_as_if_it_had_not_been(
    roll: Roll, undisturbed: RunFolder, case: int, record_property: Callable[[str, object], None]
) -> None:
    name = f"sync-{case}"
    for landed in strike_down(roll, name, asynchronous=False, rng=random.Random(case)):
        record_property("landed", landed)
    roll.to_the_end(name, recipe(asynchronous=False))
    found = balance(roll.folder(name))
    assert found is not None
    assert (found.trained, found.pending) == (ITERATIONS * 6, 0)
    assert_equal_runs(roll.folder(name), undisturbed)


@pytest.mark.parametrize("case", range(KILLS))
def test_an_asynchronous_run_that_was_struck_down_loses_and_repeats_nothing(
    roll: Roll, case: int, record_property: Callable[[str, object], None]
) -> None:
    name = f"async-{case}"
    for landed in strike_down(roll, name, asynchronous=True, rng=random.Random(1000 + case)):
        record_property("landed", landed)
    roll.to_the_end(name, recipe(asynchronous=True))
    found = balance(roll.folder(name))
    assert found is not None
    assert (found.trained, found.pending) == (ITERATIONS * 6, 0)
