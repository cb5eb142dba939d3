"""A feed that runs in a thread of the test, and what its shards hold."""

from __future__ import annotations

import select
import shutil
import socket
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from clusterd.ingest.feed import Feed, FeedOptions
from clusterd.ingest.stopping import Stop
from clusterd.storage.store import Store
from clusterd.storage.tail import ShardTail
from tests.postgres import DEADLINE_S, PostgresServer

Rows = Counter[tuple[Any, ...]]


class Feeding:
    """error: what ended it, once it has ended by one."""

    def __init__(self, data_dir: Path, options: FeedOptions) -> None:
        self._data_dir = data_dir
        self._options = options
        self._stop = Stop()
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            with Store.open(self._data_dir) as store:
                Feed(store, self._options, self._stop).run()
        except BaseException as error:
            self.error = error

    def ended(self) -> BaseException | None:
        """Wait until it has ended by itself; by what."""
        self._thread.join(DEADLINE_S)
        assert not self._thread.is_alive(), "the feed did not end"
        return self.error

    def end(self) -> None:
        self._stop.request("the test")
        self._thread.join(DEADLINE_S)
        assert not self._thread.is_alive(), "the feed did not end"
        self._stop.close()


def options_of(
    server: PostgresServer,
    database: str,
    *,
    slot: str | None = None,
    shards: Mapping[str, str] | None = None,
    numeric_scale: int | None = None,
    resnapshot: bool = False,
) -> FeedOptions:
    return FeedOptions(
        server.dsn(database), "p", slot or f"slot_{database}", shards or {}, numeric_scale, resnapshot
    )


@contextmanager
def feeding(data_dir: Path, options: FeedOptions) -> Iterator[Feeding]:
    """Runs meanwhile; what ended it before is raised at the end."""
    running = Feeding(data_dir, options)
    try:
        yield running
    finally:
        running.end()
    if running.error is not None:
        raise running.error


def error_of(data_dir: Path, options: FeedOptions) -> BaseException:
    """What ends a feed that cannot go on."""
    running = Feeding(data_dir, options)
    try:
        error = running.ended()
    finally:
        running.end()
    assert error is not None
    return error


def wal_end(server: PostgresServer, database: str) -> int:
    """The time at which all that was committed is there."""
    [(end,)] = server.execute(database, "SELECT pg_current_wal_insert_lsn() - '0/0'")
    return int(str(end))


def wait_sealed(data_dir: Path, names: Sequence[str], at: int, running: Feeding | None = None) -> None:
    """Until all shards are sealed at `at`."""
    deadline = time.monotonic() + DEADLINE_S
    with Store.open(data_dir) as store, ShardTail(store) as tail:
        for name in names:
            while not store.has_shard(name):
                assert running is None or running.error is None, running.error
                assert time.monotonic() < deadline, f"no shard {name}"
                time.sleep(0.01)  # nothing announces a new shard
            tail.watch(name)
        while any(store.shard(name).upper.less_equal(at) for name in names):
            assert running is None or running.error is None, running.error
            uppers = {name: str(store.shard(name).upper) for name in names}
            assert time.monotonic() < deadline, f"not sealed at {at}: {uppers}"
            select.select([tail], [], [], 1.0)
            tail.drain()


def contents(data_dir: Path, name: str, at: int | None = None) -> Rows:
    """The rows of a shard at a time; None: at the last one that is sealed."""
    with Store.open(data_dir) as store:
        shard = store.shard(name)
        if at is None:
            at = shard.upper.time - 1
        rows: Rows = Counter()
        for updates in shard.read(0, shard.upper, block_rows=65_536):
            for row, when, diff in updates.to_rows():
                if when <= at:
                    rows[_hashable(row)] += diff
    assert min(rows.values(), default=0) >= 0, f"{name} at {at} has rows that are less than not there"
    return Counter({row: count for row, count in rows.items() if count})


class Proxy:
    """Forwards what is connected to a socket in `directory` to the server's. `freeze`: of those connections
    nothing is forwarded any more, and none is closed; later ones work.
    """

    def __init__(self, server: PostgresServer) -> None:
        self._server = server
        self.directory = Path(tempfile.mkdtemp(prefix="clusterd-proxy-"))
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self.directory / _SOCKET))
        self._listener.listen()
        self._sockets: list[socket.socket] = []
        self._frozen: set[socket.socket] = set()
        self._wake, self._woken = socket.socketpair()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        others: dict[socket.socket, socket.socket] = {}
        while True:
            watched = [self._listener, self._woken, *(s for s in others if s not in self._frozen)]
            for ready in select.select(watched, [], [])[0]:
                if ready is self._woken:
                    if ready.recv(1) == b"e":
                        return
                elif ready is self._listener:
                    near, far = ready.accept()[0], socket.socket(socket.AF_UNIX)
                    far.connect(str(self._server.directory / _SOCKET))
                    others |= {near: far, far: near}
                    self._sockets += [near, far]
                elif ready in others and ready not in self._frozen:
                    other = others[ready]
                    try:
                        data = ready.recv(65536)
                        other.sendall(data)
                    except OSError:
                        data = b""
                    if not data:
                        other.close()
                        ready.close()
                        del others[ready], others[other]

    def freeze(self) -> None:
        self._frozen.update(self._sockets)
        self._wake.send(b"f")

    def close(self) -> None:
        self._wake.send(b"e")
        self._thread.join(DEADLINE_S)
        for each in (self._listener, self._wake, self._woken, *self._sockets):
            each.close()
        shutil.rmtree(self.directory)


_SOCKET = ".s.PGSQL.5432"


@contextmanager
def between(server: PostgresServer) -> Iterator[Proxy]:
    proxy = Proxy(server)
    try:
        yield proxy
    finally:
        proxy.close()


def _hashable(value: Any) -> Any:
    """Equal for equal values: NaN is none to Python."""
    if isinstance(value, tuple | list):
        return tuple(map(_hashable, value))
    return "NaN" if value != value else value
