import pytest

from textlay import dedent, expand_tabs, indent


def test_tabs_reach_to_the_next_stop():
    assert expand_tabs("\tx", 4) == "    x"
    assert expand_tabs("abc\tx", 4) == "abc x"
    assert expand_tabs("abcd\t\tx", 4) == "abcd        x"


def test_tabs_go_by_display_width():
    assert expand_tabs("漢\te\u0301\tx", 4) == "漢  e\u0301   x"


def test_tabs_count_from_the_column():
    assert expand_tabs("a\tx", 8, column=5) == "a  x"
    assert expand_tabs("a\n\tx", 4, column=2) == "a\n    x"
    with pytest.raises(ValueError):
        expand_tabs("\t", 0)


def test_indent_of_blank_lines():
    assert indent("a\n\n  b\n", "> ") == "> a\n\n>   b\n"
    assert indent("a\n\nb\n", "> ", blank=True) == "> a\n> \n> b\n"


def test_indent_knows_only_line_feeds():
    assert indent("a\u2028b\x0cc\nd", "> ") == "> a\u2028b\x0cc\n> d"


def test_dedent_removes_the_common_margin():
    assert dedent("    a\n  \n      b\n\n    c\n") == "a\n\n  b\n\nc\n"


def test_dedent_does_not_mix_tabs_and_spaces():
    assert dedent("\ta\n        b") == "\ta\n        b"
    assert dedent("  \ta\n  b") == "\ta\nb"
