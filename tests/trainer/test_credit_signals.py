"""Signals read from a packed forward against eager, full-matrix attention of each trajectory alone, in float64."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import played
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from transformers import LlamaConfig, MambaConfig, PreTrainedModel, Qwen3NextConfig

from rocknroll.trainer.credit import signals
from rocknroll.trainer.credit.signals import (
    AttentionReader,
    Reduction,
    Windows,
    attention_layers,
    head_sets,
    read_layers,
)
from rocknroll.trainer.logprobs import action_logprobs
from rocknroll.trainer.packed_attention import reading, use_packed_attention
from rocknroll.trainer.packing import plan
from rocknroll.trainer.trajectory import Trajectory

Array = NDArray[np.float64]
SHORT = Windows(waad=3, fai_from=2, fai_to=7)


def eager_maps(model: PreTrainedModel, trajectory: Trajectory) -> Array:
    """[layers, heads, T, T], by transformers' own eager attention in float64."""
    alone = copy.deepcopy(model).double()
    alone.set_attn_implementation("eager")
    ids = torch.from_numpy(trajectory.token_ids.astype(np.int64))[None]
    with torch.no_grad():
        maps = alone(input_ids=ids, output_attentions=True).attentions
    return np.stack([layer[0].numpy() for layer in maps])


def slowly(maps: Array, trajectory: Trajectory, windows: Windows) -> tuple[Array, Array, Array]:
    """WAAD and FAI [layers, heads, n] and spans [layers, heads], from the definitions, one sum at a time."""
    actions = np.flatnonzero(trajectory.action_mask).tolist()
    layers, heads, _, _ = maps.shape
    waad, fai = np.zeros((layers, heads, len(actions))), np.full((layers, heads, len(actions)), np.nan)
    span = np.zeros((layers, heads))
    for layer in range(layers):
        for head in range(heads):
            attention = maps[layer, head]
            for index, t in enumerate(actions):
                waad[layer, head, index] = sum(attention[t, s] * min(t - s, windows.waad) for s in range(t + 1))
                span[layer, head] += sum(attention[t, s] * (t - s) for s in range(t + 1)) / len(actions)
                later = [u for u in actions if t + windows.fai_from <= u <= t + windows.fai_to]
                if later:
                    fai[layer, head, index] = sum(attention[u, t] for u in later) / len(later)
    return waad, fai, span


def read(
    model: PreTrainedModel,
    trajectories: Sequence[Trajectory],
    windows: Windows,
    reduction: Reduction,
    pass_tokens: int = 10_000,
) -> dict[str, tuple[Array, Array, Array]]:
    """The same from the readers of packed forwards; spans are those of the whole pass."""
    layers, heads = model.config.num_hidden_layers, model.config.num_attention_heads
    found: dict[str, tuple[Array, Array, Array]] = {}
    for packed in plan(trajectories, pass_tokens, last=True):
        reader = AttentionReader(packed, range(layers), windows, reduction)
        with reading(reader), torch.no_grad():
            action_logprobs(model, packed, 1.0)
        one_head = np.eye(layers * heads, dtype=bool).reshape(-1, layers, heads)
        waad = np.stack([reader.waad(h) for h in one_head]).reshape(layers, heads, -1)
        fai = np.stack([reader.fai(h) for h in one_head]).reshape(layers, heads, -1)
        ends = packed.mask.sum(1).cumsum(0)[:-1].tolist()
        for member, w, f in zip(packed.members, np.split(waad, ends, 2), np.split(fai, ends, 2), strict=True):
            found[trajectories[member].id] = w, f, reader.spans()
    return found


def windowed_qwen3() -> PreTrainedModel:
    """Grouped queries, and a sliding window in its second layer."""
    model = played.tiny_qwen3()
    config = copy.deepcopy(model.config)
    config.use_sliding_window, config.sliding_window = True, 6
    config.layer_types = ["full_attention", "sliding_attention"][: config.num_hidden_layers]
    made = type(model)(config)
    made.load_state_dict(model.state_dict())
    return made


@pytest.mark.parametrize("make", [played.tiny_qwen3, played.tiny_llama, windowed_qwen3])
@pytest.mark.parametrize("reduction", ["banded", "exact"])
@pytest.mark.parametrize("windows", [SHORT, Windows()], ids=["short", "published"])
@pytest.mark.parametrize("pass_tokens", [1, 10_000], ids=["alone", "packed"])
def test_signals_equal_those_of_eager_maps(
    make: Callable[[], PreTrainedModel], reduction: Reduction, windows: Windows, pass_tokens: int
) -> None:
    model = make().eval()
    use_packed_attention(model)
    rng = np.random.default_rng(0)
    episodes = [played.trajectory(rng, f"t{i}", turns=turns) for i, turns in enumerate((1, 2, 5, 14))]
    found = read(model, episodes, windows, reduction, pass_tokens)
    for trajectory in episodes:
        waad, fai, span = slowly(eager_maps(model, trajectory), trajectory, windows)
        np.testing.assert_allclose(found[trajectory.id][0], waad, atol=1e-5)
        np.testing.assert_allclose(found[trajectory.id][1], fai, atol=1e-5)
        if reduction == "exact" and pass_tokens == 1:
            np.testing.assert_allclose(found[trajectory.id][2], span, atol=1e-4)


def test_reading_changes_no_bit_of_the_forward() -> None:
    model = played.tiny_qwen3().eval()
    use_packed_attention(model)
    rng = np.random.default_rng(1)
    (packed,) = plan([played.trajectory(rng, f"t{i}") for i in range(3)], 10_000, last=True)
    with torch.no_grad():
        plain = action_logprobs(model, packed, 1.0)
        for reduction in ("banded", "exact"):
            with reading(AttentionReader(packed, range(2), SHORT, reduction)):
                watched = action_logprobs(model, packed, 1.0)
            assert all(torch.equal(a, b) for a, b in zip(plain, watched, strict=True))


@pytest.mark.parametrize("reduction", ["banded", "exact"])
@pytest.mark.parametrize(("rows", "scores"), [(1, 1), (3, 40), (256, 1 << 16)])
def test_how_rows_are_cut_into_blocks_does_not_matter(
    monkeypatch: pytest.MonkeyPatch, reduction: Reduction, rows: int, scores: int
) -> None:
    model = played.tiny_qwen3().eval()
    use_packed_attention(model)
    rng = np.random.default_rng(2)
    episodes = [played.trajectory(rng, f"t{i}", turns=i + 2) for i in range(4)]
    whole = read(model, episodes, SHORT, reduction)
    monkeypatch.setattr(signals, "BLOCK_ROWS", rows)
    monkeypatch.setattr(signals, "BLOCK_SCORES", scores)
    cut = read(model, episodes, SHORT, reduction)
    for name, (waad, fai, span) in whole.items():
        for ours, theirs in zip(cut[name], (waad, fai, span), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


def test_other_layers_and_other_threads_are_not_read() -> None:
    model = played.tiny_qwen3().eval()
    use_packed_attention(model)
    (packed,) = plan([played.trajectory(np.random.default_rng(3))], 10_000, last=True)
    reader = AttentionReader(packed, [1], SHORT)
    with reading(reader), torch.no_grad(), ThreadPoolExecutor(1) as pool:
        pool.submit(torch.no_grad()(action_logprobs), model, packed, 1.0).result()
        assert not reader._waad
        action_logprobs(model, packed, 1.0)
    assert list(reader._waad) == [1]


def test_layers_are_of_the_middle_third_and_attend() -> None:
    assert read_layers(range(36)) == (12, 15, 18, 21, 24)
    assert [read_layers(range(n)) for n in (1, 2, 3, 4)] == [(0,), (0, 1), (1, 2), (1, 2)]
    assert read_layers((3, 7, 11)) == (7, 11)
    assert attention_layers(LlamaConfig(num_hidden_layers=3)) == (0, 1, 2)
    assert attention_layers(MambaConfig(num_hidden_layers=3)) == ()
    hybrid = Qwen3NextConfig(num_hidden_layers=8)
    assert attention_layers(hybrid) == tuple(i for i, kind in enumerate(hybrid.layer_types) if kind == "full_attention")
    assert 0 < len(attention_layers(hybrid)) < 8


@given(st.integers(1, 5), st.integers(1, 8), st.sampled_from([0.01, 0.3, 0.5]), st.integers(0, 9))
def test_head_sets_are_the_shortest_and_the_longest_spans(layers: int, heads: int, share: float, seed: int) -> None:
    spans = np.random.default_rng(seed).integers(0, 4, (layers, heads)).astype(np.float64)
    sets = head_sets(spans, share)
    count = max(1, int(share * layers * heads))
    assert sets.near.sum() == sets.far.sum() == count
    assert spans[sets.near].max() <= min(spans[~sets.near], default=np.inf)
    assert spans[sets.far].min() >= max(spans[~sets.far], default=-np.inf)
    if 2 * count <= spans.size:
        assert not (sets.near & sets.far).any()
