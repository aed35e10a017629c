from datetime import date

import pytest

from taskcli.task import Task, TaskError, next_due, parse_day, shift

TODAY = date(2024, 3, 1)


@pytest.mark.parametrize(
    "text, day",
    [
        ("2024-12-24", date(2024, 12, 24)),
        ("today", TODAY),
        ("tomorrow", date(2024, 3, 2)),
        ("+3d", date(2024, 3, 4)),
        ("+2w", date(2024, 3, 15)),
        ("+1m", date(2024, 4, 1)),
    ],
)
def test_days_are_read(text, day):
    assert parse_day(text, TODAY) == day


@pytest.mark.parametrize(
    "text", ["", "soon", "2024-02-30", "2024-3-1", "20240301", "+3x", "+0d", "+999999999d"], ids=range(8)
)
def test_other_words_are_no_days(text):
    with pytest.raises(TaskError):
        parse_day(text, TODAY)


def test_a_month_ends_where_it_ends():
    assert shift(date(2024, 1, 31), "1m") == date(2024, 2, 29)
    assert shift(date(2023, 11, 30), "3m") == date(2024, 2, 29)
    assert shift(date(2024, 1, 31), "1m", 2) == date(2024, 3, 31)


def test_next_due_skips_what_was_missed():
    assert next_due(date(2024, 1, 1), "1w", after=date(2024, 1, 15)) == date(2024, 1, 22)


def test_next_due_counts_from_the_first_day_of_the_series():
    assert next_due(date(2024, 1, 31), "1m", after=date(2024, 2, 29)) == date(2024, 3, 31)


def test_a_task_comes_back_from_its_data():
    task = Task(7, "Überweisen", TODAY, due=date(2024, 3, 5), priority="high", tags=["bank"], repeat="1m", since=TODAY)
    assert Task.from_dict(task.to_dict()) == task
    assert task.to_dict()["due"] == "2024-03-05"
    assert task.to_dict()["done"] is None
