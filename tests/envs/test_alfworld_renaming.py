"""Games under other names: the same game for the engine, another for who reads it."""

from __future__ import annotations

from rocknroll.envs.alfworld.env import AlfWorldEnv
from rocknroll.envs.alfworld.family import AlfWorldFamily
from rocknroll.envs.alfworld.renaming import Renaming


def test_a_renaming_is_undone_exactly_and_depends_on_its_seed() -> None:
    text = "On the desk 1, you see a mug 2, a pencil 1, and a desklamp 1."
    assert Renaming(3).show(text) == Renaming(3).show(text) != Renaming(4).show(text)
    assert Renaming(3).mean(Renaming(3).show(text)) == text


def test_tools_and_places_keep_their_names() -> None:
    text = "go to fridge 1, desklamp 1, sinkbasin 1, desk 2"
    assert Renaming(3).show(text) == text


def test_a_renamed_game_is_won_by_the_experts_renamed_commands(alfworld: AlfWorldFamily) -> None:
    task = alfworld.tasks("train")[0]
    config = alfworld.env_kwargs()["config"] | {"expert_action": True}
    plain, renamed = AlfWorldEnv(config=config), AlfWorldEnv(config=config)
    first, _ = plain.reset(options=dict(task.options))
    other, info = renamed.reset(options=dict(task.options) | {"renaming": 5})
    assert other == Renaming(5).show(first) != first
    over = False
    while not over:
        assert info["expert_action"] in info["admissible_commands"]
        _, _, terminated, truncated, info = renamed.step(info["expert_action"])
        over = terminated or truncated
    assert info["won"]
    plain.close()
    renamed.close()


def test_a_disguise_renames_task_and_expert_episode_alike_and_anew_for_every_seed(alfworld: AlfWorldFamily) -> None:
    family = AlfWorldFamily(alfworld.config.model_copy(update={"renamed": 1.0}))
    task, episode = family.tasks("train")[0], family.expert_episodes("train", 1, seed=0)[0]
    disguised = family.disguise_episode(episode, 7)
    show = Renaming(int(family.disguise_task(task, 7).options["renaming"])).show
    assert [step.action for step in disguised.steps] == [show(step.action) for step in episode.steps]
    assert [step.admissible for step in disguised.steps] == [tuple(map(show, s.admissible)) for s in episode.steps]
    assert disguised.steps[0].observation == show(episode.steps[0].observation)
    assert family.disguise_episode(episode, 8) != disguised == family.disguise_episode(episode, 7)
    assert not any("renaming" in task.options for split in ("train", "seen", "unseen") for task in family.tasks(split))


def test_the_share_of_renamed_visits_is_the_configured_one(alfworld: AlfWorldFamily) -> None:
    task, episode = alfworld.tasks("train")[0], alfworld.expert_episodes("train", 1, seed=0)[0]
    assert all(alfworld.disguise_task(task, seed) is task for seed in range(20))
    half = AlfWorldFamily(alfworld.config.model_copy(update={"renamed": 0.5}))
    renamed = [seed for seed in range(400) if half.disguise_task(task, seed) is not task]
    assert 150 < len(renamed) < 250
    assert renamed == [seed for seed in range(400) if half.disguise_episode(episode, seed) is not episode]
