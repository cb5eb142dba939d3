"""What one script has built up: its connections, schemas, dataflows and peeks, and how it says a command.

The driver is the controller: it knows the schemas of shards, builds and indexes, numbers its epochs, and
keeps what it created. A connection is opened, with its hello, when a directive first needs one.

Does not: know any directive.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any

from clusterd.client.place import instance_of
from clusterd.driver import pages
from clusterd.driver.interrupts import Interrupts
from clusterd.driver.session import Session
from clusterd.storage.store import Store
from controller_proto.command import Command, Peek
from controller_proto.dataflow import Export, WireFrontier
from controller_proto.errors import LocalProtocolError
from controller_proto.ids import GlobalId
from controller_proto.parse_dataflow import DataflowText
from controller_proto.schema import SAMPLE_SCHEMA, Schema
from controller_proto.script import Words
from controller_proto.suggest import not_called

if TYPE_CHECKING:
    from clusterd.launcher import Replica

__all__ = ["OK", "Run", "Skip", "Started", "frontier_text"]

OK = ["ok"]


class Skip(Exception):
    """The script requires what this run is not."""


@dataclass(slots=True)
class Started:
    """A peek that was sent. index: what is known of its target."""

    peek: Peek
    index: Export | None
    session: Session
    awaited: bool = False


class Run:
    """One script against one replica and one store.

    replica: the one launched for this script, None if `address` is somebody else's. store: None if the
    data directory is not known; writes are refused then. mode: `solo` or `two-runtime`, None if not
    known; then who serves is not checked. kind: of the connection that is opened unasked.
    """

    def __init__(
        self,
        address: str,
        *,
        replica: Replica | None = None,
        store: Store | None = None,
        mode: str | None = None,
        workers: int = 1,
        timeout_s: float = 60.0,
        first_epoch: int = 1,
        kind: str = "controller",
    ) -> None:
        self.address = address
        self.replica = replica
        self.store = store
        self.mode = mode
        self.workers = workers
        self.timeout_s = timeout_s
        self.kind = kind
        self.interrupts = Interrupts()
        self.sessions: dict[str, Session] = {}
        self.on = "main"  # the connection in use
        self.config: dict[str, Any] = {}  # of the last create-instance
        self.routing = "interactive"  # `read_routing` as it was last set
        self.served: Counter[str] = Counter()  # answers by the role that gave them, over all connections
        self.schemas: dict[str, Schema] = {}
        self.indexes: dict[GlobalId, Export] = {}
        self.dataflows: dict[str, DataflowText] = {}
        self.started: dict[str, Started] = {}
        self.last: Started | None = None
        self.hint = ""  # what to do about the error of the last directive, if something is known
        self.ended: int | None = None  # exit status of the replica, once the script has awaited it
        self.uuids = count(1)
        self.names = count(1)
        self._epochs = count(first_epoch)
        self._nonces = count(time.time_ns())  # new in all sessions of a replica, those of other drivers too

    @property
    def session(self) -> Session:
        """The connection in use, opened if need be."""
        if self.on not in self.sessions:
            self.connect(self.on, kind=self.kind)
        return self.sessions[self.on]

    def connect(
        self, name: str, *, kind: str = "controller", nonce: str | None = None, epoch: int | None = None
    ) -> None:
        """Open a connection called `name`. Raises OSError, LocalProtocolError."""
        if name in self.sessions:
            raise LocalProtocolError("bad-message", f"a connection called {name!r} is open: disconnect it")
        if epoch is None:
            epoch = next(self._epochs) if kind == "controller" else 0
        nonce = nonce or f"driver-{next(self._nonces)}"
        session = Session.open(self.address, kind=kind, nonce=nonce, epoch=epoch, interrupts=self.interrupts)
        session.mode = self.mode or ""
        session.routing = self.routing
        session.served = self.served
        self.sessions[name] = session

    def command(self, words: Words, command: Command) -> list[str]:
        """Say `command` and, unless the line has `no-sync`, wait until it was validated."""
        self.session.do(command, self.timeout_s, sync=not words.flag("no-sync"))
        return OK

    def wait_s(self, words: Words) -> float:
        """How long this line may wait."""
        text = words.get("timeout-secs")
        try:
            return self.timeout_s if text is None else float(text)
        except ValueError:
            raise LocalProtocolError("bad-message", f"timeout-secs={text} is no number") from None

    def schema(self, name: str | None, shard: str) -> Schema:
        """The schema of this name; without one that of the shard, and of a new shard the sample schema."""
        if name:
            if name not in self.schemas:
                raise LocalProtocolError("schema-mismatch", not_called("schema", name, self.schemas))
            return self.schemas[name]
        if self.store is not None and shard in self.store.list():
            return self.store.shard(shard).schema
        return SAMPLE_SCHEMA

    def index(self, id: GlobalId) -> Export | None:
        """What is known of `id`: what this script created, or what its page tells of what others did."""
        if id in self.indexes:
            return self.indexes[id]
        token = instance_of(self.session.wire.peer_pid) if self.replica is None else None
        return None if token is None else pages.export_of(token, id)

    def storage(self) -> Store:
        if self.store is None:
            raise LocalProtocolError("unauthorized", "the data directory is not known", "give --data-dir")
        return self.store

    def launched(self) -> Replica:
        if self.replica is None:
            raise LocalProtocolError("unauthorized", "this replica was not launched by this driver")
        return self.replica

    def close(self) -> None:
        """Leave: connections and store."""
        for session in self.sessions.values():
            session.close()
        if self.store is not None:
            self.store.close()


def frontier_text(frontier: WireFrontier | None) -> str:
    """`5`, `[]` for the empty one, `?` for one not reported."""
    if frontier is None:
        return "?"
    return str(frontier[0]) if frontier else "[]"
