"""One connection of the driver, and the promises of the protocol that every script checks without saying so.

Whatever arrives is taken in at once, by whichever call waits; what breaks a promise is noted as a
violation, which the driver puts into the output of the stanza it happened in. Checked: one answer a peek,
to a peek that was sent, `canceled` only after a cancel, at the time asked for; one answer a copy; frontiers
at or beyond `as_of`, never lower, final when empty; what streams.py says of subscriptions.

Does not: know any directive, retry.
"""

from __future__ import annotations

import contextlib
import select
import time
from collections import Counter
from collections.abc import Callable

from clusterd.driver.interrupts import Interrupts
from clusterd.driver.streams import Stream
from controller_proto.client import WireClient
from controller_proto.command import (
    CancelPeek,
    Command,
    CreateDataflow,
    InitializationComplete,
    Peek,
    Schedule,
    Sync,
)
from controller_proto.dataflow import WireFrontier
from controller_proto.errors import Disconnected, Refusal
from controller_proto.ids import GlobalId
from controller_proto.response import (
    Closing,
    Copied,
    CopyError,
    CopyToResponse,
    Frontiers,
    PeekCanceled,
    PeekResponse,
    PeekRows,
    Refused,
    Response,
    Status,
    SubscribeResponse,
    Synced,
)

__all__ = ["FRONTIER_KINDS", "Session"]

FRONTIER_KINDS = ("write", "input", "output")


class Session:
    """A connection after its hello. `arrived`: everything that came, in order."""

    def __init__(self, wire: WireClient, hello: int, kind: str, interrupts: Interrupts) -> None:
        self.wire = wire
        self._hello = hello  # its `seq`
        self.kind = kind
        self.interrupts = interrupts
        self.frontiers: dict[GlobalId, dict[str, WireFrontier]] = {}
        self.as_of: dict[GlobalId, int] = {}
        self.statuses: dict[GlobalId, Status] = {}
        self.answers: dict[str, PeekResponse] = {}
        self.streams: dict[GlobalId, Stream] = {}
        self.copies: dict[GlobalId, Copied | CopyError] = {}
        self.arrived: list[Response] = []
        self.violations: list[str] = []
        self.mode = ""  # of the replica, "" if that is not known
        self.routing = "interactive"  # `read_routing`, as far as this driver has set it
        self.served: Counter[str] = Counter()  # answers by the role that gave them; connections may share it
        self.over: Disconnected | None = None
        self.initialized = False
        self.scheduled: set[GlobalId] = set()
        self._peeks: dict[str, Peek] = {}
        self._of_introspection: set[GlobalId] = set()  # queries that the observer answers
        self._server: dict[str, str] = {}  # the only role that may answer a peek with rows, "" for any
        self._cancelled: set[str] = set()
        self._refused: dict[int, Refused] = {}
        self._synced: set[int] = set()
        self._given_up: set[int] = set()  # what nobody waits for any more: its refusal breaks no promise

    @classmethod
    def open(cls, address: str, *, kind: str, nonce: str, epoch: int, interrupts: Interrupts) -> Session:
        """Connect and say hello. Raises OSError, LocalProtocolError."""
        wire = WireClient.connect(address)
        try:
            hello = wire.hello(nonce, kind=kind, epoch=epoch)
        except BaseException:
            wire.close()
            raise
        return cls(wire, hello, kind, interrupts)

    def close(self) -> None:
        self.wire.close()

    def send(self, command: Command) -> int:
        """Send, without waiting. Returns its `seq`. Raises Disconnected, LocalProtocolError."""
        if isinstance(command, Peek):
            self._peeks.setdefault(command.uuid, command)
            self._server.setdefault(command.uuid, self._server_of(command))
        elif isinstance(command, CreateDataflow):
            if any(each.id.startswith("s") for each in command.header.index_imports):
                self._of_introspection.update(each.id for each in command.header.exports)
        elif isinstance(command, CancelPeek):
            self._cancelled.add(command.uuid)
        elif isinstance(command, InitializationComplete):
            self.initialized = True
        elif isinstance(command, Schedule):
            self.scheduled.add(command.id)
        try:
            return self.wire.send(command)
        except Disconnected as error:
            with contextlib.suppress(Disconnected):  # what arrived before the end counts
                while self.take_one(0.0):
                    pass
            self.over = error
            raise

    def do(self, command: Command, timeout_s: float, *, sync: bool = True) -> None:
        """Send, and wait until it was validated. Raises Refusal, TimeoutError, Disconnected.

        sync: without it nothing is waited for; a refusal that comes is a violation then. A connection that
        was not let in, or was closed for what this command asks, says why.
        """
        asked: list[int] = []
        try:
            asked.append(self.send(command))
            if sync:
                asked.append(self.send(Sync(0)))
                self.wait(lambda: asked[1] in self._synced or asked[1] in self._refused, timeout_s)
        except (TimeoutError, KeyboardInterrupt):
            self._given_up.update(asked)
            raise
        except Disconnected:
            self._require_accepted(self._hello, *asked)
            raise
        if sync:
            self._require_accepted(*asked)

    def _server_of(self, peek: Peek) -> str:
        """Who is to answer, as settings are when the peek is sent."""
        if peek.id.startswith("s") or peek.id in self._of_introspection:
            return ""
        if self.mode != "two-runtime":
            return self.mode
        if peek.id.startswith("t"):
            return "interactive"
        if self.routing == "hinted":
            return "" if peek.runtime == "any" else peek.runtime
        return self.routing

    def _require_accepted(self, *asked: int) -> None:
        """Raises Refusal, as the replica said of the first that it refused."""
        refused = [self._refused.pop(seq) for seq in asked if seq in self._refused]
        if refused:
            raise Refusal(refused[0].code, refused[0].message, refused[0].hint) from None

    def wait(self, condition: Callable[[], bool], timeout_s: float) -> None:
        """Take in what arrives until `condition` holds. Raises TimeoutError, Disconnected; KeyboardInterrupt,
        which does no harm.
        """
        deadline = time.monotonic() + timeout_s
        while not condition():
            left = deadline - time.monotonic()
            if not self.take_one(max(left, 0.0)):
                raise TimeoutError

    def listen(self, duration_s: float) -> None:
        """Take in what arrives in this time. Raises Disconnected."""
        deadline = time.monotonic() + duration_s
        while self.take_one(max(deadline - time.monotonic(), 0.0)):
            pass

    def take_one(self, timeout_s: float) -> bool:
        """Take in the next response; False if none came in time. Raises Disconnected."""
        if self.over is not None:
            raise self.over
        deadline = time.monotonic() + timeout_s
        try:
            while (response := self.wire.recv(0.0)) is None and (left := deadline - time.monotonic()) > 0:
                poll = select.poll()
                poll.register(self.wire.fileno(), select.POLLIN)
                with self.interrupts.may_strike():
                    poll.poll(left * 1000)
        except Disconnected as error:
            self.over = error
            raise
        if response is None:
            return False
        self.arrived.append(response)
        match response:
            case Frontiers():
                self._take_frontiers(response)
            case Status():
                self._take_status(response)
            case PeekResponse():
                self._take_answer(response)
            case SubscribeResponse(id):
                if id in self.streams:
                    self.violations += self.streams[id].take(response)
                else:
                    self.violations.append(f"{id} tells something and is no subscription")
            case CopyToResponse(id, result):
                if id in self.copies:
                    self.violations.append(f"a second answer of copy {id}")
                self.copies[id] = result
            case Refused(seq) if seq not in self._given_up:
                self._refused[seq] = response
            case Synced(seq):
                self._synced.add(seq)
            case Refused() | Closing():
                pass
        return True

    def take_violations(self) -> list[str]:
        """What broke a promise since the last call; refusals nobody waited for are among them."""
        for refused in self._refused.values():
            self.violations.append(f"refused without a question: {refused.code}: {refused.message}")
        self._refused.clear()
        found, self.violations = self.violations, []
        return found

    def write_frontier(self, id: GlobalId) -> WireFrontier | None:
        return self.frontiers.get(id, {}).get("write")

    def _take_frontiers(self, report: Frontiers) -> None:
        known = self.frontiers.setdefault(report.id, {})
        for kind in FRONTIER_KINDS:
            new: WireFrontier | None = getattr(report, kind)
            if new is None:
                continue
            old = known.get(kind)
            said = f"{kind} frontier of {report.id}: {list(new)}"
            if old is None:
                if new and new[0] < self.as_of.get(report.id, 0):
                    self.violations.append(f"{said} before its as_of {self.as_of[report.id]}")
            elif not old or (new and new[0] < old[0]):
                self.violations.append(f"{said} after {list(old)}")
            known[kind] = new

    def _take_status(self, said: Status) -> None:
        if said.id not in self.as_of:
            self.violations.append(f"a status of {said.id}, which was not created")
        if bool(said.code) != (said.status in ("stalled", "errored")):
            self.violations.append(f"{said.id} is {said.status} with code {said.code!r}")
        self.statuses[said.id] = said

    def _take_answer(self, answer: PeekResponse) -> None:
        asked = self._peeks.get(answer.uuid)
        said = f"an answer to peek {answer.uuid}"
        if asked is None:
            self.violations.append(f"{said}, which was not sent")
            return
        if answer.uuid in self.answers:
            self.violations.append(f"a second answer to peek {answer.uuid}")
            return
        if isinstance(answer.result, PeekCanceled) and answer.uuid not in self._cancelled:
            self.violations.append(f"{said}: canceled, without a cancel")
        if isinstance(answer.result, PeekRows):
            if asked.time is not None and answer.time != asked.time:
                self.violations.append(f"{said}: read at {answer.time}, asked for {asked.time}")
            server = self._server[answer.uuid]
            if server and answer.served_by != server:
                self.violations.append(f"{said} was served by {answer.served_by!r}, not {server!r}")
        if answer.served_by:
            self.served[answer.served_by] += 1
        self.answers[answer.uuid] = answer
