import pytest

import inikit
from inikit import ParseError


def test_empty_text_has_no_sections():
    config = inikit.loads("")
    assert config.sections() == []
    assert config.keys("") == []
    assert config.dumps() == ""


def test_sections_and_keys_keep_their_order():
    config = inikit.loads("[z]\nb = 1\na = 2\n[c]\n[a]\n")
    assert config.sections() == ["z", "c", "a"]
    assert config.keys("z") == ["b", "a"]
    assert config.keys("c") == []


def test_keys_above_the_first_header_have_the_empty_section():
    config = inikit.loads("name = x\n[a]\nname = y\n")
    assert config.get("", "name") == "x"
    assert config.get("a", "name") == "y"


def test_keys_do_not_care_about_case_and_sections_do():
    config = inikit.loads("[A]\nStraße = 1\n[a]\nstrasse = 2\n")
    assert config.get("A", "STRASSE") == "1"
    assert config.get("a", "straße") == "2"
    assert config.keys("A") == ["Straße"]


def test_value_of_one_line():
    cases = {
        "k=v": "v",
        "k  =  a b  ": "a b",
        "k =": "",
        "k = a = b": "a = b",
        "k = a # note": "a",
        "k = a\t; note": "a",
        "k = a#b;c": "a#b;c",
        "k = # note": "",
        "k =#x": "#x",
        'k = say "hi"': 'say "hi"',
    }
    for line, value in cases.items():
        assert inikit.loads(line + "\n").get("", "k") == value
        assert inikit.loads(line).get("", "k") == value


def test_quoted_value():
    cases = {
        'k = ""': "",
        'k = " a # b "': " a # b ",
        'k = "a" # note': "a",
        'k = "a";note': "a",
        r'k = "\\ \" \t"': '\\ " \t',
        r'k = "one\ntwo"': "one\ntwo",
    }
    for line, value in cases.items():
        assert inikit.loads(line + "\n").get("", "k") == value


def test_deeper_lines_continue_a_value():
    config = inikit.loads('k = one\n  two = 2 # note\n\t[three]\n  "  four"\nl = 1\n')
    assert config.get("", "k") == "one\ntwo = 2\n[three]\n  four"
    assert config.get("", "l") == "1"


def test_empty_first_line_is_not_part_of_a_longer_value():
    assert inikit.loads("k =\n  a\n  b\n").get("", "k") == "a\nb"
    assert inikit.loads('k = ""\n  a\n').get("", "k") == "\na"


def test_equal_indent_or_a_blank_line_ends_a_value():
    config = inikit.loads("[s]\n    a = 1\n    b = 2\n      more\n  c = 3\n\n    d = 4\n")
    assert config.keys("s") == ["a", "b", "c", "d"]
    assert config.get("s", "b") == "2\nmore"


def test_comment_lines_do_not_end_a_value():
    config = inikit.loads("a = 1\n# left\n    ; deeper\n    2\nb = 3\n")
    assert config.get("", "a") == "1\n2"
    assert config.keys("") == ["a", "b"]


def test_header_may_carry_a_comment():
    assert inikit.loads("[ a ] # note\n[b]; note\n").sections() == ["a", "b"]


def test_only_newlines_end_a_line():
    for separator in ["\x0b", "\x0c", "\x1c", "\x85", "\u2028", "\u2029"]:
        config = inikit.loads(f"a = one{separator}two\nb = 3\n")
        assert config.get("", "a") == f"one{separator}two"
        assert config.get("", "b") == "3"


def test_separators_may_stand_in_comments_and_keys():
    text = "# page\x0cbreak\u2028here\na\x85b = 1\n"
    config = inikit.loads(text)
    assert config.keys("") == ["a\x85b"]
    assert config.dumps() == text


def test_parse_error_says_the_line():
    cases = {
        "a = 1\nnonsense\n": 2,
        "= 1\n": 1,
        "a # b = 1\n": 1,
        "\n[a\n": 2,
        "[]\n": 1,
        "[a] b\n": 1,
        'a = "open\n': 1,
        'a = 1\n\nb = 2\n  "open\n': 4,
        'a = "x" y\n': 1,
        'a = "\\q"\n': 1,
    }
    for text, line in cases.items():
        with pytest.raises(ParseError) as caught:
            inikit.loads(text)
        assert caught.value.line == line
        assert f"line {line}:" in str(caught.value)


@pytest.mark.parametrize("text", ["a = 0\n[s]\n[t]\n[s]\n", "[s]\na = 1\nkey = 2\nKEY = 3\n"], ids=["section", "key"])
def test_name_that_comes_twice_is_an_error(text):
    with pytest.raises(ParseError, match=r"line 4: .* comes twice"):
        inikit.loads(text)
