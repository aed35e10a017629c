"""`roll grade`, `roll validate` and `roll rollout` on instances of SWE-bench, as a user runs them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import Result

from rocknroll.envs.swebench.family import gold_action
from rocknroll.envs.swebench.instance import instance_of
from rocknroll.envs.swebench.mini.rows import package_rows
from rocknroll.envs.swebench.protocol import SUBMISSION, as_action
from rocknroll.trainer.cli.exit_codes import ExitCode

ROWS = package_rows("rangeset")
GOLD = ROWS[0]["patch"]
BINARY = """\
diff --git a/x.bin b/x.bin
new file mode 100644
index 0000000000000000000000000000000000000000..c20fe6c4bcea02bdd4d7841244ab0c1a70dc6293
GIT binary patch
literal 4
LcmZQzWU2rF0D}O0

literal 0
HcmV?d00001

"""
CONFTEST = """\
diff --git a/conftest.py b/conftest.py
new file mode 100644
--- /dev/null
+++ b/conftest.py
@@ -0,0 +1 @@
+import os
"""
Roll = Callable[..., Result]


def written(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows))
    return path


def last(result: Result) -> dict[str, Any]:
    assert result.exit_code == ExitCode.OK, result.output
    found: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
    return found


def named(row: dict[str, Any], instance_id: str, **columns: Any) -> dict[str, Any]:
    return {**row, "instance_id": instance_id, **columns}


def test_predictions_of_every_kind_are_graded_and_faults_named(roll: Roll, tmp_path: Path) -> None:
    base = ROWS[0]
    classic = {name: base[name] for name in base if name not in ("image", "eval_script", "log_parser", "eval_type")}
    lists = {name: json.dumps(base[name]) for name in ("FAIL_TO_PASS", "PASS_TO_PASS")}
    rows = [
        named(base, "good"),
        named(classic, "classic", **lists),
        *(named(base, name) for name in ("empty", "wrong", "crlf", "binary", "conftest", "silent")),
        named(base, "no-image", tree=None),
        named(base, "parser", log_parser="parse_log_nobody"),
        named(base, "good"),
        {name: base[name] for name in base if name != "patch"},
        "{not json",
    ]
    patches = {
        "good": GOLD,
        "classic": GOLD,
        "empty": "",
        "wrong": "diff --git a/nobody.py b/nobody.py\n--- a/nobody.py\n+++ b/nobody.py\n@@ -1 +1 @@\n-1\n+2\n",
        "crlf": GOLD.replace("\n", "\r\n"),  # git refuses it, patch takes it, as in the official harness
        "binary": BINARY,
        "conftest": GOLD + CONFTEST,
        "no-image": GOLD,
        "parser": GOLD,
        "stranger": GOLD,
    }
    predictions = [{"instance_id": name, "model_patch": patch} for name, patch in patches.items()]
    instances = written(tmp_path / "rows.jsonl", rows)
    preds = written(tmp_path / "preds.jsonl", [*predictions, {"instance_id": "good", "model_patch": ""}, "[]", {}])
    report = last(roll("grade", instances, "--predictions", preds, "--runtime", "process", "--json"))
    assert report["resolved_ids"] == ["classic", "conftest", "crlf", "good"]
    assert report["empty_patch_ids"] == ["empty"]
    assert report["incomplete_ids"] == ["silent"]
    assert report["error_ids"] == ["no-image", "parser"]
    assert report["submitted_instances"] == 9 and report["total_instances"] == 10
    assert report["why"]["wrong"] == "patch does not apply"
    assert report["why"]["binary"] == "tests failed"
    assert report["cheating"] == {"conftest": {"undone": ["conftest.py"], "trips": []}}
    errors = report["errors"]
    assert "choose runtime docker" in errors["no-image"] and "parse_log_nobody" in errors["parser"]
    assert errors["prediction for stranger"] == "no instance has this id"
    assert "'good' is that of" in errors[f"{instances} line 11"]
    assert "no column patch" in errors[f"{instances} line 12"]
    assert "not JSON" in errors[f"{instances} line 13"]
    assert "already" in errors[f"{preds} line 11"]
    assert {f"{preds} line 12", f"{preds} line 13"} <= set(errors)


def test_instances_are_validated_from_parquet_and_gone_on_with(roll: Roll, tmp_path: Path) -> None:
    wrong_gold = named(ROWS[1], "wrong-gold", patch=GOLD)
    pq.write_table(pa.Table.from_pylist([dict(ROWS[0]), wrong_gold]), tmp_path / "rows.parquet")
    words = ("validate", tmp_path / "rows.parquet", "--runs", "2", "--results", tmp_path / "out.jsonl")
    report = last(roll(*words, "--json"))
    assert {
        name: report[name] for name in ("total", "gold_resolved", "empty_resolved", "corrupt_resolved", "flaky")
    } == {
        "total": 2,
        "gold_resolved": 1,
        "empty_resolved": 0,
        "corrupt_resolved": 0,
        "flaky": 0,
    }
    assert report["excluded"] == ["wrong-gold"] and report["errors"] == {}
    kept = (tmp_path / "out.jsonl").read_text()
    told = roll(*words)
    assert (tmp_path / "out.jsonl").read_text() == kept
    assert "1 of 2 resolved by their gold patch" in told.stdout and "env.config.exclude=[wrong-gold]" in told.stdout


def test_what_cannot_be_read_is_a_clear_error(roll: Roll, tmp_path: Path) -> None:
    absent = roll("validate", "nothing.jsonl")
    assert absent.exit_code == ExitCode.DATA and "nothing.jsonl" in absent.stderr
    rows = written(tmp_path / "rows.jsonl", [dict(ROWS[0])])
    assert roll("validate", rows, "--only", "nobody").exit_code == ExitCode.USAGE
    assert roll("validate", rows, "a.b=c").exit_code == ExitCode.USAGE
    assert roll("grade", rows, "--predictions", "nothing.jsonl").exit_code == ExitCode.DATA


@pytest.mark.parametrize("policy", ["gold", "noop", "script"])
def test_scripted_agents_play(policy: str, roll: Roll, tmp_path: Path) -> None:
    rows = written(tmp_path / "rows.jsonl", [dict(row) for row in ROWS[:2]])
    script = {
        ROWS[0]["instance_id"]: [as_action("false"), gold_action(instance_of(ROWS[0])), SUBMISSION],
        ROWS[1]["instance_id"]: [as_action("ls")],
    }
    (tmp_path / "actions.json").write_text(json.dumps(script))
    settings = ["env.name=swebench", f"env.config.data={rows}", "env.config.held_out=0", "sandbox.count=2"]
    named_policy = f"script:{tmp_path / 'actions.json'}" if policy == "script" else policy
    report = last(roll("rollout", *settings, "--policy", named_policy, "--episodes", "2", "--json"))
    assert report["episodes"] == 2 and not report["lost"]
    expected = {"gold": 1.0, "noop": 0.0, "script": 0.5}[policy]
    assert report["success_rate"] == report["mean_reward"] == expected
    assert {"reset_s", "grading_s", "cheating"} <= set(report["measured"])
    assert report["outcomes"] == ({"completed": 1, "truncated": 1} if policy == "script" else {"completed": 2})


def test_scripts_and_policies_that_are_unfit_are_named(roll: Roll, tmp_path: Path) -> None:
    assert roll("rollout", "env.name=countdown", "--policy", "wise").exit_code == ExitCode.USAGE
    (tmp_path / "bad.json").write_text('{"a": "b"}')
    refused = roll("rollout", "env.name=countdown", "--policy", f"script:{tmp_path / 'bad.json'}")
    assert refused.exit_code == ExitCode.DATA and "neither a list of actions" in refused.stderr


def test_countdowns_expert_and_chance_play(roll: Roll) -> None:
    small = ["countdown", "env.config.train_puzzles=8", "env.config.seen_puzzles=4", "env.config.unseen_puzzles=4"]
    small += ["env.config.detours=0", "env.config.gives_up=0", "sandbox.count=2"]
    assert last(roll("rollout", *small, "-n", "8", "--json"))["success_rate"] == 1.0
    assert last(roll("rollout", *small, "-n", "8", "--policy", "random", "--json"))["success_rate"] == 0.0


def test_the_experts_of_mixed_domains_play_in_turns(roll: Roll) -> None:
    small = [f"domains.math.env.config.{split}_problems=4" for split in ("train", "seen", "unseen")]
    small += [f"domains.code.env.config.{split}_exercises=4" for split in ("train", "seen", "unseen")]
    small += ["domains.math.sandboxes=2", "domains.code.sandboxes=2", "sandbox.count=4"]
    report = last(roll("rollout", "rlvr-math-code", *small, "-n", "6", "--json"))
    assert report["success_rate"] == report["mean_reward"] == 1.0 and not report["lost"]
    assert sorted(task["domain"] for task in report["tasks"]) == ["code"] * 3 + ["math"] * 3
    idle = last(roll("rollout", "rlvr-math-code", *small, "-n", "4", "--policy", "noop", "--json"))
    assert idle["success_rate"] == idle["mean_reward"] == 0.0 and idle["episodes"] == 4


def test_generated_instances_go_on_where_they_were(roll: Roll, tmp_path: Path) -> None:
    path = tmp_path / "made" / "tasks.jsonl"
    words = ("generate", path, "--package", "rangeset", "--seed", "3", "--json")
    assert last(roll(*words, "--count", "1")) == {"file": str(path), "rows": 1, "made": 1}
    first = path.read_text()
    path.write_text(first + '{"instance_id": "cut o')
    assert last(roll(*words, "--count", "2"))["made"] == 1
    assert path.read_text().startswith(first) and len(path.read_text().splitlines()) == 2
    report = last(roll("validate", path, "--runs", "1", "--json"))
    assert (report["total"], report["gold_resolved"], report["empty_resolved"]) == (2, 2, 0)
    path.write_text('{"no": "instance"}\n')
    assert roll(*words).exit_code == ExitCode.DATA
