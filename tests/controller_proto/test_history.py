"""A controller's reduced history: short, and worth the whole one (I19)."""

from __future__ import annotations

import msgspec
import pytest

from controller_proto.command import (
    AllowCompaction,
    AllowWrites,
    CancelPeek,
    Command,
    CreateDataflow,
    CreateInstance,
    Hello,
    InitializationComplete,
    Peek,
    Schedule,
    Sync,
    UpdateConfiguration,
)
from controller_proto.dataflow import DataflowHeader, Export, IndexImport, SourceImport
from controller_proto.history import History
from controller_proto.response import PeekError, PeekResponse, Refused, Synced
from controller_proto.schema import SAMPLE_SCHEMA

BODY = msgspec.Raw(b"\x80")


class Teller:
    """Says things to a history, numbering them."""

    def __init__(self) -> None:
        self.history = History()
        self.seq = 0

    def say(self, command: Command) -> int:
        self.seq += 1
        self.history.sent(msgspec.structs.replace(command, seq=self.seq))
        return self.seq

    def create(
        self, *ids: str, imports: tuple[str, ...] = (), as_of: int = 0, until: int | None = None
    ) -> int:
        sources = () if imports else (SourceImport("u900", "s", SAMPLE_SCHEMA),)
        exports = tuple(Export(id, "index", "u900", SAMPLE_SCHEMA, (0,)) for id in ids)
        header = DataflowHeader("d", as_of, until, sources, tuple(map(IndexImport, imports)), exports)
        return self.say(CreateDataflow(0, header, BODY))

    def compact(self, id: str, *times: int) -> None:
        self.say(AllowCompaction(0, id, times))

    def told(self) -> list[str]:
        return [text(command) for command in self.history.commands()]


def text(command: Command) -> str:
    match command:
        case CreateDataflow(header=header):
            return f"create {' '.join(e.id for e in header.exports)} @{header.as_of}"
        case Schedule(id=id):
            return f"schedule {id}"
        case AllowWrites(id=id):
            return f"writes {id}"
        case AllowCompaction(id=id, frontier=frontier):
            return f"compact {id} {list(frontier)}"
        case Peek(uuid=uuid):
            return f"peek {uuid}"
        case CreateInstance(config=config):
            return f"instance {config}"
        case InitializationComplete():
            return "complete"
    raise AssertionError(command)


@pytest.fixture
def teller() -> Teller:
    return Teller()


def test_i19_the_history_reduces_to_what_stands(teller: Teller) -> None:
    teller.say(Hello(0, "n1"))
    teller.say(CreateInstance(0, {"peek_fuel": 5}))
    teller.say(InitializationComplete(0))
    teller.create("u1")
    teller.say(Schedule(0, "u1"))
    teller.compact("u1", 3)
    teller.compact("u1", 5)
    teller.create("u2")
    teller.compact("u2")
    teller.say(Peek(0, "a", "u1", 9))
    teller.say(CancelPeek(0, "a"))
    teller.say(Peek(0, "b", "u1", 9))
    teller.say(UpdateConfiguration(0, {"peek_fuel": 6}))
    teller.say(UpdateConfiguration(0, {"max_result_bytes": 1}))
    teller.say(Sync(0))
    config = "instance {'peek_fuel': 6, 'max_result_bytes': 1}"
    assert teller.told() == [config, "create u1 @5", "schedule u1", "peek b", "complete"]
    assert len(teller.history) == 2


def test_an_open_peek_and_an_importer_keep_what_they_read(teller: Teller) -> None:
    teller.create("u1")
    teller.say(Peek(0, "a", "u1", 2))
    teller.compact("u1", 7)
    assert teller.told()[1:] == ["create u1 @2", "peek a", "compact u1 [7]", "complete"]
    teller.history.heard(PeekResponse("a", PeekError("dropped", "")))
    assert teller.told()[1:] == ["create u1 @7", "complete"]
    teller.create("u2", imports=("u1",), as_of=7)
    teller.compact("u1", 9)
    assert teller.told()[1:] == ["create u1 @7", "create u2 @7", "compact u1 [9]", "complete"]
    teller.compact("u2", 9)
    assert teller.told()[1:] == ["create u1 @9", "create u2 @9", "complete"]


def test_what_was_dropped_stays_as_long_as_something_is_made_of_it(teller: Teller) -> None:
    teller.create("u1")
    teller.create("u2", imports=("u1",))
    teller.create("u3", imports=("u2",))
    teller.compact("u1")
    teller.compact("u2")
    told = ["create u1 @0", "create u2 @0", "create u3 @0", "compact u1 []", "compact u2 []", "complete"]
    assert teller.told()[1:] == told
    teller.compact("u3")
    assert teller.told()[1:] == ["complete"]
    assert len(teller.history) == 0


def test_an_export_that_was_dropped_alone_is_dropped_again_and_does_not_count(teller: Teller) -> None:
    teller.create("u1", "u2")
    teller.compact("u1", 4)
    teller.compact("u2")
    teller.say(AllowWrites(0, "u1"))
    teller.say(AllowWrites(0, "u2"))
    assert teller.told()[1:] == ["create u1 u2 @4", "compact u2 []", "complete", "writes u1"]


def test_a_query_and_a_last_time_are_not_moved(teller: Teller) -> None:
    teller.create("u1")
    teller.create("t1", imports=("u1",), as_of=2, until=3)
    teller.create("u4", as_of=1, until=5)
    teller.compact("u1", 9)
    teller.compact("u4", 8)
    told = ["create u1 @2", "create t1 @2", "create u4 @4", "compact u1 [9]", "compact u4 [8]", "complete"]
    assert teller.told()[1:] == told


def test_a_refused_dataflow_was_never_said_and_frontiers_do_not_go_back(teller: Teller) -> None:
    seq = teller.create("u1", as_of=3)
    teller.history.heard(Refused(seq, "invalid-plan", ""))
    teller.compact("u1", 9)
    teller.say(Schedule(0, "u1"))
    assert teller.told()[1:] == ["complete"]
    teller.create("u1", as_of=3)
    teller.compact("u1", 5)
    teller.compact("u1", 4)
    assert teller.told()[1:] == ["create u1 @5", "complete"]
    teller.compact("u1")
    teller.compact("u1", 6)
    assert teller.told()[1:] == ["complete"]


def test_a_million_queries_leave_nothing_behind(teller: Teller) -> None:
    teller.create("u1")
    for n in range(2000):
        teller.create(f"t{n}", imports=("u1",), as_of=n, until=n + 1)
        teller.say(Peek(0, f"p{n}", f"t{n}", n))
        teller.compact(f"t{n}")
        assert len(teller.history) == 3, "its peek may still be answered"
        teller.history.heard(PeekResponse(f"p{n}", PeekError("dropped", "")))
    assert len(teller.history) == 1


def test_a_setting_that_was_refused_is_as_if_it_had_not_been_said() -> None:
    history = History()
    history.sent(CreateInstance(1, config={"peek_fuel": 1}))
    history.sent(UpdateConfiguration(2, {"peek_fuel": -1, "bogus": 1}))
    history.heard(Refused(2, "unknown-setting", ""))
    history.heard(Synced(3))
    assert history.commands()[0] == CreateInstance(0, config={"peek_fuel": 1})
    history.sent(UpdateConfiguration(4, {"peek_fuel": 4}))
    history.sent(UpdateConfiguration(5, {"peek_fuel": 5}))
    history.heard(Synced(6))
    assert history.commands()[0] == CreateInstance(0, config={"peek_fuel": 5})


def test_a_peek_that_was_refused_is_not_asked_again() -> None:
    history = History()
    history.sent(Peek(7, uuid="a", id="u1", time=None))
    history.heard(Refused(7, "bad-message", ""))
    assert not history.open_peeks
