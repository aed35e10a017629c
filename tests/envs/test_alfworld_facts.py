"""Queries over `Facts` give TextWorld's answers in TextWorld's order."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from textworld.logic import GameLogic, Placeholder, Proposition, Rule, State, Type, Variable

from rocknroll.envs.alfworld.facts import Facts
from rocknroll.envs.alfworld.grammar import Grammar

TYPES = (("object", ()), ("agent", ("object",)), ("location", ("object",)), ("receptacle", ("object",)))
THINGS = {
    "me": "agent",
    "l1": "location",
    "l2": "location",
    "r1": "receptacle",
    "r2": "receptacle",
    "o1": "object",
    "o2": "object",
}
QUERIES = (
    "atlocation(a: agent, l: location) & receptacleatlocation(r: receptacle, l: location)",
    "inreceptacle(o: object, r: receptacle)",
    "inreceptacle(o: object, r: receptacle) & inreceptacle(o2: object, r: receptacle)",
    "inreceptacle(o: object, r: receptacle) & not_inreceptacle(o: object, r2: receptacle)",
    "near(x: object, y: object)",
)

facts = st.lists(
    st.sampled_from(
        [("atlocation", ("me", place)) for place in ("l1", "l2")]
        + [("receptacleatlocation", (receptacle, place)) for receptacle in ("r1", "r2") for place in ("l1", "l2")]
        + [
            (name, (thing, receptacle))
            for name in ("inreceptacle", "not_inreceptacle")
            for thing in ("o1", "o2")
            for receptacle in ("r1", "r2")
        ]
        + [("near", (one, other)) for one in THINGS for other in THINGS]
    ),
    max_size=25,
)
bindings = st.sampled_from(
    [{}, {("r", "receptacle"): "r1"}, {("a", "agent"): "me", ("l", "location"): "l1"}, {("o", "object"): "o2"}]
)


def textworld_state(changes: list[tuple[str, tuple[str, ...]]]) -> State:
    logic = GameLogic()
    for name, supertypes in TYPES:
        logic.types.add(Type(name, supertypes))
    state = State(logic)
    for name, arguments in changes:
        fact = Proposition(name, [Variable(argument, THINGS[argument]) for argument in arguments])
        if state.is_fact(fact.negate()):
            state.remove_fact(fact.negate())
        state.add_fact(fact)
    return state


def compiled_queries() -> Grammar:
    rules = ",".join(f'"q{number}": [{{"condition": "{query}", "rhs": "x"}}]' for number, query in enumerate(QUERIES))
    return Grammar(f'grammar :: """ {{ {rules} }} """;', TYPES)


GRAMMAR = compiled_queries()


@given(changes=facts, binding=bindings, number=st.integers(0, len(QUERIES) - 1))
def test_answers_and_their_order_are_those_of_textworld(
    changes: list[tuple[str, tuple[str, ...]]], binding: dict[tuple[str, str], str], number: int
) -> None:
    ours = Facts(THINGS)
    for name, arguments in changes:
        ours.replace(name, arguments)
    rule = Rule.parse_conjunctive_query(QUERIES[number])
    mapping = {Placeholder(*placeholder): Variable(name, THINGS[name]) for placeholder, name in binding.items()}
    theirs = [
        {(placeholder.name, placeholder.type): variable.name for placeholder, variable in answer.items()}
        for answer in textworld_state(changes).all_assignments(rule, mapping)
    ]
    query = GRAMMAR.query(QUERIES[number])
    assert ours.answers(query, binding) == theirs
    assert ours.holds(query, binding) == bool(theirs)


def test_a_copy_does_not_see_later_changes() -> None:
    original = Facts(THINGS)
    original.add("atlocation", ("me", "l1"))
    twin = original.copy()
    twin.replace("not_atlocation", ("me", "l1"))
    assert list(original) == [("atlocation", ("me", "l1"))]
    assert list(twin) == [("not_atlocation", ("me", "l1"))]
