import pytest

from exprtree import Binary, Call, Name, ParseError, Unary, parse


def shape(node):
    """The tree as nested tuples."""
    if isinstance(node, Binary):
        return (node.op, shape(node.left), shape(node.right))
    if isinstance(node, Unary):
        return (node.op, shape(node.operand))
    if isinstance(node, Call):
        return (node.function, [shape(argument) for argument in node.arguments])
    return node.name if isinstance(node, Name) else node.value


def error_of(text):
    with pytest.raises(ParseError) as caught:
        parse(text)
    return caught.value


def test_products_bind_tighter_than_sums():
    assert shape(parse("a + b * c")) == ("+", "a", ("*", "b", "c"))
    assert shape(parse("(a + b) * c")) == ("*", ("+", "a", "b"), "c")


def test_operators_group_to_the_left_but_for_powers():
    assert shape(parse("a - b - c")) == ("-", ("-", "a", "b"), "c")
    assert shape(parse("a / b // c % d")) == ("%", ("//", ("/", "a", "b"), "c"), "d")
    assert shape(parse("a ^ b ^ c")) == ("^", "a", ("^", "b", "c"))


def test_sign_is_looser_than_a_power_and_tighter_than_a_product():
    assert shape(parse("-a ^ b")) == ("-", ("^", "a", "b"))
    assert shape(parse("-a * b")) == ("*", ("-", "a"), "b")
    assert shape(parse("a ^ -b * c")) == ("*", ("^", "a", ("-", "b")), "c")


def test_logic_is_looser_than_comparisons():
    assert shape(parse("not a < b and c or d")) == ("or", ("and", ("not", ("<", "a", "b")), "c"), "d")


def test_not_as_an_operand_of_a_comparison_needs_parentheses():
    assert error_of("a == not b").position == 5
    assert shape(parse("a == (not b)")) == ("==", "a", ("not", "b"))


def test_comparisons_do_not_chain():
    assert error_of("a < b < c").position == 6
    assert shape(parse("(a < b) == c")) == ("==", ("<", "a", "b"), "c")


def test_calls_take_any_number_of_arguments():
    assert shape(parse("f()")) == ("f", [])
    assert shape(parse("f(1, g(x) + 2)")) == ("f", [1, ("+", ("g", ["x"]), 2)])


def test_word_operators_need_no_blanks_beside_parentheses():
    assert shape(parse("(a)and(b)")) == ("and", "a", "b")
    assert shape(parse("not(a)or(b)")) == ("or", ("not", "a"), "b")


def test_name_may_begin_with_a_word_operator():
    assert parse("order") == Name("order")
    assert shape(parse("android + notes - normal")) == ("-", ("+", "android", "notes"), "normal")
    assert shape(parse("not_old < oracle and not note")) == ("and", ("<", "not_old", "oracle"), ("not", "note"))
    assert shape(parse("nothing(order_id, 1)")) == ("nothing", ["order_id", 1])


def test_name_may_begin_with_a_boolean():
    assert parse("falsehood") == Name("falsehood")
    assert shape(parse("true_cost or falsey")) == ("or", "true_cost", "falsey")


def test_name_may_hold_or_end_in_a_word_operator():
    assert shape(parse("floor + band + knot")) == ("+", ("+", "floor", "band"), "knot")


def test_names_may_have_letters_of_any_language():
    assert parse("größe").name == "größe"
    assert parse("δ_1").name == "δ_1"


def test_malformed_number_or_unknown_character_is_an_error_where_it_begins():
    for text in ("2x", "1_000", "1.5", "12.", "²", "x²", "$", "= 2"):
        assert error_of("1 + " + text).position == 4, text


def test_unexpected_token_or_end_is_an_error_where_it_stands():
    for text, position in [("1 + * 2", 4), ("f(1,)", 4), ("1 2", 2), ("2(3)", 1), ("a)", 1), ("()", 1)]:
        assert error_of(text).position == position, text
    for text in ("", "  ", "1 +", "(1 + 2", "f(", "not"):
        assert error_of(text).position == len(text), text


def test_nodes_know_where_they_stand():
    tree = parse("  a + max(b, -c)")
    assert (tree.left.position, tree.position, tree.right.position) == (2, 4, 6)
    assert tree.right.arguments[1].position == 13


def test_trees_are_equal_wherever_they_stand():
    assert parse("a + 1") == parse(" (a)  +\n1 ")
    assert len({parse("a + 1"), parse("a+1"), parse("a - 1")}) == 2


def test_tree_of_a_boolean_differs_from_that_of_a_number():
    assert parse("1") != parse("true")
    assert parse("f(x, 0)") != parse("f(x, false)")
    assert len({parse("1 < x"), parse("true < x")}) == 2


def test_error_shows_the_line_and_a_caret():
    text = "a +\n\tb * / c\n+ d"
    assert error_of(text).show(text) == "\tb * / c\n\t    ^ unexpected '/'"
    assert str(error_of(text)) == "unexpected '/' (at 9)"
