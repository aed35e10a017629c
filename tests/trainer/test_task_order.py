"""The order of tasks is a function of tasks, seed and index."""

from __future__ import annotations

from dataclasses import replace

from scheduling import TASKS

from rocknroll.envs.text import Task
from rocknroll.trainer.rollout.tasks import TaskOrder


def test_task_order_is_a_function_of_seed_and_index() -> None:
    order, same, other = TaskOrder(TASKS, 5), TaskOrder(TASKS, 5), TaskOrder(TASKS, 6)
    first = [order[i].id for i in range(21)]
    assert first == [same[i].id for i in range(21)] != [other[i].id for i in range(21)]
    for epoch in range(3):
        assert sorted(first[7 * epoch : 7 * epoch + 7]) == sorted(t.id for t in TASKS)


def test_every_visit_of_a_task_has_a_disguise_of_its_own_that_a_resumed_run_repeats() -> None:
    def disguise(task: Task, seed: int) -> Task:
        return replace(task, options={"seed": seed})

    order, same, other = (TaskOrder(TASKS, seed, disguise) for seed in (5, 5, 6))
    seeds = [order[i].options["seed"] for i in range(21)]
    assert len(set(seeds)) == 21
    assert seeds == [same[i].options["seed"] for i in range(21)]
    assert not set(seeds) & {other[i].options["seed"] for i in range(21)}
    assert [order[i].id for i in range(21)] == [TaskOrder(TASKS, 5)[i].id for i in range(21)]
