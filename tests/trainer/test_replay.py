"""Stored trajectories are scored as the learner scores them, and train a policy without anything being played."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import played
import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

from rocknroll.trainer.errors import RunFolderError
from rocknroll.trainer.offline import FileStream, train_offline
from rocknroll.trainer.policy import load_policy, save_policy
from rocknroll.trainer.recipe import Recipe
from rocknroll.trainer.replay import distance, replay, score
from rocknroll.trainer.replay_files import policy_of, stored_files
from rocknroll.trainer.run_folder import RunFolder
from rocknroll.trainer.storage import StorageError, write_trajectories
from rocknroll.trainer.stream import StreamStopped
from rocknroll.trainer.trajectory import NO_VERSION, Group
from rocknroll.trainer.ui import Quiet

CLIP = {"clip_low": 0.2, "clip_high": 0.28}


def test_a_policy_is_at_no_distance_from_itself() -> None:
    logp = np.array([-0.5, -2.0, -7.0])
    found = distance(logp, logp, trajectories=2, **CLIP)
    assert (found.trajectories, found.tokens) == (2, 3)
    assert (found.mean_abs_delta, found.kl, found.ess, found.outside_clip) == (0.0, 0.0, 1.0, 0.0)


def test_distances_follow_their_formulas() -> None:
    behaviour, logp = [-1.0, -2.0, -0.3, -0.9], [-1.1, -1.0, -0.3, -1.4]
    ratios = [math.exp(p - q) for p, q in zip(logp, behaviour, strict=True)]
    found = distance(np.array(behaviour), np.array(logp), trajectories=1, **CLIP)
    assert found.mean_abs_delta == pytest.approx((0.1 + 1.0 + 0.0 + 0.5) / 4)
    assert found.kl == pytest.approx(sum(r - 1 - math.log(r) for r in ratios) / 4)
    assert found.ess == pytest.approx(sum(ratios) ** 2 / (4 * sum(r * r for r in ratios)))
    assert found.outside_clip == 0.5  # e^1 and e^-0.5; e^-0.1 stays within


def test_a_ratio_beyond_all_bounds_stays_finite() -> None:
    found = distance(np.array([-1e4, -1.0]), np.array([-1.0, -1e4]), trajectories=1, **CLIP)
    assert all(math.isfinite(value) for value in found.to_json().values())


def test_nothing_sampled_is_no_distance() -> None:
    assert distance(np.empty(0), np.empty(0), trajectories=1, **CLIP).tokens == 0


@pytest.mark.parametrize("constrained", [False, True])
def test_scores_are_those_of_a_plain_forward(constrained: bool) -> None:
    from rocknroll.trainer.packed_attention import use_packed_attention

    plain, packed = played.tiny_qwen3(), played.tiny_qwen3()
    use_packed_attention(packed)
    rng = np.random.default_rng(0)
    trajectories = [played.trajectory(rng, str(i), constrained=constrained) for i in range(3)]
    behaviour, logp = score(packed, trajectories, temperature=1.3, pass_tokens=40)
    expected = []
    for t in trajectories:
        ids = torch.from_numpy(t.token_ids.astype(np.int64))
        with torch.no_grad():
            logits = plain(input_ids=ids[None]).logits[0].double() / 1.3
        for number, at in enumerate(np.flatnonzero(t.action_mask)):
            allowed = list(t.allowed[number]) if t.allowed is not None else list(range(played.VOCABULARY))
            row = logits[at - 1][allowed].log_softmax(0)
            expected.append(row[allowed.index(int(ids[at]))].item())
    assert np.allclose(logp, expected, atol=1e-5)
    assert np.array_equal(behaviour, np.concatenate([t.logprobs[t.action_mask] for t in trajectories]))


@pytest.fixture
def source(tmp_path: Path) -> RunFolder:
    """A run of four stored batches."""
    folder = RunFolder(tmp_path / "runs" / "played")
    folder.write_recipe(Recipe(name="played"))
    for iteration in range(1, 5):
        write_trajectories(folder.trajectories, iteration, played.groups(iteration, 2, version=iteration - 1))
    return folder


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    words = WordLevel({str(i): i for i in range(played.VOCABULARY)}, unk_token="0")
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(words), pad_token="0")
    save_policy(played.tiny_qwen3(), tokenizer, tmp_path / "policy")
    return tmp_path / "policy"


def test_a_replay_reports_each_iteration_and_the_whole(source: RunFolder) -> None:
    told: list[tuple[int, int]] = []
    files = stored_files(source, 2, 3)
    found = replay(played.tiny_qwen3(), Recipe(), files, lambda done, total: told.append((done, total)))
    assert list(found.iterations) == [2, 3]
    assert found.total.tokens == sum(one.tokens for one in found.iterations.values())
    assert found.total.trajectories == 16
    assert told == [(0, 2), (1, 2), (2, 2)]


@pytest.mark.parametrize(("first", "last", "names"), [(None, None, "1234"), (2, 3, "23"), (3, None, "34")])
def test_iterations_are_chosen_with_both_bounds(source: RunFolder, first: int, last: int, names: str) -> None:
    assert [str(int(path.stem)) for path in stored_files(source, first, last)] == list(names)


def test_iterations_that_are_not_there_name_those_that_are(source: RunFolder, tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="iterations 1 to 4"):
        stored_files(source, 9, None)
    with pytest.raises(RunFolderError, match="none yet"):
        stored_files(RunFolder(tmp_path), None, None)


def test_the_policy_is_the_trained_one_or_else_the_newest_checkpoint(source: RunFolder) -> None:
    with pytest.raises(RunFolderError, match="no policy yet"):
        policy_of(source, None)
    for step in (9, 10):
        (source.checkpoints / f"checkpoint-{step}").mkdir(parents=True)
    assert policy_of(source, None).name == "checkpoint-10"
    source.policy.mkdir()
    assert policy_of(source, None) == source.policy
    assert policy_of(source, 9).name == "checkpoint-9"
    with pytest.raises(RunFolderError, match="no checkpoint of step 3: those of the steps 9, 10"):
        policy_of(source, 3)


def test_files_are_handed_out_in_order_and_then_no_more(source: RunFolder) -> None:
    stream = FileStream(stored_files(source, None, None))
    assert [group.id for group in stream.next_batch(1).groups] == ["2.0", "2.1"]
    assert [group.id for group in stream.ready_groups(1, 1)] == ["2.1"]
    with pytest.raises(StreamStopped):
        stream.next_batch(4)


def test_versions_are_counted_from_the_first_file_on(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    stale = replace(played.trajectory(rng, version=1), id="stale")
    fresh = replace(played.trajectory(rng, version=3), id="fresh")
    write_trajectories(tmp_path, 4, [Group("g", "task", (stale, fresh))])
    (group,) = FileStream([tmp_path / "000004.parquet"]).next_batch(0).groups
    assert [t.oldest_version for t in group.trajectories] == [0, 0]
    assert all((t.versions[~t.action_mask] == NO_VERSION).all() for t in group.trajectories)


def test_offline_training_makes_a_run_with_a_policy_and_a_report(source: RunFolder, policy: Path) -> None:
    recipe = Recipe.model_validate(
        {"name": "offline", "learner": {"iterations": 3}, "report_to": [], "rollout": {"num_groups": 2}}
    )
    folder = RunFolder(source.path.parent / "offline")
    result = train_offline(recipe, folder, source, stored_files(source, None, None), policy, Quiet())
    assert (result.iterations, result.trajectories) == (3, 3 * 8)
    assert [row["iteration"] for row in folder.metrics()] == [1, 2, 3]
    assert folder.report.is_file()
    assert json.loads(folder.replayed_from.read_text())["files"][0] == "000001.parquet"
    before, after = (load_policy(str(path))[0].state_dict() for path in (policy, folder.policy))
    assert any(not torch.equal(before[name], after[name]) for name in before)


def test_a_damaged_file_ends_offline_training_by_name(source: RunFolder, policy: Path) -> None:
    path = source.trajectories / "000002.parquet"
    path.write_bytes(path.read_bytes()[:-8])
    recipe = Recipe.model_validate({"learner": {"iterations": 3}, "report_to": []})
    with pytest.raises(StorageError, match=r"000002.parquet"):
        train_offline(
            recipe, RunFolder(source.path.parent / "b"), source, stored_files(source, None, None), policy, Quiet()
        )
