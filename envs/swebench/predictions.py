"""Grades predictions in the official format and reports in the official form."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rocknroll.envs.rows import BrokenRow, load_rows
from rocknroll.envs.swebench.campaign import SANDBOXES_EACH, Job, Record, Result, grade_all
from rocknroll.envs.swebench.config import PlaceConfig
from rocknroll.envs.swebench.instance import Instance
from rocknroll.envs.swebench.workplaces import Workplaces

SCHEMA_VERSION = 2
"""Of the official report."""


@dataclass(frozen=True)
class Predictions:
    """Patches by instance id, and what is wrong with the other lines by their names."""

    patches: Mapping[str, str]
    wrong: Mapping[str, str]


def load_predictions(source: str) -> Predictions:
    """Read a file with `instance_id` and `model_patch`; an empty or absent (null) patch is an empty one.

    Raises:
        EnvDataError: there is no such file, or it cannot be read.
    """
    patches: dict[str, str] = {}
    wrong: dict[str, str] = {}
    for name, row in load_rows(source):
        if isinstance(row, BrokenRow):
            wrong[name] = row.problem
        elif not isinstance(row.get("instance_id"), str):
            wrong[name] = "it has no instance_id"
        elif "model_patch" not in row or not isinstance(row["model_patch"], str | None):
            wrong[name] = "it has no model_patch that is text"
        elif row["instance_id"] in patches:
            wrong[name] = f"there is a prediction for {row['instance_id']} already"
        else:
            patches[row["instance_id"]] = row["model_patch"] or ""
    return Predictions(patches, wrong)


async def grade_predictions(
    instances: Sequence[Instance],
    wrong_rows: Mapping[str, str],
    predictions: Predictions,
    config: PlaceConfig,
    *,
    parallel: int,
    record: Record,
    timeout_s: float,
    tell: Callable[[int, int], None],
) -> dict[str, Any]:
    """The official report, and beside it `cheating` (what was put back and what contradicted itself), `why` and
    `errors` (class and text), each by instance.

    Raises:
        RuntimeUnavailable: this machine cannot have such sandboxes at all.
    """
    submitted = [instance for instance in instances if instance.id in predictions.patches]
    jobs = [Job("prediction", instance, predictions.patches[instance.id]) for instance in submitted]
    async with Workplaces(config, SANDBOXES_EACH * parallel) as places:
        found = await grade_all(jobs, places, parallel, record, timeout_s=timeout_s, tell=tell)
    known = {instance.id for instance in instances}
    unknown = {f"prediction for {name}": "no instance has this id" for name in predictions.patches if name not in known}
    return official(instances, list(found.values()), predictions, {**wrong_rows, **predictions.wrong, **unknown})


def official(
    instances: Sequence[Instance], results: Sequence[Result], predictions: Predictions, wrong: Mapping[str, str]
) -> dict[str, Any]:
    """The report of graded predictions."""
    ids = {instance.id for instance in instances}
    empty = {name for name, patch in predictions.patches.items() if name in ids and not patch.strip()}
    failed = {result.instance_id: f"{result.error}: {result.text}" for result in results if result.error}
    completed = {result.instance_id for result in results if not result.error} - empty
    resolved = {result.instance_id for result in results if result.resolved}
    groups = {
        "completed": completed,
        "incomplete": ids - set(predictions.patches),
        "empty_patch": empty,
        "submitted": set(predictions.patches) & ids,
        "resolved": resolved,
        "unresolved": completed - resolved,
        "error": set(failed),
    }
    counted = ("submitted", "completed", "resolved", "unresolved", "empty_patch", "error")
    return {
        "total_instances": len(ids),
        **{f"{name}_instances": len(groups[name]) for name in counted},
        **{f"{name}_ids": sorted(found) for name, found in groups.items()},
        "schema_version": SCHEMA_VERSION,
        "cheating": {
            result.instance_id: {"undone": list(result.undone), "trips": list(result.trips)}
            for result in results
            if result.cheating
        },
        "why": {result.instance_id: result.why for result in results if not result.error and not result.resolved},
        "errors": {**failed, **wrong},
    }
