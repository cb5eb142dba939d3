"""What one dataflow imports and exports, where it runs: made while its graph is built.

Maintenance imports indexes of its own process and follows them. The interactive runtime imports snapshots,
all of a query's taken before anything is built (R7), and those of a subscription anew each round. An export
that was dropped before it was built is closed from the start, and takes what comes for it.

Does not: build (render/build.py), run, outlive the building but for what it has made.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from clusterd.dataflow.operator import Columns, Source
from clusterd.operators.export_copy_to import ExportCopyTo
from clusterd.operators.export_subscribe import ExportSubscribe
from clusterd.operators.import_index import ImportIndex
from clusterd.operators.import_snapshot import ImportSnapshot
from clusterd.operators.import_source import ImportSource
from clusterd.operators.view_writer import ViewWriter
from clusterd.render.build import ImportedIndex
from clusterd.runtime.effects import Build
from clusterd.runtime.frozen import FrozenIndex, FrozenTrace
from clusterd.runtime.owned import OwnedIndexes
from clusterd.runtime.peeks import Key
from clusterd.runtime.published import PublishedIndexes
from clusterd.runtime.views import Views
from clusterd.storage.copy_out import CopyOut
from clusterd.storage.store import Store
from controller_proto.dataflow import DataflowHeader, Export, IndexImport, SourceImport, is_one_shot
from controller_proto.ids import GlobalId
from shm_arrangements.contracts import TraceReader
from shm_arrangements.errors import InvariantViolation
from shm_arrangements.index_writer import IndexWriter

__all__ = ["Environment", "Halves"]

Halves = tuple[TraceReader, TraceReader]  # oks and errs


class Environment:
    """Imports and exports of one dataflow (render.build.Environment); afterwards, what came of them."""

    def __init__(
        self,
        owned: OwnedIndexes,
        published: PublishedIndexes | None,
        store: Store | None,
        views: Views,
        build: Build,
    ) -> None:
        self._owned = owned
        self._published = published
        self._store = store
        self._views = views
        self._build = build
        self._snapshot: Callable[[Key], Halves] = partial(_snapshot, owned, published, build.header)
        self._exports = dict(build.exports)
        self._imports: dict[str, Key] = {key[0]: key for key in build.imports}
        self.sources: list[tuple[str, ImportSource]] = []
        self.subscription: ExportSubscribe | None = None
        self.copied: ExportCopyTo | None = None
        self.frozen: list[tuple[FrozenIndex, Callable[[], Halves]]] = []
        self._snapshots: dict[str, Halves] = {}
        if published is not None and build.header.exports[0].kind != "subscribe":
            self._snapshots = {key[0]: self._snapshot(key) for key in build.imports}

    def source(self, imported: SourceImport) -> Source:
        if self._store is None:
            raise InvariantViolation("a shard is read without a data directory", shard=imported.shard)
        source = ImportSource(self._store.shard(imported.shard))
        self.sources.append((imported.shard, source))
        return source

    def index(self, imported: IndexImport) -> ImportedIndex:
        key = self._imports[imported.id]
        if self._published is None and not self._owned.is_frozen(key):
            return ImportIndex(self._owned[key], self._build.header.as_of)
        if imported.id not in self._snapshots:
            return ImportSnapshot(lambda: self._snapshot(key))
        halves = self._snapshots[imported.id]
        return ImportSnapshot(lambda: halves)

    def export(self, export: Export) -> IndexWriter:
        as_of = self._build.header.as_of
        incarnation = self._exports.get(export.id)
        if incarnation is not None:
            return self._owned.create((export.id, incarnation), export, as_of)
        # Dropped before it was built: an index that is closed from the start takes what comes for it.
        gone = self._owned.create((export.id, 0), export, as_of)
        self._owned.close((export.id, 0))
        return gone

    def alias(self, export: Export, index: GlobalId) -> None:
        incarnation = self._exports.get(export.id)
        if incarnation is None:
            return
        header, key, original = self._build.header, (export.id, incarnation), self._imports[index]
        if not is_one_shot(header):
            self._owned.alias(key, original)
            return
        snapshot, taken = self._snapshot, self._snapshots.get(index)  # not self: that would be a circle
        frozen = self._owned.freeze(key, export, header.as_of)
        self.frozen.append((frozen, lambda: snapshot(original) if taken is None else taken))

    def view(self, export: Export) -> ViewWriter:
        as_of = self._build.header.as_of
        incarnation = self._exports.get(export.id)
        writer = self._views.create((export.id, incarnation or 0), export, as_of)
        if incarnation is None:  # dropped before it was built
            self._views.close((export.id, 0))
        return writer

    def copy(self, export: Export, columns: Columns) -> ExportCopyTo:
        data_dir = None if self._store is None else self._store.data_dir
        copy = ExportCopyTo(columns, CopyOut(export, data_dir))
        self.copied = copy
        return copy

    def subscribed(self, export: Export, subscription: ExportSubscribe) -> None:
        # Also if it was dropped before it was built: others may go on as it.
        self.subscription = subscription


def _snapshot(
    owned: OwnedIndexes, published: PublishedIndexes | None, header: DataflowHeader, key: Key
) -> Halves:
    """An index as it is, for a dataflow that takes it so."""
    if key in owned:
        reader = owned.reader(key, only_at=header.as_of if is_one_shot(header) else None)
        return FrozenTrace.of(reader.oks), FrozenTrace.of(reader.errs)
    assert published is not None
    oks, errs = published.snapshot(key)
    return oks, errs
