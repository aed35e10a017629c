"""The table of states."""

from __future__ import annotations

from pathlib import Path

import pytest

from rocknroll.sandbox.lifecycle import TABLE, Event, IllegalTransition, State, advance


def reachable(start: State, without: set[State]) -> set[State]:
    seen, todo = {start}, [start]
    while todo:
        state = todo.pop()
        for (source, _), target in TABLE.items():
            if source is state and target not in seen and target not in without:
                seen.add(target)
                todo.append(target)
    return seen


def test_dead_never_becomes_ready_without_a_restart() -> None:
    assert State.READY in reachable(State.DEAD, without=set())
    assert not {State.READY, State.LEASED, State.SUSPECT} & reachable(State.DEAD, without={State.RESTARTING})


def test_stopped_is_final() -> None:
    assert reachable(State.STOPPED, without=set()) == {State.STOPPED}


def test_every_state_can_be_reached_and_stopped() -> None:
    assert reachable(State.STARTING, without=set()) == set(State)
    assert all(TABLE[state, Event.STOPPED] is State.STOPPED for state in State if state is not State.STOPPED)


def test_one_missed_probe_only_makes_suspect() -> None:
    assert advance(State.READY, Event.PROBE_MISSED) is State.SUSPECT
    assert advance(State.LEASED, Event.PROBE_MISSED) is State.SUSPECT


def test_a_suspect_is_not_given_to_anyone_new() -> None:
    with pytest.raises(IllegalTransition):
        advance(State.SUSPECT, Event.LEASED)


def test_the_documented_table_is_the_table_of_the_code() -> None:
    text = (Path(__file__).parents[2] / "docs" / "sandbox.md").read_text()
    rows = {
        tuple(cell.strip().strip("`") for cell in line.strip("|").split("|"))
        for line in text.partition("<!-- states -->")[2].partition("<!-- /states -->")[0].splitlines()
        if line.startswith("| `")
    }
    stops = {(source.value, Event.STOPPED.value, State.STOPPED.value) for source in State}
    assert rows == {(source.value, event.value, target.value) for (source, event), target in TABLE.items()} - stops
