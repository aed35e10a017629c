import os
from datetime import date

import pytest

from taskcli.store import Store, StoreError
from taskcli.task import Task
from taskcli.tasklist import TaskList

TODAY = date(2024, 3, 1)


def one_task(text="Grüße schicken"):
    tasks = TaskList()
    with tasks.change("add"):
        tasks.add(Task(0, text, TODAY, tags=["post"]))
    return tasks


def test_a_missing_file_is_an_empty_list(tmp_path):
    assert list(Store(tmp_path / "tasks.json").load()) == []


def test_a_list_comes_back_with_its_journal(tmp_path):
    store = Store(tmp_path / "tasks.json")
    store.save(one_task())
    tasks = store.load()
    assert [task.text for task in tasks] == ["Grüße schicken"]
    assert tasks.undo() == "add"
    store.save(tasks)
    again = store.load()
    assert list(again) == []
    assert again.redo() == "add"
    assert [(task.id, task.tags) for task in again] == [(1, ["post"])]


def test_saving_leaves_no_draft_behind(tmp_path):
    store = Store(tmp_path / "tasks.json")
    store.save(one_task())
    store.save(one_task())
    assert os.listdir(tmp_path) == ["tasks.json"]


def test_a_text_that_cannot_be_written_leaves_the_old_list(tmp_path):
    store = Store(tmp_path / "tasks.json")
    store.save(one_task())
    with pytest.raises(StoreError, match="cannot write"):
        store.save(one_task("caf\udce9"))
    assert [task.text for task in store.load()] == ["Grüße schicken"]
    assert os.listdir(tmp_path) == ["tasks.json"]


def test_a_failing_replacement_leaves_the_old_list(tmp_path, monkeypatch):
    store = Store(tmp_path / "tasks.json")
    store.save(one_task("old"))

    def refuse(source, target):
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", refuse)
        with pytest.raises(StoreError, match="Permission denied"):
            store.save(one_task("new"))
    assert [task.text for task in store.load()] == ["old"]
    assert os.listdir(tmp_path) == ["tasks.json"]


def test_a_link_stays_a_link(tmp_path):
    (tmp_path / "synced").mkdir()
    target = tmp_path / "synced" / "list.json"
    link = tmp_path / "tasks.json"
    link.symlink_to(target)
    Store(link).save(one_task())
    assert link.is_symlink()
    assert [task.text for task in Store(target).load()] == ["Grüße schicken"]


def test_permissions_are_kept(tmp_path):
    path = tmp_path / "tasks.json"
    Store(path).save(one_task())
    assert path.stat().st_mode & 0o777 == 0o600
    path.chmod(0o640)
    Store(path).save(one_task())
    assert path.stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize("text", ["[]", "{}", "3", '{"tasks": [{"id": 1}]}'], ids=["array", "empty", "number", "part"])
def test_other_json_is_no_task_list(tmp_path, text):
    (tmp_path / "tasks.json").write_text(text)
    with pytest.raises(StoreError, match="cannot read a task list"):
        Store(tmp_path / "tasks.json").load()


@pytest.mark.parametrize(
    "content", [b"", b'{"next_id": 2, "tasks": [{"id', b'{"caf\xe9": 1}'], ids=["empty", "half", "latin1"]
)
def test_a_damaged_file_is_an_error(tmp_path, content):
    (tmp_path / "tasks.json").write_bytes(content)
    with pytest.raises(StoreError, match=r"cannot read a task list from .*tasks\.json"):
        Store(tmp_path / "tasks.json").load()


def test_a_day_that_is_none_is_an_error(tmp_path):
    store = Store(tmp_path / "tasks.json")
    store.save(one_task())
    text = (tmp_path / "tasks.json").read_text(encoding="utf-8")
    (tmp_path / "tasks.json").write_text(text.replace("2024-03-01", "2024-03-32"), encoding="utf-8")
    with pytest.raises(StoreError, match="cannot read a task list"):
        store.load()


def test_a_path_that_cannot_be_read_is_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    for path in (tmp_path, tmp_path / "file" / "tasks.json"):
        with pytest.raises(StoreError, match="cannot read a task list"):
            Store(path).load()
