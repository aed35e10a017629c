"""Ragged forward passes equal the plain model, through the fused path and through the model's own modules."""

from __future__ import annotations

import copy
import random
from typing import Any

import pytest
import torch
from engine_cases import VOCABULARY, small_model
from transformers import GPT2Config, GPT2LMHeadModel, GPTNeoXConfig, GPTNeoXForCausalLM

from rocknroll.trainer.engines.base import EngineError
from rocknroll.trainer.engines.forward import Forward, ModuleForward, make_forward
from rocknroll.trainer.engines.fused import FusedForward
from rocknroll.trainer.engines.ragged import RaggedBatch, Row

SLOTS = 6
LENGTH = 24


def worst_difference(forward: Forward, model: Any, seed: int) -> float:
    """Feed contexts in random pieces to random slots; the largest difference of any logit from one plain forward."""
    pick = random.Random(seed)
    contexts = {slot: [pick.randrange(VOCABULARY) for _ in range(LENGTH)] for slot in range(SLOTS)}
    store = forward.new_store(SLOTS, LENGTH)
    done = dict.fromkeys(contexts, 0)
    worst = 0.0
    with torch.inference_mode():
        expected = {slot: model(torch.tensor([ids])).logits[0] for slot, ids in contexts.items()}
        while open_slots := [slot for slot in contexts if done[slot] < LENGTH]:
            rows = []
            for slot in pick.sample(open_slots, pick.randint(1, len(open_slots))):
                end = min(LENGTH, done[slot] + pick.choice((1, 1, 1, 2, 7)))
                rows.append(Row(slot, done[slot], contexts[slot][done[slot] : end]))
            batch = RaggedBatch(rows, store)
            for row, logits in zip(batch.rows, forward.logits(batch, batch.last), strict=True):
                done[row.slot] = row.end
                worst = max(worst, float((logits - expected[row.slot][row.end - 1]).abs().max()))
    return worst


@pytest.mark.parametrize("family", ["qwen3", "qwen2", "llama"])
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("path", [FusedForward, ModuleForward])
def test_logits_equal_the_plain_model(family: str, tied: bool, path: Any) -> None:
    model = small_model(family, tied=tied)
    assert worst_difference(path(copy.deepcopy(model)), model, seed=0) < 1e-5


@pytest.mark.parametrize("heads", [(1, 1), (3, 3), (6, 1)])
def test_any_grouping_of_heads_is_served(heads: tuple[int, int]) -> None:
    model = small_model(num_attention_heads=heads[0], num_key_value_heads=heads[1])
    assert worst_difference(make_forward(model), model, seed=1) < 1e-5


def test_attention_biases_are_served() -> None:
    model = small_model("llama", attention_bias=True)
    assert worst_difference(make_forward(model), model, seed=2) < 1e-5


def test_float32_models_of_known_families_take_the_fused_path() -> None:
    assert isinstance(make_forward(small_model()), FusedForward)
    assert isinstance(make_forward(small_model().to(torch.bfloat16)), ModuleForward)


def test_sliding_windows_are_kept() -> None:
    window = {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1}
    model = small_model("qwen2", **window, attn_implementation="eager")
    assert isinstance(make_forward(model), ModuleForward)
    assert worst_difference(make_forward(model), model, seed=3) < 1e-5


def test_scaled_rotary_embeddings_are_served_by_the_modules() -> None:
    rope = {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0}
    model = small_model("llama", rope_parameters=rope)
    assert isinstance(make_forward(model), ModuleForward)
    assert worst_difference(make_forward(model), model, seed=4) < 1e-5


def test_other_architectures_are_served_by_their_modules() -> None:
    config = GPTNeoXConfig(
        vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48
    )
    model = GPTNeoXForCausalLM(config).eval()
    assert worst_difference(make_forward(model), model, seed=5) < 1e-5


def test_making_a_forward_leaves_the_model_alone() -> None:
    model = small_model("llama").train()
    before = model.config._attn_implementation
    make_forward(model.to(torch.bfloat16))
    assert model.config._attn_implementation == before
    assert model.training
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_model_that_would_be_sampled_wrongly_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = small_model()
    monkeypatch.setattr(FusedForward, "_paired", lambda self, rows: rows)
    with pytest.raises(EngineError, match="its logits differ from the model's"):
        make_forward(model)


def test_gpt2_is_served_or_refused_but_never_wrong() -> None:
    model = GPT2LMHeadModel(GPT2Config(vocab_size=VOCABULARY, n_embd=32, n_layer=2, n_head=4)).eval()
    try:
        forward = make_forward(model)
    except EngineError:
        return
    assert worst_difference(forward, model, seed=6) < 1e-5
