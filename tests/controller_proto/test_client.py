from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from controller_proto.address import parse_address
from controller_proto.client import WireClient
from controller_proto.command import CreateInstance, Hello, Peek, Sync
from controller_proto.connection import NEED_DATA, Connection, Ended, Role
from controller_proto.errors import CodecError, Disconnected, LocalProtocolError
from controller_proto.framing import encode_frame
from controller_proto.response import (
    Closing,
    Frontiers,
    PeekCanceled,
    PeekResponse,
    PeekRows,
    Refused,
    Response,
    Synced,
)


class Replica:
    """The other end, in this process: says what the test tells it to, byte for byte."""

    def __init__(self, end: socket.socket) -> None:
        self.socket = end
        self.socket.settimeout(10)
        self.connection = Connection(Role.REPLICA)

    def hear(self) -> object:
        while (event := self.connection.next_event()) is NEED_DATA:
            self.connection.receive_bytes(self.socket.recv(1 << 16))
        return event

    def say(self, *responses: Response) -> None:
        self.socket.sendall(b"".join(self.connection.send(r) for r in responses))


@pytest.fixture
def pair() -> Iterator[tuple[WireClient, Replica]]:
    near, far = socket.socketpair()
    client, replica = WireClient(near), Replica(far)
    client.hello("n1", epoch=1)
    client.send(CreateInstance(0))
    assert isinstance(replica.hear(), Hello)
    assert isinstance(replica.hear(), CreateInstance)
    yield client, replica
    client.close()
    far.close()


Pair = tuple[WireClient, Replica]


def test_commands_are_numbered_in_the_order_they_are_sent(pair: Pair) -> None:
    client, replica = pair
    assert client.send(Sync(0)) == 3
    assert client.send(Sync(10)) == 10
    assert client.send(Sync(0)) == 11
    assert [replica.hear() for _ in range(3)] == [Sync(3), Sync(10), Sync(11)]


def test_recv_without_an_answer_ends_at_its_deadline(pair: Pair) -> None:
    client, _ = pair
    assert client.recv(timeout_s=0.01) is None


def test_wait_for_leaves_what_came_before_in_order(pair: Pair) -> None:
    client, replica = pair
    seq = client.send(Sync(0))
    replica.say(Frontiers("u1", (1,)), Frontiers("u1", (2,)), Synced(seq), Frontiers("u1", ()))
    assert client.wait_for(lambda r: isinstance(r, Synced), 10) == Synced(seq)
    assert [client.recv(10) for _ in range(3)] == [
        Frontiers("u1", (1,)),
        Frontiers("u1", (2,)),
        Frontiers("u1", ()),
    ]


def test_a_closed_connection_raises_for_everything_open_after_what_had_arrived(pair: Pair) -> None:
    client, replica = pair
    for uuid in ("a", "b", "c"):
        client.send(Peek(0, uuid=uuid, id="u1", time=1))
    replica.say(PeekResponse("b", PeekRows((), (1,))), Closing("fenced", "a controller of epoch 2 is here"))
    replica.socket.close()
    assert isinstance(client.recv(10), PeekResponse)
    assert isinstance(client.recv(10), Closing)
    for _ in range(2):
        with pytest.raises(Disconnected, match="fenced: a controller of epoch 2") as caught:
            client.recv(10)
    assert (caught.value.code, caught.value.reason, caught.value.open_peeks) == (
        "disconnected",
        "fenced",
        ("a", "c"),
    )
    with pytest.raises(Disconnected):
        client.send(Sync(0))


def test_a_send_into_a_closed_connection_tells_the_reason_the_replica_gave(pair: Pair) -> None:
    client, replica = pair
    replica.say(Closing("bad-frame", "what was that"))
    replica.socket.close()
    with pytest.raises(Disconnected, match="what was that"):
        client.send(Peek(0, uuid="u" * (4 << 20), id="u1", time=1))
    assert isinstance(client.recv(10), Closing)


def test_an_answer_over_the_limit_ends_the_connection_for_everything_open(pair: Pair) -> None:
    client, replica = pair
    client.send(Peek(0, uuid="a", id="u1", time=1))
    replica.socket.sendall(b"\xff\xff\xff\xff")
    with pytest.raises(Disconnected) as caught:
        client.recv(10)
    assert (caught.value.reason, caught.value.open_peeks) == ("frame-too-large", ("a",))


def test_an_answer_that_is_no_message_is_one_error_and_the_next_is_read(pair: Pair) -> None:
    client, replica = pair
    replica.socket.sendall(encode_frame(b"\x81\xa1t\xa4nope"))
    replica.say(Synced(7))
    with pytest.raises(CodecError, match="nope"):
        client.recv(10)
    assert client.recv(10) == Synced(7)


def test_refused_and_answered_peeks_are_open_no_more(pair: Pair) -> None:
    client, replica = pair
    seq = client.send(Peek(0, uuid="a", id="u1", time=1))
    client.send(Peek(0, uuid="b", id="u1", time=1))
    assert client.open_peeks == ("a", "b")
    replica.say(Refused(seq, "invalid-stage", "no"), PeekResponse("b", PeekCanceled()))
    assert [client.recv(10), client.recv(10)]
    assert client.open_peeks == ()


def test_two_ends_that_both_have_much_to_say_do_not_block_each_other(pair: Pair) -> None:
    client, replica = pair
    rows = PeekResponse("a", PeekRows((("x" * (4 << 20),),), (1,)))
    speaker = threading.Thread(target=replica.say, args=(rows, rows))
    speaker.start()
    big = "u" * (4 << 20)
    listener: threading.Thread | None = None
    try:
        # The replica hears nothing before it has said everything.
        def hear() -> None:
            speaker.join()
            while not isinstance(event := replica.hear(), Peek):
                assert not isinstance(event, Ended)

        listener = threading.Thread(target=hear)
        listener.start()
        client.send(Peek(0, uuid=big, id="u1", time=1))
        assert [client.recv(10), client.recv(10)] == [rows, rows]
    finally:
        speaker.join()
        if listener is not None:
            listener.join()


def test_addresses_that_are_none_are_refused_with_what_to_write() -> None:
    assert parse_address("unix:/a:b") == (socket.AF_UNIX, "/a:b")
    assert parse_address("tcp:localhost:1") == (socket.AF_INET, ("localhost", 1))
    for text in ("", "unix:", "tcp:x", "tcp::1", "tcp:x:70000", "tcp:x:-1", "/run/x"):
        with pytest.raises(LocalProtocolError) as caught:
            parse_address(text)
        assert "write unix:PATH" in caught.value.message


def test_connecting_where_nobody_listens_is_the_systems_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="is `clusterd serve` running there") as caught:
        WireClient.connect(f"unix:{tmp_path}/none")
    assert f"unix:{tmp_path}/none" in str(caught.value)


def test_a_full_backlog_is_waited_for_within_the_timeout(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as first:
        listener.bind(path)
        listener.listen(0)
        first.connect(path)
        with pytest.raises(TimeoutError, match=r"cannot connect to unix:.*: it takes in no connections"):
            WireClient.connect(f"unix:{path}", timeout_s=0.05)
        soon = threading.Timer(0.05, lambda: listener.accept()[0].close())
        soon.start()
        try:
            WireClient.connect(f"unix:{path}", timeout_s=10).close()
        finally:
            soon.join()


def test_who_is_fenced_is_told_how_to_read_and_a_reason_is_told_once(pair: Pair) -> None:
    client, replica = pair
    assert client.peer_pid == os.getpid()
    replica.say(Closing("fenced", "a controller with epoch 2 took over", "do not reconnect"))
    replica.socket.close()
    assert isinstance(client.recv(10), Closing)
    with pytest.raises(Disconnected, match=r"epoch 2 took over; another controller .* reader=True"):
        client.recv(10)


def test_a_replica_that_stops_says_so_once(pair: Pair) -> None:
    client, replica = pair
    replica.say(Closing("disconnected", "the replica is stopping"))
    replica.socket.close()
    assert isinstance(client.recv(10), Closing)
    with pytest.raises(Disconnected, match=r"^disconnected: the replica is stopping$"):
        client.recv(10)
