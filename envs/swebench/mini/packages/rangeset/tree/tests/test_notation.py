import pytest

from rangeset import RangeSet


def test_number_behind_the_dash_belongs_to_the_range():
    ranges = RangeSet.parse("0-3,8")
    assert list(ranges.points()) == [0, 1, 2, 3, 8]
    assert ranges == RangeSet([(0, 4), (8, 9)])


def test_written_ranges():
    assert str(RangeSet([(0, 4), (8, 9), (10, 12)])) == "0-3,8,10-11"
    assert str(RangeSet()) == ""


def test_negative_numbers():
    assert RangeSet.parse("-5--3,-1-2") == RangeSet([(-5, -2), (-1, 3)])
    assert str(RangeSet([(-5, -2), (-1, 3)])) == "-5--3,-1-2"


def test_blanks_and_order_do_not_matter():
    assert RangeSet.parse(" 8 , 0 - 3,2-5 ") == RangeSet([(0, 6), (8, 9)])
    assert RangeSet.parse("  ") == RangeSet()


def test_notation_is_read_back():
    ranges = RangeSet([(-7, -6), (0, 1), (5, 100)])
    assert RangeSet.parse(str(ranges)) == ranges


def test_other_text_is_refused():
    for text in ["a", "1-", "1,,2", "1,", "5-3", "1-2-3", "1.5", "0x10"]:
        with pytest.raises(ValueError, match="range"):
            RangeSet.parse(text)
