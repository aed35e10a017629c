"""`rock top` follows a run's folder, live or over, and reads what was played."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from test_top_keys import opened, screen
from tokenizers import Tokenizer
from tokenizers.decoders import WordPiece
from tokenizers.models import WordLevel
from waiting_top import until

from rocknroll.dashboard.pages import EpisodePage
from rocknroll.dashboard.run_source import RunSource
from rocknroll.dashboard.source import SourceRefused
from rocknroll.dashboard.verdict import Level, judge
from rocknroll.trainer.errors import RunFolderError
from rocknroll.trainer.file_lock import FileLock
from rocknroll.trainer.recipe import Recipe
from rocknroll.trainer.results import EvalResult
from rocknroll.trainer.run_folder import RunFolder
from rocknroll.trainer.storage import write_trajectories
from rocknroll.trainer.trajectory import NO_VERSION, Group, Outcome, Trajectory, Turn

WORDS = ["<bos>", "room", "<act>", "go", "left", "<eos>", "won"]
EPISODE = ["<bos>", "room", "<act>", "go", "left", "<eos>", "won"]


def trajectory(name: str, success: bool) -> Trajectory:
    mask = np.array([word in ("go", "left", "<eos>") for word in EPISODE])
    return Trajectory(
        id=name,
        group_id=name.partition(".")[0],
        task_id="fetch/apple",
        task_kind="fetch",
        token_ids=np.array([WORDS.index(word) for word in EPISODE], dtype=np.int32),
        action_mask=mask,
        logprobs=np.where(mask, np.log(0.5), 0.0).astype(np.float32),
        versions=np.where(mask, 0, NO_VERSION).astype(np.int32),
        turns=(Turn(3, 6, float(success), valid=True),),
        outcome=Outcome.COMPLETED,
        success=success,
    )


def learn(folder: RunFolder, iteration: int, **figures: float) -> None:
    """What one iteration leaves behind."""
    group = Group(f"g{iteration}", "fetch/apple", tuple(trajectory(f"g{iteration}.{n}", n == 0) for n in range(2)))
    write_trajectories(folder.trajectories, iteration, [group])
    times = {"learner/wait_s": 2.0, "learner/prepare_s": 0.5, "learner/train_s": 1.0, "learner/publish_s": 0.5}
    row: Mapping[str, float] = {"iteration": float(iteration), "batch/success": 0.1 * iteration, **times, **figures}
    with folder.metrics_file.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")


@pytest.fixture
def made(tmp_path: Path) -> RunFolder:
    folder = RunFolder(tmp_path / "run")
    folder.write_recipe(Recipe.model_validate({"name": "run", "learner": {"iterations": 5}}))
    learn(folder, 1)
    learn(folder, 2)
    folder.append_evaluation(0, EvalResult.of("unseen", [("fetch", True), ("fetch", False)]))
    tokenizer = Tokenizer(WordLevel({word: at for at, word in enumerate(WORDS)}, unk_token="<bos>"))
    tokenizer.decoder = WordPiece()
    checkpoint = folder.checkpoints / "checkpoint-2"
    checkpoint.mkdir(parents=True)
    tokenizer.save(str(checkpoint / "tokenizer.json"))
    return folder


@pytest.mark.asyncio
async def test_a_run_is_followed_while_it_learns_and_its_episodes_are_read(made: RunFolder) -> None:
    lock = FileLock(made.path / "run.lock")
    source = RunSource(made.path)
    async with opened(source) as (app, pilot):
        await until(pilot, lambda: "running: iteration 2 of 5, 4.00 s each" in screen(app))
        learn(made, 3)
        await until(pilot, lambda: "iteration 3 of 5" in screen(app))
        await pilot.press("4")
        grid = app.view.grid
        assert grid is not None
        await until(
            pilot, lambda: [one.name for one in grid.listing.visible][:2] == ["batch/success", "evaluation/unseen"]
        )
        await pilot.press("3")
        await until(pilot, lambda: app.view.grid is not None and len(app.view.grid.listing.visible) == 3)
        await pilot.press("enter")
        await until(pilot, lambda: app.view.id == "trajectories" and len(app.view.grid.listing.visible) == 2)
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, EpisodePage) and "go left <eos>" in screen(app))
        assert "go:0.5" in screen(app)
    lock.release()
    await source.close()


@pytest.mark.asyncio
async def test_state_and_verdict_of_a_run_follow_its_lock_and_its_end(made: RunFolder) -> None:
    source = RunSource(made.path)
    seen = await source.snapshot()
    assert seen.run is not None and seen.run.state == "stopped" and judge(seen).level is Level.STALLED
    for iteration in (3, 4, 5):
        learn(made, iteration)
    made.policy.mkdir()
    seen = await source.snapshot()
    assert seen.run is not None and seen.run.state == "finished" and judge(seen).level is Level.HEALTHY
    assert [row["iteration"] for row in seen.run.rows] == [1, 2, 3, 4, 5] and seen.run.interval_s == 4.0
    await source.close()


@pytest.mark.asyncio
async def test_rows_that_a_resumed_run_took_back_are_gone_and_half_a_row_is_none(made: RunFolder) -> None:
    source = RunSource(made.path)
    await source.snapshot()
    with made.metrics_file.open("a", encoding="utf-8") as file:
        file.write('{"iteration": 3.0, "batch')
    seen = await source.snapshot()
    assert seen.run is not None and len(seen.run.rows) == 2
    first = made.metrics_file.read_text(encoding="utf-8").splitlines(keepends=True)[0]
    made.metrics_file.write_text(first, encoding="utf-8")
    seen = await source.snapshot()
    assert seen.run is not None and len(seen.run.rows) == 1
    await source.close()


@pytest.mark.asyncio
async def test_a_broken_file_is_named_and_does_not_end_the_application(made: RunFolder) -> None:
    source = RunSource(made.path)
    async with opened(source, (300, 30)) as (app, pilot):
        (made.trajectories / "000003.parquet").write_bytes(b"no parquet")
        await pilot.press("5")
        await until(pilot, lambda: "000003.parquet" in screen(app))
        with made.metrics_file.open("a", encoding="utf-8") as file:
            file.write("no json\n")
        await until(pilot, lambda: "metrics.jsonl" in app.away)
    with pytest.raises(SourceRefused, match=r"metrics\.jsonl"):
        await source.snapshot()
    await source.close()


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="is no run"):
        RunSource(tmp_path)
