import pytest

from lrukit import Stats, WriteThrough


class Backing(dict):
    """Counts its reads, and refuses what is negative."""

    def __init__(self, **values):
        super().__init__(values)
        self.reads = []

    def __getitem__(self, key):
        self.reads.append(key)
        return super().__getitem__(key)

    def __setitem__(self, key, value):
        if value < 0:
            raise ValueError("negative")
        super().__setitem__(key, value)


def test_value_is_read_from_the_backing_once():
    backing = Backing(a=1)
    cache = WriteThrough(backing, 2)
    assert [cache["a"], cache["a"], cache.get("a")] == [1, 1, 1]
    assert backing.reads == ["a"]
    assert cache.stats == Stats(hits=2, misses=1)


def test_missing_key_is_not_cached():
    backing = Backing()
    cache = WriteThrough(backing, 2)
    assert cache.get("a", 0) == 0
    backing["a"] = 1
    assert cache["a"] == 1


def test_value_is_written_to_both():
    backing = Backing()
    cache = WriteThrough(backing, 2)
    cache["a"] = 1
    assert dict(backing) == {"a": 1}
    assert cache["a"] == 1
    assert backing.reads == []


def test_refused_write_is_not_served():
    backing = Backing(a=1)
    cache = WriteThrough(backing, 2)
    assert cache["a"] == 1
    for key in ("a", "b"):
        with pytest.raises(ValueError, match="negative"):
            cache[key] = -1
    assert cache["a"] == 1
    assert "b" not in cache


def test_deleted_value_is_gone_from_both():
    backing = Backing(a=1)
    cache = WriteThrough(backing, 2)
    assert cache["a"] == 1
    del cache["a"]
    assert "a" not in backing
    with pytest.raises(KeyError):
        cache["a"]
    with pytest.raises(KeyError):
        del cache["a"]


def test_it_is_a_mapping_of_all_that_is_in_the_backing():
    cache = WriteThrough(Backing(a=1, b=2, c=3), 1)
    assert len(cache) == 3
    assert dict(cache) == {"a": 1, "b": 2, "c": 3}
    assert cache.pop("b") == 2
    assert cache.setdefault("d", 4) == 4
    assert list(cache.backing) == ["a", "c", "d"]


def test_evicted_value_is_reported_and_stays_in_the_backing():
    seen = []
    backing = Backing()
    cache = WriteThrough(backing, 2, on_evict=lambda key, value: seen.append((key, value)))
    cache.update(a=1, b=2, c=3)
    assert seen == [("a", 1)]
    assert cache.cached() == ["b", "c"]
    assert cache["a"] == 1
    assert backing.reads == ["a"]


def test_value_too_heavy_for_the_cache_is_stored_in_the_backing():
    cache = WriteThrough(Backing(), max_weight=5, weigh=lambda key, value: value)
    cache["a"] = 3
    cache["a"] = 9
    assert cache.cached() == []
    assert cache["a"] == 9


def test_forgotten_value_is_read_again():
    backing = Backing(a=1)
    cache = WriteThrough(backing, 2)
    assert cache["a"] == 1
    backing["a"] = 2
    assert cache["a"] == 1
    cache.forget("a")
    assert cache["a"] == 2


def test_eviction_callback_may_read_through_the_cache():
    backing = Backing(a=1, b=2, c=3)
    seen = []
    cache = WriteThrough(backing, 2, on_evict=lambda key, value: seen.append((key, cache["c"])))
    assert [cache["a"], cache["b"], cache["c"]] == [1, 2, 3]
    assert seen == [("a", 3)]
    assert backing.reads == ["a", "b", "c"]


def test_statistics():
    cache = WriteThrough(Backing(a=1), 2)
    assert cache.stats.hit_rate == 0.0
    assert cache["a"] == 1
    before = cache.stats.copy()
    assert [cache["a"], cache["a"], cache["a"]] == [1, 1, 1]
    assert cache.stats.hit_rate == 0.75
    assert cache.stats.since(before) == Stats(hits=3)
