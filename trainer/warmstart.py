"""The policy that RL starts from: a small model cloned from expert episodes, or any given model.

A policy made here is cached by the content of everything that went into it, so a second run starts
at once. Cloning is plain maximum likelihood on the expert's action tokens, in the very token format
in which the policy will play (`trainer/render.py`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from transformers import get_cosine_schedule_with_warmup
from transformers.modeling_utils import PreTrainedModel

from rocknroll import __version__
from rocknroll.envs.cache import cache_root
from rocknroll.envs.text import ExpertEpisode, Family
from rocknroll.trainer.policy import build_tokenizer, load_policy, make_tiny, save_policy
from rocknroll.trainer.recipe import Recipe, WarmstartSection
from rocknroll.trainer.render import Renderer, make_renderer

Progress = Callable[[str, int, int], None]
"""Called with (phase, done, total)."""


@dataclass(frozen=True)
class CloningRow:
    """One expert episode as tokens; `mask` is true where the clone learns. Shapes [T]."""

    token_ids: tuple[int, ...]
    mask: tuple[bool, ...]


def prepare_policy(recipe: Recipe, family: Family, progress: Progress) -> Path:
    """Folder of the model and tokenizer that RL starts from.

    Raises:
        PolicyError: the model or its tokenizer cannot be loaded.
        EnvDataError: the environment's data cannot be made.
    """
    if recipe.policy.model != "tiny" and not recipe.warmstart.enabled:
        return _local_copy(recipe, cache_root() / "policies" / _key(recipe, family))
    folder = cache_root() / "policies" / _key(recipe, family)
    if not (folder / "config.json").exists():
        _make(recipe, family, folder, progress)
    return folder


def _key(recipe: Recipe, family: Family) -> str:
    """Hash of everything that decides the policy's weights."""
    made_of = {
        "rocknroll": __version__,
        "family": family.name,
        "vocabulary": list(family.vocabulary()),
        "data": family.content_key(),
        "policy": recipe.policy.model_dump(mode="json"),
        "warmstart": recipe.warmstart.model_dump(mode="json"),
        "seed": recipe.seed,
    }
    return hashlib.sha256(json.dumps(made_of, sort_keys=True).encode()).hexdigest()[:16]


def _local_copy(recipe: Recipe, folder: Path) -> Path:
    """A given model, saved where engine and learner both read it."""
    if Path(recipe.policy.model).is_dir():
        load_policy(recipe.policy.model, recipe.policy.dtype)  # refuse a broken folder now, not in another process
        return Path(recipe.policy.model)
    if not (folder / "config.json").exists():
        save_policy(*load_policy(recipe.policy.model, recipe.policy.dtype), folder)
    return folder


def _make(recipe: Recipe, family: Family, folder: Path, progress: Progress) -> None:
    warmstart = recipe.warmstart
    episodes = family.expert_episodes(
        "train",
        warmstart.games,
        seed=recipe.seed,
        noise=warmstart.noise,
        progress=lambda done, total: progress("expert episodes", done, total),
    )
    if recipe.policy.model == "tiny":
        tokenizer = build_tokenizer(
            [*family.vocabulary(), *texts(episodes)], actions={s.action for e in episodes for s in e.steps}
        )
        model: PreTrainedModel = make_tiny(recipe.policy.tiny, tokenizer, recipe.seed)
    else:
        model, tokenizer = load_policy(recipe.policy.model, recipe.policy.dtype)
    renderer = make_renderer(tokenizer, family.instructions)
    if warmstart.enabled:
        rows = [cloning_row(episode, renderer) for episode in episodes]
        clone(model, rows, warmstart, recipe.seed, lambda done, total: progress("warm start", done, total))
    save_policy(model, tokenizer, folder)


def texts(episodes: Sequence[ExpertEpisode]) -> Iterator[str]:
    """Every text a tokenizer has to know: observations, actions, and the commands not taken."""
    for episode in episodes:
        for step in episode.steps:
            yield step.observation
            yield step.action
            yield from step.admissible


def cloning_row(episode: ExpertEpisode, renderer: Renderer) -> CloningRow:
    """The episode as the policy would have played it; steps not to imitate stay context."""
    ids: list[int] = []
    mask: list[bool] = []
    for turn, step in enumerate(episode.steps):
        context = renderer.first(step.observation) if turn == 0 else renderer.following(step.observation)
        action = renderer.action_ids(step.action)
        ids += [*context, *action]
        mask += [False] * len(context) + [step.imitate] * len(action)
    return CloningRow(tuple(ids), tuple(mask))


def clone(
    model: PreTrainedModel,
    rows: Sequence[CloningRow],
    section: WarmstartSection,
    seed: int,
    progress: Callable[[int, int], None],
) -> float:
    """Fit `model` to the masked tokens of `rows` in place; returns the mean loss of the last tenth, in nats.

    Batches hold `section.batch_tokens` tokens of rows of similar length, right-padded: under causal
    attention padding changes no real token, so no mask is needed.
    """
    epoch_batches = len(_batches(rows, section.batch_tokens, np.random.default_rng(seed)))
    total = max(1, round(section.epochs * epoch_batches))
    optimizer = torch.optim.AdamW(model.parameters(), lr=section.learning_rate, betas=(0.9, 0.98), weight_decay=0.01)
    schedule = get_cosine_schedule_with_warmup(
        optimizer, num_warmup_steps=max(1, total // 20), num_training_steps=total
    )
    model.train()
    losses: list[float] = []
    rng = np.random.default_rng(seed)
    while len(losses) < total:
        for batch in _batches(rows, section.batch_tokens, rng)[: total - len(losses)]:
            loss = _cloning_loss(model, [rows[i] for i in batch])
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad(set_to_none=True)
            losses.append(float(loss.detach()))
            progress(len(losses), total)
    model.eval()
    return float(np.mean(losses[-max(1, total // 10) :]))


def _batches(rows: Sequence[CloningRow], batch_tokens: int, rng: np.random.Generator) -> list[list[int]]:
    """Row indices in shuffled batches of at most `batch_tokens` padded tokens, similar lengths together."""
    noisy_length = np.array([len(row.token_ids) for row in rows]) * rng.uniform(0.9, 1.1, len(rows))
    batches: list[list[int]] = [[]]
    longest = 0
    for index in np.argsort(noisy_length):
        longest = max(longest, len(rows[index].token_ids))
        if batches[-1] and longest * (len(batches[-1]) + 1) > batch_tokens:
            batches.append([])
            longest = len(rows[index].token_ids)
        batches[-1].append(int(index))
    return [batches[i] for i in rng.permutation(len(batches))]


def _cloning_loss(model: PreTrainedModel, rows: Sequence[CloningRow]) -> torch.Tensor:
    width = max(len(row.token_ids) for row in rows)
    ids = torch.zeros(len(rows), width, dtype=torch.long)
    mask = torch.zeros(len(rows), width, dtype=torch.bool)
    for i, row in enumerate(rows):
        ids[i, : len(row.token_ids)] = torch.tensor(row.token_ids)
        mask[i, : len(row.mask)] = torch.tensor(row.mask)
    ids, mask = ids.to(model.device), mask.to(model.device)
    hidden = model.base_model(input_ids=ids, use_cache=False).last_hidden_state
    predicts = mask[:, 1:]
    logits = model.get_output_embeddings()(hidden[:, :-1][predicts])
    return torch.nn.functional.cross_entropy(logits.float(), ids[:, 1:][predicts])
