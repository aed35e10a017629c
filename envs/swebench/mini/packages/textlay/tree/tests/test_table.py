import pytest

from textlay import Table, display_width


def test_columns_are_as_wide_as_their_widest_cell():
    table = Table(["a", "long"])
    table.add(["wide", 1])
    assert table.render() == "a     long\n----  ----\nwide  1"


def test_alignments():
    table = Table(["left", "right", "center"], align=["left", "right", "center"])
    table.add(["漢", "漢", "漢"])
    assert table.render().split("\n")[2] == "漢       漢    漢"


def test_decimal_points_meet():
    table = Table(["n", "x"], align=["decimal"])
    for number in ("1.5", "10", "n/a", "2.125", None):
        table.add([number, "|"])
    assert table.render().split("\n")[2:] == [
        "  1.5    |",
        " 10      |",
        "n/a      |",
        "  2.125  |",
        "         |",
    ]


def test_cells_are_wrapped_at_the_limit():
    table = Table(["k", "text"], limits=[None, 9])
    table.add(["a", "some words\nmore"])
    assert table.render().split("\n")[2:] == ["a  some", "   words", "   more"]


def test_rows_have_at_most_a_cell_per_column():
    table = Table(["a", "b", "c"])
    table.add(["x"])
    with pytest.raises(ValueError):
        table.add([1, 2, 3, 4])
    assert table.render().split("\n")[2:] == ["x"]


def test_wrong_alignments_are_refused():
    with pytest.raises(ValueError):
        Table(["a"], align=["left", "left"])
    with pytest.raises(ValueError):
        Table(["a"], align=["middle"])


def test_rows_may_be_any_iterable():
    table = Table(["a", "b"])
    table.add(str(n) for n in range(2))
    table.add((2, 3))
    assert table.render().split("\n")[2:] == ["0  1", "2  3"]


def test_a_list_may_be_used_for_many_rows():
    table, row = Table(["a", "b"]), []
    for text in ("one", "two"):
        row.append(text)
        table.add(row)
        row.clear()
    assert table.render().split("\n")[2:] == ["one", "two"]


def test_rows_of_the_caller_keep_their_length():
    table, row = Table(["a", "b", "c"]), ["x"]
    table.add(row)
    assert row == ["x"]
    row[0] = "y"
    assert table.render().split("\n")[2] == "x"


def test_tables_may_share_their_options():
    align, limits = ["right"], [4]
    wide = Table(["a", "b", "c"], align=align, limits=limits)
    narrow = Table(["key", "value"], align=align, limits=limits)
    assert (align, limits) == (["right"], [4])
    align[0] = "left"
    wide.add([1, 2, 3])
    narrow.add([1, "long text"])
    assert narrow.render() == "key  value\n---  ---------\n  1  long text"
    assert wide.align == ["right", "left", "left"]


@pytest.mark.parametrize("limit", [5, 6, 7])
def test_soft_hyphens_keep_to_the_limit_of_the_column(limit):
    table = Table(["text", "n"], limits=[limit])
    table.add(["con\u00adfigu\u00adration\u00adal", 1])
    assert {display_width(line) for line in table.render().split("\n")[:3]} == {limit + 3}


def test_soft_hyphens_do_not_widen_a_column():
    table = Table(["text", "n"], limits=[7])
    table.add(["un\u00adbreak\u00adable", 1])
    assert table.render().split("\n") == ["text    n", "------  -", "un-     1", "break-", "able"]
