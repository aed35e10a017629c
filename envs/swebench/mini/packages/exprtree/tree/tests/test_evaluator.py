from fractions import Fraction

import pytest

from exprtree import EvalError, evaluate, parse


def value(text, functions=None, **values):
    return evaluate(parse(text), values, functions)


def error_of(text, functions=None, **values):
    with pytest.raises(EvalError) as caught:
        value(text, functions, **values)
    return caught.value


def test_quotients_are_exact_and_an_int_if_whole():
    assert value("1 / 10 + 2 / 10 == 3 / 10") is True
    assert value("7 / 2") == Fraction(7, 2)
    assert type(value("6 / 3")) is int
    assert type(value("x + y", x=Fraction(1, 2), y=Fraction(1, 2))) is int
    assert type(value("x", x=Fraction(4, 2))) is int


def test_floor_division_and_remainder_round_down():
    assert value("-7 // 2") == -4
    assert value("-7 % 3") == 2
    assert value("7 / 2 % 1") == Fraction(1, 2)


def test_powers():
    assert value("-2 ^ 2") == -4
    assert value("2 ^ 3 ^ 2") == 512
    assert value("2 ^ -1") == Fraction(1, 2)
    assert value("(2 / 3) ^ 2") == Fraction(4, 9)
    assert error_of("4 ^ (1 / 2)").position == 2


def test_division_by_zero_is_an_error_at_the_operator():
    for text in ("1 / 0", "1 // 0", "1 % 0", "0 ^ -1"):
        error = error_of("1 + " + text)
        assert (error.message, error.position) == ("division by zero", 6), text


def test_logic_evaluates_its_right_operand_only_if_needed():
    assert value("false and 1 / 0 == 1") is False
    assert value("true or missing") is True
    assert value("x != 0 and 1 / x > 2", x=0) is False
    assert error_of("x == 0 and 1 / x > 2", x=0).position == 13


def test_logic_takes_booleans_and_arithmetic_takes_numbers():
    for text in ("1 and true", "true + 1", "1 < false", "0 or true"):
        assert error_of(text).position == text.index(" ") + 1, text
    assert error_of("-true").position == 0
    assert error_of("not 1").position == 0


def test_equality_of_numbers_and_of_booleans():
    assert value("x == 1 / 2", x=Fraction(2, 4)) is True
    assert value("(1 < 2) == true") is True
    assert value("true != false") is True


def test_boolean_never_equals_a_number():
    assert value("1 == true") is False
    assert value("flag != 0", flag=False) is True
    assert value("(x < 2) == x", x=1) is False


def test_unknown_name_is_an_error_where_it_stands():
    assert error_of("1 + missing", other=1).position == 4
    assert error_of("2 * f(1)").position == 4


def test_variables_and_results_must_be_exact_values():
    assert error_of("1 + x", x=0.5).position == 4
    assert error_of("x", x=None).position == 0
    assert error_of("1 + f()", {"f": lambda: 0.5}).position == 4


def test_builtin_functions_take_numbers():
    assert value("max(1, 5 / 2, 2) + min(3)") == Fraction(11, 2)
    assert value("abs(-3) - floor(-5 / 2)") == 6
    assert error_of("1 + abs(true)").position == 4


def test_own_functions_add_to_and_replace_the_builtin_ones():
    assert value("twice(4) / 3", {"twice": lambda x: 2 * x}) == Fraction(8, 3)
    assert value("abs(true)", {"abs": lambda x: not x}) is False
    assert value("abs(-1)") == 1


def test_wrong_number_of_arguments_is_an_error_at_the_call():
    assert error_of("1 + f(2)", {"f": lambda x, y: x}).position == 4
    assert error_of("floor()").position == 0


def test_function_is_not_called_with_a_wrong_number_of_arguments():
    calls = []
    error_of("f(1, 2)", {"f": lambda *, key=1: calls.append(key)})
    assert calls == []


def test_function_without_a_signature_is_called():
    assert value("most(2, 3)", {"most": max}) == 3


def test_type_error_of_a_function_comes_out_unchanged():
    fault = TypeError("rate is not set")

    def rate(year):
        raise fault

    with pytest.raises(TypeError) as caught:
        value("1 + rate(2024)", {"rate": rate})
    assert caught.value is fault


def test_function_that_calls_another_one_wrongly_shows_its_own_error():
    def area(width, height):
        return width * height

    with pytest.raises(TypeError, match="height"):
        value("square(3)", {"square": lambda side: area(side)})


def test_type_error_of_a_function_of_python_itself_comes_out_unchanged():
    with pytest.raises(TypeError, match="no len"):
        value("len(3)", {"len": len})
    assert error_of("len(3, 4)", {"len": len}).position == 0


def test_other_errors_of_a_function_come_out_unchanged():
    with pytest.raises(KeyError):
        value("f(1)", {"f": lambda x: {}[x]})
    with pytest.raises(ZeroDivisionError):
        value("f(1)", {"f": lambda x: x // 0})
