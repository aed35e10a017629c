"""A real vLLM on CPU for tests: where it is, and small policies that it can serve.

Without an interpreter that has it, tests are skipped, or fail where `ROCKNROLL_REQUIRE_VLLM` is set, as in CI.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch

from rocknroll.trainer.engine_section import EngineSection
from rocknroll.trainer.engines.vllm.engine import Limits, VLLMEngine
from rocknroll.trainer.engines.vllm.installation import Installation, find_installation
from rocknroll.trainer.engines.vllm.served import ServedPolicy
from rocknroll.trainer.engines.vllm.server import Server, Serving
from rocknroll.trainer.errors import RecipeError
from rocknroll.trainer.policy import build_tokenizer, load_policy, make_tiny, save_policy
from rocknroll.trainer.tiny_model import TinyModel

SHAPE = TinyModel(hidden_size=64, layers=48, heads=2, kv_heads=1, head_dim=32, intermediate_size=96, max_length=1024)
"""So deep that a step costs the server much more than telling of it does, which comes late otherwise."""
SLOTS = 8
LIMITS = Limits(start=500.0, generation=120.0, update=60.0)
TEXT = "you see a desk lamp and take the red mug from shelf 1 2 3 put it in on drawer open close go to look"


def missing(what: str) -> NoReturn:
    """Skip; where vLLM is required, fail."""
    if os.environ.get("ROCKNROLL_REQUIRE_VLLM"):
        pytest.fail(f"ROCKNROLL_REQUIRE_VLLM is set, but {what}")
    pytest.skip(what)


def installed() -> Installation:
    """The vLLM to test with."""
    try:
        return find_installation()
    except RecipeError as error:
        missing(str(error))


def tokenizer(text: str = TEXT) -> Any:
    return build_tokenizer([text])


def model(seed: int, text: str = TEXT) -> Any:
    """A tied model whose distributions are far from uniform, and of no other seed's."""
    made = make_tiny(SHAPE, tokenizer(text), seed)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        for parameter in made.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return made.eval()


def saved(folder: Path, seed: int = 0) -> Path:
    save_policy(model(seed), tokenizer(), folder)
    return folder


def served(folder: Path) -> ServedPolicy:
    loaded, words = load_policy(str(folder))
    return ServedPolicy(folder, words, "float32", loaded)


def launch(folder: Path, installation: Installation, log: Path) -> Any:
    """Starts a server of the policy in `folder`."""
    serving = Serving(folder, "float32", SHAPE.max_length)
    return lambda cores: Server(EngineSection(kind="vllm", slots=SLOTS), serving, installation, cores, log)


def engine(server: Any, policy: ServedPolicy, limits: Limits = LIMITS) -> VLLMEngine:
    return VLLMEngine(server, policy, max_length=SHAPE.max_length, limits=limits)
