"""The shape of a decoder, from a recipe or a model's config.json: enough to count parameters and bytes.

Nothing is loaded and nothing is fetched. A shape that is not known is an error that says how to tell it, never a guess.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import PositiveInt

from rocknroll.trainer.errors import RecipeError
from rocknroll.trainer.section import Section
from rocknroll.trainer.tiny_model import TinyModel

KNOWN = ("llama", "mistral", "qwen2", "qwen3")
"""Model types of config.json whose parameters `parameters` counts: dense decoders with SwiGLU and RMSNorm."""


class Architecture(Section):
    """A dense decoder with grouped-query attention, a gated MLP and RMSNorm."""

    layers: PositiveInt
    hidden_size: PositiveInt
    intermediate_size: PositiveInt
    heads: PositiveInt
    kv_heads: PositiveInt
    head_dim: PositiveInt
    vocabulary: PositiveInt
    tied: bool = False
    """Whether the head's weights are the embedding's."""
    attention_bias: bool = False
    """Whether queries, keys and values have a bias (Qwen2)."""
    qk_norm: bool = False
    """Whether queries and keys are normalised (Qwen3)."""

    @property
    def layer_parameters(self) -> int:
        """Of one layer."""
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        attention = self.hidden_size * (2 * queries + 2 * keys)
        biases = (queries + 2 * keys) * self.attention_bias
        norms = 2 * self.hidden_size + 2 * self.head_dim * self.qk_norm
        return attention + biases + norms + 3 * self.hidden_size * self.intermediate_size

    @property
    def embedding_parameters(self) -> int:
        """Of the embedding alone."""
        return self.vocabulary * self.hidden_size

    @property
    def parameters(self) -> int:
        """Of the whole model."""
        embeddings = self.embedding_parameters * (1 if self.tied else 2)
        return embeddings + self.layers * self.layer_parameters + self.hidden_size


def architecture_of(model: str, setting: str, given: Architecture | None = None) -> Architecture:
    """The shape of a hub id or a local folder: as the recipe gives it, or from its config.json on this machine.

    `setting`: where the model stands in the recipe.

    Raises:
        RecipeError: it is not known, is of a kind that is not counted, or is not what the recipe gives.
    """
    file = _config_file(model)
    if file is None:
        if given is not None:
            return given
        facts = ", ".join(name for name, field in Architecture.model_fields.items() if field.is_required())
        own = f", or say it in the recipe: `policy.architecture` with {facts}" if setting == "policy.model" else ""
        raise RecipeError(
            f"The shape of `{setting}` {model} is not known on this machine, so nothing can be said of its memory."
            f" Fetch it once with `hf download {model} config.json`, set `{setting}` to a folder{own}."
        )
    found = from_config(json.loads(file.read_text(encoding="utf-8")), str(file))
    if given is not None and given != found:
        differing = [name for name in Architecture.model_fields if getattr(given, name) != getattr(found, name)]
        raise RecipeError(
            f"`policy.architecture` is not what {file} says of {model}: {', '.join(differing)} differ. Correct it or"
            " leave it out."
        )
    return found


def from_config(config: Mapping[str, Any], origin: str) -> Architecture:
    """The shape that a config.json describes.

    Raises:
        RecipeError: it is of a kind whose parameters are not counted here.
    """
    config = config.get("text_config", config)
    kind = config.get("model_type")
    if kind not in KNOWN:
        raise RecipeError(
            f"{origin} is of a {kind!r} model, whose memory is not estimated; that of {', '.join(KNOWN)} is. Leave"
            " `cluster.gpu_memory_gib` and `--gpu-memory` out to see the placement alone."
        )
    heads, width = int(config["num_attention_heads"]), int(config["hidden_size"])
    return Architecture(
        layers=config["num_hidden_layers"],
        hidden_size=width,
        intermediate_size=config["intermediate_size"],
        heads=heads,
        kv_heads=config.get("num_key_value_heads") or heads,
        head_dim=config.get("head_dim") or width // heads,
        vocabulary=config["vocab_size"],
        tied=bool(config.get("tie_word_embeddings", False)),
        attention_bias=kind == "qwen2" or bool(config.get("attention_bias", False)),
        qk_norm=kind == "qwen3",
    )


def of_tiny(tiny: TinyModel, vocabulary: int) -> Architecture:
    """The shape of a model that is made here (`policy.make_tiny`)."""
    return Architecture(
        layers=tiny.layers,
        hidden_size=tiny.hidden_size,
        intermediate_size=tiny.intermediate_size,
        heads=tiny.heads,
        kv_heads=tiny.kv_heads,
        head_dim=tiny.head_dim,
        vocabulary=vocabulary,
        tied=True,
        qk_norm=True,
    )


def _config_file(model: str) -> Path | None:
    folder = Path(model).expanduser()
    if folder.is_dir():
        return folder / "config.json" if (folder / "config.json").is_file() else None
    if model.startswith((".", "/", "~")) or model.count("/") > 1:
        return None
    from huggingface_hub import try_to_load_from_cache

    cached = try_to_load_from_cache(model, "config.json")
    return Path(cached) if isinstance(cached, str) else None
