import pytest

from lrukit import Stats, TTLCache


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


def test_entry_expires_when_its_age_reaches_its_time_to_live():
    clock = Clock()
    cache = TTLCache(10, clock=clock)
    cache["a"] = 1
    clock.now = 109.5
    assert cache["a"] == 1
    clock.now = 110
    assert "a" not in cache
    with pytest.raises(KeyError):
        cache["a"]


def test_reading_does_not_prolong_a_life_but_storing_does():
    clock = Clock()
    cache = TTLCache(10, clock=clock)
    cache["a"] = cache["b"] = 1
    clock.now = 106
    cache["a"] = 2
    assert cache["b"] == 1
    clock.now = 112
    assert cache.get("a") == 2
    assert cache.get("b") is None


def test_entry_may_have_its_own_time_to_live():
    clock = Clock()
    cache = TTLCache(10, clock=clock)
    cache.put("short", 1, ttl_s=2)
    cache.put("long", 2, ttl_s=20)
    clock.now = 110
    assert list(cache) == ["long"]


def test_expired_entries_are_neither_counted_nor_listed():
    clock = Clock()
    cache = TTLCache(10, clock=clock)
    cache["a"] = 1
    clock.now = 105
    cache["b"] = 2
    assert (len(cache), list(cache)) == (2, ["a", "b"])
    clock.now = 112
    assert (len(cache), list(cache)) == (1, ["b"])


def test_pop_gives_live_values_only():
    clock = Clock()
    cache = TTLCache(10, clock=clock)
    cache["a"] = cache["b"] = 1
    assert cache.pop("a") == 1
    assert cache.pop("a", 0) == 0
    clock.now = 110
    assert cache.pop("b", 0) == 0


def test_purge_drops_what_has_expired():
    clock = Clock()
    cache = TTLCache(10, clock=clock)
    cache["a"] = cache["b"] = 1
    cache.put("c", 1, ttl_s=20)
    clock.now = 110
    assert cache.purge() == 2
    assert cache.purge() == 0
    assert list(cache) == ["c"]


def test_look_ups_and_expirations_are_counted():
    clock = Clock()
    cache = TTLCache(10, clock=clock)
    cache["a"] = 1
    cache.get("a")
    cache.get("b")
    clock.now = 110
    cache.get("a")
    cache.get("a")
    assert cache.stats == Stats(hits=1, misses=3, expirations=1)


def test_full_cache_without_expired_entries_evicts_the_least_recently_used():
    seen = []
    cache = TTLCache(10, 2, clock=Clock(), on_evict=lambda key, value: seen.append((key, value)))
    cache["a"] = 1
    cache["b"] = 2
    cache.get("a")
    cache["c"] = 3
    assert list(cache) == ["a", "c"]
    assert seen == [("b", 2)]
    assert cache.stats.evictions == 1


def test_replacing_an_entry_of_a_full_cache_evicts_none():
    cache = TTLCache(10, 2, clock=Clock())
    cache["a"] = cache["b"] = 1
    cache["a"] = 2
    assert list(cache) == ["b", "a"]
    assert cache.stats.evictions == 0


def test_full_cache_drops_expired_entries_before_live_ones():
    clock = Clock()
    cache = TTLCache(10, 3, clock=clock)
    cache["old"] = 1
    cache.put("brief", 2, ttl_s=1)
    cache["new"] = 3
    clock.now = 101
    cache["more"] = 4
    assert list(cache) == ["old", "new", "more"]


def test_expired_entry_that_makes_room_is_not_evicted():
    clock = Clock()
    seen = []
    cache = TTLCache(10, 2, clock=clock, on_evict=lambda key, value: seen.append(key))
    cache["a"] = cache["b"] = 1
    clock.now = 110
    cache["c"] = 2
    assert seen == []
    assert cache.stats == Stats(expirations=2)


def test_full_cache_evicts_only_once_no_expired_entry_is_left():
    clock = Clock()
    seen = []
    cache = TTLCache(10, 2, clock=clock, on_evict=lambda key, value: seen.append(key))
    cache["a"] = 1
    cache.put("b", 2, ttl_s=1)
    clock.now = 101
    cache["c"] = 3
    cache["d"] = 4
    assert seen == ["a"]
    assert cache.stats == Stats(evictions=1, expirations=1)
