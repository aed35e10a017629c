from datetime import date
from itertools import islice

import pytest

from almanac import Rule, Week

WEDNESDAY = date(2024, 1, 3)


def days(rule, n=10):
    """The first dates of a rule as `month-day`."""
    return [f"{day:%m-%d}" for day in islice(rule, n)]


def test_every_few_days_until_a_day_or_a_number_of_times():
    assert days(Rule("daily", date(2024, 2, 27), interval=2, count=3)) == ["02-27", "02-29", "03-02"]
    assert days(Rule("daily", date(2024, 1, 1), until=date(2024, 1, 3))) == ["01-01", "01-02", "01-03"]
    assert days(Rule("daily", date(2024, 1, 2), until=date(2024, 1, 1))) == []


def test_every_week_on_the_weekday_of_the_start():
    assert days(Rule("weekly", WEDNESDAY, count=3)) == ["01-03", "01-10", "01-17"]
    assert days(Rule("weekly", WEDNESDAY, interval=2, count=3)) == ["01-03", "01-17", "01-31"]


def test_every_week_on_several_weekdays():
    rule = Rule("weekly", WEDNESDAY, weekdays=(4, 0, 2), count=6)
    assert days(rule) == ["01-03", "01-05", "01-08", "01-10", "01-12", "01-15"]


def test_every_second_week_leaves_a_whole_week_out():
    rule = Rule("weekly", WEDNESDAY, interval=2, weekdays=(0, 2), count=5)
    assert days(rule) == ["01-03", "01-15", "01-17", "01-29", "01-31"]


def test_weeks_of_a_rule_end_on_sunday():
    sunday = date(2024, 1, 7)
    assert days(Rule("weekly", sunday, interval=2, weekdays=(0, 6), count=4)) == ["01-07", "01-15", "01-21", "01-29"]
    assert days(Rule("weekly", WEDNESDAY, interval=2, weekdays=(6,), count=2)) == ["01-07", "01-21"]


def test_weeks_left_out_are_counted_over_new_year():
    rule = Rule("weekly", date(2020, 12, 24), interval=2, weekdays=(0, 3), count=4)
    assert days(rule) == ["12-24", "01-04", "01-07", "01-18"]


@pytest.mark.parametrize("start", [date(2024, 1, day) for day in range(1, 8)], ids=range(7))
def test_all_weeks_of_a_rule_are_whole_intervals_apart(start):
    rule = Rule("weekly", start, interval=3, weekdays=range(7))
    found = list(islice(rule, 30))
    assert {(Week.of(day) - Week.of(start)) % 3 for day in found} == {0}
    assert found == sorted(set(found))
    assert rule.next_after(date(2024, 1, 7)) == date(2024, 1, 22)


def test_every_month_on_a_day():
    assert days(Rule("monthly", date(2024, 1, 20), day=15, count=2)) == ["02-15", "03-15"]
    assert days(Rule("monthly", date(2024, 1, 20), interval=2, count=3)) == ["01-20", "03-20", "05-20"]


def test_months_without_the_day_are_skipped_or_clipped():
    assert days(Rule("monthly", date(2024, 1, 31), count=4)) == ["01-31", "03-31", "05-31", "07-31"]
    assert days(Rule("monthly", date(2024, 1, 31), clip=True, count=4)) == ["01-31", "02-29", "03-31", "04-30"]


def test_days_of_a_month_are_counted_from_its_end_too():
    assert days(Rule("monthly", date(2024, 1, 1), day=-1, count=3)) == ["01-31", "02-29", "03-31"]
    assert days(Rule("monthly", date(2024, 1, 1), day=-28, count=2)) == ["01-04", "02-02"]


def test_every_month_on_a_weekday():
    assert days(Rule("monthly", date(2024, 1, 10), nth=(1, 0), count=2)) == ["02-05", "03-04"]
    assert days(Rule("monthly", date(2024, 1, 1), nth=(-1, 4), count=2)) == ["01-26", "02-23"]
    assert days(Rule("monthly", date(2024, 1, 1), nth=(5, 0), count=3)) == ["01-29", "04-29", "07-29"]


def test_a_window_and_a_successor():
    rule = Rule("monthly", date(2024, 1, 15), count=4)
    assert rule.between(date(2024, 2, 15), date(2024, 3, 15)) == [date(2024, 2, 15), date(2024, 3, 15)]
    assert rule.next_after(date(2024, 2, 15)) == date(2024, 3, 15)
    assert rule.next_after(date(2024, 4, 15)) is None


def test_a_rule_that_never_comes_true_ends():
    assert list(Rule("monthly", date(2024, 2, 1), interval=12, day=30)) == []


@pytest.mark.parametrize(
    "parts",
    [
        {"freq": "yearly"},
        {"freq": "daily", "interval": 0},
        {"freq": "daily", "count": 0},
        {"freq": "daily", "count": 1, "until": date(2024, 2, 1)},
        {"freq": "daily", "weekdays": (1,)},
        {"freq": "weekly", "day": 3},
        {"freq": "monthly", "day": 0},
        {"freq": "monthly", "day": 1, "nth": (1, 1)},
    ],
)
def test_parts_that_do_not_fit_are_refused(parts):
    with pytest.raises(ValueError):
        Rule(start=date(2024, 1, 1), **parts)
