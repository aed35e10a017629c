from datetime import date

import pytest

from taskcli.task import Task, TaskError
from taskcli.tasklist import UNDO_DEPTH, TaskList

TODAY = date(2024, 3, 1)


def list_of(*texts):
    tasks = TaskList()
    for text in texts:
        with tasks.change(f"add {text}"):
            tasks.add(Task(0, text, TODAY))
    return tasks


def texts(tasks):
    return [task.text for task in tasks]


def retag(tasks, task_id, tag):
    with tasks.change(f"tag {task_id} {tag}"):
        tasks[task_id].tags.append(tag)


def test_ids_are_never_used_again():
    tasks = list_of("one", "two")
    with tasks.change("remove 2"):
        tasks.remove(2)
    assert tasks.add(Task(0, "three", TODAY)).id == 3


def test_a_task_is_completed_once():
    tasks = list_of("one")
    assert tasks.complete(1, TODAY) is None
    assert tasks[1].done == TODAY
    with pytest.raises(TaskError, match="done already"):
        tasks.complete(1, TODAY)


def test_a_repeating_task_has_a_successor():
    tasks = TaskList()
    due = date(2024, 2, 5)
    tasks.add(Task(0, "water", date(2024, 1, 1), due=due, tags=["home"], repeat="1w", since=due))
    successor = tasks.complete(1, TODAY)
    assert successor == Task(2, "water", TODAY, due=date(2024, 3, 4), tags=["home"], repeat="1w", since=due)


def test_completing_early_does_not_repeat_the_same_day():
    tasks = TaskList()
    due = date(2024, 3, 10)
    tasks.add(Task(0, "water", TODAY, due=due, repeat="1w", since=due))
    assert tasks.complete(1, TODAY).due == date(2024, 3, 17)


def test_a_monthly_task_stays_at_the_end_of_the_month():
    tasks = TaskList()
    due = date(2024, 1, 31)
    tasks.add(Task(0, "rent", due, due=due, repeat="1m", since=due))
    february = tasks.complete(1, due)
    march = tasks.complete(february.id, february.due)
    assert (february.due, march.due) == (date(2024, 2, 29), date(2024, 3, 31))


def test_a_successor_has_tags_of_its_own():
    tasks = TaskList()
    tasks.add(Task(0, "water", TODAY, due=TODAY, tags=["home"], repeat="1w", since=TODAY))
    successor = tasks.complete(1, TODAY)
    successor.tags.append("balcony")
    assert tasks[1].tags == ["home"]
    assert tasks[2].tags == ["home", "balcony"]


def test_undo_takes_steps_back_in_turn():
    tasks = list_of("one", "two")
    with tasks.change("edit 1"):
        tasks[1].text = "uno"
    with tasks.change("remove 2"):
        tasks.remove(2)
    assert tasks.undo() == "remove 2"
    assert texts(tasks) == ["uno", "two"]
    assert tasks.undo() == "edit 1"
    assert texts(tasks) == ["one", "two"]


def test_undo_of_a_completed_task_takes_its_successor_away():
    tasks = TaskList()
    tasks.add(Task(0, "water", TODAY, due=TODAY, repeat="1w", since=TODAY))
    with tasks.change("done 1"):
        tasks.complete(1, TODAY)
    tasks.undo()
    assert [(task.id, task.done) for task in tasks] == [(1, None)]


def test_undo_takes_tags_back():
    tasks = list_of("one")
    retag(tasks, 1, "home")
    with tasks.change("tag and rename"):
        tasks[1].tags.remove("home")
        tasks[1].tags += ["work", "late"]
        tasks[1].text = "uno"
    assert tasks.undo() == "tag and rename"
    assert (tasks[1].text, tasks[1].tags) == ("one", ["home"])
    assert tasks.undo() == "tag 1 home"
    assert tasks[1].tags == []


def test_redo_gives_the_tags_of_its_own_step():
    tasks = list_of("one")
    retag(tasks, 1, "home")
    tasks.undo()
    tasks.redo()
    retag(tasks, 1, "late")
    tasks.undo()
    tasks.undo()
    tasks.redo()
    assert tasks[1].tags == ["home"]
    tasks.redo()
    assert tasks[1].tags == ["home", "late"]


def test_redo_does_again_what_was_taken_back():
    tasks = list_of("one", "two")
    tasks.undo()
    tasks.undo()
    assert texts(tasks) == []
    assert tasks.redo() == "add one"
    assert tasks.redo() == "add two"
    assert texts(tasks) == ["one", "two"]


def test_a_new_step_ends_what_can_be_redone():
    tasks = list_of("one", "two")
    tasks.undo()
    with tasks.change("edit 1"):
        tasks[1].text = "uno"
    with pytest.raises(TaskError, match="nothing to redo"):
        tasks.redo()


def test_a_step_without_changes_is_not_remembered():
    tasks = list_of("one")
    with tasks.change("edit 1"):
        tasks[1].text = "one"
    assert tasks.undo() == "add one"
    with pytest.raises(TaskError, match="nothing to undo"):
        tasks.undo()


def test_the_journal_has_a_limited_depth():
    tasks = list_of(*map(str, range(UNDO_DEPTH + 5)))
    for _ in range(UNDO_DEPTH):
        tasks.undo()
    assert texts(tasks) == ["0", "1", "2", "3", "4"]
    with pytest.raises(TaskError):
        tasks.undo()


def test_a_failed_step_changes_nothing():
    tasks = list_of("one", "two")
    with pytest.raises(TaskError), tasks.change("remove 1 5"):
        tasks.remove(1)
        tasks.remove(5)
    assert texts(tasks) == ["one", "two"]
    assert tasks.undo() == "add two"


def test_a_failed_step_leaves_the_tags():
    tasks = list_of("one")
    retag(tasks, 1, "home")
    with pytest.raises(ZeroDivisionError), tasks.change("tag"):
        tasks[1].tags.append("late")
        1 / 0  # noqa: B018
    assert tasks[1].tags == ["home"]
