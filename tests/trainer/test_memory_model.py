"""The estimates against models: parameters exactly, activations by what autograd keeps, KV by the engine's tensors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, PreTrainedConfig, Qwen2Config, Qwen3Config
from transformers.models.auto.modeling_auto import AutoModelForCausalLM

from rocknroll.trainer.architecture import Architecture, architecture_of, from_config, of_tiny
from rocknroll.trainer.errors import RecipeError
from rocknroll.trainer.memory_model import (
    EngineLoad,
    LearnerLoad,
    activation_bytes,
    engine_memory,
    kv_bytes_per_token,
    learner_memory,
    total_bytes,
)
from rocknroll.trainer.packed_attention import boundary_mask, use_packed_attention
from rocknroll.trainer.tiny_model import TinyModel

SHAPE = {
    "vocab_size": 64,
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
CONFIGS: dict[str, PreTrainedConfig] = {
    "llama, untied": LlamaConfig(**SHAPE, tie_word_embeddings=False),
    "qwen2, biases": Qwen2Config(**SHAPE, tie_word_embeddings=True),
    "qwen3, normalised heads": Qwen3Config(**SHAPE, head_dim=24, tie_word_embeddings=False),
}
QWEN = Architecture(
    layers=28,
    hidden_size=1536,
    intermediate_size=8960,
    heads=12,
    kv_heads=2,
    head_dim=128,
    vocabulary=151936,
    tied=True,
    attention_bias=True,
)


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS.keys())
def test_parameters_are_counted_as_the_model_has_them(config: PreTrainedConfig) -> None:
    with torch.device("meta"):
        model: Any = AutoModelForCausalLM.from_config(config)
    assert from_config(config.to_dict(), "here").parameters == model.num_parameters()


def test_qwen_of_one_and_a_half_billion_has_what_its_card_says() -> None:
    assert QWEN.parameters == 1_543_714_304


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS.keys())
@pytest.mark.parametrize("recompute", [False, True])
def test_activations_are_what_autograd_keeps_give_or_take_a_third(config: PreTrainedConfig, recompute: bool) -> None:
    tokens = 256
    model: Any = AutoModelForCausalLM.from_config(config)
    use_packed_attention(model)
    model.train()
    if recompute:
        model.activation_checkpointing_enable()
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        output = model.model(
            input_ids=torch.zeros(1, tokens, dtype=torch.int64),
            position_ids=torch.arange(tokens)[None],
            attention_mask=boundary_mask(torch.tensor([0, tokens])),
            use_cache=False,
        )
    shape = from_config(config.to_dict(), "here")
    estimated = tokens * activation_bytes(shape, "float32", recompute=recompute)
    if recompute:  # the layer that is being computed again is not kept when the forward ends
        one = (activation_bytes(shape, "float32") - 12 * shape.hidden_size) // shape.layers
        estimated -= tokens * one
    assert output.last_hidden_state.shape == (1, tokens, 64)
    assert estimated == pytest.approx(sum(kept.values()), rel=1 / 3)


def test_a_shard_is_a_part_of_what_one_rank_holds() -> None:
    def held(ranks: int, sharded: bool) -> dict[str, int]:
        load = LearnerLoad(QWEN, "bfloat16", ranks, sharded, pass_tokens=4096, action_share=0.25)
        return {part.name: part.size_bytes for part in learner_memory(load)}

    one, copies, shards = held(1, False), held(4, False), held(4, True)
    for name in ("weights", "gradients", "optimiser"):
        assert copies[name] == one[name] == 4 * shards[name]
    assert one["weights"] == 2 * QWEN.parameters and one["optimiser"] == 2 * one["weights"]
    assert copies["gradient buckets"] == copies["gradients"]
    assert one["activations"] == copies["activations"] == shards["activations"]


def test_the_cache_of_an_engine_is_divided_by_heads_and_no_further() -> None:
    assert kv_bytes_per_token(QWEN, "bfloat16") == 2 * 28 * 2 * 128 * 2
    assert kv_bytes_per_token(QWEN, "bfloat16", 2) == 2 * 28 * 1 * 128 * 2
    assert kv_bytes_per_token(QWEN, "bfloat16", 8) == kv_bytes_per_token(QWEN, "bfloat16", 2)
    given = engine_memory(EngineLoad(QWEN, "bfloat16", 1, 64, 8192, kv_cache_bytes=5))
    asked = engine_memory(EngineLoad(QWEN, "bfloat16", 1, 64, 8192))
    assert total_bytes(asked) - total_bytes(given) == 64 * 8192 * kv_bytes_per_token(QWEN, "bfloat16") - 5


def test_critics_and_copies_of_the_policy_count() -> None:
    small = of_tiny(TinyModel(), 100)
    bare = LearnerLoad(QWEN, "bfloat16", 1, False, pass_tokens=100, action_share=0.5)
    full = LearnerLoad(QWEN, "bfloat16", 1, False, 100, 0.5, extra_copies=2, critics=(small, small))
    more = total_bytes(learner_memory(full)) - total_bytes(learner_memory(bare))
    assert more == 2 * 2 * QWEN.parameters + 2 * 16 * small.parameters


def test_a_local_folder_tells_its_shape_and_contradicts_a_recipe(tmp_path: Path) -> None:
    config = CONFIGS["qwen2, biases"].to_dict()
    (tmp_path / "config.json").write_text(json.dumps(config))
    found = architecture_of(str(tmp_path), "policy.model")
    assert found == from_config(config, "here") and found.attention_bias and found.kv_heads == 2
    with pytest.raises(RecipeError, match=r"`policy.architecture` is not what .*: layers differ"):
        architecture_of(str(tmp_path), "policy.model", found.model_copy(update={"layers": 4}))


def test_a_shape_that_nobody_knows_is_an_error_that_says_what_to_do() -> None:
    with pytest.raises(
        RecipeError, match=r"hf download acme/unheard-of config.json.*`policy.architecture` with layers,"
    ):
        architecture_of("acme/unheard-of", "policy.model")
    with pytest.raises(RecipeError, match="`critics") as error:
        architecture_of("./nowhere", "critics.model")
    assert "policy.architecture" not in str(error.value)
    assert architecture_of("acme/unheard-of", "policy.model", QWEN) is QWEN


def test_a_kind_of_model_that_is_not_counted_is_refused() -> None:
    with pytest.raises(RecipeError, match=r"'mamba' model, whose memory is not estimated"):
        from_config({"model_type": "mamba"}, "config.json")
