"""A learner of two ranks over recorded batches: rank 0 in the test's process, rank 1 in one that all tests share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any

import played
import torch
from learner_cases import Recording

from rocknroll.trainer.learner import Learner
from rocknroll.trainer.learning import follow, rank_of
from rocknroll.trainer.policy import build_tokenizer, save_policy
from rocknroll.trainer.rank_processes import LOCALHOST, RankTask
from rocknroll.trainer.ranks import Ranks, joined, meeting_point
from rocknroll.trainer.recipe import Recipe
from rocknroll.trainer.rollout import forking
from rocknroll.trainer.trajectory import Group

CPU = torch.device("cpu")
SETTINGS: dict[str, Any] = {
    "learner": {
        "iterations": 4,
        "learning_rate": 1e-2,
        "pass_tokens": 64,
        "objective": "decoupled_ppo",
        "epochs": 2,
        "minibatches": 2,
        "kl_coef": 0.1,
        "entropy_coef": 0.01,
    },
    "rollout": {"num_groups": 4, "group_size": 4},
    "report_to": [],
    "seed": 3,
}


def task(run_dir: Path, policy: Path, *, resume: bool = False, max_staleness: int = 1, **changes: Any) -> RankTask:
    """The settings above with sections changed; one rank unless `learner` says otherwise."""
    sections = {name: {**SETTINGS.get(name, {}), **changes[name]} for name in changes}
    recipe = Recipe.model_validate({**SETTINGS, **sections, "policy": {"model": str(policy)}})
    run_dir.mkdir(parents=True, exist_ok=True)
    return RankTask(recipe, policy, run_dir, max_staleness, resume)


def batches(cursor: int) -> tuple[Group, ...]:
    return played.groups(cursor, 4, version=max(0, cursor - 2))


def saved_policy(folder: Path) -> Path:
    save_policy(played.tiny_qwen3(), build_tokenizer([" ".join("abcdefghijklmnopqr")]), folder)
    return folder


class Second:
    """Rank 1, for one learner after the other."""

    def __init__(self) -> None:
        self._connection, theirs = Pipe()
        self._process = forking.process(_serve, theirs, name="rank 1 of the tests")
        self._process.start()
        theirs.close()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def learn(
        self, task: RankTask, stream: Recording, on_learner: Callable[[Learner], None] = lambda _: None
    ) -> Learner:
        """The learner of rank 0, having learned with this one."""
        store = meeting_point(LOCALHOST, 2)
        self._connection.send((task, store.port))
        try:
            with joined(store, 0, 2, CPU, 0, task.recipe.learner.rank_timeout_s) as ranks:
                learner = rank_of(task, stream, ranks, CPU)  # type: ignore[arg-type]
                on_learner(learner)
                learner.learn(resume=task.resume)
        finally:
            failure = self._connection.recv()
            assert failure is None, f"rank 1: {failure}"
        return learner

    def stop(self) -> None:
        self._connection.close()
        self._process.join(60)
        assert not self._process.is_alive()


@contextmanager
def second() -> Iterator[Second]:
    rank = Second()
    try:
        yield rank
    finally:
        rank.stop()


def alone(task: RankTask, stream: Recording) -> Learner:
    """The same with one rank."""
    learner = rank_of(task, stream, Ranks(), CPU)  # type: ignore[arg-type]
    learner.learn(resume=task.resume)
    return learner


def _serve(connection: Connection) -> None:
    torch.set_num_threads(1)
    while True:
        try:
            task, port = connection.recv()
        except EOFError:
            return
        failure = None
        try:
            follow(task, 1, 2, LOCALHOST, port, lambda: None)
        except Exception as error:
            failure = f"{type(error).__name__}: {error}"
        connection.send(failure)
