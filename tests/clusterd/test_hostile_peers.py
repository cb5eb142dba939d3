"""Peers that say anything: well-framed messages of wrong shapes, in any stage, cut anywhere, never read.

Messages begin as ones that could be meant and are changed in one or two places; the daemon, in one process
(local_daemon.py), must judge each: an exception in any of its loops fails the test. Beside them a session
that behaves gets its rows, and in the end nothing is left.
"""

from __future__ import annotations

import copy
import random
import socket
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from clusterd.convert import updates_from_rows
from clusterd.multiplexer.sessions import MAX_EPOCH
from controller_proto import command as say
from controller_proto.codec import decode_response, encode_body, encode_message
from controller_proto.dataflow import Build, DataflowBody, DataflowHeader, Export, IndexImport, SourceImport
from controller_proto.framing import FrameDecoder, encode_frame
from controller_proto.parse_expr import parse_expr
from controller_proto.plan import Aggregate, Get, Mfp, OrderBy, Plan, Reduce, TopK, Union
from controller_proto.response import Closing, PeekResponse, PeekRows, Response
from controller_proto.schema import SAMPLE_SCHEMA as SCHEMA
from controller_proto.typing_rules import plan_schema
from shm_arrangements.frontier import Frontier
from tests.clusterd.local_daemon import LocalDaemon

pytestmark = pytest.mark.slow

Message = dict[str, Any]

_INDEX = say.CreateDataflow(
    0,
    DataflowHeader(
        "u1", 0, None, (SourceImport("s1", "s", SCHEMA),), (), (Export("u1", "index", "s1", SCHEMA, (0,)),)
    ),
    encode_body(DataflowBody(())),
)

ODD: tuple[Any, ...] = (
    None, True, 0, -1, 1, 7, (1 << 63) - 1, 1 << 63, (1 << 64) - 1, float("nan"), float("inf"), -0.5, "",
    "u1", "u2", "s1", "t9", "s", "\0", "é" * 300, "x" * 70_000, b"", b"\xff", [], [[]], [0], [None], ["u1"],
    {}, {"t": "get", "id": "u1"}, {"": 1}, [[[[[[]]]]]], [1] * 5_000,
)  # fmt: skip


class Peer:
    """A connection that says what it is told to; the daemon's answers are decoded, so they must be some."""

    def __init__(self, daemon: LocalDaemon) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(daemon.address.removeprefix("unix:"))
        self._socket.setblocking(False)
        self._decoder = FrameDecoder()
        self._out = bytearray()
        self.heard: list[Response] = []
        self.reads = True
        self.over = False

    def say(self, data: bytes) -> None:
        self._out += data

    def pump(self) -> bool:
        """Whether anything was written or read."""
        busy = False
        if self._out and not self.over:
            with suppress(BlockingIOError):
                try:
                    del self._out[: self._socket.send(self._out)]
                    busy = True
                except (BrokenPipeError, ConnectionResetError):
                    self._out.clear()
        while self.reads and not self.over:
            try:
                data = self._socket.recv(1 << 16)
            except BlockingIOError:
                break
            except ConnectionResetError:
                data = b""
            busy = True
            self.over = not data
            if data:
                self._decoder.receive(data)
                while (payload := self._decoder.next_frame()) is not None:
                    self.heard.append(decode_response(payload))
        return busy

    def close(self) -> None:
        self.over = True
        self._socket.close()


def _commands(rng: random.Random, epoch: int) -> list[Message]:
    """What a session may say, in an order that makes sense; ids are those that the other one has as well.
    epoch: of one that takes over.
    """
    is_reader = rng.random() < 0.5
    plans: list[Plan] = [
        Mfp(Get("u1"), (parse_expr("#0 + 1"),), (parse_expr("#0 < 5"),), (2, 1)),
        Reduce(Get("u1"), (parse_expr("#1"),), (Aggregate("count", None),)),
        TopK(Get("u1"), (1,), (OrderBy(0),), None, 0), Union((Get("u1"), Get("u1"))),
    ]  # fmt: skip
    kind = "reader" if is_reader else "controller"
    said: list[say.Command] = [
        say.Hello(0, nonce=str(rng.random()), kind=kind, epoch=0 if is_reader else epoch),
    ]
    if not is_reader:
        said += [say.CreateInstance(0, {"max_result_bytes": 1000}), _INDEX, say.Schedule(0, "u1")]
    fresh = []
    for at in range(4):
        kind = "subscribe" if is_reader else rng.choice(["index", "index", "subscribe", "copy-to"])
        fresh.append(id := f"{'u' if kind == 'index' else 't'}{rng.randrange(2, 20)}")
        plan = rng.choice(plans)
        export = Export(
            id, kind, "u21", plan_schema(plan, {"u1": SCHEMA}), (0,) if kind == "index" else (),
            uri="file:///dev/null/a.csv" if kind == "copy-to" else "",
        )  # fmt: skip
        header = DataflowHeader(id, 0, rng.choice([None, 1]), (), (IndexImport("u1"),), (export,))
        said.append(say.CreateDataflow(0, header, encode_body(DataflowBody((Build("u21", plan),)))))
        said.append(say.Schedule(0, id))
        keys = rng.choice([None, ((1,),), ((1,), (2,))])
        said.append(say.Peek(0, f"p{at}", rng.choice([id, "u1"]), rng.choice([None, 0, 3]), keys))
    if is_reader:
        said += [say.CancelPeek(0, "p0"), say.Sync(0), say.AllowCompaction(0, fresh[0], ())]
        return [msgspec.msgpack.decode(encode_message(each)) for each in said]
    said += [
        say.UpdateConfiguration(0, {"max_peek_keys": 10, "wait_limit": 2.5}), say.AllowWrites(0, fresh[0]),
        say.AllowCompaction(0, fresh[0], (2,)), say.CancelPeek(0, "p0"), say.InitializationComplete(0),
        say.Sync(0), say.AllowCompaction(0, fresh[1], ()),
    ]  # fmt: skip
    return [msgspec.msgpack.decode(encode_message(each)) for each in said]


def _changed(rng: random.Random, message: Message) -> Any:
    """The message with something else at one place, or without it, or with something more."""
    places: list[tuple[Any, Any]] = []

    def walk(item: Any) -> None:
        for key, below in item.items() if isinstance(item, dict) else enumerate(item):
            places.append((item, key))
            if isinstance(below, dict | list):
                walk(below)

    walk(message)
    at, key = rng.choice(places)
    how = rng.randrange(5)
    if how == 0:
        del at[key]
    elif how == 1 and isinstance(at, list):
        at.insert(key, copy.deepcopy(rng.choice([at[key], *ODD])))
    elif how == 2 and isinstance(at[key], list):
        at[key] = at[key] * rng.choice([2, 50])
    elif how == 3:
        at[key] = [at[key]]
    else:
        at[key] = copy.deepcopy(rng.choice(ODD))
    return message


def _frames(rng: random.Random, epoch: int) -> bytes:
    """A session's bytes: most messages are changed, some twice, told twice, left out or moved; or cut off."""
    messages: list[Any] = _commands(rng, epoch)
    for _ in range(rng.choice([0, 0, 1, 5])):
        messages.insert(rng.randrange(len(messages)), messages.pop(rng.randrange(len(messages))))
    frames = []
    for seq, message in enumerate(messages, 1):
        message["seq"] = seq
        changes = 0 if seq == 1 and rng.random() < 0.9 else rng.choice([0, 0, 0, 1, 1, 2])
        for _ in range(changes):
            if isinstance(message, dict) and message:
                message = _changed(rng, message)
        if message.get("t") == "hello" and message.get("epoch") in ODD:
            message["epoch"] = epoch  # else nobody could take over from it
        frames.append(encode_frame(msgspec.msgpack.encode(message)))
    data = b"".join(frames)
    return data if rng.random() < 0.7 else data[: rng.randrange(len(data))]


def _settle(daemon: LocalDaemon, peers: list[Peer]) -> None:
    daemon.settle(lambda: any([peer.pump() for peer in peers if not peer.over]))


@pytest.mark.parametrize("workers", [0, 1])
def test_whatever_is_said_is_judged_and_changes_nothing_for_others(workers: int) -> None:
    sessions(range(60), workers)


@pytest.mark.soak
@pytest.mark.parametrize("workers", [0, 1, 2])
def test_thousands_of_hostile_sessions(workers: int) -> None:
    for block in range(1000 * (workers + 1), 1000 * (workers + 1) + 1000, 50):
        sessions(range(block, block + 50), workers)


def sessions(seeds: range, workers: int) -> None:
    with (
        tempfile.TemporaryDirectory(prefix="hostile-", dir="/dev/shm") as data_dir,
        LocalDaemon(Path(data_dir), workers, frames=4) as daemon,
    ):
        daemon.store.create_shard("s", SCHEMA)
        rows = [(i, f"r{i % 3}") for i in range(10)]
        daemon.store.shard("s").append(updates_from_rows(SCHEMA, rows, 0), Frontier.at(0), Frontier.at(4))
        good = _controller(daemon, 1)
        peers = [good]
        try:
            for seed in seeds:
                rng = random.Random(seed)
                peers.append(peer := Peer(daemon))
                peer.reads = rng.random() < 0.8
                peer.say(_frames(rng, 2 * seed + 2))
                try:
                    _settle(daemon, peers)
                    if good.over:  # it was taken over, and comes back
                        assert isinstance(good.heard[-1], Closing)
                        assert good.heard[-1].code == "fenced"
                        good.close()
                        peers.append(good := _controller(daemon, 2 * seed + 3))
                    good.say(_frame(say.Peek(100 + seed, f"good{seed}", "u1", 0)))
                    _settle(daemon, peers)
                    _require_rows(good, f"good{seed}", len(rows))
                except BaseException:
                    print(f"seed {seed}")
                    raise
                if rng.random() < 0.7:
                    peer.close()
            for peer in peers:
                peer.close()
            peers = [_controller(daemon, MAX_EPOCH)]
            _settle(daemon, peers)
            peers[0].say(_frame(say.AllowCompaction(10_000_000, "u1", ())))
            _settle(daemon, peers)
        finally:
            for peer in peers:
                peer.close()
        _settle(daemon, [])
        daemon.require_nothing_held()


def _frame(command: say.Command) -> bytes:
    return encode_frame(encode_message(command))


def _controller(daemon: LocalDaemon, epoch: int) -> Peer:
    """One that behaves, with an index u1 over the shard."""
    peer = Peer(daemon)
    said: list[say.Command] = [
        say.Hello(0, nonce=f"good{epoch}", epoch=epoch), say.CreateInstance(0), _INDEX,
        say.Schedule(0, "u1"), say.InitializationComplete(0),
    ]  # fmt: skip
    for seq, command in enumerate(said, 1):
        peer.say(_frame(msgspec.structs.replace(command, seq=seq)))
    return peer


def _require_rows(peer: Peer, uuid: str, count: int) -> None:
    assert not any(isinstance(each, Closing) for each in peer.heard), peer.heard
    answers = [each for each in peer.heard if isinstance(each, PeekResponse) and each.uuid == uuid]
    assert len(answers) == 1, peer.heard
    answer = answers[0]
    assert isinstance(answer.result, PeekRows), answer
    assert sum(answer.result.counts) == count
