"""Reconciliation: which dataflows of a new session are ones that stand, and go on.

Judged where all commands pass in one order, when the CreateDataflow comes, by what was declared alone and not
by how far a worker is: so all workers agree, and nothing that the judgement rests on can change before
InitializationComplete, for the older controller is fenced by then. What goes on keeps its incarnations: its
pages, notices and holds are named as before, and a worker that gets a name it has knows that nothing is to be
built.

A query never goes on: to compute it anew costs less than to know whether it could. Neither does what streams
to one connection, nor what is known to have been given up: made anew it may be spared what ended it. Of that
alone the judgement may come too late; then it goes on as what was given up, and says so again.

Does not: carry anything out (the workers do, at InitializationComplete), decode a plan: what a controller
sends again is taken for the same if its bytes are.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import msgspec

from clusterd.multiplexer.declared import Catalog, Collection, Dataflow
from controller_proto.command import CreateDataflow
from controller_proto.dataflow import DataflowHeader

__all__ = ["REUSED", "digest_of", "judge", "tally"]

REUSED = "reused"
NEW = "new"
_KINDS_THAT_GO_ON = frozenset({"index", "materialized-view"})


def digest_of(command: CreateDataflow) -> bytes:
    """16 bytes that two dataflows share if they compute the same: all but the name and the times seen."""
    header = command.header
    sources = tuple(msgspec.structs.replace(source, upper=()) for source in header.source_imports)
    told = (header.until, sources, header.index_imports, header.exports)
    return hashlib.blake2b(msgspec.msgpack.encode(told) + bytes(command.body), digest_size=16).digest()


def judge(
    standing: Catalog | None, header: DataflowHeader, digest: bytes, imports: Iterable[Collection]
) -> tuple[Dataflow | None, str]:
    """Return the standing dataflow that goes on as the new one, and `reused`; or None, and why not.

    imports: what the new one imports, as declared in its own session. Why not: `new` (no id of it stands),
    `exports` (other ids, or one was dropped), `kind` (a query, or it streams to its connection), `errored`,
    `plan`, `compacted` (beyond the new as_of), `imports` (one of them does not go on).
    """
    ids = {export.id for export in header.exports}
    found = {entry.dataflow for id in ids if standing is not None and (entry := standing.get(id)) is not None}
    if not found:
        return None, NEW
    old = found.pop()
    if found or {entry.id for entry in old.exports} != ids or old.live < len(ids):
        return None, "exports"
    if old.query or not {entry.export.kind for entry in old.exports} <= _KINDS_THAT_GO_ON:
        return None, "kind"
    if old.is_errored:
        return None, "errored"
    if old.digest != digest:
        return None, "plan"
    if header.as_of < max(entry.floor for entry in old.exports):
        return None, "compacted"
    if old.imported != tuple(entry.key for entry in imports):
        return None, "imports"
    return old, REUSED


def tally(standing: Catalog | None, catalog: Catalog) -> dict[str, int]:
    """Outcomes by how many dataflows had them, when `catalog` takes the place of `standing`.

    `reused`; why others were replaced (see `judge`); `dropped`: stood, and has no successor. New ones are not
    counted.
    """
    found: dict[str, int] = {}
    for dataflow in catalog.dataflows():
        if dataflow.outcome not in ("", NEW):
            found[dataflow.outcome] = found.get(dataflow.outcome, 0) + 1
    ids = {entry.id for entry in catalog}
    stood = [] if standing is None else [dataflow for dataflow in standing.dataflows() if dataflow.live]
    gone = sum(not ids & {entry.id for entry in dataflow.exports} for dataflow in stood)
    return {**found, "dropped": gone} if gone else found
