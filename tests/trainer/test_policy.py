"""The tiny policy's tokenizer and model, and loading and saving of any policy."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from rocknroll.trainer.policy import PolicyError, build_tokenizer, load_policy, make_tiny, save_policy
from rocknroll.trainer.tiny_model import TinyModel

OBSERVATION = (
    "You are in the middle of a room. Looking quickly around you, you see a cabinet 2, a fridge 1, and a "
    "sinkbasin 1.\n\nYour task is to: put a clean mug in cabinet."
)
ACTIONS = ("go to cabinet 1", "use desklamp 1", "clean mug 1 with sinkbasin 1", "look")
TINY = TinyModel(hidden_size=16, layers=2, heads=2, kv_heads=1, head_dim=8, intermediate_size=32, max_length=64)


def test_a_name_and_its_number_are_two_tokens() -> None:
    tokenizer = build_tokenizer([OBSERVATION], ACTIONS)
    assert tokenizer.tokenize("a cabinet 2, a fridge 1.") == ["a", "cabinet", "2", ",", "a", "fridge", "1", "."]
    assert tokenizer.unk_token_id not in tokenizer.encode(OBSERVATION)


def test_vocabulary_does_not_depend_on_the_order_of_the_texts() -> None:
    texts = ["put a mug", "a cabinet 2", "cabinet"]
    assert build_tokenizer(texts).get_vocab() == build_tokenizer(reversed(texts)).get_vocab()


def test_special_tokens_come_first() -> None:
    tokenizer = build_tokenizer([OBSERVATION])
    assert tokenizer.convert_ids_to_tokens([0, 1, 2, 3, 4]) == ["<pad>", "<bos>", "<eos>", "<act>", "<unk>"]
    assert (tokenizer.pad_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id) == (0, 1, 2)


@pytest.mark.parametrize("action", ["search[red shoes]", "go  to cabinet", " look", "mug1"])
def test_an_action_that_does_not_decode_to_itself_is_refused(action: str) -> None:
    with pytest.raises(PolicyError, match="plain word tokenizer turns the action"):
        build_tokenizer([OBSERVATION], [action])


def test_tiny_policies_of_one_seed_are_equal_and_of_two_seeds_differ() -> None:
    tokenizer = build_tokenizer([OBSERVATION])
    state = torch.random.get_rng_state()
    first, again, other = (make_tiny(TINY, tokenizer, seed).state_dict() for seed in (1, 1, 2))
    assert torch.equal(state, torch.random.get_rng_state())
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["model.layers.0.mlp.up_proj.weight"], other["model.layers.0.mlp.up_proj.weight"])


def test_tiny_policy_ties_its_embeddings() -> None:
    model = make_tiny(TINY, build_tokenizer([OBSERVATION]), seed=0)
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert model.dtype == torch.float32


def test_saved_policy_comes_back_and_replaces_an_older_one(tmp_path: Path) -> None:
    tokenizer = build_tokenizer([OBSERVATION], ACTIONS)
    folder = tmp_path / "policy"
    save_policy(make_tiny(TINY, tokenizer, seed=0), tokenizer, folder)
    newer = make_tiny(TINY, tokenizer, seed=1)
    save_policy(newer, tokenizer, folder)
    model, loaded = load_policy(str(folder))
    ids = torch.tensor([tokenizer.encode(OBSERVATION)])
    assert torch.equal(model(ids).logits, newer(ids).logits)
    assert loaded.encode(OBSERVATION) == tokenizer.encode(OBSERVATION)
    assert [path.name for path in tmp_path.iterdir()] == ["policy"]


def test_failed_save_leaves_the_older_policy_and_nothing_else(tmp_path: Path) -> None:
    class Unsavable:
        def save_pretrained(self, folder: Path, state_dict: object) -> None:
            folder.mkdir()
            raise OSError("disk full")

    tokenizer = build_tokenizer([OBSERVATION])
    folder = tmp_path / "policy"
    save_policy(make_tiny(TINY, tokenizer, seed=0), tokenizer, folder)
    with pytest.raises(OSError, match="disk full"):
        save_policy(Unsavable(), tokenizer, folder)
    load_policy(str(folder))
    assert [path.name for path in tmp_path.iterdir()] == ["policy"]


def test_bfloat16_is_loaded_when_asked_for(tmp_path: Path) -> None:
    tokenizer = build_tokenizer([OBSERVATION])
    save_policy(make_tiny(TINY, tokenizer, seed=0), tokenizer, tmp_path / "policy")
    assert load_policy(str(tmp_path / "policy"), "bfloat16")[0].dtype == torch.bfloat16


def test_folder_without_tokenizer_is_refused(tmp_path: Path) -> None:
    make_tiny(TINY, build_tokenizer([OBSERVATION]), seed=0).save_pretrained(tmp_path)
    with pytest.raises(PolicyError, match="has no tokenizer"):
        load_policy(str(tmp_path))


def test_folder_without_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match=r"no config\.json"):
        load_policy(str(tmp_path))


def test_folder_without_weights_is_refused(tmp_path: Path) -> None:
    tokenizer = build_tokenizer([OBSERVATION])
    save_policy(make_tiny(TINY, tokenizer, seed=0), tokenizer, tmp_path / "policy")
    (tmp_path / "policy" / "model.safetensors").unlink()
    with pytest.raises(PolicyError, match="could not be loaded"):
        load_policy(str(tmp_path / "policy"))


def test_missing_folder_is_not_taken_for_a_hub_id(tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match="There is no folder"):
        load_policy(str(tmp_path / "nowhere"))


def test_unreachable_hub_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(PolicyError, match="local folder or to `tiny`"):
        load_policy("nobody/no-such-model-anywhere")
