"""`roll inspect` shows a stored trajectory as it was played."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import Result
from tokenizers import Tokenizer
from tokenizers.decoders import WordPiece
from tokenizers.models import WordLevel

from rocknroll.trainer.cli.exit_codes import ExitCode
from rocknroll.trainer.cli.trajectory_view import printable
from rocknroll.trainer.credit.rhythm import Signals
from rocknroll.trainer.credit.section import CreditSection
from rocknroll.trainer.experience import Experience
from rocknroll.trainer.insights import write_insights
from rocknroll.trainer.recipe import Recipe
from rocknroll.trainer.run_folder import RunFolder
from rocknroll.trainer.storage import write_trajectories
from rocknroll.trainer.trajectory import NO_VERSION, Group, Outcome, Trajectory, Turn
from rocknroll.trainer.valuation import Valuation

Roll = Callable[..., Result]
WORDS = ["<bos>", "room", "<act>", "go", "left", "<eos>", "wall", "right", "won"]
EPISODE = ["<bos>", "room", "<act>", "go", "left", "<eos>", "wall", "<act>", "go", "right", "<eos>", "won"]
SAMPLED = [word in ("go", "left", "right", "<eos>") for word in EPISODE]


def trajectory(name: str, task: str = "fetch/apple") -> Trajectory:
    mask = np.array(SAMPLED)
    return Trajectory(
        id=name,
        group_id="g1",
        task_id=task,
        task_kind="fetch",
        token_ids=np.array([WORDS.index(word) for word in EPISODE], dtype=np.int32),
        action_mask=mask,
        logprobs=np.where(mask, math.log(0.5), 0.0).astype(np.float32),
        versions=np.array(
            [(4 if at < 7 else 5) if sampled else NO_VERSION for at, sampled in enumerate(SAMPLED)], np.int32
        ),
        turns=(Turn(3, 6, -0.2, valid=False), Turn(8, 11, 1.0, valid=True)),
        outcome=Outcome.COMPLETED,
        success=True,
        timings_s={"generate": 0.25},
    )


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    made = RunFolder(tmp_path / "run")
    made.write_recipe(Recipe(name="run"))
    for iteration in (6, 7):
        members = tuple(trajectory(f"g{iteration}.{member}") for member in (1, 11))
        write_trajectories(made.trajectories, iteration, [Group("g1", "fetch/apple", members)])
    tokenizer = Tokenizer(WordLevel({word: at for at, word in enumerate(WORDS)}, unk_token="<bos>"))
    tokenizer.decoder = WordPiece(prefix="##", cleanup=False)
    made.policy.mkdir()
    tokenizer.save(str(made.policy / "tokenizer.json"))
    return made


def test_an_episode_reads_turn_by_turn(roll: Roll, folder: RunFolder) -> None:
    result = roll("inspect", folder.path, "g7.1")
    assert result.exit_code == ExitCode.OK, result.stderr
    lines = result.stdout.splitlines()
    assert "iteration 7    completed   solved     reward +0.80   2 turns  fetch" in lines[0]
    assert "12 tokens, 6 sampled by policy versions 4 to 5, trained at version 6 (2 behind)" in lines
    assert "seconds: generate 0.25" in lines
    at = lines.index("     | <bos> room <act>")
    assert lines[at + 1 :] == [
        "  1> go left <eos>   reward -0.20  not admitted   v4",
        "     go:0.50 left:0.50 <eos>:0.50",
        "",
        "     | wall <act>",
        "  2> go right <eos>   reward +1.00   v5",
        "     go:0.50 right:0.50 <eos>:0.50",
        "",
        "     | won",
    ]


def test_round_domain_cause_and_a_change_of_weights_are_shown(roll: Roll, folder: RunFolder) -> None:
    lost = replace(trajectory("g3.0"), outcome=Outcome.INFRA_ERROR, cause="env_hung", error="no answer", domain="home")
    lost.versions[5] = 5
    write_trajectories(folder.trajectories, 6, [Group("g3", "fetch/apple", (lost,), "short")])
    lines = roll("inspect", folder.path, "g3.0").stdout.splitlines()
    assert lines[0].endswith("home: fetch")
    assert "task fetch/apple, group g3, short round" in lines
    assert "lost to env_hung: no answer" in lines
    assert any(line.endswith("not admitted   v4 then v5") for line in lines)
    data = json.loads(roll("inspect", folder.path, "g3.0", "--json").stdout)
    assert (data["cause"], data["domain"], data["round"], data["staleness"]) == ("env_hung", "home", "short", 1)


def test_json_holds_each_token_of_each_action(roll: Roll, folder: RunFolder) -> None:
    data = json.loads(roll("inspect", folder.path, "g6.11", "--json").stdout)
    assert (data["id"], data["iteration"], data["reward"], data["success"]) == ("g6.11", 6, 0.8, True)
    first, second = data["turns"]
    assert (first["observation"], first["action"], first["valid"]) == ("<bos> room <act>", "go left <eos>", False)
    assert (second["observation"], second["versions"]) == ("wall <act>", [5, 5, 5])
    assert second["logprobs"] == pytest.approx([math.log(0.5)] * 3, abs=1e-6)


def test_listing_shows_every_trajectory_of_an_iteration(roll: Roll, folder: RunFolder) -> None:
    lines = roll("inspect", folder.path, "--list", "--iteration", "7").stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["g7.1", "g7.11"]
    data = json.loads(roll("inspect", folder.path, "--list", "--json").stdout)
    assert [row["id"] for row in data["trajectories"]] == ["g6.1", "g6.11", "g7.1", "g7.11"]


def test_the_beginning_of_an_id_is_enough_if_it_is_the_only_one(roll: Roll, folder: RunFolder) -> None:
    assert roll("inspect", folder.path, "g6.11").stdout.startswith("g6.11")
    ambiguous = roll("inspect", folder.path, "g6")
    assert ambiguous.exit_code == ExitCode.RUN_FOLDER
    assert "2 trajectories begin with `g6` (g6.1, g6.11" in ambiguous.stderr


def test_an_unknown_id_names_some_that_are_there(roll: Roll, folder: RunFolder) -> None:
    result = roll("inspect", folder.path, "h")
    assert result.exit_code == ExitCode.RUN_FOLDER
    assert "no trajectory `h`" in result.stderr
    assert "g6.1, g6.11" in result.stderr


def test_a_broken_file_is_named(roll: Roll, folder: RunFolder) -> None:
    broken = folder.trajectories / "000006.parquet"
    broken.write_bytes(b"PAR1 but not really")
    result = roll("inspect", folder.path, "--list")
    assert result.exit_code == ExitCode.RUN_FOLDER
    assert str(broken) in result.stderr


def test_without_a_tokenizer_it_says_when_there_will_be_one(roll: Roll, folder: RunFolder) -> None:
    (folder.policy / "tokenizer.json").unlink()
    result = roll("inspect", folder.path, "g6.1")
    assert result.exit_code == ExitCode.RUN_FOLDER
    assert "no tokenizer yet" in result.stderr


def test_a_terminal_is_not_given_orders() -> None:
    assert printable("a\x1b[2Jb\x07") == "a [2Jb "


def experience(*of: Trajectory) -> Experience:
    """What a learner with critics and credit saw: in each action the second token is an anchor, after a jump."""
    fai, waad = np.array([0.1, 0.5, np.nan, 0.2, 0.4, np.nan]), np.array([9.0, 1.0, 1.0, 7.0, 1.0, 1.0])
    segments = np.array([0, 0, 0, 1, 1, 1])
    count = range(len(of))
    return Experience(
        groups=(),
        version=5,
        trajectories=list(of),
        advantages=[np.array([0.5, 0.5, 0.5, -1.0, -1.0, -1.0]) for _ in of],
        minibatches=[],
        metrics={},
        gamma={member: np.array([1.25, 1.25, 1.0, 1.0, 1.5, 1.0]) for member in count},
        signals={member: Signals(waad, fai, segments, np.ones(6)) for member in count},
        valuation=Valuation([np.full(6, -0.25) for _ in of], [np.arange(6.0) for _ in of], [0.0] * len(of)),
    )


@pytest.fixture
def seen(folder: RunFolder) -> RunFolder:
    folder.write_recipe(Recipe(name="run", credit=CreditSection(kind="coupled")))
    write_insights(folder.insights, 6, experience(trajectory("g6.1"), trajectory("g6.11")))
    return folder


def test_tokens_are_shown_by_what_the_learner_saw_in_them(roll: Roll, seen: RunFolder) -> None:
    lines = roll("inspect", seen.path, "g6.11", "--signal", "advantage").stdout.splitlines()
    assert "     go^:+0.625 left*:+0.625 <eos>:+0.500" in lines
    assert "     go^:-1.000 right*:-1.500 <eos>:-1.000" in lines
    (legend,) = (line for line in lines if line.startswith("tokens by advantage"))
    assert "* anchor" in legend
    assert "also knows probability, gamma, waad, fai, value, sigma" in legend
    assert (
        "     go^:0.1 left*:0.5 <eos>:-" in roll("inspect", seen.path, "g6.11", "--signal", "fai").stdout.splitlines()
    )


def test_a_terminal_gets_colours(roll: Roll, seen: RunFolder) -> None:
    shown = roll("inspect", seen.path, "g6.11", "--signal", "advantage", color=True).stdout
    assert "\x1b[" in shown
    assert shown.count("\x1b[48;2;235;110;100m") == 1  # the largest, and red
    assert shown.count("\x1b[48;2;189;228;199m") == 2  # 5/12 of it, and green


def test_json_has_the_signals_of_each_token(roll: Roll, seen: RunFolder) -> None:
    first, second = json.loads(roll("inspect", seen.path, "g6.11", "--json").stdout)["turns"]
    assert first["gamma"] == [1.25, 1.25, 1.0]
    assert first["fai"] == [0.1, 0.5, None]
    assert second["sigma"] == [3.0, 4.0, 5.0]
    assert second["value"] == [-0.25] * 3


def test_a_page_shows_every_signal_and_needs_nothing_else(roll: Roll, seen: RunFolder, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    result = roll("inspect", seen.path, "g6.11", "--html", str(page))
    assert result.exit_code == ExitCode.OK, result.stderr
    assert str(page) in result.stdout
    text = page.read_text()
    for signal in ("probability", "advantage", "gamma", "waad", "fai", "value", "sigma"):
        assert f'id="by-{signal}"' in text
    assert "gamma 1.5, waad 1, fai 0.4" in text
    assert ">right*</span>" in text
    assert ">&lt;eos&gt;</span>" in text
    assert "<act>" not in text
    for outside in ("http://", "https://", "<script", "<link", "src="):
        assert outside not in text


def test_a_signal_that_the_run_lacks_is_named_with_those_it_has(roll: Roll, folder: RunFolder) -> None:
    result = roll("inspect", folder.path, "g6.11", "--signal", "sigma")
    assert result.exit_code == ExitCode.RUN_FOLDER
    assert "no `sigma` of g6.11: this run has probability" in result.stderr
    assert roll("inspect", folder.path, "--signal", "sigma").exit_code == 2


def test_a_broken_file_of_insights_is_named(roll: Roll, seen: RunFolder) -> None:
    (seen.insights / "000006.parquet").write_bytes(b"PAR1 but not really")
    result = roll("inspect", seen.path, "g6.11")
    assert result.exit_code != ExitCode.OK
    assert "000006.parquet cannot be read" in result.stderr
