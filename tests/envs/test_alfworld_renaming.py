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


def test_only_training_games_are_renamed_and_their_expert_episodes_with_them(alfworld: AlfWorldFamily) -> None:
    family = AlfWorldFamily(alfworld.config.model_copy(update={"renamed": 1.0}))
    assert all("renaming" in task.options for task in family.tasks("train"))
    assert not any("renaming" in task.options for task in (*family.tasks("seen"), *family.tasks("unseen")))
    true = {episode.task_id: episode for episode in alfworld.expert_episodes("train", 4, seed=0)}
    for task, episode in zip(family.tasks("train")[:4], family.expert_episodes("train", 4, seed=0), strict=True):
        show = Renaming(task.options["renaming"]).show
        assert [step.action for step in episode.steps] == [show(s.action) for s in true[episode.task_id].steps]
        assert episode.steps[0].observation == show(true[episode.task_id].steps[0].observation)
