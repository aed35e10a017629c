"""What one gradient pass of the learner costs against a plain padded one, on one thread.

Both compute the same loss (the mean log-probability of the action tokens) of the same ALFWorld-like
episodes with the same tiny policy, in turns, so that other load on the machine hits both alike.
The plain pass is what a reasonable user writes: batches of 16 in order of arrival, padded on the
right, attention mask, whole logits. CPU seconds; the ratio is that of the medians.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable, Sequence

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from reporting import emit
from transformers import Qwen3Config, Qwen3ForCausalLM

from rocknroll.trainer.learner_section import LearnerSection
from rocknroll.trainer.logprobs import action_logprobs
from rocknroll.trainer.packed_attention import use_packed_attention
from rocknroll.trainer.packing import plan
from rocknroll.trainer.tiny_model import TinyModel
from rocknroll.trainer.trajectory import NO_VERSION, Outcome, Trajectory

VOCABULARY = 181
PROMPT, OBSERVATION, ACTION = 50, 18, 5
"""Tokens of a first observation, of a later one and of an action, as measured on generated games."""


def episodes(count: int) -> list[Trajectory]:
    """Episodes of 100 to 450 tokens."""
    rng = np.random.default_rng(0)
    played = []
    for index in range(count):
        turns = round((int(rng.integers(100, 451)) - PROMPT) / (OBSERVATION + ACTION))
        mask = np.array([False] * PROMPT + ([True] * ACTION + [False] * OBSERVATION) * turns)
        played.append(
            Trajectory(
                id=str(index),
                group_id="",
                task_id="",
                task_kind="",
                token_ids=rng.integers(0, VOCABULARY, len(mask)).astype(np.int32),
                action_mask=mask,
                logprobs=np.zeros(len(mask), dtype=np.float32),
                versions=np.where(mask, 0, NO_VERSION).astype(np.int32),
                turns=(),
                outcome=Outcome.COMPLETED,
                success=False,
            )
        )
    return played


def policy() -> Qwen3ForCausalLM:
    """The tiny policy of the default recipe, with random weights."""
    tiny = TinyModel()
    torch.manual_seed(0)
    return Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=VOCABULARY,
            hidden_size=tiny.hidden_size,
            intermediate_size=tiny.intermediate_size,
            num_hidden_layers=tiny.layers,
            num_attention_heads=tiny.heads,
            num_key_value_heads=tiny.kv_heads,
            head_dim=tiny.head_dim,
            max_position_embeddings=tiny.max_length,
            tie_word_embeddings=True,
        )
    )


def packed_pass(model: Qwen3ForCausalLM, played: Sequence[Trajectory]) -> float:
    """Forward and backward as the learner does them; returns the loss."""
    tokens = sum(int(trajectory.action_mask.sum()) for trajectory in played)
    total = 0.0
    for packed in plan(played, LearnerSection().pass_tokens):
        logp, _ = action_logprobs(model, packed, 1.0)
        loss = -logp.sum() / tokens
        loss.backward()  # type: ignore[no-untyped-call]
        total += loss.item()
    return total


def padded_pass(model: Qwen3ForCausalLM, played: Sequence[Trajectory], batch: int = 16) -> float:
    """The same by padding; returns the loss."""
    tokens = sum(int(trajectory.action_mask.sum()) for trajectory in played)
    total = 0.0
    for start in range(0, len(played), batch):
        rows = played[start : start + batch]
        width = max(len(row.token_ids) for row in rows)
        ids = torch.zeros(len(rows), width, dtype=torch.long)
        present = torch.zeros(len(rows), width, dtype=torch.long)
        actions = torch.zeros(len(rows), width, dtype=torch.bool)
        for i, row in enumerate(rows):
            length = len(row.token_ids)
            ids[i, :length] = torch.from_numpy(row.token_ids)
            present[i, :length] = 1
            actions[i, :length] = torch.from_numpy(row.action_mask)
        logits = model(input_ids=ids, attention_mask=present, use_cache=False).logits[:, :-1]
        logp = torch.log_softmax(logits, -1).gather(2, ids[:, 1:, None])[..., 0]
        loss = -(logp * actions[:, 1:]).sum() / tokens
        loss.backward()  # type: ignore[no-untyped-call]
        total += loss.item()
    return total


def cpu_s(work: Callable[[], float]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    played = episodes(96)
    ours, theirs = policy(), policy()
    use_packed_attention(ours)
    losses = packed_pass(ours, played), padded_pass(theirs, played)
    if abs(losses[0] - losses[1]) > 1e-4:
        raise SystemExit(f"the two passes disagree: {losses}")
    pairs = [
        (cpu_s(lambda: packed_pass(ours, played)), cpu_s(lambda: padded_pass(theirs, played)))
        for _ in range(3 if arguments.quick else 9)
    ]
    packed, padded = (sorted(times) for times in zip(*pairs, strict=True))
    figures = {
        "trajectories": len(played),
        "tokens": sum(len(trajectory.token_ids) for trajectory in played),
        "action_tokens": sum(int(trajectory.action_mask.sum()) for trajectory in played),
        "packed_cpu_s": round(statistics.median(packed), 3),
        "packed_cpu_s_spread": [round(packed[0], 3), round(packed[-1], 3)],
        "padded_cpu_s": round(statistics.median(padded), 3),
        "padded_cpu_s_spread": [round(padded[0], 3), round(padded[-1], 3)],
    }
    ratio = statistics.median(padded) / statistics.median(packed)
    emit("learner", {"packed_over_padded": round(ratio, 3)}, figures, arguments.json)


if __name__ == "__main__":
    main()
