"""A replica in a thread: answers every Sync, and else what the test told it to; over a real socket."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from controller_proto.command import Command, Sync
from controller_proto.connection import NEED_DATA, Broken, Connection, Ended, Rejected, Role
from controller_proto.response import Closing, Refused, Response, Synced

__all__ = ["FakeReplica", "fake_replica"]

Reaction = Callable[[Command], list[Response]]


class FakeReplica:
    """heard: every command, of all connections, in order."""

    def __init__(self, path: Path, react: Reaction) -> None:
        self.heard: list[Command] = []
        self.address = f"unix:{path}"
        self._react = react
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def _accept(self) -> None:
        while True:
            try:
                peer, _ = self._listener.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._serve, args=(peer,))
            self._threads.append(thread)
            thread.start()

    def _serve(self, peer: socket.socket) -> None:
        connection = Connection(Role.REPLICA)
        with peer:
            while True:
                event = connection.next_event()
                if event is NEED_DATA:
                    try:
                        connection.receive_bytes(peer.recv(1 << 16))
                    except ConnectionResetError:
                        return
                    continue
                if isinstance(event, Ended):
                    return
                said: list[Response]
                if isinstance(event, Broken):
                    said = [event.closing()]
                elif isinstance(event, Rejected):
                    said = [event.refused()]
                else:
                    said = self._answer(event)
                try:
                    peer.sendall(b"".join(connection.send(response) for response in said))
                except BrokenPipeError:
                    return
                if any(isinstance(response, Closing) for response in said):
                    return

    def _answer(self, command: object) -> list[Response]:
        assert isinstance(command, Command)
        self.heard.append(command)
        said = self._react(command)
        if isinstance(command, Sync) and not any(isinstance(r, Refused) for r in said):
            said = [*said, Synced(command.seq)]
        return said

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join()


@contextmanager
def fake_replica(path: Path, react: Reaction) -> Iterator[FakeReplica]:
    replica = FakeReplica(path, react)
    try:
        yield replica
    finally:
        replica.close()
