import pytest

from textlay import char_width, clusters, display_width, pad, take, truncate


@pytest.mark.parametrize("char, columns", [("a", 1), ("漢", 2), ("한", 2), ("\u0301", 0), ("\t", 0), ("é", 1), ("…", 1)])
def test_char_width(char, columns):
    assert char_width(char) == columns


def test_display_width_adds_up():
    assert display_width("漢字 cafe\u0301") == 9
    assert display_width("\u1112\u1161\u11ab") == display_width("한") == 2


def test_clusters_keep_marks_with_their_character():
    assert list(clusters("e\u0301a\u0300\u0323x")) == ["e\u0301", "a\u0300\u0323", "x"]
    assert list(clusters("")) == []


def test_control_characters_are_clusters_of_their_own():
    assert list(clusters("a\n\tb")) == ["a", "\n", "\t", "b"]


@pytest.mark.parametrize("columns, characters", [(0, 0), (1, 0), (2, 1), (3, 3), (9, 4)])
def test_take_splits_between_clusters(columns, characters):
    text = "漢e\u0301x"
    assert take(text, columns) == (text[:characters], text[characters:])


def test_truncate_counts_the_ellipsis():
    assert truncate("漢字", 4) == "漢字"
    assert truncate("abcdef", 4) == "abc…"
    assert truncate("漢字漢字", 6, "..") == "漢字.."
    assert truncate("abcdef", 2, "...") == "ab"


@pytest.mark.parametrize("align", ["left", "right", "center"])
def test_pad(align):
    assert pad("漢", 5, align) == {"left": "漢   ", "right": "   漢", "center": " 漢  "}[align]
    assert pad("漢字", 3, align) == "漢字"
