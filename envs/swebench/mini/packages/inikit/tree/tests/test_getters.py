import pytest

import inikit
from inikit import ConversionError, MissingKey, MissingReference

CONFIG = """\
size = 1${half}
half = 5
broken = ${nothing}
[s]
ratio = 0.5
word = many
"""


def test_missing_key_is_an_error_without_a_default():
    config = inikit.loads(CONFIG)
    for section, key in [("", "word"), ("s", "size"), ("t", "word")]:
        with pytest.raises(MissingKey):
            config.get(section, key)
        with pytest.raises(KeyError):
            config.get_int(section, key)


def test_default_stands_in_for_a_missing_key():
    config = inikit.loads(CONFIG)
    assert config.get("t", "word", default="few") == "few"
    assert config.get("", "word", "") == ""
    assert config.get("", "word", None) is None
    assert config.get("s", "word", "few") == "many"


def test_numbers_are_read_from_the_expanded_text():
    config = inikit.loads(CONFIG)
    assert config.get_int("", "size") == 15
    assert config.get_float("", "half") == 5.0
    assert config.get_float("s", "ratio", default=2.0) == 0.5
    assert config.get_int("s", "size", default=3) == 3


@pytest.mark.parametrize(("true", "false"), [("1", "0"), ("yes", "no"), ("True", "False"), ("ON", "OFF")])
def test_words_for_booleans(true, false):
    config = inikit.loads(f"a = {true}\nb = {false}\n")
    assert config.get_bool("", "a") is True
    assert config.get_bool("", "b", default=True) is False


def test_list_items_stand_between_commas_or_on_lines():
    config = inikit.loads("a =\nb = x\nc = x, y,,z ,\nd =\n  x y\n  z, u\n")
    assert config.get_list("", "a") == []
    assert config.get_list("", "b") == ["x"]
    assert config.get_list("", "c") == ["x", "y", "z"]
    assert config.get_list("", "d", default=["v"]) == ["x y", "z", "u"]


def test_none_is_a_default_of_every_getter():
    config = inikit.loads(CONFIG)
    assert config.get_int("s", "size", default=None) is None
    assert config.get_float("s", "size", default=None) is None
    assert config.get_bool("s", "size", default=None) is None
    assert config.get_list("t", "size", default=None) is None


def test_default_is_given_back_untouched():
    config = inikit.loads(CONFIG)
    hosts = ["a, b", ""]
    assert config.get_list("s", "hosts", default=hosts) is hosts
    assert config.get_list("s", "hosts", default="a,b") == "a,b"
    assert config.get_bool("s", "debug", default=False) is False
    assert config.get_int("s", "level", default="auto") == "auto"
    assert config.get_int("s", "level", default=2.5) == 2.5


def test_default_that_is_a_number_keeps_its_type():
    config = inikit.loads(CONFIG)
    assert type(config.get_float("s", "size", default=3)) is int
    assert config.get_bool("s", "size", default="yes") == "yes"


def test_default_does_not_stand_in_for_a_value_of_the_wrong_type():
    config = inikit.loads(CONFIG)
    for getter in (config.get_int, config.get_float, config.get_bool):
        with pytest.raises(ConversionError, match="s:word"):
            getter("s", "word", default=1)
        with pytest.raises(ValueError, match="s:word"):
            getter("s", "word")


def test_default_does_not_stand_in_for_a_broken_reference():
    config = inikit.loads(CONFIG)
    for getter in (config.get, config.get_int, config.get_list):
        with pytest.raises(MissingReference):
            getter("", "broken", default=1)
