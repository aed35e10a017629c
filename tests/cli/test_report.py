"""The report shows what the run's folder holds, in one file that loads nothing."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import Result

from rocknroll.trainer import report
from rocknroll.trainer.chart import Series, line_chart
from rocknroll.trainer.recipe import DomainSection, EnvSection, Recipe
from rocknroll.trainer.results import EvalResult
from rocknroll.trainer.run_folder import RunFolder


def result(split: str, won: int) -> EvalResult:
    return EvalResult.of(split, [("heat", i < won) for i in range(8)] + [("cool", False), ("cool", True)])


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    made = RunFolder(tmp_path / "run")
    made.write_recipe(Recipe(name="run", env=EnvSection(config={"note": "<script>alert(1)</script>"})))
    rows = [
        {
            "iteration": float(i),
            "batch/success": i / 4,
            "batch/reward": i / 5,
            "idle/engine": 0.2,
            "idle/environments": 0.3,
            "idle/learner": 0.4,
            "staleness/mean": 0.5,
            "staleness/max": 1.0,
            "staleness/share_0": 0.5,
            "staleness/share_1": 0.5,
            "rollout/tokens_per_s": 100.0 * i,
        }
        for i in (1, 2, 3)
    ]
    made.metrics_file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    made.append_evaluation(0, result("unseen", 2))
    made.append_evaluation(3, result("unseen", 6))
    return made


def test_report_tells_success_before_and_after_with_intervals(folder: RunFolder) -> None:
    page = report.write(folder).read_text(encoding="utf-8")
    assert "unseen: 30.0% [10.8%, 60.3%] before RL, <b>70.0% [39.7%, 89.2%]</b>" in page
    assert "<td>heat</td><td>8</td><td>25%</td><td>75%</td>" in page
    assert "<td>1</td><td>50.0%</td>" in page


def test_report_has_a_chart_for_every_question_and_loads_nothing(folder: RunFolder) -> None:
    page = report.write(folder).read_text(encoding="utf-8")
    charts = re.findall(r"<svg.*?</svg>", page, re.DOTALL)
    assert [ElementTree.fromstring(chart).get("aria-label") for chart in charts] == [
        "success by iteration",
        "mean return by iteration",
        "idle share by iteration",
        "tokens per second by iteration",
        "policy versions by iteration",
    ]
    assert not re.search(r"(src|href)=|@import|url\(", page)


def test_report_says_which_side_of_the_run_was_busiest(folder: RunFolder) -> None:
    assert "Busiest over the whole run: the engine." in report.write(folder).read_text(encoding="utf-8")


def test_report_of_several_domains_tells_each_by_name(tmp_path: Path) -> None:
    made = RunFolder(tmp_path / "run")
    made.write_recipe(Recipe(domains={name: DomainSection(env=EnvSection()) for name in ("easy", "hard")}))
    shares = ({"easy": 1.0}, {"easy": 0.5, "hard": 0.5})
    rows = [
        {"iteration": i, **{f"domain/{name}/{of}": share for name, share in row.items() for of in ("share", "success")}}
        for i, row in enumerate(shares, start=1)
    ]
    made.metrics_file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    for name, won in (("easy", 2), ("hard", 1)):
        made.append_evaluation(0, replace(result("unseen", won), domain=name))
    page = report.write(made).read_text(encoding="utf-8")
    assert "run: easy (alfworld), hard (alfworld)" in page
    assert "easy unseen: 30.0%" in page and "hard unseen: 20.0%" in page
    charts = re.findall(r"<h2>(S[^<]*, by domain)</h2><svg.*?</svg>", page, re.DOTALL)
    assert charts == ["Success in training, by domain", "Share of the batches, by domain"]


def test_report_compares_the_kinds_of_rounds(folder: RunFolder) -> None:
    rows = [
        {"iteration": i, f"round/{kind}_turns": turns, f"round/{kind}_tokens": 2 * turns, f"round/{kind}_reward": 0.25}
        for i, (kind, turns) in enumerate([("short", 4.0), ("short", 6.0), ("long", 9.0)])
    ]
    folder.metrics_file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    page = report.write(folder).read_text(encoding="utf-8")
    assert "<td>short</td><td>2</td><td>5.0</td><td>10.0</td><td>0.250</td>" in page
    assert "<td>long</td><td>1</td><td>9.0</td><td>18.0</td><td>0.250</td>" in page


def test_text_from_the_recipe_cannot_become_markup(folder: RunFolder) -> None:
    tags: list[str] = []

    class Tags(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            tags.append(tag)

    Tags().feed(report.write(folder).read_text(encoding="utf-8"))
    assert "script" not in tags


def test_report_of_a_run_that_only_began_is_made_all_the_same(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    folder.write_recipe(Recipe(name="run"))
    assert "<svg" not in report.write(folder).read_text(encoding="utf-8")


def test_an_interval_is_drawn_from_low_to_high() -> None:
    svg = line_chart([Series("a", [(0, 0.5)], [(0, 0.25, 1.0)])], x_label="x", y_label="y", percent=True)
    low, high = re.findall(r"M52\.0 ([\d.]+)h8M56\.0 [\d.]+V([\d.]+)", svg)[0]
    assert (float(low), float(high)) == (184.0, 16.0)


def test_a_chart_without_data_is_no_chart() -> None:
    assert line_chart([Series("a", [])], x_label="x", y_label="y") == ""


def test_flat_and_single_points_can_be_drawn() -> None:
    for points in ([(1, 0.0)], [(1, 2.0), (2, 2.0)], [(5, -3.0), (6, 1e6)]):
        assert "nan" not in line_chart([Series("a", points)], x_label="x", y_label="y")


def test_inspect_summarises_a_run(roll: Callable[..., Result], folder: RunFolder) -> None:
    text = roll("inspect", folder.path).stdout
    assert "3 of 40 iterations" in text
    assert "before RL      30.0% of 10 unseen tasks" in text
    assert f"go on with: roll train --resume {folder.path}" in text
    data = json.loads(roll("inspect", folder.path, "--json").stdout)
    assert (data["iterations"], data["finished"]) == (3, False)
    assert [row["success_rate"] for row in data["evaluations"]] == [0.3, 0.7]
    assert data["last_metrics"]["rollout/tokens_per_s"] == 300.0


def test_a_run_of_several_processes_is_told_how_to_divide_them_better(tmp_path: Path) -> None:
    made = RunFolder(tmp_path / "run")
    recipe = Recipe.model_validate({"learner": {"ranks": 4}, "engine": {"replicas": 4}})
    made.write_recipe(recipe)
    row = {"iteration": 1.0, "idle/engine": 0.0, "idle/environments": 0.9, "idle/learner": 0.5}
    made.metrics_file.write_text(json.dumps(row) + "\n")
    page = report.write(made).read_text()
    assert "3 to learn and 5 to play (it was 4 and 4), by the work measured 1.25 × the iterations" in page
    made.metrics_file.write_text(json.dumps(row | {"idle/engine": 0.1, "idle/environments": 0.0}) + "\n")
    assert "to learn and" not in report.write(made).read_text()
