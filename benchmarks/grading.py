"""Our grader beside the official harness (swebench 5.x): the same verdicts, the same attacks, CPU time.

Instances of mini-swe in images of their own, which both use. Honest patches: the gold one, one that only adds a file,
and the gold one of another bug. Attacks: those of tests/envs/swebench_attacks.py, none of which mends anything, on an
instance of rangeset. CPU seconds are those of all containers (control groups) and of the programs that drive them,
without the daemon's; medians over the instances, one grading at a time.

The official harness is run as its users run it (`python -m swebench.harness.run_evaluation`), by the interpreter that
`--official` names: `python3 -m venv V && V/bin/pip install swebench==5.0.2`.
"""

from __future__ import annotations

import reporting  # isort: skip  (first: it mends the import path)

import argparse
import asyncio
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import compress
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests" / "envs"))

from swebench_attacks import ATTACKS, PATCHES

from rocknroll.envs.swebench.building import build_image
from rocknroll.envs.swebench.campaign import Job, Record, grade_all
from rocknroll.envs.swebench.config import PlaceConfig
from rocknroll.envs.swebench.instance import Instance, instance_of
from rocknroll.envs.swebench.mini.history import difference, make_repository
from rocknroll.envs.swebench.mini.package import package_names
from rocknroll.envs.swebench.mini.rows import package_rows
from rocknroll.envs.swebench.workplaces import Workplaces
from rocknroll.sandbox.runtimes.docker_daemon import DEFAULT_URL, connect

BASE = "rocknroll-base:local"
IDLE = "diff --git a/NOTES b/NOTES\nnew file mode 100644\n--- /dev/null\n+++ b/NOTES\n@@ -0,0 +1 @@\n+nothing\n"
TIMEOUT_S = 120
ATTACKED = "rocknroll/rangeset"
"""The package that the attacks are written for."""


@dataclass
class Meter:
    """Seconds of what happened inside `with meter.on():`."""

    container_s: list[float] = field(default_factory=list)
    """CPU of all containers."""
    cpu_s: list[float] = field(default_factory=list)
    """CPU of containers and of what drives them."""
    wall_s: list[float] = field(default_factory=list)

    @contextmanager
    def on(self) -> Iterator[None]:
        containers, own, wall = container_seconds(), own_seconds(), time.perf_counter()
        yield
        self.container_s.append(container_seconds() - containers)
        self.cpu_s.append(self.container_s[-1] + own_seconds() - own)
        self.wall_s.append(time.perf_counter() - wall)

    def figures(self, who: str) -> dict[str, list[float]]:
        return {
            f"{who}_container_s": spread(self.container_s),
            f"{who}_cpu_s": spread(self.cpu_s),
            f"{who}_wall_s": spread(self.wall_s),
        }


def own_seconds() -> float:
    """CPU of this process and of its children that ended."""
    usages = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def container_seconds() -> float:
    """CPU of all containers that ever were."""
    first = Path("/sys/fs/cgroup/cpuacct/docker/cpuacct.usage")
    if first.exists():
        return int(first.read_text()) / 1e9
    stat = Path("/sys/fs/cgroup/docker/cpu.stat").read_text()
    return int(dict(line.split() for line in stat.splitlines())["usage_usec"]) / 1e6


class Official:
    """The harness, as a command."""

    def __init__(self, python: str, folder: Path, meter: Meter) -> None:
        self._python, self._folder, self._meter = python, folder, meter
        self._runs = 0

    def resolved(self, instance: Instance, patch: str) -> bool:
        self._runs += 1
        name = f"r{self._runs}-{os.getpid()}"
        rows, predictions = self._folder / f"{name}.rows.jsonl", self._folder / f"{name}.predictions.jsonl"
        rows.write_text(json.dumps(dict(instance.row)) + "\n")
        made = {"instance_id": instance.id, "model_patch": patch, "model_name_or_path": "m"}
        predictions.write_text(json.dumps(made) + "\n")
        command = [self._python, "-m", "swebench.harness.run_evaluation", "-d", rows, "-p", predictions, "-id", name]
        command += ["--max_workers", "1", "-t", str(TIMEOUT_S)]
        with self._meter.on():
            done = subprocess.run(command, cwd=self._folder, capture_output=True, text=True)
        reports = list(self._folder.rglob(f"*{name}.json"))
        if done.returncode or not reports:
            sys.exit(f"the official harness failed on {instance.id}:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
        found = json.loads(reports[0].read_text())
        if instance.id in found["error_ids"]:
            return False
        return instance.id in found["resolved_ids"]


async def ours(places: Workplaces, instance: Instance, patch: str, meter: Meter) -> tuple[bool, int]:
    """Verdict and marks of cheating."""
    job = Job("patch", instance, patch)
    with meter.on():
        (found,) = (await grade_all([job], places, 1, Record(None), timeout_s=TIMEOUT_S)).values()
    if found.error:
        sys.exit(f"{instance.id}: {found.error}: {found.text}")
    return found.resolved, found.cheating


def honest_patches(rows: Sequence[Mapping[str, Any]]) -> list[tuple[str, Instance, str]]:
    """(name, instance, patch); the instance has its image and not its tree, as published ones."""
    found = []
    for number, row in enumerate(rows):
        instance = replace(instance_of(row), tree=None)
        other = rows[(number + 1) % len(rows)]
        found += [("gold", instance, instance.gold_patch), ("idle", instance, IDLE)]
        if other["repo"] == row["repo"]:
            found.append(("other bug", instance, other["patch"]))
    return found


def attacks(row: Mapping[str, Any]) -> dict[str, str]:
    """Patches by name."""
    tree = json.loads(row["tree"])
    package = row["repo"].partition("/")[2]
    with tempfile.TemporaryDirectory() as folder:
        make_repository(tree, Path(folder))
        made = {name: difference(attack(package, dict(tree)), Path(folder)) for name, attack in ATTACKS.items()}
    return {**made, **PATCHES}


async def compare(
    official: Official, theirs: Meter, rows: Sequence[dict[str, Any]], wanted_attacks: int
) -> tuple[dict[str, float], dict[str, Any]]:
    """Both on everything."""
    mine, disagreements, verdicts = Meter(), [], []
    async with Workplaces(PlaceConfig(runtime="docker"), 4) as places:
        for instance in {instance.id: instance for _, instance, _ in honest_patches(rows)}.values():
            async with places.fresh(instance, "warm"):
                pass  # its image is cleaned once, and that is not grading
        for name, instance, patch in honest_patches(rows):
            (own, _), their = await ours(places, instance, patch, mine), official.resolved(instance, patch)
            verdicts.append((name, own))
            print(f"{instance.id} {name}: ours {own}, official {their}", file=sys.stderr, flush=True)
            if own != their:
                disagreements.append(f"{instance.id} {name}: ours {own}, official {their}")
        measured = {**mine.figures("ours"), **theirs.figures("official")}
        gold = [name == "gold" for name, _ in verdicts]
        ratios = {
            "container_cpu_over_official": median_ratio(mine.container_s, theirs.container_s),
            "container_cpu_over_official_for_gold": median_ratio(
                *(list(compress(meter.container_s, gold)) for meter in (mine, theirs))
            ),
            "cpu_over_official": median_ratio(mine.cpu_s, theirs.cpu_s),
        }
        resolved: dict[str, list[str]] = {"ours": [], "official": []}
        attacked = next(row for row in rows if row["repo"] == ATTACKED)
        target = replace(instance_of(attacked), tree=None)
        for name, patch in list(attacks(attacked).items())[:wanted_attacks]:
            (own, marks), their = await ours(places, target, patch, mine), official.resolved(target, patch)
            print(f"attack {name}: ours {own} (cheating {marks}), official {their}", file=sys.stderr, flush=True)
            resolved["ours"] += [name] * own
            resolved["official"] += [name] * their
    return ratios, {
        "graded": len(verdicts),
        "gold_resolved": sum(own for name, own in verdicts if name == "gold"),
        "disagreements": disagreements,
        "attacks": min(wanted_attacks, len(ATTACKS) + len(PATCHES)),
        "attacks_resolved": resolved,
        **measured,
    }


def median_ratio(own: Sequence[float], their: Sequence[float]) -> float:
    """Of the gradings of one patch."""
    return round(statistics.median(a / b for a, b in zip(own, their, strict=True)), 3)


def spread(values: Sequence[float]) -> list[float]:
    """Median, least, most."""
    return [round(value, 3) for value in (statistics.median(values), min(values), max(values))]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    parser.add_argument("--quick", action="store_true", help="one instance and two attacks")
    parser.add_argument(
        "--official", default=sys.executable, metavar="PYTHON", help="interpreter that has swebench 5.x"
    )
    parser.add_argument("--packages", type=int, default=8, help="packages, the first two bugs of each (8)")
    arguments = parser.parse_args()
    names = ["rangeset", *(name for name in package_names() if name != "rangeset")][
        : 1 if arguments.quick else arguments.packages
    ]
    rows = [row for name in names for row in package_rows(name)[: 1 if arguments.quick else 2]]
    client = connect(os.environ.get("DOCKER_HOST") or DEFAULT_URL)
    for row in rows:
        build_image(client, instance_of(row), BASE)
    theirs = Meter()
    with tempfile.TemporaryDirectory() as folder:
        official = Official(arguments.official, Path(folder), theirs)
        wanted = 2 if arguments.quick else len(ATTACKS) + len(PATCHES)
        ratios, figures = asyncio.run(compare(official, theirs, rows, wanted))
    reporting.emit("grading", ratios, figures, arguments.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
