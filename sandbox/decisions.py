"""What the pool decides and the fleet carries out (pure)."""

from __future__ import annotations

from dataclasses import dataclass

from rocknroll.sandbox.lease import Lease


@dataclass(frozen=True)
class Start:
    """Bring up an instance whose agent refuses tokens below `floor`."""

    sandbox_id: str
    generation: int
    floor: int


@dataclass(frozen=True)
class Discard:
    """Kill this instance and everything it owns. `lost`: it ended by itself or does not answer; ask why first."""

    sandbox_id: str
    generation: int
    lost: bool = False


@dataclass(frozen=True)
class Probe:
    sandbox_id: str
    generation: int


@dataclass(frozen=True)
class Revoke:
    """Tell the holder that its lease is over."""

    lease: Lease
    reason: str


@dataclass(frozen=True)
class Note:
    """An event for the record."""

    sandbox_id: str
    kind: str
    detail: str = ""


Decision = Start | Discard | Probe | Revoke | Note
