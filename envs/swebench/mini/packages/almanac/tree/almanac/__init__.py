"""Business days, recurring dates, ISO weeks, months and durations."""

from almanac.business import BusinessCalendar, Holiday
from almanac.durations import format_duration, format_iso_duration, parse_duration
from almanac.months import add_months, days_in_month, is_leap, month_end, nth_weekday
from almanac.recurrence import Rule, Schedule
from almanac.weeks import Week, weeks_in_year

__all__ = [
    "BusinessCalendar",
    "Holiday",
    "Rule",
    "Schedule",
    "Week",
    "add_months",
    "days_in_month",
    "format_duration",
    "format_iso_duration",
    "is_leap",
    "month_end",
    "nth_weekday",
    "parse_duration",
    "weeks_in_year",
]
