import pytest

from rangeset import RangeMap, RangeSet


def pieces(ranges, *window):
    return [(*interval, value) for interval, value in ranges.items(*window)]


def letters():
    return RangeMap([((0, 4), "a"), ((4, 6), "b"), ((10, 12), "a")])


def test_empty_map():
    empty = RangeMap()
    assert len(empty) == 0
    assert pieces(empty) == []
    assert empty.span() is None
    assert 0 not in empty
    assert empty.get(0) is None


def test_value_of_a_point():
    ranges = letters()
    assert [ranges.get(point, "-") for point in range(-1, 13)] == list("-aaaabb----aa-")
    assert 3 in ranges
    assert 6 not in ranges


def test_set_replaces_what_was_there():
    ranges = letters()
    ranges.set(2, 5, "c")
    assert pieces(ranges) == [(0, 2, "a"), (2, 5, "c"), (5, 6, "b"), (10, 12, "a")]
    ranges.set(-1, 20, "d")
    assert pieces(ranges) == [(-1, 20, "d")]
    ranges.set(3, 5, "e")
    assert pieces(ranges) == [(-1, 3, "d"), (3, 5, "e"), (5, 20, "d")]


def test_equal_values_that_meet_are_one_piece():
    ranges = letters()
    ranges.set(6, 10, "a")
    assert pieces(ranges) == [(0, 4, "a"), (4, 6, "b"), (6, 12, "a")]
    ranges.set(4, 6, "a")
    assert pieces(ranges) == [(0, 12, "a")]
    assert ranges == RangeMap([((0, 12), "a")])


def test_discard_leaves_what_sticks_out():
    ranges = letters()
    ranges.discard(2, 11)
    assert pieces(ranges) == [(0, 2, "a"), (11, 12, "a")]
    ranges.discard(0, 20)
    assert ranges == RangeMap()


def test_fill_keeps_what_is_there():
    ranges = letters()
    ranges.fill(2, 14, "b")
    assert pieces(ranges) == [(0, 4, "a"), (4, 10, "b"), (10, 12, "a"), (12, 14, "b")]


@pytest.mark.parametrize("method", ["set", "fill", "apply"])
def test_wrong_intervals_of_a_map_are_refused(method):
    ranges = letters()
    with pytest.raises(ValueError, match="ends before its start"):
        getattr(ranges, method)(5, 3, str.upper)
    with pytest.raises(TypeError):
        getattr(ranges, method)(1.0, 3, str.upper)
    getattr(ranges, method)(2, 2, str.upper)
    assert ranges == letters()


def test_items_may_be_cut_off():
    ranges = letters()
    assert pieces(ranges, 2, 11) == [(2, 4, "a"), (4, 6, "b"), (10, 11, "a")]
    assert pieces(ranges, 5) == [(5, 6, "b"), (10, 12, "a")]
    assert pieces(ranges, None, 3) == [(0, 3, "a")]
    assert pieces(ranges, 6, 10) == []
    assert pieces(ranges, 3, 3) == []
    assert pieces(ranges, 20) == []


def test_sets_of_a_map():
    ranges = letters()
    assert ranges.covered() == RangeSet([(0, 6), (10, 12)])
    assert ranges.where("a") == RangeSet([(0, 4), (10, 12)])
    assert ranges.where("z") == RangeSet()
    assert ranges.span() == (0, 12)


def test_copy_of_a_map_shares_nothing():
    ranges = letters()
    copy = ranges.copy()
    copy.discard(0, 12)
    ranges.set(0, 4, "z")
    assert copy == RangeMap()
    assert ranges == RangeMap([((0, 4), "z"), ((4, 6), "b"), ((10, 12), "a")])


def test_merge_combines_where_both_have_a_value():
    left, right = letters(), RangeMap([((2, 8), "x"), ((11, 12), "y")])
    merged = left.merge(right, lambda mine, theirs: mine + theirs)
    assert pieces(merged) == [
        (0, 2, "a"),
        (2, 4, "ax"),
        (4, 6, "bx"),
        (6, 8, "x"),
        (10, 11, "a"),
        (11, 12, "ay"),
    ]
    assert left == letters()


def test_apply_changes_whole_pieces():
    ranges = letters()
    ranges.apply(0, 12, str.upper)
    assert pieces(ranges) == [(0, 4, "A"), (4, 6, "B"), (10, 12, "A")]


def test_apply_takes_missing_for_parts_without_a_value():
    ranges = RangeMap([((0, 2), 1), ((4, 6), 5)])
    ranges.apply(0, 8, lambda value: value * 10, missing=0)
    assert pieces(ranges) == [(0, 2, 10), (2, 4, 0), (4, 6, 50), (6, 8, 0)]


def test_apply_within_a_piece_calls_the_function_once():
    calls = []
    ranges = RangeMap([((0, 10), 1)])
    ranges.apply(3, 5, lambda value: calls.append(value) or value + 1)
    assert pieces(ranges) == [(0, 3, 1), (3, 5, 2), (5, 10, 1)]
    assert calls == [1]


def test_apply_reaches_pieces_whose_neighbour_takes_their_value():
    ranges = RangeMap([((0, 2), 1), ((2, 4), 2), ((4, 6), 3)])
    ranges.apply(0, 6, lambda value: value + 1)
    assert pieces(ranges) == [(0, 2, 2), (2, 4, 3), (4, 6, 4)]
    ranges.apply(0, 6, lambda value: 7)
    assert pieces(ranges) == [(0, 6, 7)]


def test_apply_counts_overlapping_bookings():
    ranges = RangeMap()
    for start, end in [(0, 10), (5, 15), (5, 7), (12, 20)]:
        ranges.apply(start, end, lambda value: value + 1, missing=0)
    assert pieces(ranges) == [(0, 5, 1), (5, 7, 3), (7, 10, 2), (10, 12, 1), (12, 15, 2), (15, 20, 1)]


def test_apply_that_fails_leaves_the_map_as_it_was():
    ranges = RangeMap([((0, 2), 4), ((2, 4), 2), ((4, 6), 0)])
    before = ranges.copy()
    with pytest.raises(ZeroDivisionError):
        ranges.apply(0, 6, lambda value: 8 // value)
    assert ranges == before
    with pytest.raises(ZeroDivisionError):
        ranges.apply(1, 9, lambda value: 8 // value, missing=0)
    assert ranges == before


def test_map_may_be_changed_while_its_items_are_iterated():
    ranges = letters()
    seen = []
    for (start, end), value in ranges.items():
        seen.append((start, end, value))
        ranges.discard(start, end)
        ranges.set(start + 20, end + 20, value)
    assert seen == pieces(letters())
    assert pieces(ranges) == [(20, 24, "a"), (24, 26, "b"), (30, 32, "a")]
    items = ranges.items(21, 25)
    ranges.set(0, 40, "z")
    assert [tuple(interval) for interval, _ in items] == [(21, 24), (24, 25)]


def test_none_is_a_value():
    ranges = RangeMap([((0, 4), None), ((4, 6), 0)])
    assert pieces(ranges) == [(0, 4, None), (4, 6, 0)]
    assert 0 in ranges
    assert 6 not in ranges
    assert ranges.get(0, "-") is None
    assert ranges.get(6, "-") == "-"
    assert ranges.covered() == RangeSet([(0, 6)])
    assert ranges.where(None) == RangeSet([(0, 4)])
    assert ranges.copy() == ranges


def test_fill_keeps_none():
    ranges = RangeMap([((2, 4), None)])
    ranges.fill(0, 6, 1)
    assert pieces(ranges) == [(0, 2, 1), (2, 4, None), (4, 6, 1)]
    ranges.discard(0, 2)
    ranges.fill(0, 6, None)
    assert pieces(ranges) == [(0, 4, None), (4, 6, 1)]


def test_merge_combines_none():
    left, right = RangeMap([((0, 4), None)]), RangeMap([((2, 6), None), ((6, 8), 1)])
    merged = left.merge(right, lambda mine, theirs: [mine, theirs])
    assert pieces(merged) == [(0, 2, None), (2, 4, [None, None]), (4, 6, None), (6, 8, 1)]


def test_apply_passes_none_on():
    ranges = RangeMap([((0, 2), None), ((4, 6), 1)])
    ranges.apply(0, 6, repr)
    assert pieces(ranges) == [(0, 2, "None"), (4, 6, "1")]
    ranges.apply(0, 6, lambda value: None)
    assert pieces(ranges) == [(0, 2, None), (4, 6, None)]


def test_none_may_stand_for_what_is_missing():
    ranges = RangeMap([((0, 2), 1)])
    ranges.apply(0, 4, lambda value: value is None, missing=None)
    assert pieces(ranges) == [(0, 2, False), (2, 4, True)]
    ranges.apply(0, 6, str)
    assert pieces(ranges) == [(0, 2, "False"), (2, 4, "True")]
