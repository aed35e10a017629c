import pytest

from rangeset import RangeSet

A = [(0, 5), (10, 15), (20, 25)]
B = [(3, 10), (12, 13), (20, 25), (30, 31)]
OPERATORS = {
    "or": (lambda a, b: a | b, [(0, 15), (20, 25), (30, 31)]),
    "and": (lambda a, b: a & b, [(3, 5), (12, 13), (20, 25)]),
    "sub": (lambda a, b: a - b, [(0, 3), (10, 12), (13, 15)]),
    "xor": (lambda a, b: a ^ b, [(0, 3), (5, 12), (13, 15), (30, 31)]),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_operator(name):
    operator, expected = OPERATORS[name]
    left, right = RangeSet(A), RangeSet(B)
    assert operator(left, right) == RangeSet(expected)
    assert (left, right) == (RangeSet(A), RangeSet(B))


@pytest.mark.parametrize("name", OPERATORS)
def test_operator_agrees_with_sets_of_integers(name):
    operator, _ = OPERATORS[name]
    left, right = RangeSet(A), RangeSet(B)
    assert list(operator(left, right).points()) == sorted(operator(set(left.points()), set(right.points())))
    assert list(operator(right, left).points()) == sorted(operator(set(right.points()), set(left.points())))


def test_intervals_that_meet_have_no_intersection():
    assert not RangeSet([(0, 5)]) & RangeSet([(5, 8)])
    assert RangeSet([(0, 5)]).isdisjoint(RangeSet([(5, 8)]))
    assert not RangeSet([(0, 5)]).isdisjoint(RangeSet([(4, 8)]))


def test_intervals_that_meet_are_one_in_the_union():
    assert len(RangeSet([(0, 5)]) | RangeSet([(5, 8)])) == 1
    assert len(RangeSet([(0, 5)]) ^ RangeSet([(5, 8)])) == 1


def test_empty_operand():
    ranges, empty = RangeSet(A), RangeSet()
    assert ranges | empty == empty | ranges == ranges
    assert ranges - empty == ranges
    assert ranges ^ empty == empty ^ ranges == ranges
    assert ranges & empty == empty - ranges == empty


def test_operand_may_be_the_set_itself():
    ranges = RangeSet(A)
    assert ranges | ranges == ranges & ranges == ranges
    assert ranges - ranges == ranges ^ ranges == RangeSet()
    ranges.update(ranges)
    assert ranges == RangeSet(A)
    ranges.update(RangeSet(B))
    assert ranges == RangeSet(A) | RangeSet(B)


def test_other_operands_are_refused():
    with pytest.raises(TypeError):
        RangeSet(A) | [(0, 1)]
    assert RangeSet(A) != A


def test_subset():
    small, large = RangeSet([(1, 3), (11, 15)]), RangeSet(A)
    assert small <= large
    assert small < large
    assert large >= small
    assert large <= large
    assert not large < large
    assert not large <= small
    assert RangeSet() <= small


def test_copy_shares_nothing():
    ranges = RangeSet(A)
    copy = ranges.copy()
    copy.add(100, 200)
    ranges.add(40, 50)
    assert copy == RangeSet([*A, (100, 200)])
    assert ranges == RangeSet([*A, (40, 50)])


def test_union_shares_nothing_with_its_operands():
    ranges, empty = RangeSet(A), RangeSet()
    for total in (ranges | empty, empty | ranges, empty | empty):
        total.add(100, 200)
        assert ranges == RangeSet(A)
        assert empty == RangeSet()


def test_difference_shares_nothing_with_its_operands():
    ranges, empty = RangeSet(A), RangeSet()
    rest = ranges - empty
    ranges.add(40, 50)
    assert rest == RangeSet(A)
    rest.discard(0, 20)
    assert ranges == RangeSet([*A, (40, 50)])
    nothing = empty - ranges
    nothing.add(0, 1)
    assert empty == RangeSet()


def test_symmetric_difference_shares_nothing_with_its_operands():
    ranges, empty = RangeSet(A), RangeSet()
    for other in (ranges ^ empty, empty ^ ranges):
        other.add(100, 200)
        assert ranges == RangeSet(A)
        assert empty == RangeSet()


def test_update_shares_nothing_with_its_operand():
    ranges, empty = RangeSet(A), RangeSet()
    total = RangeSet()
    total.update(ranges)
    total.add(100, 200)
    assert ranges == RangeSet(A)
    ranges.add(40, 50)
    assert total == RangeSet([*A, (100, 200)])
    ranges.update(empty)
    ranges.add(60, 70)
    assert empty == RangeSet()
