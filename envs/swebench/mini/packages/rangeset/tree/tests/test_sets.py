import pytest

from rangeset import Interval, RangeSet


def pairs(ranges):
    return [tuple(interval) for interval in ranges]


def test_empty_set():
    empty = RangeSet()
    assert not empty
    assert pairs(empty) == []
    assert empty.size == 0
    assert empty.span() is None
    assert 0 not in empty


def test_end_does_not_belong_to_an_interval():
    ranges = RangeSet([(3, 5), (-2, 0)])
    assert [point for point in range(-4, 8) if point in ranges] == [-2, -1, 3, 4]
    assert list(ranges.points()) == [-2, -1, 3, 4]


def test_intervals_are_in_rising_order():
    ranges = RangeSet([(20, 30), (0, 5), (10, 12)])
    assert list(ranges) == [Interval(0, 5), Interval(10, 12), Interval(20, 30)]
    assert len(ranges) == 3
    assert ranges.size == 17
    assert ranges.span() == (0, 30)


def test_overlapping_intervals_become_one():
    assert pairs(RangeSet([(0, 5), (3, 8)])) == [(0, 8)]
    assert pairs(RangeSet([(3, 8), (0, 5)])) == [(0, 8)]
    assert pairs(RangeSet([(0, 9), (3, 5)])) == [(0, 9)]
    assert pairs(RangeSet([(3, 5), (7, 8), (0, 9)])) == [(0, 9)]


def test_interval_that_starts_where_another_ends_is_one_with_it():
    ranges = RangeSet([(0, 3), (10, 12)])
    ranges.add(3, 5)
    assert pairs(ranges) == [(0, 5), (10, 12)]


def test_interval_that_ends_where_another_starts_is_one_with_it():
    ranges = RangeSet([(5, 8), (10, 12)])
    ranges.add(3, 5)
    assert pairs(ranges) == [(3, 8), (10, 12)]
    assert len(ranges) == 2


def test_interval_that_closes_a_gap_makes_one_of_three():
    ranges = RangeSet([(0, 3), (5, 8), (9, 10)])
    ranges.add(3, 5)
    assert pairs(ranges) == [(0, 8), (9, 10)]
    assert ranges == RangeSet([(0, 8), (9, 10)])
    assert ranges.gaps() == [(8, 9)]


def test_intervals_in_any_order_make_the_same_set():
    parts = [(4, 5), (2, 3), (3, 4), (0, 1), (1, 2)]
    assert RangeSet(parts) == RangeSet(sorted(parts)) == RangeSet([(0, 5)])
    assert RangeSet(parts).covers(0, 5)


def test_discard_may_split_and_shorten():
    ranges = RangeSet([(0, 10), (20, 30)])
    ranges.discard(4, 6)
    ranges.discard(8, 22)
    ranges.discard(-5, 1)
    assert pairs(ranges) == [(1, 4), (6, 8), (22, 30)]


def test_discard_of_what_is_not_in_changes_nothing():
    ranges = RangeSet([(0, 3), (7, 9)])
    ranges.discard(3, 7)
    ranges.discard(12, 20)
    assert pairs(ranges) == [(0, 3), (7, 9)]


def test_discard_of_whole_intervals_leaves_no_rest():
    ranges = RangeSet([(0, 3), (5, 8), (9, 10)])
    ranges.discard(5, 8)
    assert pairs(ranges) == [(0, 3), (9, 10)]
    ranges.discard(0, 10)
    assert not ranges
    assert ranges == RangeSet()


def test_empty_interval_changes_nothing():
    ranges = RangeSet([(0, 3), (5, 5)])
    ranges.add(4, 4)
    ranges.discard(1, 1)
    assert pairs(ranges) == [(0, 3)]


@pytest.mark.parametrize("method", ["add", "discard", "covers", "gaps"])
def test_wrong_intervals_are_refused(method):
    ranges = RangeSet([(0, 10)])
    with pytest.raises(ValueError, match="ends before its start"):
        getattr(ranges, method)(5, 3)
    with pytest.raises(TypeError):
        getattr(ranges, method)(1.0, 3)
    assert pairs(ranges) == [(0, 10)]


def test_covers_needs_every_integer():
    ranges = RangeSet([(0, 5), (6, 9)])
    assert ranges.covers(0, 5)
    assert ranges.covers(7, 8)
    assert ranges.covers(5, 5)
    assert not ranges.covers(4, 6)
    assert not ranges.covers(0, 9)
    assert not ranges.covers(5, 6)
    assert not ranges.covers(9, 10)


def test_gaps_lie_between_the_intervals():
    ranges = RangeSet([(2, 4), (6, 7), (10, 12)])
    assert ranges.gaps() == [(4, 6), (7, 10)]
    assert ranges.gaps(0, 20) == [(0, 2), (4, 6), (7, 10), (12, 20)]
    assert ranges.gaps(3, 8) == [(4, 6), (7, 8)]
    assert ranges.gaps(start=11) == []
    assert ranges.gaps(start=15) == []
    assert ranges.gaps(end=5) == [(4, 5)]
    assert ranges.gaps(end=0) == []
    assert RangeSet().gaps() == []
    assert RangeSet().gaps(1, 3) == [(1, 3)]


def test_first_gap_is_wide_enough():
    ranges = RangeSet([(0, 4), (5, 8), (11, 12)])
    assert ranges.first_gap(1) == (4, 5)
    assert ranges.first_gap(2) == (8, 10)
    assert ranges.first_gap(3) == (8, 11)
    assert ranges.first_gap(4) == (12, 16)
    assert ranges.first_gap(2, start=9) == (9, 11)
    assert ranges.first_gap(1, start=-3) == (-3, -2)


def test_set_may_be_changed_while_it_is_iterated():
    ranges = RangeSet([(0, 2), (4, 6), (8, 10)])
    for start, end in ranges:
        ranges.discard(start, end - 1)
        ranges.add(start + 20, end + 20)
    assert pairs(ranges) == [(1, 2), (5, 6), (9, 10), (20, 22), (24, 26), (28, 30)]


def test_repr_can_be_evaluated():
    ranges = RangeSet([(0, 2), (4, 6)])
    assert repr(ranges) == "RangeSet([(0, 2), (4, 6)])"
    assert eval(repr(ranges)) == ranges
