"""A run's report: one HTML file with the learning curve, made from the run's folder alone.

Can be made at any time, also of a run that was interrupted; holds its charts inline and loads nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

from rocknroll.sandbox.alerts.rule import Alert
from rocknroll.trainer.chart import Series, line_chart
from rocknroll.trainer.cluster_section import device_count
from rocknroll.trainer.device_map import assign, colocated
from rocknroll.trainer.recipe import Recipe
from rocknroll.trainer.recipe_loader import dump_recipe
from rocknroll.trainer.results import EvalResult
from rocknroll.trainer.rollout.meter import bottleneck
from rocknroll.trainer.run_folder import Evaluation, RunFolder, by_split
from rocknroll.trainer.split import measured, suggest

_STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 760px; margin: 2rem auto; padding: 0 1rem; }
svg { width: 100%; height: auto; } svg text { font-size: 12px; fill: currentColor; }
.grid { stroke: currentColor; opacity: .15; }
table { border-collapse: collapse; } td, th { padding: .2rem .9rem .2rem 0; text-align: right; }
td:first-child, th:first-child { text-align: left; } .lead { font-size: 1.2rem; }
pre { overflow-x: auto; }
"""

Row = dict[str, float]


def write(folder: RunFolder) -> Path:
    """Write `report.html` into the run's folder and return its path."""
    metrics, evaluations = folder.metrics(), folder.evaluations()
    recipe = folder.recipe()
    title = f"{recipe.name}: {recipe.environments}"
    parts = [
        f"<h1>{escape(title)}</h1>",
        *_headlines(evaluations),
        _section("Alerts", _alerts(folder.alerts())),
        _section("Success", _learning_curve(metrics, evaluations)),
        _section("By kind of task", _kinds(evaluations)),
        *_domains(metrics, list(recipe.domains)),
        _section("Reward", _lines(metrics, {"batch/reward": "training"}, "mean return")),
        _section("Where time goes", _idle(metrics) + _split(metrics, recipe)),
        _section("Throughput", _lines(metrics, {"rollout/tokens_per_s": "generated"}, "tokens per second")),
        _section("Staleness", _staleness(metrics)),
        _section("Rounds", _rounds(metrics)),
        f"<details><summary>Recipe</summary><pre>{escape(dump_recipe(recipe))}</pre></details>",
    ]
    page = (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(title)}</title>'
        f"<style>{_STYLE}</style><body>{''.join(parts)}</body></html>"
    )
    draft = folder.report.with_suffix(".tmp")
    draft.write_text(page, encoding="utf-8")
    draft.replace(folder.report)
    return folder.report


def _headlines(evaluations: Sequence[Evaluation]) -> list[str]:
    lines = []
    for split, rows in by_split(evaluations).items():
        first, last = rows[0].result, rows[-1].result
        lines.append(
            f'<p class="lead">{escape(split)}: {_rate(first)} before RL, <b>{_rate(last)}</b> after'
            f" {rows[-1].iteration} iterations ({last.episodes} tasks, greedy unless the recipe says otherwise).</p>"
        )
    return lines


def _alerts(alerts: Sequence[Alert]) -> str:
    """What the run raised, oldest first; `lasted` is empty for what was still open at the end."""
    rows = ""
    for alert in alerts:
        lasted = "" if alert.resolved is None else f"{alert.resolved - alert.since:.0f} s"
        rows += f"<tr><td>{alert.rule} ({alert.severity})</td><td>{lasted}</td></tr>"
        rows += f'<tr><td colspan="2">{escape(alert.text)}</td></tr>'
    return f"<table><tr><th>alert</th><th>lasted</th></tr>{rows}</table>" if rows else ""


def _rate(result: EvalResult) -> str:
    low, high = result.ci95
    return f"{result.success_rate:.1%} [{low:.1%}, {high:.1%}]"


def _learning_curve(metrics: Sequence[Row], evaluations: Sequence[Evaluation]) -> str:
    curves = [
        Series(
            f"{split} (95%)",
            [(row.iteration, row.result.success_rate) for row in rows],
            [(row.iteration, *row.result.ci95) for row in rows],
        )
        for split, rows in by_split(evaluations).items()
    ]
    sampled = Series("training, sampled", _points(metrics, "batch/success"), faint=True)
    return line_chart([*curves, sampled], x_label="iteration", y_label="success", percent=True)


def _kinds(evaluations: Sequence[Evaluation]) -> str:
    tables = []
    for split, rows in by_split(evaluations).items():
        before, after = rows[0].result, rows[-1].result
        body = "".join(
            f"<tr><td>{escape(kind)}</td><td>{after.by_kind[kind].episodes}</td>"
            f"<td>{before.by_kind[kind].success_rate:.0%}</td><td>{after.by_kind[kind].success_rate:.0%}</td></tr>"
            for kind in sorted(before.by_kind.keys() & after.by_kind.keys())
        )
        head = f"<tr><th>{escape(split)}</th><th>tasks</th><th>before</th><th>after</th></tr>"
        tables.append(f"<table>{head}{body}</table>")
    return "".join(tables)


def _domains(metrics: Sequence[Row], names: Sequence[str]) -> list[str]:
    """What each domain got of the batches and made of it."""
    success = {f"domain/{name}/success": name for name in names}
    share = {f"domain/{name}/share": name for name in names}
    return [
        _section("Success in training, by domain", _lines(metrics, success, "success", percent=True)),
        _section("Share of the batches, by domain", _lines(metrics, share, "share", percent=True)),
    ]


def _rounds(metrics: Sequence[Row]) -> str:
    """Under tail batching: how much longer and better the episodes of one kind of round are than of the other."""
    kinds = [kind for kind in ("short", "long") if any(f"round/{kind}_turns" in row for row in metrics)]
    body = ""
    for kind in kinds:
        own = [row for row in metrics if f"round/{kind}_turns" in row]
        turns, tokens, reward = (_mean(own, f"round/{kind}_{figure}") for figure in ("turns", "tokens", "reward"))
        cells = (kind, f"{len(own)}", f"{turns:.1f}", f"{tokens:.1f}", f"{reward:.3f}")
        body += f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"
    head = "<tr><th>round</th><th>batches</th><th>turns</th><th>tokens</th><th>return</th></tr>"
    return f"<table>{head}{body}</table>" if body else ""


def _idle(metrics: Sequence[Row]) -> str:
    parts = {"idle/engine": "engine", "idle/environments": "environments", "idle/learner": "learner"}
    series = [Series(label, _points(metrics, key)) for key, label in parts.items()]
    chart = line_chart(series, x_label="iteration", y_label="idle share", percent=True)
    measured = [row for row in metrics if parts.keys() <= row.keys()]  # a replayed batch has no such figures
    busiest = bottleneck({key: _mean(measured, key) for key in parts}) if measured else ""
    return f"{chart}<p>Busiest over the whole run: the {busiest}.</p>" if busiest else chart


def _split(metrics: Sequence[Row], recipe: Recipe) -> str:
    """How the run's devices would be divided better, where that is what it waited for."""
    devices = {role: device_count(getattr(recipe.cluster.devices, role)) for role in ("learner", "engine")}
    own = all(devices.values())
    learner, engine = devices.values() if own else (recipe.learner_ranks, recipe.engine.replicas)
    if learner + engine == 2 or (own and colocated(assign(recipe.cluster))):
        return ""  # there is but one division
    found = suggest(measured(metrics), learner, engine, overlapped=recipe.rollout.async_ratio > 0)
    if found is None:
        return ""
    what = "devices" if own else "processes (learner ranks, engines)"
    how = f"{found.learner} to learn and {found.engine} to play"
    if (found.learner, found.engine) == (learner, engine):
        return f"<p>Of {learner + engine} {what}, {how} is the best division by the work measured.</p>"
    return (
        f"<p>Suggested division of {learner + engine} {what}: {how} (it was {learner} and {engine}), by the work"
        f" measured {found.speedup:.2f} × the iterations in the same time if both scale with their devices.</p>"
    )


def _staleness(metrics: Sequence[Row]) -> str:
    chart = _lines(metrics, {"staleness/mean": "mean", "staleness/max": "oldest"}, "policy versions")
    ages = sorted({key for row in metrics for key in row if key.startswith("staleness/share_")}, key=_age)
    rows = "".join(
        f"<tr><td>{_age(key)}</td><td>{sum(row.get(key, 0.0) for row in metrics) / len(metrics):.1%}</td></tr>"
        for key in ages
    )
    return f"{chart}<table><tr><th>versions behind</th><th>trajectories</th></tr>{rows}</table>" if rows else chart


def _age(key: str) -> int:
    return int(key.rpartition("_")[2])


def _lines(metrics: Sequence[Row], keys: dict[str, str], y_label: str, *, percent: bool = False) -> str:
    series = [Series(label, _points(metrics, key)) for key, label in keys.items()]
    return line_chart(series, x_label="iteration", y_label=y_label, percent=percent)


def _points(metrics: Sequence[Row], key: str) -> list[tuple[float, float]]:
    return [(row["iteration"], row[key]) for row in metrics if key in row]


def _mean(metrics: Sequence[Row], key: str) -> float:
    return sum(row[key] for row in metrics) / len(metrics)


def _section(title: str, body: str) -> str:
    return f"<h2>{escape(title)}</h2>{body}" if body else ""
