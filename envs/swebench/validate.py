"""Are the instances any good? Their own gold patch has to resolve them, every time, and nothing else may."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rocknroll.envs.swebench.campaign import SANDBOXES_EACH, Job, Record, Result, by_instance, grade_all
from rocknroll.envs.swebench.config import PlaceConfig
from rocknroll.envs.swebench.instance import Instance
from rocknroll.envs.swebench.workplaces import Workplaces

GOLD, EMPTY, CORRUPT = "gold", "empty", "corrupt"


@dataclass(frozen=True)
class InstanceReport:
    """What came of one instance."""

    gold: tuple[bool, ...]
    """Resolved by its gold patch, run by run."""
    empty: bool
    corrupt: bool
    why: str
    """Of the first run of the gold patch that did not resolve it; else empty."""
    unproven: tuple[str, ...]
    """Deciding tests that are taken at their word (`grading.asking`)."""
    error: str
    """The first error's class and text; empty without one."""

    @classmethod
    def of(cls, results: Sequence[Result]) -> InstanceReport:
        gold = [result for result in results if result.name.startswith(GOLD)]
        failed = [result for result in results if result.error]
        return cls(
            gold=tuple(result.resolved for result in gold),
            empty=any(result.resolved for result in results if result.name == EMPTY),
            corrupt=any(result.resolved for result in results if result.name == CORRUPT),
            why=next((_why(result) for result in gold if not result.resolved and not result.error), ""),
            unproven=gold[0].unproven,
            error=f"{failed[0].error}: {failed[0].text}" if failed else "",
        )

    @property
    def flaky(self) -> bool:
        """The gold patch resolved it in some runs and not in others."""
        return not self.error and len(set(self.gold)) > 1

    @property
    def usable(self) -> bool:
        return not self.error and all(self.gold) and not self.empty and not self.corrupt


@dataclass(frozen=True)
class Report:
    """What came of a data set."""

    instances: Mapping[str, InstanceReport]
    wrong_rows: Mapping[str, str]
    """What is wrong with rows that are no instances, by their names."""
    runs: int

    @property
    def total(self) -> int:
        """Rows, whether they are instances or not."""
        return len(self.instances) + len(self.wrong_rows)

    @property
    def excluded(self) -> list[str]:
        """Ids of the instances that nobody should train on."""
        return sorted(name for name, report in self.instances.items() if not report.usable)

    @property
    def errors(self) -> dict[str, int]:
        """How many rows and instances failed for which cause."""
        causes = Counter(report.error.partition(":")[0] for report in self.instances.values() if report.error)
        return {**causes, **({"RowError": causes["RowError"] + len(self.wrong_rows)} if self.wrong_rows else {})}

    def as_json(self) -> dict[str, Any]:
        """For `--json`."""
        reports = self.instances.values()
        return {
            "total": self.total,
            "gold_resolved": sum(not report.error and all(report.gold) for report in reports),
            "empty_resolved": sum(report.empty for report in reports),
            "corrupt_resolved": sum(report.corrupt for report in reports),
            "flaky": sum(report.flaky for report in reports),
            "runs": self.runs,
            "errors": self.errors,
            "excluded": self.excluded,
            "unproven": {name: list(report.unproven) for name, report in self.instances.items() if report.unproven},
            "why": {name: report.why for name, report in self.instances.items() if report.why},
            "error_texts": {
                **{name: report.error for name, report in self.instances.items() if report.error},
                **self.wrong_rows,
            },
        }


async def validate(
    instances: Sequence[Instance],
    wrong_rows: Mapping[str, str],
    config: PlaceConfig,
    *,
    runs: int,
    parallel: int,
    record: Record,
    timeout_s: float,
    tell: Callable[[int, int], None],
) -> Report:
    """Grade the gold patch `runs` times, an empty one and a corrupt one for each instance.

    Raises:
        RuntimeUnavailable: this machine cannot have such sandboxes at all.
    """
    jobs = [job for instance in instances for job in _jobs(instance, runs)]
    async with Workplaces(config, SANDBOXES_EACH * parallel) as places:
        found = await grade_all(jobs, places, parallel, record, timeout_s=timeout_s, ask_anyway=True, tell=tell)
    reports = {name: InstanceReport.of(results) for name, results in by_instance(found.values()).items()}
    return Report(reports, wrong_rows, runs)


def _jobs(instance: Instance, runs: int) -> list[Job]:
    gold = [Job(f"{GOLD} {number}", instance, instance.gold_patch) for number in range(1, runs + 1)]
    return [*gold, Job(EMPTY, instance, ""), Job(CORRUPT, instance, corrupted(instance.gold_patch))]


def corrupted(patch: str) -> str:
    """The patch against files that say something else, with nonsense for what it adds: `patch` forgives the former."""
    return "".join(
        f"{line[0]}corrupt {line[1:]}" if line[:1] in tuple(" -+") and not line.startswith(("---", "+++")) else line
        for line in patch.splitlines(keepends=True)
    )


def _why(result: Result) -> str:
    what = [*result.not_passed, *result.trips][:5]
    return f"{result.why}: {', '.join(what)}" if what else result.why
