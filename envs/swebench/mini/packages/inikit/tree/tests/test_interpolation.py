import pytest

import inikit
from inikit import InterpolationError, MissingReference, ReferenceCycle

SITE = """\
base = /srv
log = ${base}/log
[a]
base = /a
data = ${base}/data
log = ${:log}
[b]
data = ${a:data}/b
"""


def test_reference_is_looked_up_in_its_own_section_first():
    config = inikit.loads(SITE)
    assert config.get("", "log") == "/srv/log"
    assert config.get("a", "data") == "/a/data"


def test_reference_of_a_value_counts_from_where_that_value_stands():
    config = inikit.loads(SITE)
    assert config.get("b", "data") == "/a/data/b"
    assert config.get("a", "log") == "/srv/log"


def test_section_of_a_reference_is_not_searched_elsewhere():
    config = inikit.loads("x = 1\n[a]\n[b]\ny = ${a:x}\n")
    with pytest.raises(MissingReference):
        config.get("b", "y")


def test_dollars():
    cases = {"$$": "$", "$${v}": "${v}", "$$${v}": "$1", "$v $": "$v $", "${ V }${v}": "11", "{v}": "{v}"}
    for text, expanded in cases.items():
        config = inikit.loads(f"v = 1\nk = {text}\n")
        assert config.get("", "k") == expanded
        assert config.get("", "k", raw=True) == text
        config.set("", "k", inikit.escape(text))
        assert config.get("", "k") == text


def test_expanded_text_is_not_expanded_again():
    config = inikit.loads("v = 1\na = $${v} $$$$\nb = <${a}>\nc = ${b}\n")
    assert config.get("", "b") == "<${v} $$>"
    assert config.get("", "c") == "<${v} $$>"


def test_references_reach_into_quotes_and_lines():
    config = inikit.loads('v = 1\n    2\nk = "${v} "\n    ${v}\n')
    assert config.get("", "k") == "1\n2 \n1\n2"


def test_missing_reference_names_both_sides():
    config = inikit.loads("[a]\nx = ${b:y}\n[b]\ny = ${z}\n")
    with pytest.raises(MissingReference, match="b:y refers to 'z'"):
        config.get("a", "x")
    with pytest.raises(MissingReference):
        config.get("a", "x", default="d")


def test_unclosed_reference_is_an_error():
    config = inikit.loads("a = ${b\n")
    with pytest.raises(InterpolationError, match="not closed"):
        config.get("", "a")
    assert config.get("", "a", raw=True) == "${b"


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("k = ${k}", ("k", "k")),
        ("k = ${x}\nx = ${Y}\ny = ${k}", ("k", "x", "y", "k")),
        ("k = ${x}\nx = ${y}\ny = ${X}", ("x", "y", "x")),
        ("k = ${a:x}\n[a]\nx = ${k}", ("k", "a:x", "k")),
    ],
    ids=["itself", "three", "behind", "sections"],
)
def test_cycle_is_an_error_that_names_the_way_round(text, path):
    config = inikit.loads(text)
    with pytest.raises(ReferenceCycle) as caught:
        config.get("", "k")
    assert caught.value.path == path


def test_two_ways_to_one_value_are_no_cycle():
    config = inikit.loads("root = r\na = ${root}1\nb = ${root}2\nk = ${a} ${b} ${a}\n")
    assert config.get("", "k") == "r1 r2 r1"


def test_changed_value_shows_in_what_refers_to_it():
    config = inikit.loads(SITE)
    assert config.get("b", "data") == "/a/data/b"
    config.set("a", "base", "/new")
    assert config.get("a", "data") == "/new/data"
    assert config.get("b", "data") == "/new/data/b"
    config.set("a", "data", "x")
    assert config.get("b", "data") == "x/b"


def test_new_key_shows_in_what_refers_to_it():
    config = inikit.loads("base = /srv\n[a]\ndata = ${base}/data\n")
    assert config.get("a", "data") == "/srv/data"
    config.set("a", "BASE", "/a")
    assert config.get("a", "data") == "/a/data"


def test_removed_key_shows_in_what_refers_to_it():
    config = inikit.loads(SITE)
    assert config.get("b", "data") == "/a/data/b"
    config.remove("a", "BASE")
    assert config.get("b", "data") == "/srv/data/b"
    config.remove("", "base")
    with pytest.raises(MissingReference):
        config.get("b", "data")


def test_cycle_shows_once_it_is_made_and_goes_when_it_is_broken():
    config = inikit.loads("a = ${b}\nb = 1\n")
    assert config.get("", "a") == "1"
    config.set("", "b", "${a}")
    with pytest.raises(ReferenceCycle):
        config.get("", "a")
    config.set("", "b", "2")
    assert config.get("", "a") == "2"


def test_changed_value_shows_in_itself():
    config = inikit.loads("a = 1\n")
    assert config.get("", "a") == "1"
    config.set("", "A", "2")
    assert config.get("", "a") == "2"
    config.remove("", "a")
    assert config.get("", "a", default=None) is None
