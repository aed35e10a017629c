from datetime import date, timedelta

import pytest

from taskcli.query import has_tag, select, sort_tasks
from taskcli.task import Task, TaskError

TODAY = date(2024, 3, 1)


def task(number, text="something", days=None, **fields):
    """A task, due some days from today."""
    due = None if days is None else TODAY + timedelta(days=days)
    return Task(number, text, TODAY, due=due, **fields)


def ids(tasks):
    return [each.id for each in tasks]


@pytest.mark.parametrize(
    "due, expected",
    [("overdue", [1]), ("today", [2]), ("week", [2, 3]), ("none", [5]), (None, [1, 2, 3, 4, 5])],
)
def test_tasks_are_chosen_by_due_day(due, expected):
    tasks = [task(1, days=-1), task(2, days=0), task(3, days=6), task(4, days=7), task(5)]
    assert ids(select(tasks, TODAY, due=due)) == expected


def test_all_tags_asked_for_are_needed():
    tasks = [task(1, tags=["home"]), task(2, tags=["home", "late"]), task(3)]
    assert ids(select(tasks, TODAY, tags=["home", "late"])) == [2]


def test_searching_finds_parts_of_words():
    tasks = [task(1, "Buy milk"), task(2, "Buttermilk"), task(3, "Bread")]
    assert ids(select(tasks, TODAY, search="MILK")) == [1, 2]


def test_searching_ignores_case_in_every_script():
    tasks = [task(1, "Straße kehren"), task(2, "STRASSE SPERREN"), task(3, "Strand")]
    assert ids(select(tasks, TODAY, search="strasse")) == [1, 2]
    assert ids(select(tasks, TODAY, search="Straße")) == [1, 2]


def test_searching_ignores_how_accents_are_encoded():
    tasks = [task(1, "Caf\u00e9 reservieren"), task(2, "CAFE\u0301 bezahlen"), task(3, "Tee")]
    assert ids(select(tasks, TODAY, search="caf\u00e9")) == [1, 2]
    assert ids(select(tasks, TODAY, search="Cafe\u0301")) == [1, 2]


def test_tags_ignore_case_and_encoding():
    assert has_tag(task(1, tags=["Fu\u00dfball"]), "FUSSBALL")
    assert has_tag(task(1, tags=["\u03bf\u03b4\u03cc\u03c2"]), "\u039f\u0394\u039f\u0301\u03a3")
    assert has_tag(task(1, tags=["gar\u00e7on"]), "GARC\u0327ON")


def test_tasks_are_sorted_by_due_day_and_undated_ones_come_last():
    tasks = [task(1), task(2, days=5), task(3, days=1), task(4)]
    assert ids(sort_tasks(tasks, "due")) == [3, 2, 1, 4]


def test_undated_tasks_come_last_in_descending_order_too():
    tasks = [task(1), task(2, days=5), task(3, days=9), task(4), task(5, days=1)]
    assert ids(sort_tasks(tasks, "-due")) == [3, 2, 5, 1, 4]


def test_the_second_key_decides_between_equals():
    tasks = [task(1, days=3), task(2, days=1), task(3, days=2, priority="high")]
    assert ids(sort_tasks(tasks, "priority,due")) == [3, 2, 1]


def test_each_key_has_a_direction_of_its_own():
    tasks = [task(1, days=3), task(2, days=1), task(3, priority="low", days=2), task(4, days=2), task(5)]
    assert ids(sort_tasks(tasks, "-priority,due")) == [3, 2, 4, 1, 5]
    assert ids(sort_tasks(tasks, "priority,-due")) == [1, 4, 2, 5, 3]
    assert ids(sort_tasks(tasks, "-priority,-due")) == [3, 1, 4, 2, 5]


@pytest.mark.parametrize("order", ["due", "priority", "text", "priority,due"])
def test_equal_tasks_go_by_id(order):
    tasks = [task(3, days=1), task(1, days=1), task(2, days=1)]
    assert ids(sort_tasks(tasks, order)) == [1, 2, 3]


@pytest.mark.parametrize("order", ["-due", "-priority", "-text", "-priority,-due", "-priority,due"])
def test_equal_tasks_go_by_id_in_descending_order_too(order):
    tasks = [task(3, days=1), task(1, days=1), task(2, days=1), task(4, days=1)]
    assert ids(sort_tasks(tasks, order)) == [1, 2, 3, 4]


@pytest.mark.parametrize("order", ["", "size", "due,", "+due", "--due"], ids=range(5))
def test_an_unknown_key_is_an_error(order):
    with pytest.raises(TaskError, match="cannot sort by"):
        sort_tasks([task(1)], order)
