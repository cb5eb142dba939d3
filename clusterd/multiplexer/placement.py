"""Which worker gets what: the routing table of docs/protocol.md, as a policy without side effects.

Worker 0 maintains (or is Solo), 1 .. M are interactive, M + 1 is the observer, which has the introspection
relations and all that reads them. Of the others, a dataflow is the reading side's if it is a query
(only transient indexes out, one single time in) or a subscription that imports only maintained indexes. The
judgement is the same in Solo, where both sides are one worker, so that both modes refuse alike.

Lanes: with two interactive workers or more, reads by key and heavy reads (scans, queries) use different ones,
so that a long scan does not stand before a lookup.

Does not: know what is declared (declared.py), keep count of what is in flight.
"""

from __future__ import annotations

from clusterd.multiplexer.declared import Collection
from controller_proto.command import Peek
from controller_proto.dataflow import DataflowHeader, is_one_shot
from controller_proto.errors import Refusal

__all__ = ["OWNER", "Placement"]

OWNER = 0  # the worker that writes maintained arrangements


class Placement:
    """The policy, for a number of interactive workers; it keeps whose turn it is."""

    __slots__ = ("_heavy", "_heavy_turn", "_point", "_point_turn", "everyone", "interactive", "observer")

    def __init__(self, interactive_workers: int, *, observed: bool = False) -> None:
        """observed: whether there is an observer."""
        self.interactive = tuple(range(1, interactive_workers + 1))
        self.observer = interactive_workers + 1
        self.everyone = (OWNER, *self.interactive, *((self.observer,) if observed else ()))
        half = (interactive_workers + 1) // 2
        self._point = self.interactive[:half] or (OWNER,)
        self._heavy = self.interactive[half:] or self._point
        self._point_turn = self._heavy_turn = 0

    @property
    def is_solo(self) -> bool:
        return not self.interactive

    def dataflow(self, header: DataflowHeader, imports: tuple[Collection, ...]) -> tuple[int, bool]:
        """Return (owner, whether it is the reading side's). Raises Refusal `invalid-plan`."""
        if any(entry.is_system for entry in imports):
            return self._of_introspection(header, imports), True
        of_queries = [entry for entry in imports if entry.dataflow.query]
        subscription = (
            bool(imports)
            and not header.source_imports
            and not of_queries
            and all(export.kind == "subscribe" for export in header.exports)
        )
        if not is_one_shot(header) and not subscription:
            if of_queries:
                why = f"{of_queries[0].id} is the result of a query, which only a query may import"
                raise Refusal("invalid-plan", why, "import maintained indexes, or read one single time")
            return OWNER, False
        owners = {entry.owner for entry in of_queries}
        if len(owners) > 1:
            named = ", ".join(entry.id for entry in of_queries)
            raise Refusal("invalid-plan", f"results of queries on different workers: {named}")
        return (owners.pop() if owners else self._next_heavy()), True

    def _of_introspection(self, header: DataflowHeader, imports: tuple[Collection, ...]) -> int:
        """The observer, for a query of introspection relations or a subscription to them."""
        others = [entry.id for entry in imports if not entry.is_system]
        others += [source.shard for source in header.source_imports]
        if others:
            hint = "join them where the answers are"
            raise Refusal("invalid-plan", f"{others[0]} beside introspection relations", hint)
        subscribes = all(export.kind == "subscribe" for export in header.exports)
        if not is_one_shot(header) and not subscribes:
            hint = "read them at one time, or subscribe to them"
            raise Refusal("invalid-plan", "introspection relations are in no maintained dataflow", hint)
        return self.observer

    def reader(self, entry: Collection, peek: Peek, *, routing: str) -> int:
        """Return the worker that answers a peek of `entry`. routing: the setting `read_routing`.

        `hinted` sends a peek that asks for no runtime to maintenance if it has to wait for its time: there no
        notice stands between the seal and the answer. A wrong guess costs time, and changes no answer.
        """
        if routing == "hinted":
            routing = peek.runtime
            if routing == "any" and peek.time is not None and not entry.is_sealed(peek.time):
                routing = "maintenance"
        if entry.dataflow.query or routing == "maintenance":
            return entry.owner
        if peek.keys is None:
            return self._next_heavy()
        self._point_turn = (self._point_turn + 1) % len(self._point)
        return self._point[self._point_turn]

    def hears_compaction(self, entry: Collection) -> tuple[int, ...]:
        """Whoever may hold an arrangement of `entry`, or reads a view's shard; the owner first (protocol
        decision 2).
        """
        shared = entry.export.kind in ("index", "materialized-view") and not entry.dataflow.query
        return (OWNER, *self.interactive) if shared else (entry.owner,)

    def _next_heavy(self) -> int:
        self._heavy_turn = (self._heavy_turn + 1) % len(self._heavy)
        return self._heavy[self._heavy_turn]
