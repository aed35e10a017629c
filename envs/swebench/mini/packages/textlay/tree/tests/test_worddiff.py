import pytest

from textlay import Change, diff, inverse, patch, render, tokens


def test_tokens_are_words_spaces_and_characters():
    assert tokens("it_is 5,  ok?!") == ["it_is", " ", "5", ",", "  ", "ok", "?", "!"]
    assert tokens("cafe\u0301s, o\u0308l") == ["cafe\u0301s", ",", " ", "o\u0308l"]


def test_kinds_of_changes():
    assert diff("same text", "same text") == [Change("equal", "same text", "same text")]
    assert diff("", "") == []
    assert [change.kind for change in diff("a b, c", "b; c d")] == ["delete", "equal", "replace", "equal", "insert"]


def test_changes_across_a_space_are_one():
    assert diff("a quick brown fox", "a very slow fox") == [
        Change("equal", "a ", "a "),
        Change("replace", "quick brown", "very slow"),
        Change("equal", " fox", " fox"),
    ]
    assert diff("a b c d!", "w x y z!")[0] == Change("replace", "a b c d", "w x y z")


def test_frequent_words_of_a_long_text_are_matched():
    text = "the cat and the dog " * 60
    assert [change.kind for change in diff(text, text + "end")] == ["equal", "insert"]


def test_patch_gives_the_new_text():
    old, new = "one two\nthree", "one 2\nthree, four"
    assert patch(old, diff(old, new)) == new
    with pytest.raises(ValueError):
        patch(new, diff(old, new))


def test_inverse_goes_back():
    old, new = "keep this word", "keep word now"
    assert patch(new, inverse(diff(old, new))) == old
    assert [change.kind for change in inverse(diff("a, b", "b"))] == ["insert", "equal"]


def test_ignored_differences_are_no_changes():
    assert [change.kind for change in diff("a  b\nc", "A b c", ignore_space=True, ignore_case=True)] == ["equal"]
    assert [change.kind for change in diff("a  b", "a b")] == ["equal", "replace", "equal"]


def test_render_shows_the_new_spelling():
    assert render(diff("The  END now", "the end later", ignore_space=True, ignore_case=True)) == "the end [-now-]{+later+}"


@pytest.mark.parametrize(
    "old, new",
    [("a  b\nc", "a b c"), ("One two", "one TWO three"), ("The  old\nway", "the new way"), ("p\tq z", "r s  Z")],
    ids=["space", "case", "both", "joined"],
)
def test_patch_fits_whatever_was_ignored(old, new):
    changes = diff(old, new, ignore_space=True, ignore_case=True)
    assert patch(old, changes) == new


def test_joined_changes_keep_the_old_space():
    changes = diff("see one\n two", "see three four", ignore_space=True)
    assert changes == [Change("equal", "see ", "see "), Change("replace", "one\n two", "three four")]
    assert render(changes) == "see [-one\n two-]{+three four+}"


def test_equal_stretches_keep_both_spellings():
    assert diff("Big  Cat", "big cat", ignore_space=True, ignore_case=True) == [Change("equal", "Big  Cat", "big cat")]


def test_inverse_gives_back_what_was_ignored():
    old, new = "A\tfine day and  night", "a bad week and night"
    changes = diff(old, new, ignore_space=True, ignore_case=True)
    assert patch(new, inverse(changes)) == old
