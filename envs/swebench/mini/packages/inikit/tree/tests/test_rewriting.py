import pytest

import inikit

FILE = """\
; the site

Name = site   # shown
[server]  # where
  port=8080
  hosts =   # all of them
      alpha   # first

  flags = a # one
      # between
      b     # two
      c

[client]
"""


def test_unchanged_text_is_written_as_it_was():
    short = ["", "\n\n", "# only", "a=1\r\nb = 2\n", "[a]\nb = 1\n  2"]
    for text in [FILE, FILE.replace("\n", "\r\n"), *short]:
        assert inikit.loads(text).dumps() == text


def test_set_changes_one_line():
    config = inikit.loads(FILE)
    config.set("server", "PORT", "80")
    config.set("", "name", "new site")
    changed = FILE.replace("port=8080", "port = 80").replace("Name = site ", "Name = new site ")
    assert config.dumps() == changed


def test_setting_the_same_value_changes_nothing():
    config = inikit.loads(FILE)
    config.set("server", "port", "8080")
    config.set("server", "flags", "a\nb\nc")
    assert config.dumps() == FILE


def test_longer_value_goes_on_below_its_key():
    config = inikit.loads("[s]\n  a = 1 # note\n  b = 2\n")
    config.set("s", "a", "x\n\ny")
    assert config.dumps() == '[s]\n  a = x # note\n      ""\n      y\n  b = 2\n'


def test_comments_that_lose_their_line_move_above_the_key():
    config = inikit.loads("a = 1 # one\n    # between\n    2 # two\n    3\nb = 4\n")
    config.set("", "a", "x")
    assert config.dumps() == "# between\n# two\na = x # one\nb = 4\n"


def test_comment_beside_the_key_of_a_longer_value_is_kept():
    config = inikit.loads("a =  # all\n    1\n    2 # two\n")
    config.set("", "a", "3\n4")
    assert config.dumps() == "# all\na = 3\n    4 # two\n"


def test_set_leaves_the_comment_of_the_next_key_alone():
    config = inikit.loads("[s]\na = 1\n# about b\nb = 2\n")
    config.set("s", "a", "3")
    assert config.dumps() == "[s]\na = 3\n# about b\nb = 2\n"


def test_set_tells_inner_comments_from_those_that_follow():
    config = inikit.loads("a =\n    1\n    # inner\n    2\n    # old: 3\n# about b\nb = 4\n")
    config.set("", "a", "5")
    assert config.dumps() == "# inner\na = 5\n    # old: 3\n# about b\nb = 4\n"


def test_removed_entry_takes_its_own_lines_with_it():
    config = inikit.loads("# above\na = 1 # one\n    # between\n    2\nb = 3\n")
    assert config.remove("", "A") is True
    assert config.dumps() == "# above\nb = 3\n"
    assert config.remove("", "a") is False
    assert config.remove("nowhere", "a") is False


def test_remove_leaves_the_comments_that_follow():
    config = inikit.loads("[s]\na = 1\n    2\n    # old: 3\n; about b\nb = 4\n# about t\n[t]\n")
    config.remove("s", "a")
    assert config.dumps() == "[s]\n    # old: 3\n; about b\nb = 4\n# about t\n[t]\n"
    config.remove("s", "b")
    assert config.dumps() == "[s]\n    # old: 3\n; about b\n# about t\n[t]\n"


def test_new_key_goes_behind_the_last_entry():
    config = inikit.loads("[s]\n  a = 1\n\n# about t\n[t]\n")
    config.set("s", "b", "2")
    assert config.dumps() == "[s]\n  a = 1\n  b = 2\n\n# about t\n[t]\n"


def test_new_key_goes_above_the_comments_behind_the_last_entry():
    config = inikit.loads("[s]\na = 1\n# b = 2\n# about t\n[t]\n")
    config.set("s", "c", "3")
    assert config.dumps() == "[s]\na = 1\nc = 3\n# b = 2\n# about t\n[t]\n"


def test_first_key_goes_behind_the_comment_that_opens_the_section():
    config = inikit.loads("# licence\n\n# about s\n[s]\n\n")
    config.set("", "a", "1")
    config.set("s", "b", "2")
    assert config.dumps() == "# licence\na = 1\n\n# about s\n[s]\nb = 2\n\n"


def test_new_section_goes_to_the_end():
    config = inikit.loads("a = 1")
    config.set("s", "b", "2")
    config.set("t", "c", "")
    assert config.dumps() == "a = 1\n\n[s]\nb = 2\n\n[t]\nc =\n"
    config = inikit.Config()
    config.set("s", "b", "2")
    assert config.dumps() == "[s]\nb = 2\n"


def test_new_lines_end_as_the_first_one_does():
    config = inikit.loads("a = 1\r\n[s]\r\nb = 2")
    config.set("", "a", "3\n4")
    config.set("s", "c", "5")
    assert config.dumps() == "a = 3\r\n    4\r\n[s]\r\nb = 2\r\nc = 5\r\n"


def test_values_are_quoted_where_they_must_be():
    for value in [" a ", "a # b", "a\t;b", "#a", ";", '"', '"a" b', "\\n", "a\\", "[x]", "=", "ä€𝄞", "\xa0a"]:
        config = inikit.loads("[s]\nk = 1 # note\n")
        config.set("s", "k", value)
        config.set("s", "new", value + "\n" + value)
        again = inikit.loads(config.dumps())
        assert again.get("s", "k") == value
        assert again.get("s", "new") == value + "\n" + value
        assert " # note\n" in config.dumps()


def test_empty_lines_of_a_value_are_read_back():
    for value in ["\n", "a\n", "a\n\n", "\na", "\n\nb", "a\n\n\nb"]:
        config = inikit.loads("k = 1\nl = 2\n")
        config.set("", "k", value)
        again = inikit.loads(config.dumps())
        assert again.get("", "k") == value
        assert again.get("", "l") == "2"


def test_separators_in_a_value_are_read_back():
    for value in ["a\x0bb", "a\x0c", "\x1c", "a\x85\nb", "one\u2028two", "\u2029", "a\n\u2028b", "\r", "a\r\nb"]:
        config = inikit.loads("k = 1\nl = 2\n")
        config.set("", "k", value)
        assert config.dumps().count("\n") == 2 + value.count("\n")
        again = inikit.loads(config.dumps())
        assert again.get("", "k") == value
        assert again.get("", "l") == "2"


def test_names_that_a_file_cannot_hold_are_refused():
    config = inikit.loads("a = 1\n")
    keys = [("", key) for key in ["", " a", "a=b", "[a", "#a", "a #b", "a\nb"]]
    for section, key in [*keys, ("a]", "k"), ("a\n", "k"), (" ", "k")]:
        with pytest.raises(ValueError, match="cannot be written"):
            config.set(section, key, "1")
    assert config.dumps() == "a = 1\n"


def test_file_is_written_with_its_line_ends(tmp_path):
    path = tmp_path / "site.ini"
    path.write_bytes("a = ü\r\n# ende\r\n".encode())
    config = inikit.load(path)
    config.set("s", "b", "ö")
    config.dump(path)
    assert path.read_bytes() == "a = ü\r\n# ende\r\n\r\n[s]\r\nb = ö\r\n".encode()
