"""What the rules of a fleet read, from fleets that a test makes up and from the real disk."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rocknroll.sandbox.alerts.growth import PART_S, PARTS, Growth
from rocknroll.sandbox.alerts.readings import SLOW_LOOK_S, FleetReader, disk_readings
from rocknroll.sandbox.alerts.rule import Reading
from rocknroll.sandbox.spec import SandboxSpec

MIB = 1 << 20


class MadeUp:
    """A fleet as a `FleetReader` sees it."""

    def __init__(self, *states: str) -> None:
        self.spec = SandboxSpec(name="box")
        self.runtime = self
        self.rows = {
            f"box-{at}": {"id": f"box-{at}", "state": state, "lease": None, "last_error": "exit code 7"}
            for at, state in enumerate(states)
        }
        self.figures = {"waiting": 0.0, "started": 0.0, "leased": 0.0}
        self.failed: dict[str, int] = {}
        self.strange: list[str] = []

    def snapshot(self) -> list[dict[str, Any]]:
        return list(self.rows.values())

    def metrics(self) -> dict[str, float]:
        return self.figures

    def failures(self) -> dict[str, int]:
        return self.failed

    def instances(self) -> set[str]:
        return {f"{name}.1" for name in self.rows}

    async def strays(self, keep: Collection[str]) -> list[str]:
        return [name for name in self.strange if name not in keep]


def reader(fleet: Any, **options: Any) -> FleetReader:
    return FleetReader({"box": fleet}, {}, "the manager", **options)


async def read(from_: FleetReader, now: float, rule: str) -> list[Reading]:
    return [reading for reading in await from_.read(now) if reading.rule == rule]


@pytest.mark.asyncio
async def test_the_worst_sandbox_of_a_pool_is_named_with_its_error() -> None:
    fleet = MadeUp("READY", "DEAD", "QUARANTINED")
    fleet.failed = {"box-0": 1, "box-1": 5}
    (crashing,) = await read(reader(fleet), 0.0, "crash_loop")
    assert (crashing.subject, crashing.value) == ("pool box", 5.0)
    assert "box-1 5 times in 300 s" in crashing.detail and "exit code 7" in crashing.detail
    (quarantined,) = await read(reader(fleet), 0.0, "quarantine")
    assert quarantined.value == 1.0 and "box-2" in quarantined.detail


@pytest.mark.asyncio
async def test_callers_that_wait_while_nothing_moves_and_a_place_is_free_are_counted() -> None:
    fleet = MadeUp("LEASED", "RESTARTING")
    fleet.rows["box-0"]["lease"] = {"deadline": 60.0}
    looking = reader(fleet)
    fleet.figures["waiting"] = 3.0
    await looking.read(0.0)
    assert [each.value for each in await read(looking, 1.0, "stalled_queue")] == [3.0]
    fleet.figures["started"] += 1
    assert [each.value for each in await read(looking, 2.0, "stalled_queue")] == [0.0]
    assert [each.value for each in await read(looking, 3.0, "stalled_queue")] == [3.0]
    fleet.rows["box-1"]["state"] = "QUARANTINED"
    assert [each.value for each in await read(looking, 4.0, "stalled_queue")] == [0.0], "no place is left to wait for"


@pytest.mark.asyncio
async def test_what_nobody_answers_for_grows_old() -> None:
    fleet = MadeUp("READY")
    fleet.strange = ["box-0.1", "box-9.4"]
    left = ["rock-dead-1"]

    async def leftovers() -> list[str]:
        return left

    looking = reader(fleet, leftovers=leftovers)
    assert {(each.subject, each.value) for each in await read(looking, 0.0, "leak")} == {
        ("sandboxes", 0.0),
        ("leftovers of dead fleets", 0.0),
    }
    found = await read(looking, 2 * SLOW_LOOK_S, "leak")
    assert {(each.subject, each.value, each.detail) for each in found} == {
        ("sandboxes", 120.0, "box-9.4"),
        ("leftovers of dead fleets", 120.0, "rock-dead-1"),
    }
    left.clear()
    fleet.strange = ["box-8.2"]
    assert [(each.subject, each.value) for each in await read(looking, 4 * SLOW_LOOK_S, "leak")] == [("sandboxes", 0.0)]


@pytest.mark.asyncio
async def test_a_lease_that_outlives_its_deadline_is_a_leak() -> None:
    fleet = MadeUp("LEASED", "LEASED")
    fleet.rows["box-0"]["lease"] = {"deadline": 10.0}
    fleet.rows["box-1"]["lease"] = {"deadline": 190.0}
    (leak,) = await read(reader(fleet), 100.0, "leak")
    assert leak.subject == "leases past their deadline" and leak.value == 90.0 and leak.detail == "box-0"


def test_free_space_is_a_share_of_the_disk_that_counts_as_20_gib_at_most(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def disk(free: int, size: int) -> None:
        found = SimpleNamespace(f_bavail=free, f_blocks=size, f_frsize=1 << 30)
        monkeypatch.setattr("rocknroll.sandbox.alerts.readings.os.statvfs", lambda path: found)

    disk(1, 4)
    assert [each.value for each in disk_readings({"here": tmp_path})] == [0.25]
    disk(1, 4_000)
    assert [each.value for each in disk_readings({"here": tmp_path})] == [0.05]


def test_folders_on_one_disk_are_read_once(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (one,) = disk_readings({"the one": tmp_path, "the other": tmp_path / "a"})
    assert one.subject == "the one and the other" and one.value > 0


def sampled(*megabytes: int) -> Growth:
    """So much in each part of the last hour, oldest first, and for a moment in each a gigabyte more."""
    growth = Growth()
    for part, used in enumerate(megabytes):
        growth.add(part * PART_S + 1.0, (used + 1024) * MIB)
        growth.add(part * PART_S + 100.0, used * MIB)
    return growth


def test_a_process_that_never_shrinks_back_has_grown() -> None:
    assert sampled(100, 200, 300, 400, 500, 600).grown_bytes() == 500 * MIB


@pytest.mark.parametrize(
    "course",
    [(100, 200, 300, 400, 500), (100, 200, 300, 250, 500, 600), (900, 100, 100, 100, 100, 100), (7,) * PARTS],
    ids=["less than an hour", "it breathed", "it shrank", "it is steady"],
)
def test_a_process_that_breathes_or_is_young_has_not_grown(course: tuple[int, ...]) -> None:
    assert sampled(*course).grown_bytes() == 0


@settings(max_examples=30)
@given(st.lists(st.integers(0, 5_000), min_size=1, max_size=40))
def test_growth_is_never_more_than_what_is_used(course: list[int]) -> None:
    assert 0 <= sampled(*course).grown_bytes() <= course[-1] * MIB
