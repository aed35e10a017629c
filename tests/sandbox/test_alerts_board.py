"""The board's laws under any course of a figure, and what its rules say."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rocknroll.sandbox.alerts.board import Board
from rocknroll.sandbox.alerts.config import FleetRuleChanges
from rocknroll.sandbox.alerts.fleet import FLEET_RULES, fleet_rules
from rocknroll.sandbox.alerts.rule import Alert, Reading, Rule, RuleChange


def rule(**fields: object) -> Rule:
    text = {"what": "{subject} is at {value:.0f}: {detail}.", "why": "It matters.", "remedy": "Mend it."}
    return Rule.model_validate({"name": "hot", "reads": "degrees", "threshold": 10.0, "clear_s": 0.0, **text, **fields})


def read(value: float, subject: str = "oven") -> list[Reading]:
    return [Reading("hot", subject, value, "it smells")]


@dataclass(frozen=True)
class Look:
    """One observation: seconds since the one before, and whether the condition holds; None: nothing is read."""

    after_s: float
    holds: bool | None


looks = st.lists(st.builds(Look, st.sampled_from([0.0, 0.5, 1.0, 3.0, 10.0]), st.sampled_from([True, False, None])))
holds_s = st.sampled_from([0.0, 1.0, 2.5, 5.0])


@given(looks, holds_s, holds_s)
def test_an_alert_is_raised_once_and_resolved_once_whatever_happens(
    course: list[Look], for_s: float, clear_s: float
) -> None:
    board, now = Board([rule(for_s=for_s, clear_s=clear_s)]), 0.0
    held_since: float | None = None
    over_since: float | None = 0.0
    is_open: Alert | None = None
    for look in [*course, Look(1.0, None), Look(clear_s, None)]:
        now += look.after_s
        held_since = (now if held_since is None else held_since) if look.holds else None
        over_since = None if look.holds else (now if over_since is None else over_since)
        changed = board.observe([] if look.holds is None else read(20.0 if look.holds else 5.0), now)
        assert len(changed) <= 1
        for alert in changed:
            if alert.resolved is None:
                assert is_open is None, "raised twice"
                assert held_since is not None and now - held_since >= for_s, "raised too early"
                assert alert.since == held_since
                is_open = alert
            else:
                assert is_open is not None and alert.since == is_open.since, "resolved, and never raised"
                assert over_since is not None and now - over_since >= clear_s, "resolved too early"
                assert alert.resolved == now
                is_open = None
        if held_since is not None and now - held_since >= for_s:
            assert is_open is not None, "not raised"
        assert board.open == ([] if is_open is None else [is_open])
    assert is_open is None, "not resolved at the end"


@settings(max_examples=30)
@given(looks, looks)
def test_subjects_do_not_disturb_each_other(ours: list[Look], theirs: list[Look]) -> None:
    hot = rule(for_s=1.0, clear_s=1.0)
    alone, together = Board([hot]), Board([hot])
    now, seen_alone, seen_together = 0.0, [], []
    for mine, other in zip(ours, theirs, strict=False):
        now += mine.after_s
        mine_read = [] if mine.holds is None else read(20.0 if mine.holds else 5.0)
        other_read = [] if other.holds is None else read(20.0 if other.holds else 5.0, "fridge")
        seen_alone += alone.observe(mine_read, now)
        seen_together += together.observe([*other_read, *mine_read], now)
    assert [alert for alert in seen_together if alert.subject == "oven"] == seen_alone


def test_a_figure_that_trembles_at_the_threshold_raises_one_alert() -> None:
    board = Board([rule(margin=0.2)])
    changed = [alert for now, value in enumerate([9, 10, 9, 10, 8.5, 10]) for alert in board.observe(read(value), now)]
    assert [alert.resolved for alert in changed] == [None]
    assert [alert.resolved for alert in board.observe(read(7.9), 9.0)] == [9.0]


def test_a_rule_may_look_for_too_little() -> None:
    board = Board([rule(below=True, margin=0.5)])
    assert board.observe(read(10.1), 0.0) == []
    assert len(board.observe(read(10.0), 1.0)) == 1
    assert board.observe(read(14.9), 2.0) == []
    assert [alert.resolved for alert in board.observe(read(15.1), 3.0)] == [3.0]


def test_a_silenced_rule_says_nothing_and_lets_go_of_what_it_had_said() -> None:
    (raised,) = Board([rule()]).observe(read(20.0), 0.0)
    board = Board([rule().changed(RuleChange(enabled=False))], [raised])
    assert [alert.resolved for alert in board.observe(read(20.0), 5.0)] == [5.0]
    assert board.observe(read(30.0), 6.0) == []


def test_an_open_alert_of_an_earlier_manager_is_not_raised_again() -> None:
    first = Board([rule()])
    (raised,) = first.observe(read(20.0), 3.0)
    board = Board([rule()], first.alerts())
    assert board.observe(read(20.0), 100.0) == []
    (resolved,) = board.observe(read(5.0), 101.0)
    assert (resolved.since, resolved.resolved) == (raised.since, 101.0)


def test_an_open_alert_of_a_rule_that_is_no_more_is_resolved() -> None:
    alert = Alert("gone", "oven", "warning", 1.0, "It was hot.")
    assert [each.resolved for each in Board([rule()], [alert]).observe([], 7.0)] == [7.0]


def test_a_reading_of_no_rule_is_an_error() -> None:
    with pytest.raises(KeyError, match="cold"):
        Board([rule()]).observe([Reading("cold", "oven", 1.0)], 0.0)


def test_open_alerts_come_before_those_that_are_over() -> None:
    board = Board([rule()])
    for now, subjects in enumerate([["a"], ["a", "b"], ["b", "c"], ["c"]]):
        board.observe([reading for subject in subjects for reading in read(20.0, subject)], now)
    assert [(alert.subject, alert.resolved) for alert in board.alerts()] == [("c", None), ("b", 3), ("a", 2)]


def test_the_text_says_what_why_and_what_to_do_without_driving_the_terminal() -> None:
    (alert,) = Board([rule()]).observe([Reading("hot", "oven", 20.0, "\x1b[31mred\x1b[0m\n{value} " + "x" * 999)], 0.0)
    assert alert.text.startswith("oven is at 20:  [31mred [0m {value} xxx")
    assert alert.text.endswith("…. It matters. Mend it.")
    assert alert.text.isprintable() and len(alert.text) < 500


def test_alerts_travel_as_json_and_come_back() -> None:
    alert = Alert("hot", "oven", "critical", 1.5, "text", 2.5)
    assert Alert.from_json({**alert.to_json(), "of a later version": 1}) == alert


def test_every_rule_of_a_fleet_can_be_changed_by_its_name() -> None:
    assert {rule.name for rule in FLEET_RULES} == set(FleetRuleChanges.model_fields)
    changes = FleetRuleChanges(disk=RuleChange(threshold=0.5, severity="warning"))
    found = {rule.name: rule for rule in fleet_rules(changes)}
    assert (found["disk"].threshold, found["disk"].severity) == (0.5, "warning")
    assert [found[rule.name] for rule in FLEET_RULES if rule.name != "disk"] == [
        rule for rule in FLEET_RULES if rule.name != "disk"
    ]


@pytest.mark.parametrize("each", FLEET_RULES, ids=lambda each: each.name)
def test_every_text_of_a_rule_can_be_filled_in(each: Rule) -> None:
    text = each.text(Reading(each.name, "pool box", 12.0, "this and that"))
    assert "this and that" in text and "{" not in text
