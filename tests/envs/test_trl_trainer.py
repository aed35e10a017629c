"""TRL's own GRPOTrainer trains on ALFWorld through the adapter."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch
from datasets import Dataset
from transformers.utils.chat_template_utils import get_json_schema
from trl import GRPOConfig, GRPOTrainer
from trl.chat_template_utils import qwen2_5_chat_template

from rocknroll.envs.adapters.trl import OVER, TrlEnvironment, TrlEnvironments
from rocknroll.envs.alfworld.family import AlfWorldFamily
from rocknroll.envs.text import ExpertEpisode
from rocknroll.sandbox.errors import SandboxLost
from rocknroll.trainer.policy import build_tokenizer, make_tiny
from rocknroll.trainer.tiny_model import TinyModel

pytestmark = pytest.mark.slow
ROLLOUTS = 8
SHAPE = TinyModel(
    hidden_size=64, layers=2, heads=2, kv_heads=2, head_dim=32, intermediate_size=128, max_length=2048, subwords=1200
)


@pytest.fixture(scope="module")
def environments(alfworld: AlfWorldFamily) -> Iterator[TrlEnvironments]:
    with TrlEnvironments(alfworld, count=ROLLOUTS) as made:
        yield made


@pytest.fixture(scope="module")
def episode(alfworld: AlfWorldFamily) -> ExpertEpisode:
    return min(alfworld.expert_episodes("train", 12, seed=0), key=lambda episode: len(episode.steps))


@pytest.fixture(scope="module")
def policy(environments: TrlEnvironments, episode: ExpertEpisode, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny chat model that half of the time knows the way by heart, and half of the time gives up."""
    opening = rows(environments, episode)[0]["prompt"]
    opening = [opening[0], {"role": "user", "content": episode.steps[0].observation}]
    talks = [[*opening, *way(episode)], [*opening, {"role": "assistant", "content": "I give up."}]]
    tools = [get_json_schema(environments().act)]
    shown: dict[str, Any] = {"tools": tools, "chat_template": qwen2_5_chat_template, "tokenize": False}
    tokenizer = build_tokenizer(["x"], subwords=512)
    texts = [str(tokenizer.apply_chat_template(talk, **shown)) for talk in talks]
    tokenizer = build_tokenizer(texts, subwords=SHAPE.subwords)
    tokenizer.add_special_tokens({"eos_token": "<|im_end|>", "additional_special_tokens": ["<|im_start|>"]})
    tokenizer.chat_template = qwen2_5_chat_template
    model = make_tiny(SHAPE, tokenizer, seed=0)
    learn_by_heart(model, [tokenizer(text, return_tensors="pt")["input_ids"] for text in texts])
    folder = tmp_path_factory.mktemp("policy")
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def rows(environments: TrlEnvironments, episode: ExpertEpisode) -> list[dict[str, Any]]:
    return [row for row in environments.rows() if row["task"] == episode.task_id]


def way(episode: ExpertEpisode) -> list[dict[str, Any]]:
    """The expert's episode as a chat with tool calls."""
    said: list[dict[str, Any]] = []
    replies = [step.observation for step in episode.steps[1:]] + [OVER.strip()]
    for step, reply in zip(episode.steps, replies, strict=True):
        call = {"type": "function", "function": {"name": "act", "arguments": {"command": step.action}}}
        said += [{"role": "assistant", "content": "", "tool_calls": [call]}, {"role": "tool", "content": reply}]
    return [*said, {"role": "assistant", "content": "Done."}]


def learn_by_heart(model: Any, texts: list[torch.Tensor], steps: int = 120) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.0)
    model.train()
    for _ in range(steps):
        for ids in texts:
            model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def trainer_of(policy: Path, data: list[dict[str, Any]], factory: Any, folder: Path) -> GRPOTrainer:
    config = GRPOConfig(
        output_dir=str(folder),
        per_device_train_batch_size=ROLLOUTS,
        num_generations=ROLLOUTS,
        max_completion_length=1200,
        max_steps=1,
        learning_rate=1e-3,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        use_cpu=True,
        bf16=False,
        disable_tqdm=True,
        seed=1,
    )
    return GRPOTrainer(
        model=str(policy), args=config, train_dataset=Dataset.from_list(data), environment_factory=factory
    )


def leased(environments: TrlEnvironments) -> float:
    return float(environments.places._places._fleet.metrics()["state_LEASED"])  # type: ignore[attr-defined]


def test_trl_trains_one_step_on_alfworld(
    environments: TrlEnvironments, episode: ExpertEpisode, policy: Path, tmp_path: Path
) -> None:
    trainer = trainer_of(policy, rows(environments, episode), environments, tmp_path)
    before = [weight.detach().clone() for weight in trainer.model.parameters()]
    trainer.train()
    played: list[TrlEnvironment] = trainer.environments
    assert len(played) == ROLLOUTS
    won = [env for env in played if env.reward == 1.0]
    assert 0 < len(won) < ROLLOUTS
    assert all([turn.action for turn in env.turns] == [step.action for step in episode.steps] for env in won)
    (logged,) = (row for row in trainer.state.log_history if "rewards/alfworld/mean" in row)
    assert logged["rewards/alfworld/mean"] == pytest.approx(len(won) / ROLLOUTS)
    assert logged["tools/failure_frequency"] == 0.0
    assert any(not torch.equal(old, new) for old, new in zip(before, trainer.model.parameters(), strict=True))
    assert leased(environments) == 0


def test_a_lost_rollout_moves_neither_the_policy_nor_its_groups_baseline(
    alfworld: AlfWorldFamily, episode: ExpertEpisode, policy: Path, tmp_path: Path
) -> None:
    def unlucky() -> NoReturn:
        raise SandboxLost("its machine went down")

    made: list[TrlEnvironment] = []

    def factory() -> TrlEnvironment:
        made.append(environments())
        if len(made) == 3:
            made[-1]._begin = unlucky  # type: ignore[method-assign]
        return made[-1]

    with TrlEnvironments(alfworld, count=ROLLOUTS) as environments:
        trainer = trainer_of(policy, rows(environments, episode), factory, tmp_path)
        trainer.train()
        rewards = list(trainer._logs["rewards"]["alfworld"])
        advantages = list(trainer._logs["advantages"])
        assert math.isnan(rewards[2])
        assert advantages[2] == 0.0
        counted = [reward for reward in rewards if not math.isnan(reward)]
        assert len(counted) == ROLLOUTS - 1
        mean = sum(counted) / len(counted)
        assert all((a > 0) == (r > mean) for a, r in zip(advantages, rewards, strict=True) if not math.isnan(r))
        assert dict(environments.lost) == {"sandbox_lost": 1}
