"""Sampling: frequencies, top-k, top-p and greedy, with the log-probability of what was really sampled."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from rocknroll.trainer.engines.sampler import Draw, draw_tokens

LOGITS = torch.tensor([2.0, 1.0, 0.5, -1.0, -3.0])


def draw(uniform: float = 0.5, **settings: Any) -> Draw:
    return Draw(**{"temperature": 1.0, "top_k": 0, "top_p": 1.0, "allowed": None, "uniform": uniform, **settings})


def shares(**settings: Any) -> list[float]:
    """How much of [0, 1) leads to each token."""
    uniforms = [(i + 0.5) / 2000 for i in range(2000)]
    drawn = draw_tokens(LOGITS.expand(2000, -1), [draw(u, **settings) for u in uniforms])
    return [sum(d.token == token for d in drawn) / 2000 for token in range(5)]


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_tokens_come_as_often_as_their_probability_says(temperature: float) -> None:
    assert shares(temperature=temperature) == pytest.approx(torch.softmax(LOGITS / temperature, 0).tolist(), abs=2e-3)


def test_top_k_leaves_the_k_best_renormalised() -> None:
    expected = [*torch.softmax(LOGITS[:2], 0).tolist(), 0.0, 0.0, 0.0]
    assert shares(top_k=2) == pytest.approx(expected, abs=2e-3)


def test_top_p_leaves_the_smallest_set_that_holds_p() -> None:
    # Probabilities are about 0.60, 0.22, 0.13, 0.03, 0.004.
    assert shares(top_p=0.7) == pytest.approx([*torch.softmax(LOGITS[:2], 0).tolist(), 0.0, 0.0, 0.0], abs=2e-3)
    assert shares(top_p=0.5) == [1.0, 0.0, 0.0, 0.0, 0.0]


def test_logprob_is_that_of_the_narrowed_distribution() -> None:
    (drawn,) = draw_tokens(LOGITS[None], [draw(0.99, top_k=2)])
    assert drawn.token == 1
    assert drawn.logprob == pytest.approx(torch.log_softmax(LOGITS[:2], 0)[1].item(), abs=1e-6)


def test_rows_with_different_settings_do_not_disturb_each_other() -> None:
    settings = [
        draw(0.9),
        draw(0.9, temperature=0.0),
        draw(0.9, top_k=1),
        draw(0.9, allowed=(3, 4)),
        draw(0.9, temperature=3.0, top_p=0.6),
    ]
    alone = [draw_tokens(LOGITS[None], [one])[0] for one in settings]
    together = draw_tokens(LOGITS.expand(5, -1), settings)
    assert [(d.token, d.allowed) for d in together] == [(d.token, d.allowed) for d in alone]
    assert [d.logprob for d in together] == pytest.approx([d.logprob for d in alone], abs=1e-6)


def test_greedy_takes_the_best_allowed_token_and_reports_temperature_one() -> None:
    (drawn,) = draw_tokens(LOGITS[None], [draw(0.99, temperature=0.0, allowed=(2, 3))])
    assert drawn.token == 2
    assert drawn.logprob == pytest.approx(torch.log_softmax(LOGITS[2:4], 0)[0].item(), abs=1e-6)


@pytest.mark.parametrize("uniform", [0.0, 1.0 - 2.0**-53])
def test_the_ends_of_the_unit_interval_give_possible_tokens(uniform: float) -> None:
    logits = torch.tensor([[-torch.inf, 0.0, 0.0, -torch.inf]])
    (drawn,) = draw_tokens(logits, [draw(uniform)])
    assert drawn.token in (1, 2)
