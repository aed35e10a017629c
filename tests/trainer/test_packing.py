"""Packed rows against one forward per trajectory: same log-probabilities, same entropies, same gradients."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import played
import pytest
import torch
from torch import Tensor
from transformers.modeling_utils import PreTrainedModel

from rocknroll.trainer.logprobs import action_logprobs
from rocknroll.trainer.packed_attention import use_packed_attention
from rocknroll.trainer.packing import forwarded_tokens, plan
from rocknroll.trainer.trajectory import Trajectory

MODELS = [played.tiny_qwen3, played.tiny_llama]


def episodes(count: int = 9, *, constrained: bool = False, seed: int = 0) -> list[Trajectory]:
    rng = np.random.default_rng(seed)
    return [
        played.trajectory(rng, f"t{i}", turns=int(rng.integers(1, 6)), constrained=constrained) for i in range(count)
    ]


def packed_scores(
    model: PreTrainedModel, trajectories: list[Trajectory], pass_tokens: int, temperature: float = 1.0
) -> dict[str, tuple[Tensor, Tensor]]:
    scores: dict[str, tuple[Tensor, Tensor]] = {}
    for packed in plan(trajectories, pass_tokens):
        logp, entropy = action_logprobs(model, packed, temperature)
        sizes = packed.mask.sum(1).tolist()
        for member, lp, h in zip(packed.members, torch.split(logp, sizes), torch.split(entropy, sizes), strict=True):
            scores[trajectories[member].id] = lp, h
    return scores


def alone(model: PreTrainedModel, trajectory: Trajectory, temperature: float = 1.0) -> tuple[Tensor, Tensor]:
    """Log-probabilities and entropies of one trajectory from the whole logits, in a loop over action tokens."""
    ids = torch.from_numpy(trajectory.token_ids.astype(np.int64))[None]
    logits = model(input_ids=ids).logits[0].double() / temperature
    logps, entropies = [], []
    for k, position in enumerate(np.flatnonzero(trajectory.action_mask)):
        row, target = logits[position - 1], int(ids[0, position])
        choices = list(range(len(row))) if trajectory.allowed is None else list(trajectory.allowed[k])
        logprobs = torch.log_softmax(row[choices], -1)
        logps.append(logprobs[choices.index(target)])
        entropies.append(-(logprobs.exp() * logprobs).sum())
    return torch.stack(logps), torch.stack(entropies)


@pytest.mark.parametrize("make", MODELS)
@pytest.mark.parametrize("pass_tokens", [1, 50, 10_000])
@pytest.mark.parametrize("constrained", [False, True], ids=["free", "constrained"])
def test_packed_scores_equal_those_of_each_trajectory_alone(
    make: Callable[[], PreTrainedModel], pass_tokens: int, constrained: bool
) -> None:
    model, plain = make(), make()
    use_packed_attention(model)
    trajectories = episodes(constrained=constrained)
    scores = packed_scores(model, trajectories, pass_tokens, temperature=0.8)
    assert len(scores) == len(trajectories)
    for trajectory in trajectories:
        for ours, theirs in zip(scores[trajectory.id], alone(plain, trajectory, 0.8), strict=True):
            torch.testing.assert_close(ours.double(), theirs, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("make", MODELS)
@pytest.mark.parametrize("constrained", [False, True], ids=["free", "constrained"])
def test_gradients_of_log_probability_and_entropy_equal_those_of_each_trajectory_alone(
    make: Callable[[], PreTrainedModel], constrained: bool
) -> None:
    model, plain = make(), make()
    use_packed_attention(model)
    trajectories = episodes(constrained=constrained)
    sum_up(list(packed_scores(model, trajectories, 10_000).values())).backward()  # type: ignore[no-untyped-call]
    sum_up([alone(plain, trajectory) for trajectory in trajectories]).backward()  # type: ignore[no-untyped-call]
    for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        assert ours.grad is not None
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-4, atol=1e-5)


def sum_up(scores: list[tuple[Tensor, Tensor]]) -> Tensor:
    return torch.stack([logp.double().sum() - 0.3 * entropy.double().sum() for logp, entropy in scores]).sum()


def test_a_trajectory_never_sees_its_neighbours() -> None:
    model = played.tiny_qwen3()
    use_packed_attention(model)
    first, second, third = episodes(3)
    before = packed_scores(model, [first, second, third], 10_000)
    changed = vars(second) | {"token_ids": (second.token_ids + 1) % played.VOCABULARY}
    after = packed_scores(model, [first, Trajectory(**changed), third], 10_000)
    assert torch.equal(before[first.id][0], after[first.id][0])
    assert torch.equal(before[third.id][0], after[third.id][0])
    assert not torch.equal(before[second.id][0], after[second.id][0])


def test_a_sliding_window_is_kept() -> None:
    windowed, plain = played.tiny_qwen3(), played.tiny_qwen3()
    for model in (windowed, plain):
        model.config.sliding_window = 5
        model.config.layer_types = ["sliding_attention"] * 2
        model.model.has_sliding_layers = True
        for layer in model.model.layers:
            layer.self_attn.sliding_window = 5
    use_packed_attention(windowed)
    trajectories = episodes(4)
    scores = packed_scores(windowed, trajectories, 10_000)
    unlimited = played.tiny_qwen3()
    for trajectory in trajectories:
        torch.testing.assert_close(scores[trajectory.id][0].double(), alone(plain, trajectory)[0], rtol=1e-5, atol=2e-6)
        assert not torch.allclose(scores[trajectory.id][0].double(), alone(unlimited, trajectory)[0], atol=1e-4)


def test_a_model_with_packed_attention_still_runs_padded_batches() -> None:
    model, plain = played.tiny_qwen3(), played.tiny_qwen3()
    use_packed_attention(model)
    ids = torch.randint(0, played.VOCABULARY, (3, 10), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    mask[0, :4] = 0
    torch.testing.assert_close(model(ids, attention_mask=mask).logits, plain(ids, attention_mask=mask).logits)


@pytest.mark.parametrize("pass_tokens", [1, 30, 64, 10_000])
def test_a_plan_holds_every_trajectory_once_and_keeps_to_its_size(pass_tokens: int) -> None:
    trajectories = episodes(20) + episodes(5, constrained=True, seed=1)
    passes = list(plan(trajectories, pass_tokens))
    assert sorted(member for packed in passes for member in packed.members) == list(range(25))
    assert all(packed.token_ids.shape[1] <= pass_tokens or len(packed.members) == 1 for packed in passes)


def test_nothing_after_the_last_predicting_token_is_forwarded() -> None:
    (trajectory,) = episodes(1)
    (packed,) = plan([trajectory], 100)
    assert packed.token_ids.shape[1] == forwarded_tokens(trajectory) == int(packed.predict[-1]) + 1
    assert packed.targets.tolist() == trajectory.token_ids[trajectory.action_mask].tolist()


def test_trajectories_without_actions_are_left_out() -> None:
    silent = played.trajectory(np.random.default_rng(0), turns=0)
    assert list(plan([silent], 100)) == []
    (packed,) = plan([silent, *episodes(1)], 100)
    assert packed.members == (1,)


def test_rows_put_every_token_in_its_trajectory() -> None:
    trajectories = episodes(6)
    (packed,) = plan(trajectories, 10_000)
    rows = packed.rows(packed.targets)
    for row, mask, trajectory in zip(rows, packed.mask, trajectories, strict=True):
        assert row[mask].tolist() == trajectory.token_ids[trajectory.action_mask].tolist()
        assert not row[~mask].any()


def test_segments_number_the_runs_of_action_tokens() -> None:
    trajectories = episodes(6)
    (packed,) = plan(trajectories, 10_000)
    for segments, mask, trajectory in zip(packed.segments, packed.mask, trajectories, strict=True):
        expected = [number for number, turn in enumerate(trajectory.turns) for _ in range(turn.end - turn.start)]
        assert segments[mask].tolist() == expected
        assert not segments[~mask].any()


def test_turns_that_follow_each_other_without_an_observation_are_one_segment() -> None:
    (one,) = episodes(1)
    mask = np.array([False, True, True, False, True] + [False] * (len(one.token_ids) - 5))
    changed = {"action_mask": mask, "versions": np.where(mask, 0, -1).astype(np.int32)}
    (packed,) = plan([Trajectory(**vars(one) | changed)], 100)
    assert packed.segments.tolist() == [[0, 0, 1]]


def test_an_action_without_a_prompt_is_refused() -> None:
    (good,) = episodes(1)
    bad = Trajectory(
        **vars(good)
        | {
            "id": "bare",
            "action_mask": np.ones_like(good.action_mask),
            "versions": np.zeros_like(good.versions),
            "allowed": None,
        }
    )
    with pytest.raises(ValueError, match="bare begins with an action token"):
        list(plan([bad], 100))


def test_a_token_outside_its_allowed_set_is_refused() -> None:
    (good,) = episodes(1, constrained=True)
    assert good.allowed is not None
    target = int(good.token_ids[good.action_mask][0])
    other = (target + 1) % played.VOCABULARY
    model = played.tiny_qwen3()
    use_packed_attention(model)
    (packed,) = plan([Trajectory(**vars(good) | {"allowed": ((other,), *good.allowed[1:])})], 100)
    with pytest.raises(ValueError, match=f"token {target} was sampled"):
        action_logprobs(model, packed, 1.0)


def test_a_forced_token_has_probability_one_and_no_entropy() -> None:
    (good,) = episodes(1, constrained=True)
    forced = tuple((int(token),) for token in good.token_ids[good.action_mask])
    model = played.tiny_qwen3()
    use_packed_attention(model)
    (packed,) = plan([Trajectory(**vars(good) | {"allowed": forced})], 100)
    logp, entropy = action_logprobs(model, packed, 1.0)
    assert not logp.any()
    assert not entropy.any()
