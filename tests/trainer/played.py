"""Random trajectories, groups and tiny models for the learner's tests; everything follows from a seed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

from rocknroll.trainer.trajectory import NO_VERSION, Group, Outcome, Trajectory, Turn

VOCABULARY = 23


def trajectory(
    rng: np.random.Generator,
    name: str = "t",
    *,
    group_id: str = "g",
    turns: int = 3,
    rewards: Sequence[float] | None = None,
    states: Sequence[str] | None = None,
    progress: Sequence[float] | None = None,
    outcome: Outcome = Outcome.COMPLETED,
    success: bool = False,
    constrained: bool = False,
    version: int = 0,
    task_kind: str = "kind",
    prompt: int | None = None,
) -> Trajectory:
    """An episode of `turns` actions of 1 to 4 tokens between observations of 1 to 6."""
    mask: list[bool] = [False] * (prompt or int(rng.integers(1, 12)))
    played: list[Turn] = []
    for turn in range(turns):
        start = len(mask)
        mask += [True] * int(rng.integers(1, 5))
        reward = rewards[turn] if rewards is not None else float(rng.normal())
        state = states[turn] if states is not None else f"s{rng.integers(3)}"
        stage = progress[turn] if progress is not None else float(rng.integers(3)) / 3
        played.append(Turn(start, len(mask), reward, bool(rng.integers(2)), state, stage))
        mask += [False] * int(rng.integers(1, 7))
    action_mask = np.array(mask)
    tokens = rng.integers(0, VOCABULARY, len(mask)).astype(np.int32)
    allowed = None
    if constrained:
        allowed = tuple(
            tuple(int(x) for x in {int(token), *rng.integers(0, VOCABULARY, int(rng.integers(0, 6)))})
            for token in tokens[action_mask]
        )
    return Trajectory(
        id=name,
        group_id=group_id,
        task_id=f"task of {group_id}",
        task_kind=task_kind,
        token_ids=tokens,
        action_mask=action_mask,
        logprobs=np.where(action_mask, -rng.uniform(0.1, 4.0, len(mask)), 0.0).astype(np.float32),
        versions=np.where(action_mask, version, NO_VERSION).astype(np.int32),
        turns=tuple(played),
        outcome=outcome,
        success=success,
        allowed=allowed,
        timings_s={"generate": 0.25, "total": 1.5},
    )


def group(
    rng: np.random.Generator, name: str = "g", *, size: int = 4, constrained: bool = False, version: int = 0
) -> Group:
    """A group whose members differ in length and reward."""
    members = tuple(
        trajectory(
            rng,
            f"{name}/{i}",
            group_id=name,
            turns=int(rng.integers(1, 5)),
            constrained=constrained,
            version=version,
        )
        for i in range(size)
    )
    return Group(id=name, task_id=f"task of {name}", trajectories=members)


def groups(seed: int, count: int = 3, **options: object) -> tuple[Group, ...]:
    """`count` groups that follow from the seed."""
    rng = np.random.default_rng(seed)
    return tuple(group(rng, f"{seed}.{i}", **options) for i in range(count))  # type: ignore[arg-type]


def tiny_qwen3(seed: int = 0) -> Qwen3ForCausalLM:
    """A model of a few thousand parameters with grouped-query attention."""
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=256,
        tie_word_embeddings=True,
    )
    return Qwen3ForCausalLM(config)


def tiny_llama(seed: int = 0) -> LlamaForCausalLM:
    """The same size, untied and with one key-value head per head."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=256,
        tie_word_embeddings=False,
    )
    return LlamaForCausalLM(config)
