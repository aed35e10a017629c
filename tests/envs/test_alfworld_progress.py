"""Progress towards a goal, on games of every task type played by the expert."""

from __future__ import annotations

from itertools import pairwise

import pytest

from rocknroll.envs.alfworld.config import TASK_TYPES
from rocknroll.envs.alfworld.env import AlfWorldEnv
from rocknroll.envs.alfworld.family import AlfWorldFamily
from rocknroll.envs.alfworld.progress import Goal, progress, read_goal

APPLE = Goal(kind="appletype", count=1, target="desktype", state="isclean", lamp=None)
FACTS = [
    ("objecttype", ("apple1", "appletype")),
    ("objecttype", ("mug1", "mugtype")),
    ("receptacletype", ("desk1", "desktype")),
    ("receptacletype", ("bin1", "bintype")),
]


@pytest.mark.parametrize("kind", TASK_TYPES)
def test_progress_rises_to_one_as_the_expert_plays(alfworld: AlfWorldFamily, kind: str) -> None:
    task = next(task for task in alfworld.tasks("train") if task.kind == kind)
    kwargs = alfworld.env_kwargs()
    env = AlfWorldEnv(config=kwargs["config"] | {"expert_action": True})
    _, info = env.reset(options=dict(task.options))
    seen = [info["progress"]]
    over = False
    while not over:
        _, _, terminated, truncated, info = env.step(info["expert_action"])
        seen.append(info["progress"])
        over = terminated or truncated
    env.close()
    assert info["won"]
    assert seen[0] == 0.0 and seen[-1] == 1.0
    assert all(before <= after for before, after in pairwise(seen))


@pytest.mark.parametrize(
    ("facts", "share"),
    [
        ([], 0.0),
        ([("holds", ("agent1", "mug1"))], 0.0),
        ([("holds", ("agent1", "apple1"))], 1 / 3),
        ([("inreceptacle", ("apple1", "desk1"))], 0.0),
        ([("isclean", ("apple1",)), ("inreceptacle", ("apple1", "bin1"))], 1 / 3),
        ([("isclean", ("apple1",)), ("holds", ("agent1", "apple1"))], 2 / 3),
        ([("isclean", ("apple1",)), ("inreceptacle", ("apple1", "desk1"))], 1.0),
    ],
)
def test_only_the_right_thing_in_the_right_state_counts(facts: list[tuple[str, tuple[str, ...]]], share: float) -> None:
    assert progress(APPLE, FACTS + facts) == pytest.approx(share)


def test_a_goal_of_another_form_is_said_to_be_unknown() -> None:
    assert read_goal("(:goal (and (isOn stove1)))") is None
