"""A learner over recorded batches, for its tests."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import played
import torch
from torch import Tensor

from rocknroll.trainer.learner import Batch, Learner
from rocknroll.trainer.learner_section import LearnerSection
from rocknroll.trainer.trajectory import Group

SECTION = LearnerSection(iterations=4, learning_rate=1e-2, pass_tokens=64)
THOROUGH = SECTION.model_copy(
    update={"objective": "decoupled_ppo", "epochs": 2, "minibatches": 2, "kl_coef": 0.1, "entropy_coef": 0.01}
)


class Recording:
    """A stream that gives the same batch for the same cursor, and writes down what it is asked."""

    def __init__(self, make: Callable[[int], tuple[Group, ...]] = played.groups) -> None:
        self.calls: list[str] = []
        self.cursor = 0
        self.weights: dict[int, dict[str, Tensor]] = {}
        self.on_batch: Callable[[int], None] = lambda version: None
        self.on_ready: Callable[[int, int], None] = lambda version, seen: None
        self._make = make

    def start(self) -> None:
        self.calls.append("start")

    def next_batch(self, version: int) -> Batch:
        self.on_batch(version)
        self.calls.append(f"batch {version}")
        self.cursor += 1
        return Batch(self._make(self.cursor), {"rollout/figure": float(self.cursor)})

    def ready_groups(self, version: int, seen: int) -> Sequence[Group]:
        """Every group at once."""
        self.on_ready(version, seen)
        return self._make(self.cursor + 1)[seen:]

    def publish(self, version: int, state: Mapping[str, Tensor]) -> None:
        self.calls.append(f"publish {version}")
        self.weights[version] = {name: tensor.clone() for name, tensor in state.items()}

    def state_dict(self) -> dict[str, Any]:
        return {"cursor": self.cursor}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.calls.append("load")
        self.cursor = state["cursor"]

    def stop(self) -> None:
        self.calls.append("stop")


def learner(run_dir: Path, stream: Recording, section: LearnerSection = SECTION, **options: Any) -> Learner:
    options = {"model": None, "tokenizer": None, "report_to": (), "seed": 3} | options
    options["model"] = options["model"] or played.tiny_qwen3()
    return Learner(stream=stream, section=section, run_dir=run_dir, **options)


def stop_at_step(subject: Learner, number: int) -> None:
    """Have the learner asked to stop within its optimiser step of that number, the first being 1."""
    steps, step = 0, subject.training_step

    def count(*arguments: Any, **options: Any) -> Any:
        nonlocal steps
        steps += 1
        if steps == number:
            subject.request_stop()
        return step(*arguments, **options)

    subject.training_step = count  # type: ignore[method-assign]


def rows(run_dir: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]


def same(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def first_gradient(
    run_dir: Path,
    section: LearnerSection,
    make: Callable[[int], tuple[Group, ...]] = played.groups,
    stream: Recording | None = None,
    **options: Any,
) -> Tensor:
    """The gradient of the first step, all parameters in one vector."""
    subject = learner(run_dir, stream or Recording(make), section, **options)
    kept: list[Tensor] = []
    clip = subject._clip_grad_norm

    def keep(model: torch.nn.Module) -> Any:
        kept.append(torch.cat([p.grad.flatten().clone() for p in model.parameters() if p.grad is not None]))
        return clip(model)

    subject._clip_grad_norm = keep  # type: ignore[method-assign]
    subject.learn()
    return kept[0]


@torch.no_grad()
def record(model: torch.nn.Module, group: Group, temperature: float) -> Group:
    """The group with the logprobs that `model` gives its tokens, trajectory by trajectory."""
    members = []
    for member in group.trajectories:
        ids = torch.from_numpy(member.token_ids.astype(np.int64))[None]
        logprobs = torch.log_softmax(model(input_ids=ids).logits[0, :-1] / temperature, -1)
        taken = torch.cat([torch.zeros(1), logprobs.gather(1, ids[0, 1:, None])[:, 0]]).numpy()
        changed = vars(member) | {"logprobs": np.where(member.action_mask, taken, 0).astype(np.float32)}
        members.append(type(member)(**changed))
    return Group(group.id, group.task_id, tuple(members))
