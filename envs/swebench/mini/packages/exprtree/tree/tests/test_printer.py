from fractions import Fraction

from exprtree import Binary, Literal, Name, evaluate, parse, simplify, to_text

CONSTANTS = [-2, 3, Fraction(1, 3), Fraction(-5, 2)]


def test_needless_parentheses_are_dropped():
    for text, short in [
        ("((a))", "a"),
        ("(a * b) + (c ^ d)", "a * b + c ^ d"),
        ("(a - b) - c", "a - b - c"),
        ("a ^ (b ^ c)", "a ^ b ^ c"),
        ("a ^ (-b)", "a ^ -b"),
        ("-(a ^ b)", "-a ^ b"),
        ("(not a) and (b < c)", "not a and b < c"),
        ("f((a), (b + c))", "f(a, b + c)"),
    ]:
        assert to_text(parse(text)) == short


def test_needed_parentheses_stay():
    for text in ("(a + b) * c", "a - (b - c)", "a / (b * c)", "(a ^ b) ^ c", "(-a) ^ b", "-(a * b)", "a or (b or c)"):
        assert to_text(parse(text)) == text
    for text in ("not (a and b)", "(a < b) == c", "a == (not b)", "(a or b) and c", "a * (b // c)"):
        assert to_text(parse(text)) == text


def test_blanks_stand_around_binary_operators_only():
    assert to_text(parse("f( a,b )*-  2<c_1")) == "f(a, b) * -2 < c_1"
    assert to_text(parse("--a")) == "--a"


def test_printed_tree_is_read_back_as_it_was():
    operators = ["or", "and", "==", "<", "+", "-", "*", "/", "%", "^"]
    for first in operators:
        for second in operators:
            left = f"(-a {first} b) {second} (not c)"
            right = f"(not a) {first} (b {second} -c)"
            for tree in (parse(left), parse(right)):
                assert parse(to_text(tree)) == tree


def test_literals():
    assert to_text(Literal(True)) == "true"
    assert to_text(Literal(12)) == "12"
    assert to_text(Literal(-3)) == "-3"
    assert to_text(Literal(Fraction(-1, 3))) == "-1 / 3"
    for constant in CONSTANTS:
        assert evaluate(parse(to_text(Literal(constant)))) == constant


def test_constants_have_no_needless_parentheses():
    x = Name("x")
    assert to_text(Binary("+", x, Literal(Fraction(1, 3)))) == "x + 1 / 3"
    assert to_text(Binary("<", Literal(Fraction(1, 3)), x)) == "1 / 3 < x"
    assert to_text(simplify(parse("1 / 2 * x"))) == "1 / 2 * x"
    assert to_text(Binary("*", Literal(-2), x)) == "-2 * x"
    assert to_text(Binary("^", x, Literal(-1))) == "x ^ -1"


def test_negative_base_is_printed_in_parentheses():
    assert to_text(simplify(parse("(-2) ^ n"))) == "(-2) ^ n"
    assert to_text(simplify(parse("(1 - 4) ^ n * 2"))) == "(-3) ^ n * 2"


def test_fraction_is_printed_in_parentheses_where_it_would_come_apart():
    assert to_text(simplify(parse("n % (1 / 3)"))) == "n % (1 / 3)"
    assert to_text(simplify(parse("(2 / 3) ^ n"))) == "(2 / 3) ^ n"
    assert to_text(simplify(parse("n // (1 / 2 - 1)"))) == "n // (-1 / 2)"


def test_text_of_constants_and_operators_has_the_value_of_the_tree():
    for op in ("+", "-", "*", "/", "//", "%"):
        for constant in CONSTANTS:
            for tree in (Binary(op, Literal(constant), Name("n")), Binary(op, Name("n"), Literal(constant))):
                assert evaluate(parse(to_text(tree)), {"n": 5}) == evaluate(tree, {"n": 5}), to_text(tree)


def test_text_of_a_power_of_a_constant_has_the_value_of_the_tree():
    for constant in CONSTANTS:
        tree = Binary("^", Literal(constant), Name("n"))
        assert evaluate(parse(to_text(tree)), {"n": 2}) == evaluate(tree, {"n": 2}), to_text(tree)
