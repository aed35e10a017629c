import pytest

from lrukit import LRU, Stats, TooHeavy


def sized(max_weight, **options):
    """A cache whose entries weigh as much as their values are long."""
    return LRU(max_weight=max_weight, weigh=lambda key, value: len(value), **options)


def filled(cache, keys):
    for key in keys:
        cache[key] = key * 2
    return cache


def test_least_recently_used_entry_goes_first():
    cache = filled(LRU(3), "abc")
    assert cache["a"] == "aa"
    cache["d"] = "dd"
    assert list(cache) == ["c", "a", "d"]
    cache["c"] = "new"
    cache["e"] = "ee"
    assert list(cache) == ["d", "c", "e"]
    assert cache["c"] == "new"


def test_peek_and_in_do_not_count_as_use():
    cache = filled(LRU(2), "ab")
    assert cache.peek("a") == "aa"
    assert "a" in cache
    cache["c"] = "cc"
    assert list(cache) == ["b", "c"]
    assert cache.peek("a", "gone") == "gone"
    assert cache.stats == Stats(evictions=1)


def test_missing_key():
    cache = LRU(2)
    assert cache.get("a") is None
    assert cache.get("a", 0) == 0
    with pytest.raises(KeyError):
        cache["a"]
    with pytest.raises(KeyError):
        del cache["a"]


def test_values_may_be_none_or_false():
    cache = LRU(2)
    cache["a"] = None
    cache["b"] = 0
    assert cache["a"] is None
    assert cache.get("b", 1) == 0
    assert cache.stats.hits == 2
    del cache["a"]
    assert list(cache) == ["b"]


def test_keys_are_listed_as_they_were_while_the_cache_changes():
    cache = filled(LRU(3), "abc")
    assert [cache.pop(key) for key in cache] == ["aa", "bb", "cc"]
    assert len(cache) == 0


def test_heavy_entry_pushes_out_several():
    cache = sized(6)
    for key in "abc":
        cache[key] = "xx"
    cache["d"] = "xxxx"
    assert list(cache) == ["c", "d"]
    assert cache.weight == 6


def test_replaced_or_removed_entry_no_longer_weighs():
    cache = sized(6)
    cache["a"] = "xxxx"
    cache["a"] = "xx"
    cache["b"] = "xxxx"
    assert list(cache) == ["a", "b"]
    del cache["a"]
    assert cache.weight == 4
    cache.clear()
    assert (len(cache), cache.weight) == (0, 0)


def test_too_heavy_entry_is_refused_and_changes_nothing():
    cache = sized(3)
    cache["a"] = "xxx"
    with pytest.raises(TooHeavy):
        cache["a"] = "xxxx"
    assert cache.offer("b", "xxxx") is False
    assert cache["a"] == "xxx"
    assert issubclass(TooHeavy, ValueError)


def test_impossible_limits_and_weights_are_refused():
    for limits in ({"max_items": 0}, {"max_weight": -1}):
        with pytest.raises(ValueError, match="positive"):
            LRU(**limits)
    cache = LRU(weigh=lambda key, value: -1)
    with pytest.raises(ValueError, match="negative"):
        cache["a"] = 1
    assert len(cache) == 0


def test_evicted_entries_are_reported_in_order():
    seen = []
    cache = sized(3, on_evict=lambda key, value: seen.append((key, value)))
    for key in "abc":
        cache[key] = key
    cache["d"] = "dd"
    assert seen == [("a", "a"), ("b", "b")]


def test_replaced_and_deleted_entries_are_not_reported():
    seen = []
    cache = filled(LRU(2, on_evict=lambda key, value: seen.append(key)), "ab")
    cache["a"] = 1
    del cache["b"]
    cache.pop("a")
    filled(cache, "cd")
    cache.clear()
    assert seen == []


def test_limits_hold_when_an_eviction_is_reported():
    seen = []
    cache = sized(3, on_evict=lambda key, value: seen.append((key, list(cache), cache.weight, cache.stats.evictions)))
    for key in "abc":
        cache[key] = "x"
    cache["d"] = "xx"
    assert seen == [("a", ["c", "d"], 3, 2), ("b", ["c", "d"], 3, 2)]


def test_report_may_store_and_its_evictions_wait_their_turn():
    seen = []

    def count(key, value):
        seen.append(key)
        if key in "ab":
            cache[key.upper()] = "x"

    cache = sized(3, on_evict=count)
    for key in "abc":
        cache[key] = "x"
    cache["d"] = "xx"
    assert seen == ["a", "b", "c", "d"]
    assert list(cache) == ["A", "B"]
    assert (cache.weight, cache.stats.evictions) == (2, 4)


def test_report_may_keep_a_note_in_the_cache():
    def note(key, value):
        cache["last"] = key

    cache = LRU(2, on_evict=note)
    filled(cache, "abc")
    assert list(cache) == ["c", "last"]
    assert cache["last"] == "b"


def test_report_may_delete_other_entries():
    def forget_pair(key, value):
        cache.pop(key.upper())

    cache = LRU(3, on_evict=forget_pair)
    filled(cache, "abAcd")
    assert list(cache) == ["b", "c", "d"]
    assert (cache.weight, cache.stats.evictions) == (3, 1)


def test_error_of_a_report_loses_no_entry():
    seen = []

    def report(key, value):
        seen.append(key)
        if key == "a":
            raise OSError("disk full")

    cache = sized(3, on_evict=report)
    for key in "abc":
        cache[key] = "x"
    with pytest.raises(OSError, match="disk full"):
        cache["d"] = "xx"
    assert (list(cache), seen) == (["c", "d"], ["a"])
    cache["d"] = "yy"
    assert (list(cache), seen) == (["c", "d"], ["a", "b"])
