"""Cores that parts of a run are held to."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from pydantic import ValidationError

from rocknroll.trainer.engines.cores import available_cores, hold_process
from rocknroll.trainer.errors import RecipeError
from rocknroll.trainer.recipe import Recipe
from rocknroll.trainer.run import check_all_cores


def test_learner_and_engine_may_not_fight_for_a_core() -> None:
    with pytest.raises(ValidationError, match=r"`learner\.cores` and `engine\.cores` would fight .*\(1, 2\)"):
        Recipe.model_validate({"learner": {"cores": [0, 1, 2]}, "engine": {"cores": [1, 2, 3]}})


def test_sandboxes_may_share_the_engine_s_cores() -> None:
    recipe = Recipe.model_validate({"sandbox": {"cores": [1]}, "engine": {"cores": [1]}, "learner": {"cores": [0]}})
    assert recipe.sandbox.cores == (1,)


@pytest.mark.parametrize("part", ["sandbox", "engine", "learner"])
def test_a_core_that_this_machine_lacks_is_refused_before_any_work_is_done(part: str) -> None:
    with pytest.raises(RecipeError, match=rf"`{part}\.cores` names cores \[9999\], which this machine lacks"):
        check_all_cores(Recipe.model_validate({part: {"cores": [9999]}}))


def test_no_cores_at_all_are_refused() -> None:
    with pytest.raises(ValidationError, match="at least 1 item"):
        Recipe.model_validate({"engine": {"cores": []}})


def test_a_process_is_held_with_every_thread_that_it_has() -> None:
    before = os.sched_getaffinity(0)
    done = threading.Event()
    thread = threading.Thread(target=done.wait, daemon=True)
    thread.start()
    core = available_cores()[-1]
    try:
        hold_process([core])
        held = {int(task.name): os.sched_getaffinity(int(task.name)) for task in Path("/proc/self/task").iterdir()}
        assert set(map(frozenset, held.values())) == {frozenset([core])}
        assert thread.native_id in held
    finally:
        hold_process(sorted(before))
        done.set()
