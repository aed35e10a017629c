"""A checkpoint that was damaged after it was written is named before anything is loaded from it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rocknroll.trainer import checkpoint
from rocknroll.trainer.checkpoint import CheckpointError, newest_checkpoint, promote, write_state


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two checkpoints, each with a state and weights."""
    for step in (2, 10):
        staged = tmp_path / "staging" / f"checkpoint-{step}"
        write_state(staged, step, {}, None)
        (staged / "model.safetensors").write_bytes(os.urandom(3 << 20))
        promote(staged, tmp_path)
    return tmp_path


def test_a_sound_checkpoint_is_found_by_its_steps(folder: Path) -> None:
    assert newest_checkpoint(folder).name == "checkpoint-10"


@pytest.mark.parametrize("damage", ["truncated", "one bit", "gone", "sums gone", "sums cut"])
def test_damage_is_named_with_the_way_back(folder: Path, damage: str) -> None:
    weights, sums = (folder / "checkpoint-10" / name for name in ("model.safetensors", "checksums.json"))
    if damage == "truncated":
        weights.write_bytes(weights.read_bytes()[:-1])
    elif damage == "one bit":
        data = bytearray(weights.read_bytes())
        data[len(data) // 2] ^= 1
        weights.write_bytes(data)
    elif damage == "sums cut":
        sums.write_text(sums.read_text()[:9])
    else:
        (weights if damage == "gone" else sums).unlink()
    with pytest.raises(CheckpointError, match=r"checkpoint-10 is damaged: .*Remove that folder"):
        newest_checkpoint(folder)


def test_the_one_before_it_can_be_gone_on_from(folder: Path) -> None:
    (folder / "checkpoint-10" / "learner.json").unlink()
    with pytest.raises(CheckpointError):
        newest_checkpoint(folder)
    (folder / "checkpoint-10").rename(folder / "damaged")
    assert newest_checkpoint(folder).name == "checkpoint-2"


def test_a_kill_while_old_ones_are_removed_leaves_only_whole_ones(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(path: Path) -> None:
        next(path.iterdir()).unlink()
        raise KeyboardInterrupt

    monkeypatch.setattr(checkpoint.shutil, "rmtree", killed)
    staged = folder / "staging" / "checkpoint-12"
    write_state(staged, 12, {}, None)
    with pytest.raises(KeyboardInterrupt):
        promote(staged, folder)
    assert sorted(path.name for path in folder.glob("checkpoint-*")) == ["checkpoint-10", "checkpoint-12"]
    assert newest_checkpoint(folder).name == "checkpoint-12"
    write_state(staged, 12, {}, None)
    with pytest.raises(KeyboardInterrupt):
        promote(staged, folder)
    assert newest_checkpoint(folder).name == "checkpoint-10"
