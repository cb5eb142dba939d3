from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller_proto.errors import FrameTooLarge
from controller_proto.framing import FrameDecoder, encode_frame, finish_frame, start_frame

payloads = st.lists(st.binary(max_size=300), max_size=8)


def _drain(decoder: FrameDecoder) -> list[bytes]:
    frames = []
    while (frame := decoder.next_frame()) is not None:
        frames.append(frame)
    return frames


@given(payloads)
def test_frames_fed_byte_by_byte_come_out_as_they_went_in(sent: list[bytes]) -> None:
    decoder = FrameDecoder(limit_bytes=300)
    got = []
    for byte in b"".join(encode_frame(p) for p in sent):
        decoder.receive(bytes([byte]))
        got += _drain(decoder)
    assert got == sent
    assert decoder.pending_bytes == 0


@given(payloads, st.lists(st.integers(1, 400), max_size=20))
def test_frames_cut_anywhere_come_out_as_they_went_in(sent: list[bytes], cuts: list[int]) -> None:
    decoder = FrameDecoder(limit_bytes=300)
    stream = b"".join(encode_frame(p) for p in sent)
    got = []
    for cut in [*cuts, len(stream)]:
        piece, stream = stream[:cut], stream[cut:]
        decoder.receive(piece)
        got += _drain(decoder)
    decoder.receive(stream)
    assert got + _drain(decoder) == sent


def test_many_frames_in_one_piece_cost_one_move_of_the_rest_a_64_kib() -> None:
    decoder = FrameDecoder(limit_bytes=100)
    decoder.receive(encode_frame(b"x" * 96) * 10_000)
    assert len(_drain(decoder)) == 10_000


def test_a_length_over_the_limit_is_refused_before_any_of_it_arrives() -> None:
    decoder = FrameDecoder(limit_bytes=1000)
    decoder.receive(b"\x7f\xff\xff\xff")
    with pytest.raises(FrameTooLarge) as caught:
        decoder.next_frame()
    assert (caught.value.length_bytes, caught.value.limit_bytes) == (0x7FFFFFFF, 1000)
    assert decoder.pending_bytes == 0


def test_after_an_illegal_length_nothing_is_kept_and_nothing_comes_out() -> None:
    decoder = FrameDecoder(limit_bytes=3)
    decoder.receive(encode_frame(b"abc") + encode_frame(b"abcd") + encode_frame(b"e"))
    assert decoder.next_frame() == b"abc"
    for _ in range(2):
        with pytest.raises(FrameTooLarge):
            decoder.next_frame()
        decoder.receive(encode_frame(b"f") * 1000)
        assert decoder.pending_bytes == 0


def test_a_frame_over_the_limit_is_taken_off_the_buffer_again() -> None:
    buffer = bytearray(encode_frame(b"first"))
    start = start_frame(buffer)
    buffer += b"too long"
    with pytest.raises(FrameTooLarge):
        finish_frame(buffer, start, limit_bytes=7)
    assert buffer == encode_frame(b"first")
