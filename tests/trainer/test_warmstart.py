"""Cloning: which tokens are learnt, with which weight, and from which rows in which epoch."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from transformers.modeling_utils import PreTrainedModel

from rocknroll.envs.text import ExpertEpisode, ExpertStep
from rocknroll.trainer.policy import build_tokenizer, make_tiny
from rocknroll.trainer.recipe import TinyModel, WarmstartSection
from rocknroll.trainer.render import Renderer, make_renderer
from rocknroll.trainer.warmstart import CloningRow, _cloning_loss, clone, cloning_row

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
