"""A sandbox goes where there is room and its image, and where least is going on."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from rocknroll.sandbox.placement import NodeState, full_name, lacks_image, place, refusal

IMAGES = ("box:latest", "tools:2")
nodes = st.lists(
    st.builds(
        NodeState,
        name=st.sampled_from("abcdefgh"),
        room=st.integers(1, 6),
        sandboxes=st.integers(0, 6),
        load=st.floats(0.0, 3.0),
        images=st.frozensets(st.sampled_from(IMAGES)),
        closed=st.sampled_from(["", "", "is draining"]),
    ),
    unique_by=lambda node: node.name,
    max_size=8,
)
wanted = st.sampled_from(["", "box", "tools:2", "none"])


@given(nodes, wanted, st.frozensets(st.sampled_from("abcdefgh")))
def test_a_node_is_chosen_exactly_when_one_can_take_it(
    nodes: list[NodeState], image: str, avoid: frozenset[str]
) -> None:
    fit = [
        node
        for node in nodes
        if not node.closed
        and node.sandboxes < node.room
        and (not image or full_name(image) in node.images)
        and node.name not in avoid
    ]
    chosen = place(nodes, image, avoid)
    assert (chosen in fit) if fit else chosen is None


@given(nodes, wanted)
def test_no_node_that_could_take_it_is_less_used(nodes: list[NodeState], image: str) -> None:
    chosen = place(nodes, image)
    if chosen is not None:
        assert all(chosen.use <= node.use for node in nodes if not refusal(node, image))


@given(nodes, wanted, st.randoms())
def test_the_order_of_the_nodes_does_not_matter(nodes: list[NodeState], image: str, random: object) -> None:
    shuffled = sorted(nodes, key=lambda node: hash((node.name, str(random))))
    assert place(nodes, image) == place(shuffled, image)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=5))
def test_idle_nodes_fill_in_proportion_to_their_room(room: list[int]) -> None:
    states = {str(index): NodeState(str(index), size) for index, size in enumerate(room)}
    placed: Counter[str] = Counter()
    for _ in range(sum(room)):
        node = place(states.values())
        assert node is not None
        placed[node.name] += 1
        states[node.name] = replace(node, sandboxes=node.sandboxes + 1)
        shares = [state.sandboxes / state.room for state in states.values()]
        assert max(shares) - min(shares) <= 1.0 / min(room) + 1e-9
    assert place(states.values()) is None
    assert [placed[str(index)] for index in range(len(room))] == room


def test_a_busy_machine_gets_less() -> None:
    busy, idle = NodeState("a", 10, load=0.9), NodeState("b", 10, sandboxes=8)
    assert place([busy, idle]) is idle
    assert place([busy, replace(idle, sandboxes=10)]) is busy


def test_what_stands_against_a_node_is_said() -> None:
    node = NodeState("a", 2, images=frozenset({"box:latest"}))
    assert refusal(node, "box") == ""
    assert refusal(node, "tools:2") == "has no image tools:2"
    assert refusal(replace(node, sandboxes=2)) == "is full: 2 of 2 sandboxes"
    assert refusal(replace(node, closed="is draining")) == "is draining"
    assert lacks_image([node], "tools:2") and not lacks_image([node], "box") and not lacks_image([node], "")


def test_images_are_named_as_docker_lists_them() -> None:
    assert full_name("box") == "box:latest"
    assert full_name("host:5000/team/box") == "host:5000/team/box:latest"
    for whole in ("box:2", "host:5000/box:2", "box@sha256:ab", "sha256:ab"):
        assert full_name(whole) == whole
