from datetime import date

import pytest

from almanac import BusinessCalendar, Holiday

THURSDAY = 3
NEW_YEAR = Holiday("New Year", 1, 1)
EVE = Holiday("Eve", 12, 31)
CHRISTMAS = [Holiday("Christmas Day", 12, 25), Holiday("Boxing Day", 12, 26)]


def test_weekends_and_holidays_are_no_business_days():
    calendar = BusinessCalendar([NEW_YEAR])
    assert not calendar.is_business_day(date(2024, 1, 1))
    assert calendar.is_business_day(date(2024, 1, 2))
    assert not calendar.is_business_day(date(2024, 1, 6))
    calendar = BusinessCalendar(weekend=(4, 5))
    assert not calendar.is_business_day(date(2024, 1, 5))
    assert calendar.is_business_day(date(2024, 1, 7))


def test_a_holiday_may_be_a_weekday_of_a_month():
    thanksgiving = Holiday("Thanksgiving", 11, nth=(4, THURSDAY))
    assert thanksgiving.on(2024) == date(2024, 11, 28)
    assert Holiday("Spring", 5, nth=(-1, 0)).on(2024) == date(2024, 5, 27)
    assert Holiday("Fifth", 2, nth=(5, 4)).on(2024) is None


def test_a_holiday_may_be_missing_in_a_year():
    leap = Holiday("Leap Day", 2, 29)
    assert leap.on(2023) is None
    assert BusinessCalendar([leap]).holidays(2024) == {date(2024, 2, 29): "Leap Day"}
    assert BusinessCalendar([leap]).holidays(2023) == {}


def test_holidays_are_in_order_and_have_no_substitutes_unless_asked_for():
    calendar = BusinessCalendar([*CHRISTMAS, NEW_YEAR])
    assert list(calendar.holidays(2021)) == [date(2021, 1, 1), date(2021, 12, 25), date(2021, 12, 26)]


def test_the_nearest_weekday_is_off():
    calendar = BusinessCalendar([Holiday("Independence Day", 7, 4)], observed="nearest")
    assert calendar.holidays(2020) == {
        date(2020, 7, 3): "Independence Day (observed)",
        date(2020, 7, 4): "Independence Day",
    }
    assert date(2021, 7, 5) in calendar.holidays(2021)


def test_the_next_free_weekday_is_off():
    days = BusinessCalendar(CHRISTMAS, observed="next").holidays(2021)
    assert days == {
        date(2021, 12, 25): "Christmas Day",
        date(2021, 12, 26): "Boxing Day",
        date(2021, 12, 27): "Christmas Day (observed)",
        date(2021, 12, 28): "Boxing Day (observed)",
    }


def test_a_substitute_does_not_fall_on_another_holiday():
    days = BusinessCalendar(CHRISTMAS, observed="next").holidays(2022)
    assert days[date(2022, 12, 26)] == "Boxing Day"
    assert days[date(2022, 12, 27)] == "Christmas Day (observed)"


def test_a_substitute_may_fall_in_the_old_year():
    calendar = BusinessCalendar([NEW_YEAR], observed="nearest")
    assert not calendar.is_business_day(date(2021, 12, 31))
    assert calendar.holidays(2021) == {
        date(2021, 1, 1): "New Year",
        date(2021, 12, 31): "New Year (observed)",
    }
    assert calendar.holidays(2022) == {date(2022, 1, 1): "New Year"}


def test_a_substitute_may_fall_in_the_new_year():
    calendar = BusinessCalendar([NEW_YEAR, EVE], observed="next")
    assert calendar.holidays(2022) == {
        date(2022, 1, 1): "New Year",
        date(2022, 1, 3): "New Year (observed)",
        date(2022, 12, 31): "Eve",
    }
    assert calendar.holidays(2023) == {
        date(2023, 1, 1): "New Year",
        date(2023, 1, 2): "Eve (observed)",
        date(2023, 1, 3): "New Year (observed)",
        date(2023, 12, 31): "Eve",
    }


@pytest.mark.parametrize("years", [(2021, 2022, 2023), (2023, 2022, 2021)], ids=["up", "down"])
def test_years_may_be_asked_for_in_any_order(years):
    calendar = BusinessCalendar([NEW_YEAR, EVE], observed="nearest")
    found = {year: list(calendar.holidays(year)) for year in years}
    assert found == {
        2021: [date(2021, 1, 1), date(2021, 12, 31)],
        2022: [date(2022, 1, 1), date(2022, 12, 30), date(2022, 12, 31)],
        2023: [date(2023, 1, 1), date(2023, 1, 2), date(2023, 12, 31)],
    }


def test_business_days_are_added_over_new_year():
    calendar = BusinessCalendar([NEW_YEAR], observed="nearest")
    assert calendar.add(date(2021, 12, 30), 1) == date(2022, 1, 3)
    assert calendar.add(date(2022, 1, 3), -1) == date(2021, 12, 30)
    assert calendar.count(date(2021, 12, 27), date(2022, 1, 4)) == 5


@pytest.mark.parametrize(
    "day, days, expected",
    [
        (date(2024, 1, 4), 1, date(2024, 1, 5)),
        (date(2024, 1, 5), 1, date(2024, 1, 8)),
        (date(2024, 1, 6), 1, date(2024, 1, 8)),
        (date(2024, 1, 8), -1, date(2024, 1, 5)),
        (date(2024, 1, 7), -2, date(2024, 1, 4)),
        (date(2024, 1, 6), 0, date(2024, 1, 8)),
        (date(2024, 1, 5), 0, date(2024, 1, 5)),
        (date(2024, 1, 2), 10, date(2024, 1, 16)),
    ],
)
def test_business_days_are_added(day, days, expected):
    assert BusinessCalendar().add(day, days) == expected


def test_business_days_are_counted_without_the_last():
    calendar = BusinessCalendar([NEW_YEAR])
    assert calendar.count(date(2024, 1, 1), date(2024, 1, 8)) == 4
    assert calendar.count(date(2024, 1, 8), date(2024, 1, 1)) == -4
    assert calendar.count(date(2024, 1, 2), date(2024, 1, 2)) == 0


def test_days_are_rolled_by_convention():
    calendar = BusinessCalendar()
    saturday = date(2024, 8, 31)
    assert calendar.roll(saturday) == date(2024, 9, 2)
    assert calendar.roll(saturday, "preceding") == date(2024, 8, 30)
    assert calendar.roll(saturday, "modified") == date(2024, 8, 30)
    assert calendar.roll(date(2024, 8, 24), "modified") == date(2024, 8, 26)
    assert calendar.roll(date(2024, 8, 30)) == date(2024, 8, 30)


def test_mistakes_are_refused():
    with pytest.raises(ValueError):
        BusinessCalendar(weekend=range(7))
    with pytest.raises(ValueError):
        BusinessCalendar(observed="sometimes")
    with pytest.raises(ValueError):
        BusinessCalendar().roll(date(2024, 1, 1), "backward")
