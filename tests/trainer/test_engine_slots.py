"""The slot table, without any tensors."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rocknroll.trainer.engines.slots import Slot, SlotTable, shared_prefix


def fill(slot: Slot, tokens: list[int]) -> None:
    slot.take(list(tokens), 0)
    slot.cached = len(tokens)


def test_trajectory_keeps_its_slot() -> None:
    table = SlotTable(3)
    slot = table.claim("a")
    table.settle("a")
    table.claim("b")
    assert table.claim("a") is slot


def test_busy_trajectory_has_to_wait() -> None:
    table = SlotTable(3)
    table.claim("a")
    assert table.claim("a") is None


def test_longest_unused_idle_slot_is_evicted() -> None:
    table = SlotTable(2)
    first, second = table.claim("a"), table.claim("b")
    table.settle("a")
    table.settle("b")
    table.claim("a")
    table.settle("a")
    assert table.claim("c") is second
    table.settle("c")
    assert table.claim("d") is first
    assert not table.owns("a")


def test_busy_slots_are_never_evicted() -> None:
    table = SlotTable(1)
    table.claim("a")
    assert table.claim("b") is None


def test_slot_released_while_busy_is_freed_at_the_end() -> None:
    table = SlotTable(1)
    slot = table.claim("a")
    table.release("a")
    assert table.owns("a")
    table.settle("a")
    assert not table.owns("a")
    assert table.claim("b") is slot


def test_releasing_a_stranger_does_nothing() -> None:
    table = SlotTable(1)
    table.release("nobody")
    assert table.claim("a") is not None


def test_last_token_of_a_prompt_is_always_computed() -> None:
    slot = Slot(0)
    fill(slot, [1, 2, 3])
    assert slot.take([1, 2, 3], 0) == 2
    assert slot.pending == 1


def test_donor_is_the_slot_with_the_longest_common_beginning() -> None:
    table = SlotTable(3)
    slots = [table.claim(name) for name in "abc"]
    assert all(slots)
    prompt = list(range(40))
    fill(table.slots[0], [*prompt[:20], 99])
    fill(table.slots[1], [*prompt[:30], 99])
    table.slots[2].take(prompt, 0)
    assert table.donor(table.slots[2]) == (table.slots[1], 30)


def test_short_common_beginnings_are_not_worth_copying() -> None:
    table = SlotTable(2)
    fill(table.slots[0], [*range(15), 99])
    table.slots[1].take(list(range(40)), 0)
    assert table.donor(table.slots[1]) is None


def test_context_of_other_weights_is_not_used() -> None:
    table = SlotTable(2)
    fill(table.slots[0], list(range(40)))
    table.slots[1].take(list(range(40)), 1)
    assert table.donor(table.slots[1]) is None
    assert table.slots[0].take(list(range(40)), 1) == 0


def test_forgotten_context_gives_nothing() -> None:
    table = SlotTable(2)
    fill(table.slots[0], list(range(40)))
    table.slots[0].forget(0)
    table.slots[1].take(list(range(40)), 0)
    assert table.donor(table.slots[1]) is None


@given(st.lists(st.integers(0, 1)), st.lists(st.integers(0, 1)))
def test_shared_prefix_is_the_longest_one(left: list[int], right: list[int]) -> None:
    length = shared_prefix(left, right, min(len(left), len(right)))
    assert left[:length] == right[:length]
    assert left[length : length + 1] != right[length : length + 1] or length in (len(left), len(right))


@given(st.lists(st.tuples(st.sampled_from(["claim", "settle", "release"]), st.sampled_from("abcd"))))
def test_no_slot_ever_serves_two_trajectories(calls: list[tuple[str, str]]) -> None:
    table = SlotTable(2)
    busy: dict[str, Slot] = {}
    for call, name in calls:
        if call == "claim":
            slot = table.claim(name)
            if slot is not None:
                assert name not in busy
                assert slot not in busy.values()
                busy[name] = slot
            else:
                assert name in busy or len(busy) == 2
        elif call == "settle" and name in busy:
            table.settle(name)
            del busy[name]
        elif call == "release":
            table.release(name)
