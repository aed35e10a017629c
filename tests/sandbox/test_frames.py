"""The wire format and the output cap of the agent."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocknroll.sandbox.agent.frames import MAX_BODY_BYTES, PREFIX, Frames, Refused, pack
from rocknroll.sandbox.agent.output import HeadTail


@given(st.lists(st.tuples(st.binary(max_size=50), st.binary(max_size=200)), max_size=8), st.data())
def test_frames_survive_any_cut_of_the_stream(sent: list[tuple[bytes, bytes]], data: st.DataObject) -> None:
    stream = b"".join(pack(header, body) for header, body in sent)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=10)))
    frames, received = Frames(), []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        received += frames.feed(stream[start:end])
    assert received == sent


def test_an_oversized_frame_is_refused_from_its_first_bytes() -> None:
    with pytest.raises(Refused, match="too large"):
        Frames().feed(PREFIX.pack(2, 1 << 31))
    with pytest.raises(Refused, match="too large"):
        Frames().feed(PREFIX.pack(1 << 31, 0))
    assert Frames().feed(PREFIX.pack(2, MAX_BODY_BYTES)) == []


@given(st.lists(st.binary(max_size=64), max_size=30), st.integers(2, 64))
def test_head_and_tail_are_kept_and_the_cut_is_counted(chunks: list[bytes], limit: int) -> None:
    sink = HeadTail(limit)
    for chunk in chunks:
        sink.feed(chunk)
    kept, cut = sink.result()
    whole, half = b"".join(chunks), limit // 2
    assert len(kept) + cut == len(whole)
    if len(whole) <= 2 * half:
        assert kept == whole
    else:
        assert kept == whole[:half] + whole[-half:]
