"""The states of one sandbox and every way from one to another (pure).

One table serves fleet, CLI and documentation. Invariant: READY is reached only from STARTING,
RESTARTING, LEASED or SUSPECT, so a DEAD sandbox never comes back without a restart.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType


class State(StrEnum):
    STARTING = "STARTING"
    READY = "READY"
    LEASED = "LEASED"
    SUSPECT = "SUSPECT"
    """A probe was missed; not given to anyone new, but its holder may go on."""
    DEAD = "DEAD"
    RESTARTING = "RESTARTING"
    QUARANTINED = "QUARANTINED"
    """Failed too often, or was taken out of service; left alone until an operator restarts it."""
    STOPPED = "STOPPED"


class Event(StrEnum):
    STARTED = "started"
    """The agent answered and the preload succeeded."""
    START_FAILED = "start_failed"
    ADOPTED = "adopted"
    """An instance that an earlier manager started still answers."""
    LEASED = "leased"
    RELEASED = "released"
    """The holder is done and the sandbox is kept as it is."""
    RECYCLED = "recycled"
    """The instance is given up on purpose (fresh policy, expired lease, holder's wish)."""
    PROBE_MISSED = "probe_missed"
    RECOVERED_IDLE = "recovered_idle"
    RECOVERED_LEASED = "recovered_leased"
    LOST = "lost"
    """The process is gone, or too many probes were missed."""
    RESTARTED = "restarted"
    QUARANTINED = "quarantined"
    REMOVED = "removed"
    """An operator took it out of service."""
    STOPPED = "stopped"


_S, _E = State, Event

_TABLE: dict[tuple[State, Event], State] = {
    (_S.STARTING, _E.STARTED): _S.READY,
    (_S.STARTING, _E.START_FAILED): _S.DEAD,
    (_S.STARTING, _E.ADOPTED): _S.READY,
    (_S.STARTING, _E.QUARANTINED): _S.QUARANTINED,
    (_S.RESTARTING, _E.STARTED): _S.READY,
    (_S.RESTARTING, _E.START_FAILED): _S.DEAD,
    (_S.READY, _E.LEASED): _S.LEASED,
    (_S.READY, _E.PROBE_MISSED): _S.SUSPECT,
    (_S.READY, _E.RECYCLED): _S.RESTARTING,
    (_S.READY, _E.LOST): _S.DEAD,
    (_S.LEASED, _E.RELEASED): _S.READY,
    (_S.LEASED, _E.RECYCLED): _S.RESTARTING,
    (_S.LEASED, _E.PROBE_MISSED): _S.SUSPECT,
    (_S.LEASED, _E.LOST): _S.DEAD,
    (_S.SUSPECT, _E.PROBE_MISSED): _S.SUSPECT,
    (_S.SUSPECT, _E.RECOVERED_IDLE): _S.READY,
    (_S.SUSPECT, _E.RECOVERED_LEASED): _S.LEASED,
    (_S.SUSPECT, _E.RELEASED): _S.SUSPECT,
    (_S.SUSPECT, _E.RECYCLED): _S.RESTARTING,
    (_S.SUSPECT, _E.LOST): _S.DEAD,
    (_S.DEAD, _E.RESTARTED): _S.RESTARTING,
    (_S.DEAD, _E.QUARANTINED): _S.QUARANTINED,
    (_S.QUARANTINED, _E.RESTARTED): _S.RESTARTING,
}
_TABLE.update({(state, _E.REMOVED): _S.QUARANTINED for state in State if state is not _S.STOPPED})
_TABLE.update({(state, _E.STOPPED): _S.STOPPED for state in State if state is not _S.STOPPED})

TABLE: Mapping[tuple[State, Event], State] = MappingProxyType(_TABLE)

LIVE = frozenset({State.READY, State.LEASED, State.SUSPECT})
"""An instance exists and is expected to answer."""


class IllegalTransition(AssertionError):
    """The fleet tried a transition that the table does not have: a bug, never bad input."""


def advance(state: State, event: Event) -> State:
    """The state after `event`.

    Raises:
        IllegalTransition: the table has no such transition.
    """
    try:
        return TABLE[state, event]
    except KeyError:
        raise IllegalTransition(f"{state} has no transition for {event}") from None
