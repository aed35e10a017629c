import pytest

from textlay import display_width, fill, list_item, wrap


def test_lines_are_filled():
    assert wrap("the quick brown fox", 10) == ["the quick", "brown fox"]
    assert wrap("", 10) == wrap(" \n\t ", 10) == []


def test_line_breaks_count_as_one_space():
    assert wrap("one \n   two\r\nthree", 20) == ["one two three"]


def test_other_gaps_are_kept_within_a_line():
    assert wrap("  one   two   three", 10) == ["one   two", "three"]


def test_width_is_display_width():
    assert wrap("漢字 漢字 cafe\u0301 cafe\u0301", 9) == ["漢字 漢字", "cafe\u0301 cafe\u0301"]


def test_no_break_spaces_do_not_break():
    assert wrap("a 10\u00a0km run", 6) == ["a", "10\u00a0km", "run"]


def test_indents_are_part_of_the_width():
    assert wrap("aa bb cc dd", 6, initial="* ", subsequent="   ") == ["* aa", "   bb", "   cc", "   dd"]


def test_indent_must_leave_room():
    with pytest.raises(ValueError):
        wrap("a", 4, subsequent="    ")
    with pytest.raises(ValueError):
        wrap("a", 0)


def test_hyphens_between_letters_break():
    assert wrap("a well-known fact", 8) == ["a well-", "known", "fact"]
    assert wrap("cafe\u0301-bar", 6) == ["cafe\u0301-", "bar"]


def test_other_hyphens_do_not_break():
    assert wrap("use --dry-run or -5", 8) == ["use", "--dry-", "run or", "-5"]


def test_words_stay_whole_without_hyphens():
    assert wrap("a well-known fact", 10, hyphens=False) == ["a", "well-known", "fact"]
    assert wrap("a un\u00adbreak\u00adable", 12, hyphens=False) == ["a", "unbreakable"]


def test_long_words_are_broken_where_the_line_is_full():
    assert wrap("ab 漢字漢字漢 cd", 5) == ["ab", "漢字", "漢字", "漢 cd"]
    assert wrap("漢字", 1) == ["漢", "字"]
    assert wrap("a loooong b", 4, break_long=False) == ["a", "loooong", "b"]


def test_tabs_reach_to_the_next_stop():
    assert wrap("one\ttwo\tthree", 40, tabsize=4) == ["one two three"]
    assert wrap("漢\tx", 40, tabsize=4) == ["漢  x"]
    assert wrap("\tone\ttwo", 8, tabsize=8) == ["one", "two"]


def test_tabs_count_the_indent():
    assert wrap("a\tb", 40, initial="> ", tabsize=4) == ["> a b"]
    assert wrap("a\tb", 40, initial="漢漢", tabsize=4) == ["漢漢a   b"]
    assert wrap("a\tb\tc", 40, initial="漢", tabsize=4) == ["漢a b   c"]


def test_tabs_of_later_lines_count_from_their_start():
    assert wrap("abcdef gh\tj", 8, tabsize=4) == ["abcdef", "gh  j"]
    assert wrap("abcdef g\th i", 7, subsequent="  ", tabsize=4) == ["abcdef", "  g h i"]


def test_tab_in_a_list_item():
    assert list_item("key\tvalue", "12. ", 40, tabsize=6) == "12. key     value"


def test_soft_hyphens_show_only_at_line_ends():
    assert wrap("un\u00adbreak\u00adable", 20) == ["unbreakable"]
    assert wrap("un\u00adbreak\u00adable", 9) == ["unbreak-", "able"]
    assert wrap("well-\u00adknown", 7) == ["well-", "known"]


def test_hyphen_of_a_soft_hyphen_takes_a_column():
    assert wrap("un\u00adbreak\u00adable", 7) == ["un-", "break-", "able"]
    assert wrap("to 漢\u00ad字", 5) == ["to", "漢字"]


def test_word_that_fits_needs_no_column_for_its_soft_hyphens():
    assert wrap("to un\u00adbreak\u00adable", 10) == ["to un-", "breakable"]
    assert wrap("un\u00adbreak\u00adable", 11) == ["unbreakable"]
    assert wrap("ex\u00adtra", 5) == ["extra"]


@pytest.mark.parametrize(
    "text, width, lines",
    [
        ("abcdef|gh", 4, ["abcd", "efgh"]),
        ("abcdef|ghij", 4, ["abcd", "ef-", "ghij"]),
        ("abcdef|ghi", 6, ["abcdef", "ghi"]),
        ("abcdefghi|jk", 4, ["abcd", "efgh", "ijk"]),
    ],
    ids=["joined", "hyphenated", "full", "long"],
)
def test_long_part_before_a_soft_hyphen_breaks_without_hyphen(text, width, lines):
    assert wrap(text.replace("|", "\u00ad"), width) == lines


@pytest.mark.parametrize("width", range(2, 14))
def test_no_line_is_wider_than_the_width(width):
    text = "hy\u00adphen\u00ada\u00adtion of 漢\u00ad字 well-known words cafe\u0301"
    lines = wrap(text, width)
    assert max(map(display_width, lines)) <= width
    shown = "".join("".join(lines).split())
    assert shown.replace("-", "") == "hyphenationof漢字wellknownwordscafe\u0301"


def test_fill_keeps_paragraphs():
    assert fill("one two\nthree\n \n\nfour\n", 9) == "one two\nthree\n\nfour"


def test_list_item_hangs_below_its_first_word():
    assert list_item("aa bb cc", "漢 ", 8) == "漢 aa bb\n   cc"
