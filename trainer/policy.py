"""Policies: the tiny one made here from nothing, and any causal LM from the hub or a folder.

A policy is a pair (model, tokenizer). The tiny policy's tokenizer is plain words: a name and its
number are two tokens, which generalises over objects far better than merging them (docs/results.md).
"""

from __future__ import annotations

import math
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from rocknroll.trainer.credit.signals import attention_layers
from rocknroll.trainer.render import ACTION_START, VERB_LAST, PlainRenderer, PolicyError
from rocknroll.trainer.tiny_model import TinyModel

__all__ = ["PolicyError", "build_tokenizer", "load_backbone", "load_policy", "make_tiny", "save_policy"]

SPECIAL_TOKENS = ("<pad>", "<bos>", "<eos>", ACTION_START, "<unk>")
WORDS = r"[^\W\d_]+|\d+|\S"
"""A run of letters, a run of digits, or one other character. Space only separates."""

TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model")
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def build_tokenizer(
    texts: Iterable[str], actions: Iterable[str] = (), *, verb_last: bool = False, subwords: int = 0
) -> PreTrainedTokenizerFast:
    """A tokenizer for the texts, of words, or of so many `subwords`; the order of the texts does not matter.

    `verb_last` is kept with the tokenizer, for the renderer (`trainer/render.py`).

    Raises:
        PolicyError: one of the actions (which are texts, too) would not decode to itself.
    """
    actions = sorted(set(actions))
    made = _subwords([*texts, *actions], subwords) if subwords else _words([*texts, *actions])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=made,
        pad_token="<pad>",
        bos_token="<bos>",
        eos_token="<eos>",
        unk_token="<unk>",
        additional_special_tokens=[ACTION_START],
        clean_up_tokenization_spaces=False,
        **{VERB_LAST: verb_last},
    )
    _check_round_trip(tokenizer, actions)
    return tokenizer


def _words(texts: Iterable[str]) -> Tokenizer:
    """Whole words; ids go by frequency, then alphabet."""
    splitter = pre_tokenizers.Split(Regex(WORDS), "isolated")
    spaces = pre_tokenizers.Split(Regex(r"\s+"), "removed")
    splitting = pre_tokenizers.Sequence([spaces, splitter])
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(word for word, _ in splitting.pre_tokenize_str(text))
    words = sorted(counts.keys() - set(SPECIAL_TOKENS), key=lambda word: (-counts[word], word))
    vocabulary = {word: index for index, word in enumerate((*SPECIAL_TOKENS, *words))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = splitting
    return tokenizer


def _subwords(texts: Iterable[str], size: int) -> Tokenizer:
    """Byte pairs."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(sorted(texts), trainer)
    return tokenizer


def make_tiny(tiny: TinyModel, tokenizer: PreTrainedTokenizerFast, seed: int) -> Qwen3ForCausalLM:
    """A Qwen3 decoder with random weights that depend on the seed alone; float32, tied embeddings."""
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=tiny.hidden_size,
        intermediate_size=tiny.intermediate_size,
        num_hidden_layers=tiny.layers,
        num_attention_heads=tiny.heads,
        num_key_value_heads=tiny.kv_heads,
        head_dim=tiny.head_dim,
        max_position_embeddings=tiny.max_length,
        # Half of 1/sqrt(width): the customary 0.02 is meant for widths around a thousand.
        initializer_range=0.5 / math.sqrt(tiny.hidden_size),
        tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: Qwen3ForCausalLM = Qwen3ForCausalLM(config)
    # Many layers add into the residual stream; without this its scale grows with depth (GPT-2, section 2.3).
    with torch.no_grad():
        for layer in model.model.layers:
            for weight in (layer.self_attn.o_proj.weight, layer.mlp.down_proj.weight):
                weight.mul_(1 / math.sqrt(2 * tiny.layers))
    model.train(False)
    return model


def load_policy(name_or_path: str, dtype: Literal["float32", "bfloat16"] = "float32") -> tuple[Any, Any]:
    """Model and tokenizer of a hub id or a local folder.

    Raises:
        PolicyError: there is no such model, its folder is incomplete, or the hub cannot be reached.
    """
    tokenizer = load_tokenizer(name_or_path)
    with _loading(name_or_path, "policy.model") as source:
        model: Any = AutoModelForCausalLM.from_pretrained(source, dtype=DTYPES[dtype])
    return model.eval(), tokenizer


def load_tokenizer(name_or_path: str) -> Any:
    """The tokenizer alone of a policy.

    Raises:
        PolicyError: as `load_policy`.
    """
    check_policy(name_or_path)
    with _loading(name_or_path, "policy.model") as source:
        return AutoTokenizer.from_pretrained(source)


def load_backbone(name_or_path: str, vocabulary: int) -> PreTrainedModel:
    """The decoder, without its head, of a hub id or a local folder, for a critic; float32.

    Raises:
        PolicyError: there is no such model, it cannot be reached, or it knows fewer than `vocabulary` tokens.
    """
    check_critic(name_or_path, vocabulary)
    with _loading(name_or_path, "critics.model") as source:
        model: PreTrainedModel = AutoModel.from_pretrained(source, dtype=torch.float32)
    return model


@contextmanager
def _loading(name_or_path: str, setting: str) -> Iterator[str]:
    """What to load from; a failure within is told with what to do about it."""
    folder = Path(name_or_path).expanduser()
    local = folder.is_dir()
    try:
        yield str(folder) if local else name_or_path
    except (OSError, ValueError, KeyError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        if local:
            advice = "The folder is damaged or of an unknown kind; save it again with `save_pretrained`."
        else:
            advice = (
                "Check the id and the network (or HF_ENDPOINT), fetch it once with `hf download`, "
                f"or set `{setting}` to a local folder or to `tiny`."
            )
        raise PolicyError(f"The model {name_or_path} could not be loaded: {reason} {advice}") from error


def save_policy(
    model: Any, tokenizer: Any, folder: Path | str, state: Mapping[str, torch.Tensor] | None = None
) -> None:
    """Write both into one folder that `load_policy` reads. The folder is complete or absent, never half-written.

    `state`: the weights, where the model has only a part of them.
    """
    target = Path(folder)
    target.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        fresh, old = work / "new", work / "old"
        model.save_pretrained(fresh, state_dict=state)
        tokenizer.save_pretrained(fresh)
        if target.exists():
            target.rename(old)
        try:
            fresh.rename(target)
        except OSError:
            if old.exists():
                old.rename(target)
            raise
    finally:
        shutil.rmtree(work, ignore_errors=True)


def check_policy(name_or_path: str, setting: str = "policy.model") -> None:
    """What can be said of a model without loading it; a hub id is believed.

    Raises:
        PolicyError: there is no such folder, or it lacks a model's files.
    """
    folder = Path(name_or_path).expanduser()
    if not folder.is_dir():
        if folder.exists() or name_or_path.startswith((".", "/", "~")) or name_or_path.count("/") > 1:
            raise PolicyError(
                f"There is no folder {name_or_path}. Set `{setting}` to `tiny`, to a folder with a saved model, "
                "or to a hub id such as Qwen/Qwen3-0.6B."
            )
        return
    if not (folder / "config.json").is_file():
        raise PolicyError(
            f"The folder {folder} has no config.json, so it is not a saved model. "
            f"Point `{setting}` at a folder written by `save_pretrained`."
        )
    if not any((folder / name).is_file() for name in TOKENIZER_FILES):
        raise PolicyError(
            f"The model folder {folder} has no tokenizer (none of {', '.join(TOKENIZER_FILES)}). "
            "Copy the tokenizer's files of the same model into it, or save them with `tokenizer.save_pretrained`."
        )


def check_critic(name_or_path: str, vocabulary: int) -> None:
    """See, by its configuration alone, that a critic knows the `vocabulary` tokens of the policy.

    Raises:
        PolicyError: it does not, or its configuration cannot be loaded.
    """
    check_policy(name_or_path, "critics.model")
    with _loading(name_or_path, "critics.model") as source:
        known = AutoConfig.from_pretrained(source).get_text_config().vocab_size
    if known < vocabulary:
        raise PolicyError(
            f"The critic {name_or_path} knows {known} tokens and the policy {vocabulary}, so they do not read the same "
            "text. Set `critics.model` to a smaller model of the policy's family, or to `tiny`."
        )


def check_readable(name_or_path: str, reaches: int) -> None:
    """See, by its configuration alone, that a model has attention to read, `reaches` tokens far.

    Raises:
        PolicyError: it has none, or a context that is too short, or its configuration cannot be loaded.
    """
    with _loading(name_or_path, "policy.model") as source:
        config = AutoConfig.from_pretrained(source).get_text_config()
    if not attention_layers(config):
        raise PolicyError(
            f"The model {name_or_path} ({config.model_type}) has no attention weights, which `credit.kind` reads. Set"
            " `credit.kind` to `none` or to a control that reads none, or choose a transformer."
        )
    longest = getattr(config, "max_position_embeddings", None)
    if longest is not None and reaches >= longest:
        raise PolicyError(
            f"`credit.windows.fai_from` ({reaches}) is longer than any response of {name_or_path}, whose context has"
            f" {longest} tokens. Lower it."
        )


def _check_round_trip(tokenizer: PreTrainedTokenizerFast, actions: Iterable[str]) -> None:
    renderer = PlainRenderer(tokenizer)
    for action in actions:
        decoded = renderer.action_text(renderer.action_ids(action))
        if decoded != action:
            raise PolicyError(
                f"The plain word tokenizer turns the action {action!r} into {decoded!r}. It fits commands whose words "
                "are separated by single spaces; here, set `policy.tiny.subwords`, or use a model of your own."
            )
