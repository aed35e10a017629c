from datetime import timedelta

import pytest

from almanac import format_duration, format_iso_duration, parse_duration


@pytest.mark.parametrize(
    "text, expected",
    [
        ("90s", timedelta(seconds=90)),
        ("1h30m", timedelta(minutes=90)),
        ("1w 2d", timedelta(days=9)),
        ("1.5h", timedelta(minutes=90)),
        ("-45m", timedelta(minutes=-45)),
        (" 0s ", timedelta(0)),
    ],
    ids=range(6),
)
def test_compact_durations_are_read(text, expected):
    assert parse_duration(text) == expected


@pytest.mark.parametrize(
    "text, expected",
    [
        ("P1DT2H30M", timedelta(days=1, minutes=150)),
        ("PT0.25S", timedelta(milliseconds=250)),
        ("P2W", timedelta(days=14)),
        ("-PT36H", timedelta(hours=-36)),
    ],
)
def test_iso_durations_are_read(text, expected):
    assert parse_duration(text) == expected


@pytest.mark.parametrize(
    "text",
    ["", "-", "90", "1y", "30m 1h", "1h 2h", "1,5h", "P", "PT", "P1DT", "P1H", "pt1h", "1h -30m", "9999999999d"],
    ids=range(14),
)
def test_other_texts_are_no_durations(text):
    with pytest.raises(ValueError):
        parse_duration(text)


def test_durations_are_written_without_zeros():
    assert format_duration(timedelta(days=1, minutes=150)) == "1d 2h 30m"
    assert format_duration(timedelta(hours=10, seconds=20)) == "10h 20s"
    assert format_duration(timedelta(0)) == "0s"
    assert format_iso_duration(timedelta(days=1, minutes=150)) == "P1DT2H30M"
    assert format_iso_duration(timedelta(days=3)) == "P3D"
    assert format_iso_duration(timedelta(0)) == "PT0S"


def test_fractions_are_of_seconds():
    assert format_duration(timedelta(seconds=1, milliseconds=500)) == "1.5s"
    assert format_duration(timedelta(microseconds=10)) == "0.00001s"
    assert format_iso_duration(timedelta(minutes=1, milliseconds=50)) == "PT1M0.05S"


def test_negative_days_are_written():
    assert format_duration(timedelta(days=-2)) == "-2d"
    assert format_iso_duration(timedelta(days=-2)) == "-P2D"


@pytest.mark.parametrize(
    "delta, text",
    [
        (timedelta(minutes=-90), "-1h 30m"),
        (timedelta(seconds=-1), "-1s"),
        (timedelta(hours=-36), "-1d 12h"),
        (timedelta(milliseconds=-1500), "-1.5s"),
        (timedelta(days=-1, microseconds=-1), "-1d 0.000001s"),
    ],
    ids=range(5),
)
def test_a_negative_duration_is_its_opposite_after_a_sign(delta, text):
    assert format_duration(delta) == text


@pytest.mark.parametrize(
    "delta, text",
    [
        (timedelta(minutes=-90), "-PT1H30M"),
        (timedelta(hours=-36), "-P1DT12H"),
        (timedelta(milliseconds=-250), "-PT0.25S"),
    ],
)
def test_a_negative_iso_duration_has_its_sign_in_front(delta, text):
    assert format_iso_duration(delta) == text


def test_what_is_written_can_be_read():
    for size in (timedelta(hours=1), timedelta(days=40, seconds=3661), timedelta(seconds=0.1), timedelta(0)):
        assert parse_duration(format_duration(size)) == size
        assert parse_duration(format_iso_duration(size)) == size


def test_what_is_written_with_a_sign_can_be_read():
    for size in (timedelta(hours=1), timedelta(days=40, seconds=3661), timedelta(seconds=0.1), timedelta(weeks=1)):
        assert parse_duration(format_duration(-size)) == -size
        assert parse_duration(format_iso_duration(-size)) == -size
