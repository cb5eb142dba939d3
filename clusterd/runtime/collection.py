"""What a runtime knows of one collection and of one dataflow: two records, and the standing hold.

A collection's frontiers are kept twice, because a controller in initialisation is ahead of what stands:
`announced` is what new reads are judged by, in the controller's order (R5); `applied` is what has been
carried out. The hold (R6) is the least of what was applied, here and by every interactive worker, of what
parked peeks need and of what dataflows still read. All of these only rise once work is accepted at or beyond
`announced`, so the hold only rises; `raise_hold` checks that.
That no read is below since, by that, is what docs/models/shared_reads.pml shows.

Does not: decide when to act on a hold.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import msgspec

from clusterd.dataflow.sequence import plan_upper
from clusterd.runtime.peeks import Key
from controller_proto.dataflow import MAX_TIME, TOLD_KINDS, DataflowHeader, Export, is_one_shot
from controller_proto.errors import Refusal
from controller_proto.ids import GlobalId
from shm_arrangements.errors import InvariantViolation
from shm_arrangements.frontier import Frontier

__all__ = ["Collection", "Dataflow", "Planned", "meet_all"]


class Planned(Protocol):
    """What a core wants to know of a plan."""

    @property
    def aliases(self) -> Mapping[GlobalId, GlobalId]:
        """Exports that are an imported index under another id, and which."""

    @property
    def computes(self) -> bool:
        """Whether anything but aliases comes of it."""

    @property
    def likeness(self) -> bytes:
        """What it shares with those that compute the same of the same, whatever their exports are called."""


def meet_all(frontiers: Iterable[Frontier]) -> Frontier:
    """The least of them; empty for none."""
    least = Frontier.empty()
    for frontier in frontiers:
        least = Frontier.meet(least, frontier)
    return least


class Collection:
    """One incarnation of an id.

    export: None for a placeholder: its name was met before its declaration.
    dataflow: number of the dataflow here that exports it; None if another process owns it.
    standing: in force; until InitializationComplete a new session's collections are only announced.
    of_reader: a subscription of a session beside the controller's; it ends with that session.
    gone: "" or the code that new commands and peeks get: `dropped`, or `unknown-id` for what was undeclared.
    ended: why the query that makes it was given up: what its peeks get. It can still be dropped.
    told: up to where a subscription was told; empty once all was said.
    stale: its page has moved since it was last read, or was never read.
    needs: dataflow number -> the frontier at which that dataflow still reads it.
    applied_by: what each interactive worker has applied (maintenance only).
    """

    __slots__ = (
        "announced", "applied", "applied_by", "as_of", "dataflow", "ended", "export", "gone", "hold", "key",
        "needs", "of_reader", "session", "stale", "standing", "told", "upper",
    )  # fmt: skip

    def __init__(
        self,
        key: Key,
        session: int,
        export: Export | None,
        as_of: int,
        *,
        dataflow: int | None,
        appliers: int,
    ) -> None:
        self.key = key
        self.session = session
        self.export = export
        self.dataflow = dataflow
        self.as_of = as_of
        start = Frontier.at(as_of)
        self.announced = start
        self.applied = start
        self.applied_by = [start] * appliers
        self.hold = start
        self.upper = self.told = Frontier.minimum()
        self.needs: dict[int, Frontier] = {}
        self.standing = False
        self.stale = True
        self.of_reader = False
        self.gone = ""
        self.ended: Refusal | None = None

    @property
    def id(self) -> GlobalId:
        return self.key[0]

    @property
    def is_owned(self) -> bool:
        return self.dataflow is not None

    @property
    def is_told(self) -> bool:
        """Whether it is a subscription or a copy: what it has to say goes to its session."""
        return self.export is not None and self.export.kind in TOLD_KINDS

    @property
    def is_view(self) -> bool:
        return self.export is not None and self.export.kind == "materialized-view"

    @property
    def is_placeholder(self) -> bool:
        return self.export is None

    @property
    def is_wanted(self) -> bool:
        """Whether its contents are of use to anybody: it goes on and is not dropped, or a dataflow here
        imports it.
        """
        return (self.ended is None and not self.applied.is_empty) or bool(self.needs)

    def take_hold(self, parked: Frontier) -> Frontier:
        """R6. parked: the least time a parked peek needs."""
        return meet_all((self.applied, *self.applied_by, *self.needs.values(), parked))

    def raise_hold(self, parked: Frontier) -> bool:
        """Take the hold anew; whether it rose."""
        hold = self.take_hold(parked)
        if hold == self.hold:
            return False
        if not self.hold.precedes(hold):
            raise InvariantViolation("a standing hold goes back", key=self.key, hold=self.hold, to=hold)
        self.hold = hold
        return True


class Dataflow:
    """One CreateDataflow that was accepted here.

    built: rendered, with its graph and indexes; computing: the graph has not been closed since.
    ended: given up before it read anything.
    waiting: exports neither scheduled nor dropped; it computes when none is left (A5).
    aliases: exports that are an import by another id, of a dataflow that is maintained: their holds count on
        that import, as long as they live. A query reads its snapshot instead, and holds nothing.
    computes: whether anything but aliases comes of it.
    header: with an `until` that is no later than what a subscription asked for (`up_to`); of a copy, its one
        time.
    live: exports not closed yet, and those of other subscriptions that go on as this one (company.py).
    likeness: what subscriptions share that compute the same; empty of others. point: where it
        stands, for others to meet it. expires_at: as it was set when it was built.
    is_telling: something of the round that runs was told. owes: updates are held until an error is gone.
    running: the upper of the round in flight. rows_done, rows_expected: of its first round, as last heard.
    goal: beyond it all exports are hydrated.
    """

    __slots__ = (
        "aliases", "built", "computes", "computing", "ended", "expires_at", "exports", "goal", "header",
        "imports",
        "is_subscription", "is_telling", "likeness", "live", "number", "one_shot", "owes", "plan", "point",
        "rows_done", "rows_expected", "running", "session", "shards", "standing", "upper", "waiting",
    )  # fmt: skip

    def __init__(
        self,
        number: int,
        session: int,
        header: DataflowHeader,
        plan: Planned,
        exports: tuple[Key, ...],
        imports: tuple[Key, ...],
    ) -> None:
        up_tos = [export.up_to for export in header.exports if export.up_to is not None]
        if header.exports[0].kind == "copy-to" and header.as_of < MAX_TIME:
            up_tos.append(header.as_of + 1)
        if up_tos:
            until = min(up_tos if header.until is None else [header.until, *up_tos])
            header = msgspec.structs.replace(header, until=until)
        self.number = number
        self.session = session
        self.header = header
        self.plan = plan
        self.exports = exports
        self.imports = imports
        self.shards = tuple(dict.fromkeys(s.shard for s in header.source_imports))
        self.live = dict.fromkeys(exports)
        self.waiting = set(exports)
        self.one_shot = is_one_shot(header)
        keys = {key[0]: key for key in (*exports, *imports)}
        renamed = {} if self.one_shot else plan.aliases
        self.aliases = {keys[id]: keys[index] for id, index in renamed.items()}
        self.computes = plan.computes
        self.is_subscription = header.exports[0].kind == "subscribe"
        self.standing = False
        self.built = False
        self.computing = False
        self.ended = False
        self.upper = Frontier.minimum()
        self.running: Frontier | None = None
        self.rows_done = self.rows_expected = 0
        self.goal = header.as_of
        self.likeness = plan.likeness if self.is_subscription else b""
        self.point: Any = None
        self.expires_at: Any = 0
        self.is_telling = self.owes = False

    @property
    def is_deferred(self) -> bool:
        """Whether nothing has been read yet."""
        return not self.ended and self.running is None and self.upper == Frontier.minimum()

    @property
    def need(self) -> Frontier:
        """Where it still reads its imports: all times below its upper must stay below it when rounded."""
        if self.upper.is_empty or self.ended:
            return Frontier.empty()
        return (
            Frontier.at(max(self.header.as_of, self.upper.time - 1))
            if self.upper.time
            else Frontier.at(self.header.as_of)
        )

    def next_round(self, inputs: Frontier) -> Frontier | None:
        """The upper of the round that inputs readable up to `inputs` allow; None if there is none."""
        if not self.standing or self.ended or self.waiting or self.running is not None:
            return None
        return plan_upper(inputs, self.upper, self.header.as_of, self.header.until)
