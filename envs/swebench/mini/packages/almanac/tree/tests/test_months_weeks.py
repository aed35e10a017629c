from datetime import date

import pytest

from almanac import Week, add_months, days_in_month, is_leap, month_end, nth_weekday, weeks_in_year


@pytest.mark.parametrize("year, leap", [(1900, False), (2000, True), (2023, False), (2024, True)])
def test_leap_years(year, leap):
    assert is_leap(year) is leap
    assert days_in_month(year, 2) == (29 if leap else 28)


def test_month_ends():
    assert month_end(date(2024, 2, 10)) == date(2024, 2, 29)
    assert month_end(date(2024, 12, 31)) == date(2024, 12, 31)
    assert add_months(date(9999, 11, 30), 1) == date(9999, 12, 30)


@pytest.mark.parametrize(
    "day, months, expected",
    [
        (date(2024, 1, 31), 1, date(2024, 2, 29)),
        (date(2024, 3, 31), -1, date(2024, 2, 29)),
        (date(2024, 11, 30), 3, date(2025, 2, 28)),
        (date(2024, 1, 15), -1, date(2023, 12, 15)),
        (date(2024, 2, 29), 12, date(2025, 2, 28)),
    ],
)
def test_months_are_added(day, months, expected):
    assert add_months(day, months) == expected


def test_the_calendar_has_ends():
    for day, months in ((date(9999, 12, 1), 1), (date(1, 1, 1), -1)):
        with pytest.raises(OverflowError):
            add_months(day, months)


def test_weekdays_of_a_month_are_counted_from_both_ends():
    assert nth_weekday(2024, 11, 3, 4) == date(2024, 11, 28)
    assert nth_weekday(2024, 1, 0, 1) == date(2024, 1, 1)
    assert nth_weekday(2024, 5, 0, -1) == date(2024, 5, 27)
    assert nth_weekday(2024, 5, 4, -5) == date(2024, 5, 3)


def test_a_month_may_lack_a_fifth_weekday():
    assert nth_weekday(2024, 2, 3, 5) == date(2024, 2, 29)
    assert nth_weekday(2024, 2, 4, 5) is None
    assert nth_weekday(2024, 2, 4, -5) is None
    with pytest.raises(ValueError):
        nth_weekday(2024, 2, 4, 0)


@pytest.mark.parametrize("year, weeks", [(2015, 53), (2020, 53), (2021, 52), (2024, 52), (2026, 53)])
def test_some_years_have_53_weeks(year, weeks):
    assert weeks_in_year(year) == weeks


@pytest.mark.parametrize(
    "day, text",
    [(date(2024, 12, 30), "2025-W01"), (date(2021, 1, 3), "2020-W53"), (date(2024, 2, 29), "2024-W09")],
)
def test_a_day_lies_in_a_week(day, text):
    assert str(Week.of(day)) == text
    assert Week.parse(text).monday <= day


@pytest.mark.parametrize("text", ["2021-W53", "2024-W00", "2024-W5", "2024W05", "2024-W05-1"])
def test_other_texts_are_no_weeks(text):
    with pytest.raises(ValueError):
        Week.parse(text)


def test_weeks_are_counted_over_new_year():
    assert Week(2020, 53) + 1 == Week(2021, 1)
    assert Week(2021, 1) + -1 == Week(2020, 53)
    assert Week(2021, 2) - Week(2020, 52) == 3
    assert Week(2020, 53) < Week(2021, 1)
