from datetime import date, timedelta

import pytest

from almanac import BusinessCalendar, Holiday, Rule, Schedule

OFFICE = BusinessCalendar()
CLOSED_IN_AUGUST = BusinessCalendar([Holiday(f"summer {day}", 8, day) for day in range(1, 21)])
MIDMONTH = Rule("monthly", date(2024, 1, 1), day=15, count=9)
"""On a Saturday in June (2024-06-15) and on a Sunday in September (2024-09-15)."""


def test_dates_are_moved_to_business_days():
    moved = list(Schedule(MIDMONTH, OFFICE))[4:]
    assert moved == [date(2024, 5, 15), date(2024, 6, 17), date(2024, 7, 15), date(2024, 8, 15), date(2024, 9, 16)]
    assert list(Schedule(MIDMONTH, OFFICE, "preceding"))[5] == date(2024, 6, 14)


def test_no_date_is_given_twice():
    daily = Rule("daily", date(2024, 1, 5), count=5)
    assert list(Schedule(daily, OFFICE)) == [date(2024, 1, 5), date(2024, 1, 8), date(2024, 1, 9)]


def test_a_rule_ends_before_its_dates_are_moved():
    rule = Rule("monthly", date(2024, 1, 1), day=15, until=date(2024, 6, 15))
    assert list(Schedule(rule, OFFICE))[-1] == date(2024, 6, 17)


def test_month_ends_stay_in_their_month():
    ends = Rule("monthly", date(2024, 3, 1), day=-1, count=3)
    assert list(Schedule(ends, OFFICE, "modified")) == [date(2024, 3, 29), date(2024, 4, 30), date(2024, 5, 31)]


def test_a_window_includes_both_ends():
    assert Schedule(MIDMONTH, OFFICE).between(date(2024, 1, 15), date(2024, 2, 15)) == [
        date(2024, 1, 15),
        date(2024, 2, 15),
    ]


def test_a_successor_of_a_business_day():
    assert Schedule(MIDMONTH, OFFICE).next_after(date(2024, 1, 15)) == date(2024, 2, 15)
    assert Schedule(MIDMONTH, OFFICE).next_after(date(2024, 9, 16)) is None


def test_a_window_has_what_is_moved_into_it():
    following, preceding = Schedule(MIDMONTH, OFFICE), Schedule(MIDMONTH, OFFICE, "preceding")
    assert following.between(date(2024, 6, 16), date(2024, 6, 30)) == [date(2024, 6, 17)]
    assert preceding.between(date(2024, 6, 1), date(2024, 6, 14)) == [date(2024, 6, 14)]


def test_a_window_lacks_what_is_moved_out_of_it():
    following, preceding = Schedule(MIDMONTH, OFFICE), Schedule(MIDMONTH, OFFICE, "preceding")
    assert following.between(date(2024, 6, 1), date(2024, 6, 16)) == []
    assert preceding.between(date(2024, 6, 15), date(2024, 6, 30)) == []


def test_dates_may_be_moved_far():
    schedule = Schedule(Rule("monthly", date(2024, 7, 1), count=3), CLOSED_IN_AUGUST)
    assert schedule.between(date(2024, 8, 20), date(2024, 8, 31)) == [date(2024, 8, 21)]
    assert schedule.next_after(date(2024, 8, 19)) == date(2024, 8, 21)
    assert schedule.next_after(date(2024, 8, 21)) == date(2024, 9, 2)


def test_a_successor_is_later_than_the_day():
    schedule = Schedule(MIDMONTH, OFFICE, "preceding")
    assert schedule.next_after(date(2024, 6, 13)) == date(2024, 6, 14)
    assert schedule.next_after(date(2024, 6, 14)) == date(2024, 7, 15)
    assert schedule.next_after(date(2024, 9, 13)) is None


@pytest.mark.parametrize("convention", ["following", "preceding", "modified"])
@pytest.mark.parametrize("calendar", [OFFICE, CLOSED_IN_AUGUST], ids=["office", "closed"])
def test_windows_and_successors_agree_with_the_dates(calendar, convention):
    schedule = Schedule(Rule("weekly", date(2024, 7, 1), weekdays=(0, 5, 6), count=40), calendar, convention)
    every = list(schedule)
    for number in range(0, 100, 3):
        first = date(2024, 6, 25) + timedelta(days=number)
        last = first + timedelta(days=number % 17)
        assert schedule.between(first, last) == [day for day in every if first <= day <= last]
        assert schedule.next_after(first) == next((day for day in every if day > first), None)
