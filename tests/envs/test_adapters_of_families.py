"""The adapters over every family that is shipped, those whose environment runs outside of its sandboxes included."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rocknroll.envs.adapters.openenv_client import OpenEnvEnv
from rocknroll.envs.adapters.openenv_server import serving
from rocknroll.envs.adapters.trl import TrlEnvironments
from rocknroll.envs.adapters.vector import SandboxVectorEnv
from rocknroll.envs.alfworld.family import AlfWorldFamily
from rocknroll.envs.registry import family as make_family
from rocknroll.envs.text import ExpertEpisode, Family

SMALL: dict[str, dict[str, Any]] = {
    "countdown": {"train_puzzles": 20},
    "math": {"train_problems": 20},
    "code": {"train_exercises": 20},
}


@pytest.fixture(params=["alfworld", *SMALL])
def family(request: pytest.FixtureRequest, alfworld: AlfWorldFamily) -> Family:
    made = alfworld if request.param == "alfworld" else make_family(request.param, SMALL[request.param])
    made.prepare()
    return made


def solved(family: Family) -> ExpertEpisode:
    return family.expert_episodes("train", 4, seed=0)[0]


def said(episode: ExpertEpisode) -> list[str]:
    """The expert's actions; a policy that knows no lines writes code fences in its own way."""
    return [step.action.replace("` ` ` python ", "```python\n").replace(" ` ` `", "\n```") for step in episode.steps]


def test_an_expert_is_rewarded_in_every_shape(family: Family) -> None:
    episode = solved(family)
    with TrlEnvironments(family, count=1) as environments:
        env = environments()
        env.reset(task=episode.task_id)
        for action in said(episode):
            env.act(action)
        assert (env.get_reward(), env.lost) == (1.0, "")
    with SandboxVectorEnv(2, family) as vector:
        vector.reset(options={"tasks": [episode.task_id] * 2})
        for action in said(episode):
            _, rewards, terminated, _, _ = vector.step([action] * 2)
        assert (rewards.tolist(), terminated.tolist()) == ([1.0, 1.0], [True, True])
    asyncio.run(over_openenv(family, episode))


async def over_openenv(family: Family, episode: ExpertEpisode) -> None:
    def play(url: str) -> None:
        with OpenEnvEnv(url) as env:
            env.reset(options={"task": episode.task_id})
            outcomes = [env.step(action)[1:4] for action in said(episode)]
            assert outcomes[-1] == (1.0, True, False)

    async with serving(family, count=1) as url:
        await asyncio.to_thread(play, url)


@pytest.mark.slow
def test_unfinished_work_is_judged_where_the_environment_can() -> None:
    with TrlEnvironments("swebench", {}, count=1) as environments:
        env = environments()
        env.reset(task=environments.rows("train", 1)[0]["task"])
        assert "hello" in env.act("```bash\necho hello\n```")
        assert (env.get_reward(), env.lost) == (0.0, "")
