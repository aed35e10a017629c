"""`roll train` killed at random moments and gone on with: nothing is lost, nothing is trained twice, nothing stays.

ROCKNROLL_KILLS says how many moments are tried (2 unless given); moment i is always the same one. In synchronous runs
the policy and every trajectory come out bit for bit as in a run that nobody disturbed.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil
import pytest

from rocknroll.trainer.audit import Audit, audit
from rocknroll.trainer.cli.exit_codes import ExitCode
from rocknroll.trainer.errors import RunFolderError
from rocknroll.trainer.recipe import Recipe
from rocknroll.trainer.rollout.ledger_file import lock_file
from rocknroll.trainer.run_folder import RunFolder
from rocknroll.trainer.storage import read_trajectories

KILLS = int(os.environ.get("ROCKNROLL_KILLS", "2"))
ITERATIONS = 5
LIMIT_S = 240
RECIPE = {
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


def rows(folder: RunFolder) -> list[str]:
    return folder.metrics_file.read_text().splitlines() if folder.metrics_file.exists() else []


class Roll:
    """Runs `roll train` in a folder of its own."""

    def __init__(self, home: Path) -> None:
        self.home = home
        packages = os.pathsep.join(path for path in sys.path if path)
        self._environment = os.environ | {"ROCKNROLL_CACHE": str(home / "cache"), "PYTHONPATH": packages}

    def folder(self, name: str) -> RunFolder:
        return RunFolder(self.home / "runs" / name)

    def start(self, name: str, asynchronous: bool) -> subprocess.Popen[str]:
        """Begin the run, or go on with it if it is there."""
        rollout = RECIPE["rollout"] | (ASYNCHRONOUS if asynchronous else {"async_ratio": 0.0})  # type: ignore[operator]
        recipe = Recipe.model_validate(RECIPE | {"name": name, "rollout": rollout})
        draft = self.home / f"{name}.yaml"
        draft.write_text(recipe.model_dump_json())
        folder = self.folder(name)
        words = ["--resume", str(folder.path)] if folder.exists() else [str(draft)]
        code = "from rocknroll.trainer.cli import main; main()"
        return subprocess.Popen(
            [sys.executable, "-c", code, "train", *words],
            cwd=self.home,
            env=self._environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def to_the_end(self, name: str, asynchronous: bool) -> None:
        running = self.start(name, asynchronous)
        _, said = running.communicate(timeout=LIMIT_S)
        assert running.returncode == ExitCode.OK, said

    def strike(self, name: str, asynchronous: bool, at: Moment) -> str:
        """Start the run, strike at the moment, and see that nothing of it stays; what it said."""
        folder = self.folder(name)
        running = self.start(name, asynchronous)
        deadline = time.monotonic() + LIMIT_S
        while not at.come(folder) and running.poll() is None and time.monotonic() < deadline:
            time.sleep(0.002)
        time.sleep(at.then_s)
        processes, begun = family(running.pid), folder.exists()
        if processes:
            hit(processes, folder, at.victim)
        _, said = running.communicate(timeout=LIMIT_S)
        if running.returncode != ExitCode.OK:  # otherwise it was over before the moment came
            assert running.returncode in ENDINGS[at.victim], said
            if begun and running.returncode in (ExitCode.INFRASTRUCTURE, ExitCode.INTERRUPTED):
                assert "roll train --resume" in said, said
        _, left = psutil.wait_procs(processes, timeout=30)
        assert not left, f"struck at {at.name}, these stayed: {left}"
        return said


def family(pid: int) -> list[psutil.Process]:
    try:
        parent = psutil.Process(pid)
        return [parent, *parent.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def hit(processes: list[psutil.Process], folder: RunFolder, victim: str) -> None:
    """Signal what of the run is there; it may have ended, or have begun just now."""
    learner, *others = processes
    lock = lock_file(folder.ledger)
    holder = lock.read_text() if lock.exists() else ""
    rollouts = [process for process in others if str(process.pid) == holder]
    targets = {"learner": [learner], "both": [*rollouts, learner], "rollouts": rollouts, "ctrl-c": [learner]}
    for process in targets[victim]:
        with suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGINT if victim == "ctrl-c" else signal.SIGKILL)


@pytest.fixture(scope="module")
def roll(tmp_path_factory: pytest.TempPathFactory) -> Roll:
    return Roll(tmp_path_factory.mktemp("kill"))


@pytest.fixture(scope="module")
def undisturbed(roll: Roll) -> RunFolder:
    roll.to_the_end("undisturbed", asynchronous=False)
    return roll.folder("undisturbed")


def balance(folder: RunFolder) -> Audit | None:
    """The ledger's balance, which must hold at every moment; None before there is a ledger."""
    try:
        found = audit(folder)
    except RunFolderError:
        return None
    assert found.balanced, found.problems
    assert (found.lost, found.duplicated, found.playing) == (0, 0, 0)
    return found


def assert_equal_runs(one: RunFolder, other: RunFolder) -> None:
    ours, theirs = list(read_trajectories(one.trajectories)), list(read_trajectories(other.trajectories))
    assert [(s.iteration, s.trajectory.id) for s in ours] == [(s.iteration, s.trajectory.id) for s in theirs]
    for a, b in zip(ours, theirs, strict=True):
        for name in ("token_ids", "logprobs", "versions", "action_mask"):
            assert np.array_equal(getattr(a.trajectory, name), getattr(b.trajectory, name)), (a.trajectory.id, name)
    model = "policy/model.safetensors"
    assert (one.path / model).read_bytes() == (other.path / model).read_bytes()
    assert one.evaluations() == other.evaluations()


def strikes(case: int) -> Iterator[Moment]:
    """One moment, and in every other case one more in the resumed run."""
    rng = random.Random(case)
    yield moment(rng)
    if rng.random() < 0.5:
        yield moment(rng)


@pytest.mark.parametrize("case", range(KILLS))
def test_a_synchronous_run_that_was_struck_down_ends_as_if_it_had_not_been(
    roll: Roll, undisturbed: RunFolder, case: int
) -> None:
    name = f"sync-{case}"
    for at in strikes(case):
        roll.strike(name, asynchronous=False, at=at)
        balance(roll.folder(name))
    roll.to_the_end(name, asynchronous=False)
    found = balance(roll.folder(name))
    assert found is not None
    assert (found.trained, found.pending) == (ITERATIONS * 6, 0)
    assert_equal_runs(roll.folder(name), undisturbed)


@pytest.mark.parametrize("case", range(KILLS))
def test_an_asynchronous_run_that_was_struck_down_loses_and_repeats_nothing(roll: Roll, case: int) -> None:
    name = f"async-{case}"
    for at in strikes(1000 + case):
        roll.strike(name, asynchronous=True, at=at)
        balance(roll.folder(name))
    roll.to_the_end(name, asynchronous=True)
    found = balance(roll.folder(name))
    assert found is not None
    assert (found.trained, found.pending) == (ITERATIONS * 6, 0)
