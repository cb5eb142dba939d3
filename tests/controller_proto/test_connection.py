"""Both ends as a pair in memory, whole and byte by byte."""

from __future__ import annotations

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller_proto.command import Command, CreateInstance, Hello, InitializationComplete, Schedule, Sync
from controller_proto.connection import NEED_DATA, Broken, Connection, Ended, Event, Rejected, Role
from controller_proto.errors import FrameTooLarge, LocalProtocolError
from controller_proto.framing import encode_frame
from controller_proto.response import Closing, Refused, Response, Synced
from controller_proto.stage import Stage

BOOT: list[Command] = [Hello(1, "n"), CreateInstance(2), InitializationComplete(3)]


def _events(connection: Connection) -> list[Event]:
    events = []
    while not isinstance(event := connection.next_event(), Ended | Broken) and event is not NEED_DATA:
        events.append(event)
    return events


def _booted() -> tuple[Connection, Connection]:
    controller, replica = Connection(Role.CONTROLLER), Connection(Role.REPLICA)
    for command in BOOT:
        replica.receive_bytes(controller.send(command))
    assert _events(replica) == BOOT
    return controller, replica


def test_a_conversation_fed_byte_by_byte_is_the_same_as_whole() -> None:
    controller, replica = Connection(Role.CONTROLLER), Connection(Role.REPLICA)
    said = [*BOOT, Schedule(4, "u1"), Sync(5)]
    heard = []
    for byte in b"".join(controller.send(command) for command in said):
        replica.receive_bytes(bytes([byte]))
        heard += _events(replica)
    assert heard == said
    answers: list[Response] = [Refused(4, "unknown-id", "u1 is not known"), Synced(5)]
    heard = []
    for byte in b"".join(replica.send(answer) for answer in answers):
        controller.receive_bytes(bytes([byte]))
        heard += _events(controller)
    assert heard == answers


def test_an_illegal_command_cannot_be_sent_and_nothing_is_said() -> None:
    controller = Connection(Role.CONTROLLER)
    with pytest.raises(LocalProtocolError) as caught:
        controller.send(Sync(1))
    assert caught.value.code == "invalid-stage"
    assert controller.stage is Stage.CONNECTED


def test_a_command_that_is_not_legal_is_rejected_and_the_next_is_heard() -> None:
    _, replica = _booted()
    hello = msgpack.packb({"t": "hello", "seq": 8, "nonce": "m"})
    unknown = msgpack.packb({"t": "what", "seq": 9})
    sync = msgpack.packb({"t": "sync", "seq": 10})
    replica.receive_bytes(encode_frame(hello) + encode_frame(unknown) + encode_frame(sync))
    first, second, third = _events(replica)
    assert isinstance(first, Rejected)
    assert (first.seq, first.code) == (8, "invalid-stage")
    assert isinstance(second, Rejected)
    assert second.refused().code == "unknown-message"
    assert third == Sync(10)


def test_broken_framing_is_the_last_event_for_good() -> None:
    _, replica = _booted()
    replica.receive_bytes(encode_frame(b"\xc1"))
    first = replica.next_event()
    replica.receive_bytes(encode_frame(msgpack.packb({"t": "sync", "seq": 10})))
    assert isinstance(first, Broken)
    assert first.closing().code == "bad-frame"
    assert replica.next_event() is first
    assert replica.send(first.closing())
    assert replica.stage is Stage.CLOSED


def test_a_length_over_the_limit_breaks_the_connection_without_its_bytes() -> None:
    replica = Connection(Role.REPLICA, limit_bytes=100)
    replica.receive_bytes(b"\x80\0\0\0")
    event = replica.next_event()
    assert isinstance(event, Broken)
    assert event.code == "frame-too-large"


def test_end_of_file_is_data_and_tells_how_much_was_cut() -> None:
    controller, replica = _booted()
    data = controller.send(Sync(4))
    replica.receive_bytes(data + data[:7])
    replica.receive_bytes(b"")
    assert replica.next_event() == Sync(4)
    assert replica.next_event() == Ended(7)
    assert replica.next_event() == Ended(7)


def test_a_message_over_the_limit_is_not_said() -> None:
    controller = Connection(Role.CONTROLLER, limit_bytes=80)
    with pytest.raises(FrameTooLarge):
        controller.send(Hello(1, "n" * 100))
    assert controller.stage is Stage.CONNECTED
    controller.send(Hello(1, "n"))


def test_a_refused_create_instance_leaves_both_ends_in_creation() -> None:
    controller, replica = Connection(Role.CONTROLLER), Connection(Role.REPLICA)
    for command in BOOT[:2]:
        replica.receive_bytes(controller.send(command))
    _events(replica)
    controller.receive_bytes(replica.send(Refused(2, "unknown-setting", "no setting is called x")))
    _events(controller)
    assert (controller.stage, replica.stage) == (Stage.CREATION, Stage.CREATION)


@given(st.lists(st.binary(max_size=40), max_size=6), st.booleans(), st.sampled_from(Role))
def test_whatever_arrives_is_an_event_and_never_an_exception(
    pieces: list[bytes], framed: bool, role: Role
) -> None:
    connection = Connection(role, limit_bytes=1000)
    for piece in pieces:
        connection.receive_bytes(encode_frame(piece) if framed else piece)
        for event in _events(connection):
            assert isinstance(event, Rejected)
    connection.receive_bytes(b"")
    assert isinstance(connection.next_event(), Rejected | Ended | Broken)


def test_a_closing_can_be_said_in_every_stage() -> None:
    for count in range(4):
        controller, replica = Connection(Role.CONTROLLER), Connection(Role.REPLICA)
        for command in BOOT[:count]:
            replica.receive_bytes(controller.send(command))
        _events(replica)
        controller.receive_bytes(replica.send(Closing("fenced", "epoch 2")))
        assert controller.next_event() == Closing("fenced", "epoch 2")
        assert controller.stage is Stage.CLOSED
