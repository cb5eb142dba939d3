"""The indexes that this process has: made, compacted, merged, reclaimed and closed; and read in place.

An index may have several ids: an alias shares what its original has, in the registry as in shared memory, and
the index closes with its last id. What a query shows of an imported index is no index of its own either
(frozen.py).

Work that nobody waits for is kept as two sets: indexes that may have something to merge, and indexes whose
superseded names wait for their grace. Both are empty when nothing happens, so an idle worker has neither work
nor a timer.

Does not: decide compaction or closing (the core does), feed indexes (export_index.py does), read a clock.
"""

from __future__ import annotations

from collections.abc import Iterator

from clusterd.convert import arrangement_schema
from clusterd.runtime.evaluate import Readable
from clusterd.runtime.frozen import FrozenIndex
from clusterd.runtime.peeks import Key
from controller_proto.dataflow import Export
from controller_proto.ids import id_to_u64
from shm_arrangements.arena import SegmentAllocator
from shm_arrangements.errors import InvariantViolation
from shm_arrangements.frontier import Frontier
from shm_arrangements.index_writer import IndexReader, IndexWriter
from shm_arrangements.registry import ArrangementSharingRegistry, CollectionKey, RegistryStatistics

__all__ = ["OwnedIndexes"]


class OwnedIndexes:
    """Index writers by collection. writer: this process's number within the instance."""

    def __init__(self, instance: str, writer: int) -> None:
        self._allocator = SegmentAllocator(instance, writer)
        self._registry: ArrangementSharingRegistry[IndexWriter] = ArrangementSharingRegistry()
        self._indexes: dict[Key, IndexWriter] = {}  # under their own ids
        self._aliases: dict[Key, bool] = {}  # whether it is published
        self._frozen: dict[Key, FrozenIndex] = {}
        self._readable: dict[Key, tuple[object, object, Readable]] = {}
        self._generations: dict[Key, int] = {}  # when they last moved
        self._unmerged: dict[Key, None] = {}
        self._superseding: dict[Key, float] = {}  # when to look again
        self._sparse_seen = 0

    def create(self, key: Key, export: Export, as_of: int) -> IndexWriter:
        """Publish an index in which nothing is sealed. Raises: ShmExhausted, RegistryFull."""
        schema = arrangement_schema(export.schema, export.key)
        index = IndexWriter(self._allocator, id_to_u64(key[0]), key[1], schema, as_of)
        self._registry.publish(_place(key), index)
        self._indexes[key] = index
        return index

    def alias(self, key: Key, original: Key) -> None:
        """Make `key` another id of the index `original`, which may be an alias itself. Not published yet."""
        self._registry.alias(_place(key), _place(original))
        self._aliases[key] = False

    def publish(self, key: Key) -> None:
        """Show an alias to other processes, from now on. No effect on what is no alias.

        Raises: ShmExhausted, RegistryFull.
        """
        if self._aliases.get(key) is False:
            self[key].publish_as(*_place(key))
            self._aliases[key] = True

    def freeze(self, key: Key, export: Export, as_of: int) -> FrozenIndex:
        """Have a query's result that is to be filled with the snapshot of an index."""
        frozen = self._frozen[key] = FrozenIndex(arrangement_schema(export.schema, export.key), as_of)
        return frozen

    def __getitem__(self, key: Key) -> IndexWriter:
        """The index, by any of its ids."""
        entry = self._registry.get(_place(key))
        if entry is None or entry.handle is None:
            raise InvariantViolation("not an index of this process", key=key)
        return entry.handle

    def __contains__(self, key: Key) -> bool:
        return key in self._indexes or key in self._aliases or key in self._frozen

    def is_frozen(self, key: Key) -> bool:
        return key in self._frozen

    def reader(self, key: Key, *, only_at: int | None = None) -> IndexReader:
        """The index, for an importer that reads at no time but `only_at` (None: at any)."""
        frozen = self._frozen.get(key)
        if frozen is None:
            return self[key].reader()
        return frozen.reader if only_at == frozen.as_of else frozen.cut()

    def moved(self, key: Key) -> None:
        """If the index got a batch or another since, there may be something to merge and to reclaim.

        Of what is no id that an index was made under there is nothing.
        """
        index = self._indexes.get(key)
        if index is not None and index.generation != self._generations.get(key):
            self._generations[key] = index.generation
            self._unmerged[key] = None
            self._superseding[key] = 0.0

    def set_compaction(self, key: Key, frontier: Frontier) -> None:
        """Of a frozen one there is nothing to compact."""
        if key not in self._frozen:
            self[key].set_compaction(frontier)
            self.moved(key)

    def close(self, key: Key) -> None:
        """The id is gone: with the last one of an index its page is CLOSED, its names go.

        No effect if it is not there.
        """
        place = _place(key)
        entry = self._registry.get(place)
        if entry is not None and entry.handle is not None:
            index = entry.handle
            if self._registry.close(place) is not None:
                index.close()
            elif self._aliases.get(key, True):
                index.withdraw(*place)
        for known in (self._indexes, self._aliases, self._frozen, self._readable, self._generations):
            known.pop(key, None)
        self._unmerged.pop(key, None)
        self._superseding.pop(key, None)

    def readable(self, key: Key) -> Readable:
        """What the index holds now. The same object as long as its batches are the same."""
        frozen = self._frozen.get(key)
        reader = self[key].reader() if frozen is None else frozen.reader
        oks, errs = reader.oks.batches(), reader.errs.batches()
        cached = self._readable.get(key)
        if cached is not None and cached[0] is oks and cached[1] is errs:
            return cached[2]
        last = None if frozen is None else frozen.as_of
        found = Readable.of(key[0], reader.oks.schema, oks, errs, last=last)
        self._readable[key] = (oks, errs, found)
        return found

    @property
    def can_merge(self) -> bool:
        return bool(self._unmerged)

    def merge(self, fuel_updates: int) -> None:
        """Spend some fuel on one index that may have something to merge."""
        key = next(iter(self._unmerged))
        del self._unmerged[key]
        if self._indexes[key].exert(fuel_updates):
            self._unmerged[key] = None  # at the end: the others have their turn
        self._superseding[key] = 0.0

    def reclaim(self, now_s: float) -> float | None:
        """Free what was superseded a grace ago; when to call again, None if nothing waits.

        Every index is asked when an arena is to be left: what is in there longest is of those that are idle.
        """
        if self._sparse_seen != self._allocator.sparse_count:
            self._sparse_seen = self._allocator.sparse_count
            self._superseding.update(dict.fromkeys(self._indexes, 0.0))
        for key, due in list(self._superseding.items()):
            if due <= now_s:
                again = self._indexes[key].reclaim(now_s)
                if again is None:
                    del self._superseding[key]
                else:
                    self._superseding[key] = again
        if self._sparse_seen != self._allocator.sparse_count:
            return now_s
        return min(self._superseding.values(), default=None)

    def shown(self) -> Iterator[tuple[Key, IndexWriter, Key]]:
        """What other processes are shown: each id with its index, and the id that stands for its memory."""
        stands: dict[IndexWriter, Key] = {index: key for key, index in self._indexes.items()}
        for key in (*self._indexes, *(key for key, is_shown in self._aliases.items() if is_shown)):
            index = self[key]
            yield key, index, stands.setdefault(index, key)

    @property
    def count(self) -> int:
        """Ids of indexes and of results."""
        return len(self._indexes) + len(self._aliases) + len(self._frozen)

    def statistics(self) -> RegistryStatistics:
        """Of indexes and their ids."""
        return self._registry.statistics()

    def close_all(self) -> None:
        for key in [*self._frozen, *self._aliases, *self._indexes]:
            self.close(key)


def _place(key: Key) -> CollectionKey:
    return CollectionKey(id_to_u64(key[0]), key[1])
