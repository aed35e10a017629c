import pytest

from lrukit import memoize


def recorded(**options):
    """A memoised function that records its calls."""
    calls = []

    @memoize(**options)
    def function(a, b=0, *more, **named):
        calls.append((a, b, *more, *sorted(named.items())))
        return len(calls)

    return function, calls


def test_result_is_computed_once():
    function, calls = recorded()
    assert [function(1), function(1), function(2)] == [1, 1, 2]
    assert calls == [(1, 0), (2, 0)]


def test_key_does_not_depend_on_how_arguments_are_passed():
    function, calls = recorded()
    assert {function(1), function(a=1), function(1, 0), function(b=0, a=1)} == {1}
    assert function(1, 2, x=3, y=4) == function(y=4, b=2, x=3, a=1)
    assert len(calls) == 2


def test_different_calls_have_different_keys():
    function, calls = recorded()
    function(1, 2, ("x", 3))
    function(1, 2, x=3)
    function(1, 2, "x", 3)
    assert len(calls) == 3


def test_equal_arguments_differ_by_type_only_if_typed_and_in_tuples_too():
    function, calls = recorded()
    assert function(1) == function(1.0) == function(True)
    assert len(calls) == 1
    function, calls = recorded(typed=True)
    for argument in (1, 1.0, True, (1, 2), (1.0, 2), (True, 2), 1, (1, 2)):
        function(argument)
    assert len(calls) == 6
    function(0, key=1)
    function(0, key=True)
    assert len(calls) == 8


def test_exception_is_not_remembered():
    calls = []

    @memoize
    def flaky():
        calls.append(1)
        if len(calls) == 1:
            raise OSError("try again")
        return "fine"

    with pytest.raises(OSError, match="try again"):
        flaky()
    assert [flaky(), flaky()] == ["fine", "fine"]
    assert len(calls) == 2


def test_none_is_remembered():
    calls = []

    @memoize
    def find(name):
        calls.append(name)

    assert [find("x"), find("x"), find("y"), find("x")] == [None] * 4
    assert calls == ["x", "y"]
    assert (find.stats.hits, find.stats.misses) == (2, 2)


def test_none_is_remembered_until_it_is_invalidated():
    calls = []

    @memoize(tags=lambda name: [name[0]])
    def find(name):
        calls.append(name)

    find("ann")
    find("ann")
    assert find.invalidate("ann") is True
    find("ann")
    find("ann")
    assert find.invalidate_tag("a") == 1
    find("ann")
    assert calls == ["ann"] * 3


def test_false_and_zero_are_remembered():
    calls = []

    @memoize
    def same(x):
        calls.append(x)
        return x

    assert [same(0), same(0), same(""), same("")] == [0, 0, "", ""]
    assert calls == [0, ""]


def test_least_recently_used_result_is_forgotten():
    function, calls = recorded(max_items=2)
    for argument in (1, 2, 1, 3, 1, 2):
        function(argument)
    assert calls == [(1, 0), (2, 0), (3, 0), (2, 0)]
    assert function.stats.evictions == 2


def test_recursive_function():
    @memoize(max_items=3)
    def fibonacci(n):
        """The nth number of the sequence."""
        return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)

    assert fibonacci(50) == 12586269025
    assert (fibonacci.__name__, fibonacci.__doc__) == ("fibonacci", "The nth number of the sequence.")


def test_method_is_memoised_by_instance():
    class Shop:
        def __init__(self, factor):
            self.factor = factor

        @memoize(tags=lambda shop, item: [item])
        def price(self, item):
            return self.factor * len(item)

    first, second = Shop(1), Shop(10)
    assert (first.price("tea"), second.price("tea")) == (3, 30)
    first.factor = 2
    assert first.price("tea") == 3
    assert first.price.invalidate_tag("tea") == 2
    assert first.price("tea") == 6


def test_invalidate_forgets_one_call_and_clear_all():
    function, _ = recorded(tags=lambda a: ["all"])
    assert [function(1), function(2)] == [1, 2]
    assert function.invalidate(a=1) is True
    assert function.invalidate(1) is False
    assert [function(1), function(2)] == [3, 2]
    function.clear()
    assert function.invalidate_tag("all") == 0
    assert [function(1), function(2)] == [4, 5]


def test_invalidate_tag_forgets_all_results_with_the_tag():
    function, _ = recorded(tags=lambda a, b=0: [f"a{a}", f"b{b}"])
    for a, b in [(1, 1), (1, 2), (2, 2)]:
        function(a, b)
    assert function.invalidate_tag("a1") == 2
    assert function.invalidate_tag("b2") == 1
    assert function.invalidate_tag("b1") == 0


def test_evicted_results_no_longer_have_tags():
    function, _ = recorded(max_items=2, tags=lambda a: ["all"])
    for a in range(5):
        function(a)
    assert function.invalidate_tag("all") == 2


def during(action, **options):
    """A memoised function whose first call runs `action(function)`; it returns how many calls there were."""
    calls = []

    @memoize(tags=lambda a: [f"tag{a}"], **options)
    def function(a):
        number = len(calls) + 1
        calls.append(a)
        if number == 1:
            action(function)
        return number

    return function


def test_result_is_not_kept_if_its_tag_was_invalidated_meanwhile():
    function = during(lambda function: function.invalidate_tag("tag7"))
    assert [function(7), function(7), function(7)] == [1, 2, 2]


def test_result_is_not_kept_if_its_call_was_invalidated_meanwhile():
    function = during(lambda function: function.invalidate(a=7))
    assert [function(7), function(7), function(7)] == [1, 2, 2]


def test_invalidation_concerns_every_call_that_is_running():
    calls = []

    @memoize
    def nested(a):
        calls.append(a)
        number = len(calls)
        if number < 3:
            nested(a)
        elif number == 3:
            nested.invalidate(a)
        return number

    assert [nested(7), nested(7), nested(7)] == [1, 4, 4]


def test_result_is_not_kept_if_all_was_cleared_meanwhile():
    function = during(lambda function: function.clear())
    assert [function(7), function(7), function(7)] == [1, 2, 2]


def test_result_is_kept_if_others_were_invalidated_meanwhile():
    function = during(lambda function: (function.invalidate_tag("tag8"), function.invalidate(8)))
    assert [function(7), function(7)] == [1, 1]


def test_outdated_result_does_not_replace_a_newer_one():
    def refresh(function):
        function.invalidate_tag("tag7")
        assert function(7) == 2

    function = during(refresh)
    assert [function(7), function(7), function(7)] == [1, 2, 2]


def test_invalidation_does_not_outlast_a_call_that_failed():
    def fail(function):
        function.invalidate(7)
        raise OSError("broken")

    function = during(fail)
    with pytest.raises(OSError, match="broken"):
        function(7)
    assert [function(7), function(7)] == [2, 2]
