"""The Gymnasium face of ALFWorld."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from gymnasium.utils.env_checker import check_env

import rocknroll.envs  # noqa: F401  registers the ids
from rocknroll.envs.alfworld.env import BANNER, AlfWorldEnv
from rocknroll.envs.alfworld.family import AlfWorldFamily
from rocknroll.envs.alfworld.play import Player
from rocknroll.envs.text import EnvDataError, Task


@pytest.fixture
def task(alfworld: AlfWorldFamily) -> Task:
    return alfworld.tasks("train")[0]


@pytest.fixture
def env(alfworld: AlfWorldFamily) -> Iterator[AlfWorldEnv]:
    made = AlfWorldEnv(**alfworld.env_kwargs())
    yield made
    made.close()


def configured(alfworld: AlfWorldFamily, **changes: Any) -> AlfWorldEnv:
    return AlfWorldEnv(config={**alfworld.env_kwargs()["config"], **changes})


def solution(alfworld: AlfWorldFamily, task: Task) -> list[str]:
    player = Player(alfworld.config)
    steps = player.episode(task.options["game"], mistakes=0.0, seed=0)["steps"]
    player.close()
    return [step[1] for step in steps]


def test_gymnasiums_checker_passes(alfworld: AlfWorldFamily) -> None:
    made = gymnasium.make("rocknroll/AlfWorld-v0", **alfworld.env_kwargs())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(made.unwrapped)
    made.close()


def test_the_registered_id_can_be_made_alone_and_as_a_vector(alfworld: AlfWorldFamily) -> None:
    kwargs = alfworld.env_kwargs()
    one = gymnasium.make("rocknroll/AlfWorld-v0", **kwargs)
    assert "Your task is to" in one.reset(seed=0)[0]
    one.close()
    many = gymnasium.make_vec("rocknroll/AlfWorld-v0", num_envs=2, vectorization_mode="sync", **kwargs)
    observations, _ = many.reset(seed=0)
    assert len(observations) == 2
    many.close()


def test_one_seed_means_one_game(env: AlfWorldEnv) -> None:
    first = env.reset(seed=5)
    assert env.reset(seed=5) == first
    assert {env.reset(seed=seed)[1]["game"] for seed in range(8)} != {first[1]["game"]}


def test_everything_returned_is_json(env: AlfWorldEnv, task: Task) -> None:
    reset = env.reset(options=dict(task.options))
    assert json.loads(json.dumps(reset)) == list(reset)
    step = env.step("look")
    assert json.loads(json.dumps(step)) == list(step)


def test_info_says_what_a_trainer_needs(env: AlfWorldEnv, task: Task) -> None:
    _, info = env.reset(options=dict(task.options))
    assert info["task_type"] == task.kind
    assert info["game"] == task.options["game"]
    assert info["grammar"] == "game"
    assert not info["won"]
    assert not info["invalid_action"]
    assert "look" in info["admissible_commands"]
    assert info["admissible_commands"] == sorted(info["admissible_commands"])


def test_an_inadmissible_command_is_marked_and_changes_nothing(env: AlfWorldEnv, task: Task) -> None:
    _, before = env.reset(options=dict(task.options))
    text, reward, terminated, _, info = env.step("dance on the table")
    assert text == "Nothing happens."
    assert info["invalid_action"]
    assert info["state_hash"] == before["state_hash"]
    assert (reward, terminated) == (0.0, False)


def test_the_task_done_gives_reward_one_and_ends_the_episode(
    alfworld: AlfWorldFamily, env: AlfWorldEnv, task: Task
) -> None:
    env.reset(options=dict(task.options))
    outcomes = [env.step(command)[1:4] for command in solution(alfworld, task)]
    assert outcomes[-1] == (1.0, True, False)
    assert set(outcomes[:-1]) == {(0.0, False, False)}


def test_an_episode_is_truncated_after_max_steps(alfworld: AlfWorldFamily, task: Task) -> None:
    env = configured(alfworld, max_steps=3)
    env.reset(options=dict(task.options))
    assert [env.step("look")[3] for _ in range(3)] == [False, False, True]
    env.close()


def test_a_win_in_the_last_step_is_no_truncation(alfworld: AlfWorldFamily, task: Task) -> None:
    commands = solution(alfworld, task)
    env = configured(alfworld, max_steps=len(commands))
    env.reset(options=dict(task.options))
    assert [env.step(command) for command in commands][-1][2:4] == (True, False)
    env.close()


def test_the_banner_is_kept_only_on_request(alfworld: AlfWorldFamily, env: AlfWorldEnv, task: Task) -> None:
    plain, _ = env.reset(options=dict(task.options))
    loud = configured(alfworld, banner=True)
    assert loud.reset(options=dict(task.options))[0] == BANNER + plain
    loud.close()


def test_the_expert_in_info_solves_the_game(alfworld: AlfWorldFamily, task: Task) -> None:
    env = configured(alfworld, expert_action=True)
    _, info = env.reset(options=dict(task.options))
    for _ in range(alfworld.config.max_steps):
        _, _, terminated, truncated, info = env.step(info["expert_action"])
        if terminated or truncated:
            break
    assert info["won"]
    env.close()


def test_the_stock_engine_gives_the_same_start(alfworld: AlfWorldFamily, env: AlfWorldEnv, task: Task) -> None:
    stock = configured(alfworld, engine="stock")
    assert stock.reset(options=dict(task.options)) == env.reset(options=dict(task.options))
    assert stock.step("inventory") == env.step("inventory")
    stock.close()


def test_stepping_before_a_reset_is_refused(env: AlfWorldEnv) -> None:
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step("look")


def test_an_unknown_reset_option_is_refused(env: AlfWorldEnv) -> None:
    with pytest.raises(EnvDataError, match=r"'gane'.*`game`"):
        env.reset(options={"gane": "x"})


def damaged(task: Task, folder: Path, **changes: Any) -> str:
    source = Path(task.options["game"])
    game = {**json.loads(source.read_text(encoding="utf-8")), **changes}
    (folder / "game.tw-pddl").write_text(json.dumps(game), encoding="utf-8")
    (folder / "traj_data.json").write_text(
        source.with_name("traj_data.json").read_text(encoding="utf-8"), encoding="utf-8"
    )
    return str(folder / "game.tw-pddl")


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"pddl_problem": "(define (problem x) (:domain alfred"}, "do not translate"),
        ({"grammar": "grammar :: nothing"}, "grammar does not parse"),
        ({"pddl_domain": 7}, "no text under `pddl_domain`"),
    ],
)
def test_a_corrupt_game_is_named_with_the_reason(
    env: AlfWorldEnv, task: Task, tmp_path: Path, changes: dict[str, Any], why: str
) -> None:
    path = damaged(task, tmp_path, **changes)
    with pytest.raises(EnvDataError, match=why) as error:
        env.reset(options={"game": path})
    assert path in str(error.value)
    assert "\n" not in str(error.value)


def test_a_game_cut_short_is_named_with_the_reason(env: AlfWorldEnv, task: Task, tmp_path: Path) -> None:
    path = Path(damaged(task, tmp_path))
    path.write_text(path.read_text(encoding="utf-8")[:500], encoding="utf-8")
    with pytest.raises(EnvDataError, match=r"game\.tw-pddl.*not valid JSON"):
        env.reset(options={"game": str(path)})


def test_a_missing_game_is_named(env: AlfWorldEnv, tmp_path: Path) -> None:
    with pytest.raises(EnvDataError, match=r"nowhere.*does not exist"):
        env.reset(options={"game": str(tmp_path / "nowhere" / "game.tw-pddl")})


def test_after_a_corrupt_game_a_good_one_can_be_played(env: AlfWorldEnv, task: Task, tmp_path: Path) -> None:
    with pytest.raises(EnvDataError):
        env.reset(options={"game": damaged(task, tmp_path, grammar="grammar :: nothing")})
    assert "Your task is to" in env.reset(options=dict(task.options))[0]


def test_an_older_grammar_is_refreshed_and_said_so(
    alfworld: AlfWorldFamily, env: AlfWorldEnv, task: Task, tmp_path: Path
) -> None:
    grammar = json.loads(Path(task.options["game"]).read_text(encoding="utf-8"))["grammar"]
    old = grammar.replace('template :: "move {o} to {r}"', 'template :: "put {o} in/on {r}"')
    path = damaged(task, tmp_path, grammar=old)
    text, info = env.reset(options={"game": path})
    assert info["grammar"] == "installed"
    assert text == env.reset(options=dict(task.options))[0]
    kept = configured(alfworld, refresh_grammar=False, expert_action=True)
    _, info = kept.reset(options={"game": path})
    assert info["grammar"] == "game"
    commands: list[str] = []
    while not info["won"] and len(commands) < 20:
        commands.append(info["expert_action"])
        info = kept.step(commands[-1])[4]
    assert info["won"]
    kept.close()


def test_the_task_can_be_repeated_in_every_observation(alfworld: AlfWorldFamily, task: Task) -> None:
    plain, repeating = configured(alfworld), configured(alfworld, repeat_task=True)
    first, _ = plain.reset(options=dict(task.options))
    assert repeating.reset(options=dict(task.options))[0] == first
    sentence = first[first.index("Your task is to: ") :]
    for command in (*solution(alfworld, task), "dance"):
        assert repeating.step(command)[0] == f"{plain.step(command)[0]}\n{sentence}"
    plain.close()
    repeating.close()


def test_the_expert_plays_the_same_when_the_task_is_repeated(alfworld: AlfWorldFamily) -> None:
    repeating = AlfWorldFamily(alfworld.config.model_copy(update={"repeat_task": True}))
    plain = alfworld.expert_episodes("train", 6, seed=0, mistakes=0.2)
    other = repeating.expert_episodes("train", 6, seed=0, mistakes=0.2)
    assert [[s.action for s in e.steps] for e in plain] == [[s.action for s in e.steps] for e in other]
    assert all("Your task is to: " in step.observation for episode in other for step in episode.steps)
