"""Cloning: which tokens are learnt, with which weight, and from which rows in which epoch."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from transformers.modeling_utils import PreTrainedModel
from wordgames import WORDGAMES, wordgame

from rocknroll import __version__
from rocknroll.envs.registry import family as make_family
from rocknroll.envs.text import ExpertEpisode, ExpertStep
from rocknroll.trainer import warmstart
from rocknroll.trainer.domains import Domains
from rocknroll.trainer.policy import build_tokenizer, load_policy, make_tiny
from rocknroll.trainer.recipe import Recipe, WarmstartSection
from rocknroll.trainer.recipe_loader import load_recipe
from rocknroll.trainer.render import Renderer, make_renderer
from rocknroll.trainer.tiny_model import TinyModel
from rocknroll.trainer.warmstart import CloningRow, _cloning_loss, _key, clone, cloning_row, prepare_policy

EPISODES = (
    ExpertEpisode("a", "k", (ExpertStep("you see a mug", "take mug"), ExpertStep("you hold it", "go to desk"))),
    ExpertEpisode("b", "k", (ExpertStep("a desk", "look", imitate=False), ExpertStep("you see a cup", "take cup"))),
)
TINY = TinyModel(hidden_size=16, layers=1, heads=2, kv_heads=1, head_dim=8, intermediate_size=32, max_length=64)


@pytest.fixture
def renderer() -> Renderer:
    return make_renderer(tokenizer(), "")


@pytest.fixture
def model() -> PreTrainedModel:
    return make_tiny(TINY, tokenizer(), seed=0)


def tokenizer() -> object:
    steps = [step for episode in EPISODES for step in episode.steps]
    return build_tokenizer([step.observation for step in steps], [step.action for step in steps])


def words(row: CloningRow, which: Sequence[bool]) -> str:
    return str(tokenizer().decode([t for t, chosen in zip(row.token_ids, which, strict=True) if chosen]))  # type: ignore[attr-defined]


def test_random_actions_are_neither_imitated_nor_predicted(renderer: Renderer) -> None:
    row = cloning_row(EPISODES[1], renderer)
    assert words(row, row.actions) == "take cup <eos>"
    assert words(row, row.observations) == "<bos> a desk <act> you see a cup <act>"


@pytest.mark.parametrize("weight", [0.0, 0.3])
def test_the_loss_is_that_of_each_row_alone_token_by_token(
    renderer: Renderer, model: PreTrainedModel, weight: float
) -> None:
    model = model.double()
    rows = [cloning_row(episode, renderer) for episode in EPISODES]
    of_actions, of_observations = [], []
    for row in rows:
        logprobs = torch.log_softmax(model(input_ids=torch.tensor([row.token_ids])).logits[0], dim=-1)
        for at in range(1, len(row.token_ids)):
            surprise = -logprobs[at - 1, row.token_ids[at]]
            of_actions += [surprise] if row.actions[at] else []
            of_observations += [surprise] if row.observations[at] else []
    expected = (sum(of_actions) + weight * sum(of_observations)) / len(of_actions)
    loss, action_loss = _cloning_loss(model, rows, weight)
    assert float(loss.detach()) == pytest.approx(float(expected.detach()), rel=1e-5)  # the loss is computed in float32
    assert action_loss == pytest.approx(float(sum(of_actions).detach()) / len(of_actions), rel=1e-5)


def test_every_epoch_has_its_own_rows_and_the_last_may_be_cut(renderer: Renderer, model: PreTrainedModel) -> None:
    asked: list[int] = []
    rows = [cloning_row(episode, renderer) for episode in EPISODES * 10]

    def rows_of(epoch: int) -> list[CloningRow]:
        asked.append(epoch)
        return rows

    steps: list[tuple[int, int]] = []
    section = WarmstartSection(epochs=2.5, batch_tokens=2 * max(len(row.token_ids) for row in rows))
    clone(model, rows_of, section, 0, lambda done, total: steps.append((done, total)))
    assert asked[-3:] == [0, 1, 2]
    assert steps[-1] == (25, 25)


def test_cloning_teaches_the_actions(renderer: Renderer, model: PreTrainedModel) -> None:
    rows = [cloning_row(episode, renderer) for episode in EPISODES * 20]
    before = _cloning_loss(model, rows, 0.0)[1]
    section = WarmstartSection(epochs=20, batch_tokens=128, learning_rate=2e-2, observation_weight=0.3)
    assert clone(model, lambda epoch: rows, section, 0, lambda done, total: None) < 0.1 * before


def test_the_policy_of_one_environment_is_found_again_under_the_key_it_always_had() -> None:
    """What is hashed is spelt out: whoever changes it throws everybody's cached policies away."""
    made_of = {
        "data": "key of apple",
        "family": "wordgames",
        "policy": {
            "dtype": "float32",
            "model": "tiny",
            "tiny": {
                "head_dim": 32,
                "heads": 3,
                "hidden_size": 96,
                "intermediate_size": 256,
                "kv_heads": 3,
                "layers": 3,
                "max_length": 1024,
                "verb_last": True,
            },
        },
        "rocknroll": __version__,
        "seed": 0,
        "vocabulary": ["apples"],
        "warmstart": {
            "batch_tokens": 2048,
            "enabled": True,
            "epochs": 1.5,
            "games": 2000,
            "learning_rate": 0.003,
            "mistakes": 0.0,
            "observation_weight": 0.3,
        },
    }
    expected = hashlib.sha256(json.dumps(made_of).encode()).hexdigest()[:16]
    assert _key(load_recipe(["alfworld"]), [make_family(WORDGAMES)]) == expected


def two_domains(*order: str) -> Recipe:
    return Recipe.model_validate(
        {
            "domains": {name: {"env": wordgame(word=name)} for name in order},
            "policy": {"tiny": TINY.model_dump()},
            "warmstart": {"games": 3, "epochs": 1, "batch_tokens": 64},
        }
    )


def test_one_policy_learns_the_words_and_the_episodes_of_all_domains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROCKNROLL_CACHE", str(tmp_path))
    cloned: list[CloningRow] = []

    def look(model: object, rows_of: Callable[[int], list[CloningRow]], *others: object) -> float:
        cloned.extend(rows_of(0))
        return 0.0

    monkeypatch.setattr(warmstart, "clone", look)
    recipe = two_domains("apple", "orange")
    folder = prepare_policy(recipe, Domains(recipe).families, lambda phase, done, total: None)
    _, tokenizer = load_policy(str(folder))
    assert {"apple", "apples", "orange", "oranges"} <= tokenizer.get_vocab().keys()
    said = Counter(tokenizer.decode(row.token_ids, skip_special_tokens=True) for row in cloned)
    assert said == {"here is an apple say apple": 3, "here is an orange say orange": 3}


def test_another_domain_makes_another_policy() -> None:
    keys = {
        _key(recipe, Domains(recipe).families)
        for recipe in (two_domains("apple"), two_domains("orange"), two_domains("apple", "orange"))
    }
    assert len(keys) == 3
