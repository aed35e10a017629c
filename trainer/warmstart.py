"""The policy that RL starts from: a small model cloned from expert episodes, or any given model.

A policy made here is cached by the content of everything that went into it, so a second run starts
at once. Cloning is maximum likelihood on the expert's action tokens (and, with a weight of their own, on
the environment's), in the very token format in which the policy will play (`trainer/render.py`). Every
epoch sees the episodes in new disguises (`Family.disguise_episode`). A run of several environments has one
policy with the words of all, cloned from the experts of all.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence
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
    """One expert episode as tokens. Shapes [T]."""

    token_ids: tuple[int, ...]
    actions: tuple[bool, ...]
    """Tokens of the actions to imitate."""
    observations: tuple[bool, ...]
    """Tokens of the environment; mistakes are neither."""


@dataclass(frozen=True)
class _Expert:
    """What one environment's expert shows."""

    family: Family
    episodes: Sequence[ExpertEpisode]


def prepare_policy(recipe: Recipe, families: Sequence[Family], progress: Progress) -> Path:
    """Folder of the model and tokenizer that RL starts from. `families`: those that the run plays, in order.

    Raises:
        PolicyError: the model or its tokenizer cannot be loaded.
        EnvDataError: the environment's data cannot be made.
    """
    folder = cache_root() / "policies" / _key(recipe, families)
    if recipe.policy.model != "tiny" and not recipe.warmstart.enabled:
        return _local_copy(recipe, folder)
    if not (folder / "config.json").exists():
        _make(recipe, families, folder, progress)
    return folder


def _key(recipe: Recipe, families: Sequence[Family]) -> str:
    """Hash of everything that decides the policy's weights."""
    names = [family.name for family in families]
    vocabularies = [list(family.vocabulary()) for family in families]
    data = [family.content_key() for family in families]
    alone = len(families) == 1
    # A setting that is new since changes no policy that was made before.
    since: dict[str, Any] = {} if recipe.policy.tiny.subwords else {"tiny": {"subwords"}}
    if recipe.policy.architecture is None:
        since["architecture"] = True
    made_of = {
        "rocknroll": __version__,
        "family": names[0] if alone else names,
        "vocabulary": vocabularies[0] if alone else vocabularies,
        "data": data[0] if alone else data,
        "policy": recipe.policy.model_dump(mode="json", exclude=since),
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


def _make(recipe: Recipe, families: Sequence[Family], folder: Path, progress: Progress) -> None:
    warmstart = recipe.warmstart
    experts = [_Expert(family, _episodes(recipe, family, progress)) for family in families]
    if recipe.policy.model == "tiny":
        shown = [episode for expert in experts for episode in expert.episodes]
        tokenizer = build_tokenizer(
            [*(word for family in families for word in family.vocabulary()), *texts(shown)],
            actions={s.action for e in shown for s in e.steps},
            verb_last=recipe.policy.tiny.verb_last,
            subwords=recipe.policy.tiny.subwords,
        )
        model: PreTrainedModel = make_tiny(recipe.policy.tiny, tokenizer, recipe.seed)
    else:
        model, tokenizer = load_policy(recipe.policy.model, recipe.policy.dtype)
    if warmstart.enabled:
        rows = _rows(recipe, experts, tokenizer)
        clone(model, rows, warmstart, recipe.seed, lambda done, total: progress("warm start", done, total))
    save_policy(model, tokenizer, folder)


def _episodes(recipe: Recipe, family: Family, progress: Progress) -> Sequence[ExpertEpisode]:
    return family.expert_episodes(
        "train",
        recipe.warmstart.games,
        seed=recipe.seed,
        mistakes=recipe.warmstart.mistakes,
        progress=lambda done, total: progress("expert episodes", done, total),
    )


def _rows(recipe: Recipe, experts: Sequence[_Expert], tokenizer: Any) -> Callable[[int], list[CloningRow]]:
    """Rows of an epoch: every episode in a new disguise, shown as its own environment is shown."""
    renderers = [make_renderer(tokenizer, expert.family.instructions) for expert in experts]
    played = [
        (expert.family, renderer, episode)
        for expert, renderer in zip(experts, renderers, strict=True)
        for episode in expert.episodes
    ]

    def rows(epoch: int) -> list[CloningRow]:
        seeds = np.random.SeedSequence([recipe.seed, epoch]).generate_state(len(played)).tolist()
        return [
            cloning_row(family.disguise_episode(episode, seed), renderer)
            for (family, renderer, episode), seed in zip(played, seeds, strict=True)
        ]

    return rows


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
    actions: list[bool] = []
    observations: list[bool] = []
    for turn, step in enumerate(episode.steps):
        context = renderer.first(step.observation) if turn == 0 else renderer.following(step.observation)
        action = renderer.action_ids(step.action)
        ids += [*context, *action]
        actions += [False] * len(context) + [step.imitate] * len(action)
        observations += [True] * len(context) + [False] * len(action)
    return CloningRow(tuple(ids), tuple(actions), tuple(observations))


def clone(
    model: PreTrainedModel,
    rows_of: Callable[[int], Sequence[CloningRow]],
    section: WarmstartSection,
    seed: int,
    progress: Callable[[int, int], None],
) -> float:
    """Fit `model` in place to the rows of each epoch, `rows_of(epoch)`.

    Returns the mean loss of an action token over the last tenth of the steps, in nats. Batches hold
    `section.batch_tokens` tokens of rows of similar length, right-padded: under causal attention padding
    changes no real token, so no mask is needed.
    """
    epoch_batches = len(_batches(rows_of(0), section.batch_tokens, np.random.default_rng(seed)))
    total = max(1, round(section.epochs * epoch_batches))
    optimizer = torch.optim.AdamW(model.parameters(), lr=section.learning_rate, betas=(0.9, 0.98), weight_decay=0.01)
    schedule = get_cosine_schedule_with_warmup(
        optimizer, num_warmup_steps=max(1, total // 20), num_training_steps=total
    )
    model.train()
    losses: list[float] = []
    rng = np.random.default_rng(seed)
    for epoch in count():
        rows = rows_of(epoch)
        for batch in _batches(rows, section.batch_tokens, rng)[: total - len(losses)]:
            loss, action_loss = _cloning_loss(model, [rows[i] for i in batch], section.observation_weight)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad(set_to_none=True)
            losses.append(action_loss)
            progress(len(losses), total)
        if len(losses) == total:
            break
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


def _cloning_loss(
    model: PreTrainedModel, rows: Sequence[CloningRow], observation_weight: float
) -> tuple[torch.Tensor, float]:
    """Loss per action token, observations added with their weight; and what the actions alone contribute."""
    ids = pad_sequence([torch.tensor(row.token_ids) for row in rows], batch_first=True).to(model.device)
    actions = pad_sequence([torch.tensor(row.actions) for row in rows], batch_first=True).to(model.device)
    learnt = actions
    if observation_weight:
        learnt = actions | pad_sequence([torch.tensor(row.observations) for row in rows], batch_first=True).to(
            ids.device
        )
    hidden = model.base_model(input_ids=ids, use_cache=False).last_hidden_state
    logits = model.get_output_embeddings()(hidden[:, :-1][learnt[:, 1:]])
    losses = torch.nn.functional.cross_entropy(logits.float(), ids[:, 1:][learnt[:, 1:]], reduction="none")
    is_action = actions[:, 1:][learnt[:, 1:]]
    loss = (losses * torch.where(is_action, 1.0, observation_weight)).sum() / is_action.sum()
    return loss, float(losses.detach()[is_action].mean())
