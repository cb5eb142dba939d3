"""What do 1, 100 and 1,000 subscribers of one index cost: processor time a tick, delivery, memory?

Every subscriber is a connection of its own, all read by this one process. A tick is an append of 100 rows to
the shard below the index. It is delivered when the subscriber has the batch that goes beyond it: with 1,000
of them that time holds 1,000 reads here too, so it is an upper bound. Processor time is that of the two
processes on the way, the interactive worker's and the multiplexer's, from the kernel's account of each.

The bars. A worker should do a tick's work once, so what 1,000 cost it may be 4 x what one does: naming 1,000
receivers is all that grows. The multiplexer cannot do without one write a connection, so its part is bounded
per delivery.
"""

from __future__ import annotations

import select
import socket
import statistics
import struct
import tempfile
import time
from pathlib import Path

import msgspec
import numpy as np
import psutil

from bench.harness import Recorder, percentiles, spread
from bench.heavy import append_pairs
from clusterd.client import Client, Index
from clusterd.launcher import Replica, launch
from controller_proto.codec import encode_body, encode_message
from controller_proto.command import CreateDataflow, Hello, Schedule
from controller_proto.dataflow import DataflowBody, DataflowHeader, Export, IndexImport
from controller_proto.framing import FrameDecoder, encode_frame
from controller_proto.response import Response, SubscribeBatch, SubscribeResponse, SubscribeUpdates
from shm_arrangements.columns import Column
from shm_arrangements.frontier import Frontier
from shm_arrangements.types import ColumnType
from shm_arrangements.updates import Updates

ROWS = 10_000
TICK_ROWS = 100
SUBSCRIBERS = (1, 100, 1_000)
WORKER_RATIO = 4.0
MUX_US = 15.0  # a delivery: a write of some 5 us that wakes its reader, and our own part
_LENGTH = struct.Struct(">I")
_decode = msgspec.msgpack.Decoder(Response).decode


class Subscriber:
    """A reader's connection with one subscription. `upper`: up to where it was told."""

    def __init__(self, address: str, number: int, index: Index, as_of: int) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.connect(address.removeprefix("unix:"))
        export = Export("t1", "subscribe", index.id, index.schema)
        header = DataflowHeader("t1", as_of, None, (), (IndexImport(index.id),), (export,))
        said = (
            Hello(seq=1, nonce=f"bench-{time.monotonic_ns()}-{number}", kind="reader"),
            CreateDataflow(seq=2, header=header, body=msgspec.Raw(encode_body(DataflowBody(())))),
            Schedule(seq=3, id="t1"),
        )
        self._commands = b"".join(encode_frame(encode_message(each)) for each in said)
        self._frames = FrameDecoder(limit_bytes=64 << 20)
        self.upper = 0
        self.rows = 0

    def begin(self) -> None:
        self.socket.sendall(self._commands)

    def read(self, known: dict[bytes, tuple[int, int]]) -> None:
        """Take in what there is. known: upper and rows by what was told; all are told the same."""
        data = self.socket.recv(1 << 18)
        if not data:
            raise ConnectionError("the replica closed a connection")
        self._frames.receive(data)
        while (frame := self._frames.next_frame()) is not None:
            found = known.get(frame)
            if found is None:
                found = known[frame] = _told(bytes(frame))
            self.upper, self.rows = max(found[0], self.upper), self.rows + found[1]


def _told(frame: bytes) -> tuple[int, int]:
    response = _decode(frame)
    if not isinstance(response, SubscribeResponse):
        return 0, 0
    if not isinstance(response.said, SubscribeBatch):
        raise RuntimeError(f"a subscription ended: {response.said}")  # noqa: TRY004
    batch = response.said
    if not isinstance(batch.contents, SubscribeUpdates):
        raise RuntimeError(f"an error was told: {batch.contents}")  # noqa: TRY004
    return 0 if batch.contents.more else batch.upper[0], len(batch.contents.diffs)


class Crowd:
    """All subscribers of a run."""

    def __init__(self, address: str, index: Index, count: int, as_of: int) -> None:
        self.members = [Subscriber(address, number, index, as_of) for number in range(count)]
        self._by_fd = {member.socket.fileno(): member for member in self.members}
        self._poll = select.epoll()
        for fd in self._by_fd:
            self._poll.register(fd, select.EPOLLIN)

    def wait(self, upper: int, deadline_s: float = 120.0) -> np.ndarray:
        """When each was told up to `upper`, in seconds of time.perf_counter, in the order that it was."""
        known: dict[bytes, tuple[int, int]] = {}
        missing = {fd for fd, member in self._by_fd.items() if member.upper < upper}
        deadline, times = time.perf_counter() + deadline_s, []
        while missing:
            if time.perf_counter() > deadline:
                raise TimeoutError(f"{len(missing)} of {len(self.members)} were not told up to {upper}")
            for fd, _ in self._poll.poll(1.0):
                self._by_fd[fd].read(known)
                if fd in missing and self._by_fd[fd].upper >= upper:
                    missing.discard(fd)
                    times.append(time.perf_counter())
        return np.array(times)

    def close(self) -> None:
        self._poll.close()
        for member in self.members:
            member.socket.close()


class Spent:
    """Processor seconds of two processes since it was made."""

    def __init__(self, replica: Replica) -> None:
        self._pids = {name: replica.pids[name] for name in ("interactive/0", "mux")}
        self._start = {name: _cpu_s(pid) for name, pid in self._pids.items()}

    def take(self) -> dict[str, float]:
        return {name: _cpu_s(pid) - self._start[name] for name, pid in self._pids.items()}


def _cpu_s(pid: int) -> float:
    parts = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(part.read_text().split()[0]) for part in parts) / 1e9


def _private_bytes(replica: Replica) -> int:
    return sum(psutil.Process(replica.pids[name]).memory_full_info().uss for name in ("interactive/0", "mux"))


def _append(client: Client, shard: str, time_: int) -> None:
    first = np.arange(TICK_ROWS, dtype=np.int64) + ROWS + time_ * TICK_ROWS
    columns = tuple(Column(ColumnType.INT64, values, None, None) for values in (first, first * 7))
    updates = Updates(columns, np.full(TICK_ROWS, time_, np.uint64), np.ones(TICK_ROWS, np.int64))
    client.store.shard(shard).append(updates, Frontier.at(time_), Frontier.at(time_ + 1))


def run(*, smoke: bool = False) -> list[str]:
    """The three sizes in one run; returns what missed its bar."""
    recorder = Recorder("subscribe", smoke=smoke)
    ticks, runs = (5, 1) if smoke else (40, 3)
    sizes = (1, 20) if smoke else SUBSCRIBERS
    with (
        tempfile.TemporaryDirectory() as directory,
        launch({"enable_two_runtime_compute": True}, Path(directory)) as replica,
        Client.connect(replica) as client,
    ):
        append_pairs(client, "kv", np.arange(ROWS), np.arange(ROWS) * 7)
        index = client.create_index("kv", key=["a"])
        index.wait(0)
        now, worker_us = 1, {}
        for size in sizes:
            before = _private_bytes(replica)
            crowd = Crowd(replica.address, index, size, now - 1)
            began, spent = time.perf_counter(), Spent(replica)
            for member in crowd.members:
                member.begin()
            crowd.wait(now)
            recorder.record(f"{size} begin, until all have the snapshot", time.perf_counter() - began, "s",
                            worker_s=round(spent.take()["interactive/0"], 4))  # fmt: skip
            rows = ROWS + TICK_ROWS * (now - 1)
            if any(member.rows != rows for member in crowd.members):
                raise RuntimeError(f"snapshots of {rows} rows: {sorted({m.rows for m in crowd.members})}")
            found: dict[str, list[float]] = {"interactive/0": [], "mux": []}
            latencies = []
            for _ in range(runs):
                spent = Spent(replica)
                for _ in range(ticks):
                    due = time.perf_counter()
                    _append(client, "kv", now)
                    now += 1
                    latencies.append(crowd.wait(now) - due)
                for name, value in spent.take().items():
                    found[name].append(value / ticks * 1e6)
            rows = ROWS + TICK_ROWS * (now - 1)
            if any(member.rows != rows for member in crowd.members):
                raise RuntimeError(f"sums of {rows} rows: {sorted({m.rows for m in crowd.members})}")
            worker_us[size] = statistics.median(found["interactive/0"])
            recorder.record(f"{size} worker, a tick", worker_us[size], "us", **spread(found["interactive/0"]))
            mux = [value / size for value in found["mux"]]
            bar = MUX_US if size == sizes[-1] else None
            recorder.record(
                f"{size} multiplexer, a delivery", statistics.median(mux), "us", bar=bar, **spread(mux)
            )
            told = percentiles(np.concatenate(latencies))
            for name in ("p50_us", "p99_us"):
                recorder.record(f"{size} delivery {name[:3]}", told[name], "us")
            last = [float(each.max()) * 1e6 for each in latencies]
            recorder.record(f"{size} delivery to the last, median tick", statistics.median(last), "us")
            more = (_private_bytes(replica) - before) / size
            recorder.record(f"{size} memory, a subscriber", more / 1024, "KiB")
            crowd.close()
        ratio = worker_us[sizes[-1]] / worker_us[1]
        recorder.record(f"worker, a tick: {sizes[-1]} to 1", ratio, "x", bar=WORKER_RATIO)
    return recorder.failed


if __name__ == "__main__":
    run()
