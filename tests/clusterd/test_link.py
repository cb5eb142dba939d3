"""FrameLink over real socket pairs: order, partial writes, EOF, limits, holding."""

from __future__ import annotations

import os
import random
import socket
from collections.abc import Iterator

import pytest

from clusterd.link import LARGE_BYTES, READ_BYTES, FrameLink
from controller_proto.framing import encode_frame

SIZES = [0, 1, 3, 4, 5, 100, 5000, LARGE_BYTES - 1, LARGE_BYTES, LARGE_BYTES + 1, READ_BYTES, 500_000]
Pair = tuple[FrameLink, FrameLink, socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    left, right = socket.socketpair()
    left.setblocking(False)
    right.setblocking(False)
    yield FrameLink(left.fileno()), FrameLink(right.fileno(), limit_bytes=1 << 20), left, right
    left.close()
    right.close()


def drain(link: FrameLink) -> list[bytes]:
    found = []
    while frames := link.on_readable():
        found += frames
    return found


def test_frames_arrive_whole_and_in_order_through_a_narrow_pipe(pair: Pair) -> None:
    sender, receiver, left, _ = pair
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    draw = random.Random(seed)
    left.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    sent = [draw.randbytes(draw.choice(SIZES)) for _ in range(300)]
    got: list[bytes] = []
    for payload in sent:
        sender.queue(payload)
        if draw.random() < 0.5:
            sender.flush()
        if draw.random() < 0.3:
            got += receiver.on_readable()
    while sender.wants_write or len(got) < len(sent):
        sender.flush()
        got += receiver.on_readable()
    assert got == sent
    assert sender.out_bytes == 0


def test_bytes_one_at_a_time_give_the_same_frames(pair: Pair) -> None:
    _, receiver, left, _ = pair
    frames = [b"", b"a", b"hello", bytes(300)]
    got = []
    for byte in b"".join(encode_frame(frame) for frame in frames):
        left.send(bytes([byte]))
        got += receiver.on_readable()
    assert got == frames


def test_a_reader_that_does_not_read_costs_a_queue_and_nothing_blocks(pair: Pair) -> None:
    sender, receiver, _, _ = pair
    payload = bytes(1 << 16)
    for _ in range(100):
        sender.send(payload)
    assert sender.wants_write
    assert 0 < sender.out_bytes < 100 * (len(payload) + 4)
    total = 0
    while sender.wants_write or total < 100:
        sender.flush()
        total += len(receiver.on_readable())
    assert total == 100


def test_a_large_payload_is_not_copied_into_the_queue(pair: Pair) -> None:
    sender, _, _, _ = pair
    payload = bytes(8 << 20)
    sender.queue(memoryview(payload))
    assert sender._out[1].obj is payload  # type: ignore[union-attr]


def test_held_links_write_nothing_until_released(pair: Pair) -> None:
    sender, receiver, _, _ = pair
    sender.held = True
    sender.send(b"a")
    sender.send(b"b")
    assert not sender.wants_write
    assert drain(receiver) == []
    sender.held = False
    sender.flush()
    assert drain(receiver) == [b"a", b"b"]


def test_eof_and_a_gone_reader_end_the_link(pair: Pair) -> None:
    sender, receiver, left, right = pair
    sender.send(b"last")
    left.shutdown(socket.SHUT_WR)
    assert receiver.on_readable() == [b"last"]
    assert not receiver.ended
    assert receiver.on_readable() == []
    assert receiver.ended
    right.close()
    sender.send(b"nobody")
    assert sender.ended
    assert sender.out_bytes == 0
    sender.send(b"still nobody")
    assert not sender.wants_write


def test_an_illegal_length_breaks_the_link_after_the_frames_before_it(pair: Pair) -> None:
    _, receiver, left, _ = pair
    left.send(encode_frame(b"good") + (2 << 30).to_bytes(4, "big") + b"junk")
    assert receiver.on_readable() == [b"good"]
    assert receiver.broken is not None
    assert receiver.broken.length_bytes == 2 << 30
    left.send(b"more")
    assert receiver.on_readable() == []


@pytest.mark.parametrize("written", [0, 2, 4, 7, 9, 13])
def test_drop_unsent_keeps_the_frame_that_was_begun(pair: Pair, written: int) -> None:
    sender, receiver, left, _ = pair
    sender.queue(b"first")  # 4 + 5 bytes
    sender.queue(b"second")
    sender.queue(b"third")
    wire = b"".join(encode_frame(p) for p in (b"first", b"second", b"third"))
    left.send(wire[:written])
    sender._written(written)
    sender.drop_unsent()
    sender.queue(b"goodbye")
    sender.flush()
    expected = {0: [], 2: [b"first"], 4: [b"first"], 7: [b"first"], 9: [b"first"], 13: [b"first", b"second"]}
    assert drain(receiver) == [*expected[written], b"goodbye"]
    assert sender.out_bytes == 0


def test_non_blocking_is_what_it_asks_for(pair: Pair) -> None:
    _, receiver, _, right = pair
    assert not os.get_blocking(right.fileno())
    assert receiver.on_readable() == []
    assert not receiver.ended
