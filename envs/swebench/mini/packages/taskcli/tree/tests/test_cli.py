from datetime import date

import pytest

from taskcli.cli import main


def run(tmp_path, *argv, today=date(2024, 3, 1)):
    return main(["--file", str(tmp_path / "tasks.json"), *argv], clock=lambda: today)


def output(tmp_path, capsys, *argv, today=date(2024, 3, 1)):
    """What a command that succeeds prints."""
    capsys.readouterr()
    assert run(tmp_path, *argv, today=today) == 0
    return capsys.readouterr().out.splitlines()


def test_the_example_of_the_readme(tmp_path, capsys):
    first = ("add", "Water the plants", "--due", "2024-03-08", "--tag", "home", "--repeat", "1w")
    assert output(tmp_path, capsys, *first) == ["added 1 [ ] Water the plants (due 2024-03-08) (every 1w) #home"]
    assert output(tmp_path, capsys, "add", "File taxes", "--due", "2024-04-01", "--priority", "high") == [
        "added 2 [ ] File taxes (high) (due 2024-04-01)"
    ]
    assert output(tmp_path, capsys, "done", "1") == [
        "done 1 [x] Water the plants (due 2024-03-08) (every 1w) #home",
        "next 3 [ ] Water the plants (due 2024-03-15) (every 1w) #home",
    ]
    assert output(tmp_path, capsys, "list", "--sort=-due") == [
        "2 [ ] File taxes (high) (due 2024-04-01)",
        "3 [ ] Water the plants (due 2024-03-15) (every 1w) #home",
    ]
    assert output(tmp_path, capsys, "undo") == ["undid: done 1"]
    assert len(output(tmp_path, capsys, "list")) == 2


def test_an_empty_list_says_so(tmp_path, capsys):
    assert output(tmp_path, capsys, "list") == ["nothing to do"]
    assert not (tmp_path / "tasks.json").exists()


def test_done_tasks_are_shown_on_request(tmp_path, capsys):
    run(tmp_path, "add", "one")
    run(tmp_path, "done", "1")
    assert output(tmp_path, capsys, "list") == ["nothing to do"]
    assert output(tmp_path, capsys, "list", "--all") == ["1 [x] one"]


def test_the_list_is_filtered(tmp_path, capsys):
    run(tmp_path, "add", "one", "--due", "+1d", "--tag", "home")
    run(tmp_path, "add", "two", "--due", "+1d")
    run(tmp_path, "add", "three", "--tag", "home")
    assert output(tmp_path, capsys, "list", "--tag", "HOME", "--due", "week") == ["1 [ ] one (due 2024-03-02) #home"]
    assert output(tmp_path, capsys, "list", "--search", "TW") == ["2 [ ] two (due 2024-03-02)"]


def test_the_clock_decides_what_is_overdue(tmp_path, capsys):
    run(tmp_path, "add", "one", "--due", "tomorrow")
    assert output(tmp_path, capsys, "list", "--due", "overdue") == ["nothing to do"]
    later = date(2024, 3, 3)
    assert output(tmp_path, capsys, "list", "--due", "overdue", today=later) == ["1 [ ] one (due 2024-03-02)"]


def test_a_task_is_edited(tmp_path, capsys):
    run(tmp_path, "add", "one", "--due", "today", "--tag", "home")
    edit = ("edit", "1", "--text", "uno", "--due", "none", "--priority", "low", "--tag", "Home", "--tag", "late")
    assert output(tmp_path, capsys, *edit) == ["edited 1 [ ] uno (low) #home #late"]


def test_several_commands_are_undone_and_redone(tmp_path, capsys):
    run(tmp_path, "add", "one")
    run(tmp_path, "add", "two")
    run(tmp_path, "remove", "1", "2")
    assert output(tmp_path, capsys, "undo") == ["undid: remove 1 2"]
    assert output(tmp_path, capsys, "list") == ["1 [ ] one", "2 [ ] two"]
    assert output(tmp_path, capsys, "undo") == ["undid: add two"]
    assert output(tmp_path, capsys, "redo") == ["redid: add two"]
    assert output(tmp_path, capsys, "list") == ["1 [ ] one", "2 [ ] two"]


def test_a_new_tag_is_undone(tmp_path, capsys):
    run(tmp_path, "add", "one", "--tag", "home")
    run(tmp_path, "edit", "1", "--tag", "late")
    run(tmp_path, "edit", "1", "--tag", "never", "--priority", "low")
    assert output(tmp_path, capsys, "undo") == ["undid: edit 1"]
    assert output(tmp_path, capsys, "list") == ["1 [ ] one #home #late"]
    assert output(tmp_path, capsys, "undo") == ["undid: edit 1"]
    assert output(tmp_path, capsys, "list") == ["1 [ ] one #home"]
    assert output(tmp_path, capsys, "redo") == ["redid: edit 1"]
    assert output(tmp_path, capsys, "list") == ["1 [ ] one #home #late"]


def test_a_command_that_fails_changes_nothing(tmp_path, capsys):
    run(tmp_path, "add", "one")
    before = (tmp_path / "tasks.json").read_bytes()
    assert run(tmp_path, "done", "1", "9") == 1
    assert capsys.readouterr().err == "taskcli: there is no task 9\n"
    assert (tmp_path / "tasks.json").read_bytes() == before


@pytest.mark.parametrize(
    "argv",
    [
        ["undo"],
        ["add", "x", "--due", "soon"],
        ["add", "x", "--repeat", "1w"],
        ["add", "x", "--due", "today", "--repeat", "1y"],
    ],
    ids=["undo", "day", "no-due", "interval"],
)
def test_what_cannot_be_done_is_one_line_and_exit_code_1(tmp_path, capsys, argv):
    assert run(tmp_path, *argv) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("taskcli: ") and captured.err.count("\n") == 1
    assert not (tmp_path / "tasks.json").exists()


def test_wrong_usage_is_exit_code_2(tmp_path, capsys):
    with pytest.raises(SystemExit) as stop:
        run(tmp_path, "list", "--due", "someday")
    assert stop.value.code == 2


def test_moving_a_repeating_task_moves_its_series(tmp_path, capsys):
    run(tmp_path, "add", "rent", "--due", "2024-01-31", "--repeat", "1m")
    run(tmp_path, "edit", "1", "--due", "2024-02-05")
    assert output(tmp_path, capsys, "done", "1")[1] == "next 2 [ ] rent (due 2024-03-05) (every 1m)"


def test_a_damaged_file_is_never_written_over(tmp_path, capsys):
    damaged = b'{"next_id": 3, "tasks": [{"id": 1, "text": "Pay re'
    (tmp_path / "tasks.json").write_bytes(damaged)
    for argv in (["list"], ["add", "two"], ["undo"]):
        assert run(tmp_path, *argv) == 1
        captured = capsys.readouterr()
        assert captured.out == ""
        assert captured.err.startswith("taskcli: cannot read a task list from ")
        assert (tmp_path / "tasks.json").read_bytes() == damaged


def test_descending_order_on_the_command_line(tmp_path, capsys):
    run(tmp_path, "add", "whenever")
    run(tmp_path, "add", "soon", "--due", "+1d")
    run(tmp_path, "add", "later", "--due", "+9d")
    run(tmp_path, "add", "also soon", "--due", "+1d")
    assert output(tmp_path, capsys, "list", "--sort=-due") == [
        "3 [ ] later (due 2024-03-10)",
        "2 [ ] soon (due 2024-03-02)",
        "4 [ ] also soon (due 2024-03-02)",
        "1 [ ] whenever",
    ]
