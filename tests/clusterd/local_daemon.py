"""The daemon in one process: the real endpoint and workers over real sockets, turned by hand, one at a time.

Clients connect to `address` as to any daemon. Who has a turn next is the test's choice (`step`), so that
every interleaving of processes can come about, and comes about again with the same choices. `settle` turns
all of them until nothing is left to do: then what was not said will not be said.

Does not: supervise, spawn; time passes, but nothing here waits for it.
"""

from __future__ import annotations

import os
import random
import select
import socket
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from clusterd.config import Config, MuxConfig, WorkerConfig
from clusterd.endpoint import Endpoint
from clusterd.process import ComputeRuntimeRole, MuxSpec, WorkerLink, WorkerSpec
from clusterd.runtime.loop import WorkerLoop
from clusterd.storage.store import Store
from shm_arrangements import failpoints
from shm_arrangements.instance import Instance
from tests import leaks

__all__ = ["LocalDaemon"]


class _End:
    """What specs want of a multiprocess connection."""

    def __init__(self, end: socket.socket) -> None:
        end.setblocking(False)
        self._end = end

    def fileno(self) -> int:
        return self._end.fileno()

    def send_bytes(self, data: bytes) -> None:
        return  # `ready`: nobody waits for it

    def close(self) -> None:
        self._end.close()


class LocalDaemon:
    """interactive_workers: 0 is Solo. frames: of a connection handled in one turn of the endpoint."""

    comes_to_rest = True

    def __init__(
        self, data_dir: Path, interactive_workers: int, *, frames: int = 64, chunk_s: float = 0.0
    ) -> None:
        self.instance = Instance.create()
        self.store = Store.open(data_dir)
        path = str(data_dir / "socket")
        self.address = f"unix:{path}"
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(path)
        self._listener.listen(64)
        self._stop, control = socket.socketpair()
        self._sockets = [self._listener, self._stop, control]
        config = Config(
            mux=MuxConfig(frames_per_turn=frames), worker=WorkerConfig(chunk_s=chunk_s), validate=True
        )
        roles = [ComputeRuntimeRole.MAINTENANCE if interactive_workers else ComputeRuntimeRole.SOLO]
        roles += [ComputeRuntimeRole.INTERACTIVE] * interactive_workers
        links, self.loops = [], []
        for number, role in enumerate(roles):
            ours, theirs = socket.socketpair()
            self._sockets += [ours, theirs]
            index = max(0, number - 1)
            links.append(WorkerLink(role, index, _End(ours)))
            spec = WorkerSpec(
                role, index, _End(theirs), _End(theirs), self.instance.token, str(data_dir), os.getppid(),
                interactive_workers, config,
            )  # fmt: skip
            loop = WorkerLoop(spec)
            loop._scan_s = 0.0  # a piece a turn, however long it takes
            loop.start()
            self.loops.append(loop)
        self.endpoint = Endpoint(MuxSpec(self._listener, tuple(links), _End(control), os.getppid(), config))
        self.endpoint.start()

    def __enter__(self) -> LocalDaemon:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        failpoints.disarm_all()
        for loop in self.loops:
            loop.close()
        self.endpoint.close()
        for end in self._sockets:
            end.close()
        self.store.close()
        self.instance.release()

    def step(self, rng: random.Random, count: int = 1) -> None:
        """`count` turns, each of any process that has something to do."""
        for _ in range(count):
            able = self._able()
            if not able:
                return
            rng.choice(able)()

    def settle(self, meanwhile: Callable[[], bool], done: Callable[[], bool] | None = None) -> None:
        """Turn whoever has something to do until nobody has, and `meanwhile` (the clients) has nothing.

        done: not asked; what is not there then will not come.
        """
        put_off = 0
        for _ in range(200_000):
            able = self._able()
            for turn in able:
                turn()
            if not (meanwhile() or able):
                if put_off > 20 or not self._make_due():
                    return
                put_off += 1
        raise AssertionError("the daemon does not come to rest")

    def _able(self) -> list[Callable[[], None]]:
        """The turns that would find something to do."""
        found: list[Callable[[], None]] = [
            loop.turn for loop in self.loops if loop.has_work or _is_late(loop) or _readable(loop)
        ]
        if not self.endpoint.is_idle():
            found.append(self._turn_endpoint)
        return found

    def _make_due(self) -> bool:
        """Let what was put off be tried again now; whether anything was."""
        found = False
        for loop in self.loops:
            for retries in (loop.dataflows._retries, loop.dataflows.views._retries):
                for name, (_, wait_s) in retries._waits.items():  # type: ignore[attr-defined]
                    retries._waits[name] = 0.0, wait_s  # type: ignore[index]
                    found = True
        return found

    def _turn_endpoint(self) -> None:
        self.endpoint.turn(0)
        self.endpoint._mux.validate_state()

    def names(self) -> list[str]:
        """Segments of the instance, but for its control file."""
        mark = f"clusterd.{self.instance.token}."
        return [n for n in os.listdir("/dev/shm") if n.startswith(mark) and not n.endswith(".ctl")]

    def require_nothing_held(self) -> None:
        """All that was made is gone: of the cores, of the multiplexer, of shared memory."""
        for loop in self.loops:
            held = loop.core.statistics()
            assert (held.collections, held.placeholders, held.dataflows) == (0, 0, 0), held
            assert (held.queued, held.shards) == (0, 0), held
            assert (held.peeks.parked, held.peeks.ready) == (0, 0), held
            assert (loop.owned.count, len(loop._scans)) == (0, 0)
            assert not loop.dataflows._running
            assert not loop.dataflows.has_told
            assert loop.published is None or not loop.published._handles
            assert loop.dataflows.store is not None
            assert list(loop.dataflows.store._shards) == []
        mux = self.endpoint._mux.statistics()
        assert (mux.sessions, mux.peeks_in_flight, mux.syncs_pending) == (0, 0, 0), mux
        assert (mux.notice_entries, mux.frontiers_pending) == (0, 0), mux
        assert self.names() == []
        assert [each for each in leaks._fds() if "/dev/shm/clusterd." in each and "(deleted)" in each] == []


def _is_late(loop: WorkerLoop) -> bool:
    """Whether the wait of a peek is over."""
    nexts = loop._waits.next_s(), loop._runs.next_s()
    return any(due is not None and due <= time.monotonic() for due in nexts)


def _readable(loop: WorkerLoop) -> bool:
    """Whether a turn would find something: to read, or room for what it has to write."""
    poll = select.poll()
    for fd in loop.descriptors:
        poll.register(fd, select.POLLIN)
    if loop._link.wants_write:
        poll.modify(loop._link.fd, select.POLLIN | select.POLLOUT)
    return bool(poll.poll(0))
