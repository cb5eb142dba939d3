"""A client that peeks at a fixed rate, from a process of its own, and says how long each answer took.

Open loop: a peek is sent when it is due, whether or not earlier ones were answered, and its latency counts
from the time it was due, so a stall is charged to every peek that should have been sent during it. The client
sleeps between sends (it does not spin: on a small machine it would take the core that the daemon needs).

`python -m bench.openloop --help` is the process. `OpenLoop` starts it and shares a mapped file of
latencies with it, so that who watches sees each answer when it comes, and neither waits for the other.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import selectors
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from controller_proto.command import Hello, Peek
from controller_proto.response import PeekResponse, PeekRows, Response

_LENGTH = struct.Struct(">I")
_PR_SET_TIMERSLACK = 29
DRAIN_S = 10.0


class PeekSocket:
    """A reader's connection reduced to what a load generator needs: encoded peeks out, decoded answers in."""

    def __init__(self, address: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.connect(address.removeprefix("unix:"))
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(Response)
        self._buffer = bytearray()
        self._seq = 1
        self.socket.sendall(
            self._frame(Hello(seq=self._seq, nonce=f"bench-{os.getpid()}-{id(self)}", kind="reader"))
        )

    def _frame(self, message: Any) -> bytes:
        body = self._encoder.encode(message)
        return _LENGTH.pack(len(body)) + body

    def send(self, uuid: str, collection: str, at: int | None, key: tuple[Any, ...] | None) -> None:
        self._seq += 1
        keys = None if key is None else (key,)
        self.socket.sendall(self._frame(Peek(seq=self._seq, uuid=uuid, id=collection, time=at, keys=keys)))

    def receive(self) -> list[PeekResponse]:
        """Block for at least some bytes; return the answers that are whole by then."""
        data = self.socket.recv(1 << 18)
        if not data:
            raise ConnectionError("the replica closed the connection")
        self._buffer += data
        found = []
        start = 0
        while len(self._buffer) - start >= 4:
            (length,) = _LENGTH.unpack_from(self._buffer, start)
            if len(self._buffer) - start - 4 < length:
                break
            message = self._decoder.decode(memoryview(self._buffer)[start + 4 : start + 4 + length])
            start += 4 + length
            if not isinstance(message, PeekResponse):
                raise TypeError(f"unexpected {message!r}")
            found.append(message)
        del self._buffer[:start]
        return found

    def ask(self, uuid: str, collection: str, at: int | None, key: tuple[Any, ...] | None) -> PeekResponse:
        self.send(uuid, collection, at, key)
        while True:
            for answer in self.receive():
                return answer


def run(
    address: str,
    collection: str,
    keys: list[tuple[Any, ...]],
    *,
    rate: float,
    seconds: float,
    at: int | None = None,
    latencies: np.ndarray | None = None,
    on_start: Callable[[float], None] | None = None,
) -> tuple[np.ndarray, np.ndarray, set[str]]:
    """Peek `keys` in turn. Returns when each was due (CLOCK_MONOTONIC, s), its latency (s), who served.

    latencies: (int(rate * seconds),) float64, filled in as answers come; NaN is no answer yet. on_start is
    told when the first is due.
    """
    ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)
    connection = PeekSocket(address)
    count = int(rate * seconds)
    if latencies is None:
        latencies = np.full(count, np.nan)
    roles: set[str] = set()
    selector = selectors.SelectSelector()  # waits to the microsecond; epoll's timeout is in milliseconds
    selector.register(connection.socket, selectors.EVENT_READ)
    start = time.monotonic() + 0.01
    if on_start is not None:
        on_start(start)
    due = start + np.arange(count) / rate
    sent = answered = 0
    while answered < count:
        now = time.monotonic()
        while sent < count and due[sent] <= now:
            connection.send(str(sent), collection, at, keys[sent % len(keys)])
            sent += 1
        wait = max(0.0, due[sent] - time.monotonic()) if sent < count else DRAIN_S
        if selector.select(wait):
            answers = connection.receive()
            now = time.monotonic()
            for answer in answers:
                if not isinstance(answer.result, PeekRows):
                    raise RuntimeError(f"peek {answer.uuid} failed: {answer.result}")  # noqa: TRY004
                roles.add(answer.served_by)
                latencies[int(answer.uuid)] = now - due[int(answer.uuid)]
            answered += len(answers)
        elif sent == count:
            raise TimeoutError(
                f"{count - answered} of {count} peeks not answered within {DRAIN_S} s of the last send"
            )
    selector.close()
    connection.socket.close()
    return due, latencies, roles


def capacity(
    address: str,
    collection: str,
    keys: list[tuple[Any, ...]],
    *,
    in_flight: int,
    seconds: float,
    at: int | None = None,
) -> float:
    """Closed loop: answers per second with `in_flight` peeks outstanding."""
    connection = PeekSocket(address)
    sent = answered = 0
    start = time.monotonic()
    while sent < in_flight:
        connection.send(str(sent), collection, at, keys[sent % len(keys)])
        sent += 1
    while time.monotonic() - start < seconds:
        for _ in connection.receive():
            answered += 1
            connection.send(str(sent), collection, at, keys[sent % len(keys)])
            sent += 1
    rate = answered / (time.monotonic() - start)
    while answered < sent:
        answered += len(connection.receive())
    connection.socket.close()
    return rate


class OpenLoop:
    """`run` in a process of its own. `join()` gives (due, latencies, roles); `so_far()` what there is."""

    def __init__(
        self,
        address: str,
        collection: str,
        keys: list[tuple[Any, ...]],
        *,
        rate: float,
        seconds: float,
        file: Path,
        at: int | None = None,
        cores: Sequence[int] = (),
    ) -> None:
        """cores: where the process runs; none leaves it to the kernel."""
        self._seconds = seconds
        self._rate = rate
        # Element 0 is when the first peek is due, 0 until then; the latencies follow.
        self._shared = np.memmap(file, np.float64, "w+", shape=(1 + int(rate * seconds),))
        self._shared[1:] = np.nan
        job = {
            "address": address, "collection": collection, "keys": keys,
            "rate": rate, "seconds": seconds, "at": at, "file": str(file),
            "cores": list(cores),
        }  # fmt: skip
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.openloop", json.dumps(job)], stdout=subprocess.PIPE
        )

    def is_running(self) -> bool:
        return self._process.poll() is None

    def so_far(self) -> tuple[np.ndarray, np.ndarray]:
        """When each peek that is due by now was due, and its latency; NaN if it is not answered yet.

        Raises RuntimeError if the process failed.
        """
        if self._process.poll():
            raise RuntimeError(f"the open-loop client ended with status {self._process.returncode}")
        start = float(self._shared[0])
        passed = int((time.monotonic() - start) * self._rate) if start else 0
        sent = min(len(self._shared) - 1, max(0, passed))
        return start + np.arange(sent) / self._rate, np.array(self._shared[1 : 1 + sent])

    def join(self) -> tuple[np.ndarray, np.ndarray, set[str]]:
        """Wait for the end. Raises RuntimeError if a peek failed or was not answered."""
        out, _ = self._process.communicate(timeout=self._seconds + DRAIN_S + 30)
        if self._process.returncode:
            raise RuntimeError(f"the open-loop client ended with status {self._process.returncode}")
        latencies = np.array(self._shared[1:])
        due = float(self._shared[0]) + np.arange(len(latencies)) / self._rate
        return due, latencies, set(json.loads(out))

    def stop(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.communicate(timeout=10)


def main() -> None:
    """The process of `OpenLoop`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "job", help="JSON: address, collection, keys, rate, seconds, at, file, cores (of OpenLoop)"
    )
    job = json.loads(parser.parse_args().job)
    if job["cores"]:
        os.sched_setaffinity(0, job["cores"])
    shared = np.memmap(job["file"], np.float64, "r+")

    def on_start(start: float) -> None:
        shared[0] = start

    _, _, roles = run(
        job["address"], job["collection"], [tuple(key) for key in job["keys"]],
        rate=job["rate"], seconds=job["seconds"], at=job["at"], latencies=shared[1:], on_start=on_start,
    )  # fmt: skip
    print(json.dumps(sorted(roles)))


if __name__ == "__main__":
    main()
