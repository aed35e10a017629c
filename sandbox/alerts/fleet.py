"""The rules of a fleet: what goes wrong with sandboxes that no single one of them can tell."""

from __future__ import annotations

from collections.abc import Iterable

from rocknroll.sandbox.alerts.config import FleetRuleChanges
from rocknroll.sandbox.alerts.rule import Rule

CRASH_LOOP = Rule(
    name="crash_loop",
    reads="failures of a pool's worst sandbox within its restart window (`restart.window_s`)",
    threshold=4.0,
    clear_s=60.0,
    what="A sandbox of {subject} fails again and again: {detail}.",
    why="Each failure costs whoever holds it his work, and after `restart.limit` of them it is quarantined.",
    remedy="Read the error with `rock describe ID`, and mend its cause.",
)
QUARANTINE = Rule(
    name="quarantine",
    reads="quarantined sandboxes of a pool",
    threshold=1.0,
    clear_s=10.0,
    what="Sandboxes of {subject} failed so often that they are left alone: {detail}.",
    why="The pool is smaller by so many until an operator restarts them.",
    remedy="Mend the cause, then `rock restart ID`.",
)
STALLED_QUEUE = Rule(
    name="stalled_queue",
    reads="callers that wait for a sandbox of a pool while places in it are free and none became ready or was leased",
    threshold=1.0,
    for_s=120.0,
    clear_s=30.0,
    severity="critical",
    what="{value:.0f} callers wait for a sandbox of {subject}, and none has been started or handed over: {detail}.",
    why="Places are free, so something keeps sandboxes from starting, and whoever waits stands still.",
    remedy="See `rock events` for starts that fail and `rock logs` for the manager; then mend it or `rock restart ID`.",
)
LEAK = Rule(
    name="leak",
    reads="seconds that the oldest sandbox, container, lease or file is there which nobody answers for",
    threshold=300.0,
    clear_s=60.0,
    what="There are {subject} that nobody answers for, the oldest for {value:.0f} s: {detail}.",
    why="They hold memory, processes and disk space, and nothing will give these back.",
    remedy="`rock gc --dry-run` shows what dead fleets left, and `rock gc` removes it; what is this fleet's own goes"
    " when its manager is restarted.",
)
MEMORY_GROWTH = Rule(
    name="memory_growth",
    reads="MiB by which a process has grown within the last hour, without ever shrinking back",
    threshold=512.0,
    clear_s=600.0,
    what="The memory of {subject} has grown by {value:.0f} MiB within an hour, and it never shrank: {detail}.",
    why="A process that goes on like this is killed by the kernel, and takes its work along.",
    remedy="Restart it when it suits (a manager's sandboxes and leases live on), and report what it was doing.",
)
DISK = Rule(
    name="disk",
    reads="free space where a folder lies, as a share of the disk (a disk counts as 20 GiB at most)",
    threshold=0.1,
    below=True,
    margin=0.2,
    for_s=30.0,
    clear_s=60.0,
    severity="critical",
    what="The disk of {subject} is nearly full: {detail}.",
    why="Without space no lease can be recorded, no trajectory stored and no checkpoint written.",
    remedy="Make room there, or move the folder to a larger disk.",
)

FLEET_RULES = (CRASH_LOOP, QUARANTINE, STALLED_QUEUE, LEAK, MEMORY_GROWTH, DISK)


def fleet_rules(changes: FleetRuleChanges) -> list[Rule]:
    """The rules as a fleet file wants them."""
    return changed(FLEET_RULES, changes)


def changed(rules: Iterable[Rule], changes: FleetRuleChanges) -> list[Rule]:
    """Rules as a section wants them that has a field for each."""
    return [rule.changed(getattr(changes, rule.name)) for rule in rules]
