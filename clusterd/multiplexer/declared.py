"""What the controller has declared, in its order: which ids exist, and from which time on they may be read.

A `Catalog` belongs to one iteration of the protocol (the commands since one Hello). A collection is in it
from its CreateDataflow on, as of the multiplexer's order and not of any worker's progress, so what is refused
depends on nothing but the commands (R5, protocol decision 3). Its read floor only rises: `as_of`, then every
AllowCompaction. The entry of a dropped id goes when its terminal frontiers were reported; that the id was
used is kept as one number range, so a session of a million queries costs no more than one.

Does not: route, talk, look into plans (the owner validates; `undeclare` takes back what it refuses).
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Iterator

from controller_proto.dataflow import MAX_TIME, TOLD_KINDS, DataflowHeader, Export, WireFrontier
from controller_proto.errors import Refusal
from controller_proto.ids import GlobalId, id_to_u64

__all__ = ["READABLE_KINDS", "Catalog", "Collection", "Dataflow", "IdSet", "Key", "rises", "system_catalog"]

Key = tuple[GlobalId, int]  # (id, incarnation): what pages and notices go by (R9)

SYSTEM = -1  # where the number of the command stands, of what no command made
_MAX_DIGITS = 19  # of 2^62
READABLE_KINDS = frozenset({"index", "materialized-view"})
_REPORTING_KINDS = frozenset({"index", "materialized-view"})  # what is told to a session has none


def rises(old: WireFrontier | None, new: WireFrontier) -> bool:
    """Whether `new` is strictly later than `old`; None is "nothing yet", () is final."""
    if old is None:
        return True
    return bool(old) and (not new or new[0] > old[0])


class Dataflow:
    """What one CreateDataflow made.

    imports: what it still waits for; imported: the names of all it was made to import. live: exports not
    dropped. digest, outcome, is_errored (it was given up): for reconciliation (reconcile.py).
    """

    __slots__ = (
        "digest", "exports", "imported", "imports", "is_errored", "live", "outcome", "owner", "query", "seq",
    )  # fmt: skip

    def __init__(
        self,
        seq: int,
        owner: int,
        *,
        query: bool,
        imports: tuple[Collection, ...],
        digest: bytes = b"",
        outcome: str = "",
    ) -> None:
        self.seq = seq
        self.owner = owner
        self.query = query
        self.imports = imports
        self.imported = tuple(entry.key for entry in imports)
        self.digest = digest
        self.outcome = outcome
        self.is_errored = False
        self.exports: tuple[Collection, ...] = ()
        self.live = 0


class Collection:
    """One declared id. `floor` is the least time a new read may have; `reported` is write, input, output.

    told_all: of a subscription or a copy, whether its last message went out.
    """

    __slots__ = (
        "as_of", "dataflow", "dropped", "export", "floor", "id", "incarnation", "key", "reported", "told_all",
    )  # fmt: skip

    def __init__(self, export: Export, incarnation: int, as_of: int, floor: int, dataflow: Dataflow) -> None:
        self.export = export
        self.id = export.id
        self.incarnation = incarnation
        self.key: Key = (export.id, incarnation)
        self.as_of = as_of
        self.floor = floor
        self.dataflow = dataflow
        self.dropped = False
        self.reported: list[WireFrontier | None] = [None, None, None]
        self.told_all = False

    @property
    def owner(self) -> int:
        return self.dataflow.owner

    @property
    def is_system(self) -> bool:
        """Whether it is an introspection relation: there as long as the replica, and of no session."""
        return self.dataflow.seq == SYSTEM

    def is_sealed(self, time: int) -> bool:
        """Whether it was reported to be sealed beyond `time`."""
        write = self.reported[0]
        return write is not None and (not write or write[0] > time)

    @property
    def is_finished(self) -> bool:
        """Whether nothing is owed for it: dropped, and all that is reported of it was reported empty."""
        if self.export.kind in TOLD_KINDS:
            return self.dropped and self.told_all
        reports = self.export.kind in _REPORTING_KINDS
        return self.dropped and (not reports or all(frontier == () for frontier in self.reported))


class IdSet:
    """A set of ids as ranges of their u64 images: controllers count upwards, so it stays small.

    >>> ids = IdSet()
    >>> for text in ("t1", "t3", "t2"): ids.add(text)
    >>> "t2" in ids, "u2" in ids, ids.ranges
    (True, False, 1)
    """

    __slots__ = ("_ends", "_starts")

    def __init__(self) -> None:
        self._starts: list[int] = []  # sorted; range i is [starts[i], ends[i]), ranges do not touch
        self._ends: list[int] = []

    @property
    def ranges(self) -> int:
        return len(self._starts)

    def __contains__(self, id: GlobalId) -> bool:
        value = id_to_u64(id)
        at = bisect.bisect_right(self._starts, value) - 1
        return at >= 0 and value < self._ends[at]

    def add(self, id: GlobalId) -> None:
        value = id_to_u64(id)
        at = bisect.bisect_right(self._starts, value)
        if at > 0 and value < self._ends[at - 1]:
            return
        joins_left = at > 0 and self._ends[at - 1] == value
        joins_right = at < len(self._starts) and self._starts[at] == value + 1
        if joins_left and joins_right:
            self._ends[at - 1] = self._ends[at]
            del self._starts[at], self._ends[at]
        elif joins_left:
            self._ends[at - 1] = value + 1
        elif joins_right:
            self._starts[at] = value
        else:
            self._starts.insert(at, value)
            self._ends.insert(at, value + 1)


class Catalog:
    """The collections of one iteration of the protocol."""

    __slots__ = ("_collections", "_gone", "session")

    def __init__(self, session: int) -> None:
        self.session = session
        self._collections: dict[GlobalId, Collection] = {}
        self._gone = IdSet()

    def __iter__(self) -> Iterator[Collection]:
        return iter(self._collections.values())

    def __len__(self) -> int:
        return len(self._collections)

    def dataflows(self) -> list[Dataflow]:
        """Those with an export that something is still owed for, in the order of their declaration."""
        return list(dict.fromkeys(entry.dataflow for entry in self))

    def get(self, id: GlobalId) -> Collection | None:
        """The entry of `id`, dropped or not; None once nothing is owed for it any more."""
        return self._collections.get(id)

    def find(self, id: GlobalId) -> Collection:
        """The live collection `id`. Raises Refusal `unknown-id` or `dropped`."""
        found = self._collections.get(id)
        if found is not None and not found.dropped:
            return found
        if found is not None or (_is_id(id) and id in self._gone):
            raise Refusal("dropped", f"{id} was dropped", "an id does not come back within a session")
        raise Refusal("unknown-id", f"{id} was not created in this session")

    def find_readable(self, id: GlobalId, time: int | None) -> Collection:
        """The index or view `id`, to be read at `time` (None: the newest).

        Raises Refusal `unknown-id`, `dropped`, `invalid-plan`, `below-since`.
        """
        found = self.find(id)
        if found.export.kind not in READABLE_KINDS:
            raise Refusal(
                "invalid-plan", f"{id} is a {found.export.kind}, not an index", "peek an index on it"
            )
        if time is not None and time < found.floor:
            raise Refusal(
                "below-since",
                f"{id} cannot be read at {time}: its since is {found.floor}",
                f"read at {found.floor} or later",
            )
        return found

    def check(
        self, header: DataflowHeader, *, system: Catalog, standing: Catalog | None = None
    ) -> tuple[Collection, ...]:
        """Judge the header of a new dataflow; return what it imports: of `system`, the introspection
        relations, or else of this catalog, or of `standing` if that is given.

        Raises Refusal: `invalid-plan` (no exports, no ids, no time), `duplicate-id`, `unknown-id`, `dropped`,
        `below-since` (an import cannot be read at `as_of`).
        """
        if not header.exports:
            raise Refusal("invalid-plan", f"dataflow {header.name!r} exports nothing")
        if not 0 <= header.as_of <= MAX_TIME:
            raise Refusal("invalid-plan", f"as_of {header.as_of} is no time", "times are u64")
        new: set[GlobalId] = set()
        for export in header.exports:
            if not _is_id(export.id):
                raise Refusal("invalid-plan", f"{export.id!r} is not an id", "write u1001, s1 or t7")
            if export.id in new:
                raise Refusal("duplicate-id", f"{export.id} is exported twice by one dataflow")
            if export.id in self._collections or system.get(export.id) is not None:
                raise Refusal("duplicate-id", f"{export.id} is in use", "use a fresh id")
            if export.id in self._gone:
                raise Refusal(
                    "duplicate-id", f"{export.id} was used and dropped in this session", "use a fresh id"
                )
            new.add(export.id)
        imports = []
        for item in header.index_imports:
            if item.id in new:
                raise Refusal("unknown-id", f"{item.id} is imported by the dataflow that exports it")
            of = system if system.get(item.id) is not None else self if standing is None else standing
            imported = of.find(item.id)
            if imported.export.kind != "index":
                raise Refusal("invalid-plan", f"import {item.id} is a {imported.export.kind}, not an index")
            if header.as_of < imported.floor:
                raise Refusal(
                    "below-since",
                    f"import {item.id} cannot be read at {header.as_of}: its since is {imported.floor}",
                    f"create the dataflow with as_of {imported.floor} or later",
                )
            imports.append(imported)
        return tuple(imports)

    def declare(self, dataflow: Dataflow, exports: Iterable[tuple[Export, int]], as_of: int) -> None:
        """Enter the exports, each with its incarnation, of a dataflow that `check` let pass."""
        dataflow.exports = tuple(
            Collection(export, incarnation, as_of, as_of, dataflow) for export, incarnation in exports
        )
        dataflow.live = len(dataflow.exports)
        self._collections.update((entry.id, entry) for entry in dataflow.exports)

    def compact(self, id: GlobalId, frontier: WireFrontier) -> Collection:
        """Raise the floor of `id`; the empty frontier drops it. Raises Refusal `unknown-id`, `dropped`."""
        entry = self.find(id)
        if frontier:
            entry.floor = max(entry.floor, frontier[0])
            return entry
        entry.dropped = True
        entry.dataflow.live -= 1
        self._evict_if_finished(entry)
        return entry

    def report(
        self, entry: Collection, frontiers: Iterable[WireFrontier | None]
    ) -> list[WireFrontier | None]:
        """Take reported frontiers (write, input, output); return the news: never lower, empty is final."""
        news: list[WireFrontier | None] = [None, None, None]
        for kind, frontier in enumerate(frontiers):
            if frontier is not None and rises(entry.reported[kind], frontier):
                entry.reported[kind] = news[kind] = frontier
        self._evict_if_finished(entry)
        return news

    def end_telling(self, entry: Collection) -> None:
        """The last message of a subscription or a copy went out."""
        entry.told_all = True
        self._evict_if_finished(entry)

    def undeclare(self, seq: int) -> Dataflow | None:
        """The owner refused command `seq`: if it made a dataflow, its ids are as if they had never been."""
        for entry in self._collections.values():
            if entry.dataflow.seq == seq:
                for export in entry.dataflow.exports:
                    self._collections.pop(export.id, None)
                return entry.dataflow
        return None

    def _evict_if_finished(self, entry: Collection) -> None:
        if entry.is_finished and self._collections.get(entry.id) is entry:
            del self._collections[entry.id]
            self._gone.add(entry.id)


def system_catalog(exports: Iterable[Export], owner: int) -> Catalog:
    """The introspection relations, which no session made: read as the result of a query is, by their owner
    alone. Each lives once, so its incarnation is 1.
    """
    catalog = Catalog(session=0)
    catalog.declare(Dataflow(SYSTEM, owner, query=True, imports=()), [(export, 1) for export in exports], 0)
    return catalog


def _is_id(text: str) -> bool:
    digits = text[1:]
    return (
        text[:1] in ("u", "s", "t")
        and digits.isascii()
        and digits.isdigit()
        and len(digits) <= _MAX_DIGITS
        and digits == str(int(digits))
        and int(digits) < 1 << 62
    )
