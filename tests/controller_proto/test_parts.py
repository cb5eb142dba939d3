"""An answer in parts is one answer to whoever asked, or an error, never half of one."""

from __future__ import annotations

from controller_proto.command import CreateInstance, Hello, Peek
from controller_proto.connection import NEED_DATA, Connection, Role
from controller_proto.parts import Parts
from controller_proto.response import PeekCanceled, PeekError, PeekPart, PeekResponse, PeekRows


def _part(uuid: str, *values: int) -> PeekPart:
    return PeekPart(uuid, (values, tuple(map(str, values))), (1,) * len(values))


def _last(uuid: str, *values: int, parts: int) -> PeekResponse:
    return PeekResponse(uuid, PeekRows(_part(uuid, *values).columns, (2,) * len(values), parts), 7, "solo")


def test_answers_whose_parts_come_in_between_each_other_are_told_apart() -> None:
    parts = Parts()
    assert parts.take(_part("a", 1, 2)) is None
    assert parts.take(_part("b", 8)) is None
    assert parts.take(_part("a", 3)) is None
    assert len(parts) == 2
    whole = parts.take(_last("a", 4, parts=2))
    assert whole == PeekResponse(
        "a", PeekRows(((1, 2, 3, 4), ("1", "2", "3", "4")), (1, 1, 1, 2), 2), 7, "solo"
    )
    other = parts.take(_last("b", 9, parts=1))
    assert other is not None
    assert isinstance(other.result, PeekRows)
    assert other.result.columns == ((8, 9), ("8", "9"))
    assert len(parts) == 0


def test_rows_of_no_columns_are_counted_in_parts_too() -> None:
    parts = Parts()
    assert parts.take(PeekPart("a", (), (1, 2))) is None
    whole = parts.take(PeekResponse("a", PeekRows((), (3,), 1)))
    assert whole is not None
    assert whole.result == PeekRows((), (1, 2, 3), 1)


def test_what_is_canceled_or_fails_has_no_rows_and_leaves_nothing() -> None:
    parts = Parts()
    for result in (PeekCanceled(), PeekError("limit", "no room")):
        parts.take(_part("a", 1))
        assert parts.take(PeekResponse("a", result)) == PeekResponse("a", result)
        assert len(parts) == 0


def test_an_answer_that_lacks_a_part_or_has_one_too_many_is_an_error() -> None:
    for came, told in ((1, 2), (2, 1), (0, 1), (1, 0)):
        parts = Parts()
        for number in range(came):
            parts.take(_part("a", number))
        whole = parts.take(_last("a", 9, parts=told))
        assert whole is not None
        assert isinstance(whole.result, PeekError)
        assert whole.result.code == "bad-message"
    parts = Parts()
    parts.take(PeekPart("a", ((1,),), (1,)))
    whole = parts.take(_last("a", 9, parts=1))
    assert whole is not None
    assert isinstance(whole.result, PeekError)


def test_a_connection_gives_the_whole_answer_however_its_bytes_come() -> None:
    replica, client = Connection(Role.REPLICA), Connection(Role.CONTROLLER)
    for command in (Hello(1, nonce="n"), CreateInstance(2), Peek(3, "a", "u1", None)):
        replica.receive_bytes(client.send(command))
        assert replica.next_event() == command
    said = b"".join(map(replica.send, (_part("a", 1), _part("a", 2), _last("a", 3, parts=2))))
    for at in range(len(said)):
        assert client.next_event() is NEED_DATA
        client.receive_bytes(said[at : at + 1])
    whole = client.next_event()
    assert isinstance(whole, PeekResponse)
    assert isinstance(whole.result, PeekRows)
    assert whole.result.columns[0] == (1, 2, 3)
    assert client.next_event() is NEED_DATA
