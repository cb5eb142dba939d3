"""The indexes that this process writes: made, compacted, merged, reclaimed and closed; and read in place.

Work that nobody waits for is kept as two sets: indexes that may have something to merge, and indexes whose
superseded names wait for their grace. Both are empty when nothing happens, so an idle worker has neither work
nor a timer.

Does not: decide compaction or closing (the core does), feed indexes (export_index.py does), read a clock.
"""

from __future__ import annotations

from clusterd.convert import arrangement_schema
from clusterd.runtime.evaluate import Readable
from clusterd.runtime.peeks import Key
from controller_proto.dataflow import Export
from controller_proto.ids import id_to_u64
from shm_arrangements.arena import SegmentAllocator
from shm_arrangements.frontier import Frontier
from shm_arrangements.index_writer import IndexWriter

__all__ = ["OwnedIndexes"]


class OwnedIndexes:
    """Index writers by collection. writer: this process's number within the instance."""

    def __init__(self, instance: str, writer: int) -> None:
        self._allocator = SegmentAllocator(instance, writer)
        self._indexes: dict[Key, IndexWriter] = {}
        self._readable: dict[Key, tuple[object, object, Readable]] = {}
        self._generations: dict[Key, int] = {}  # when they last moved
        self._unmerged: dict[Key, None] = {}
        self._superseding: dict[Key, float] = {}  # when to look again
        self._sparse_seen = 0

    def create(self, key: Key, export: Export, as_of: int) -> IndexWriter:
        """Publish an index in which nothing is sealed. Raises: ShmExhausted, RegistryFull."""
        schema = arrangement_schema(export.schema, export.key)
        index = IndexWriter(self._allocator, id_to_u64(key[0]), key[1], schema, as_of)
        self._indexes[key] = index
        return index

    def __getitem__(self, key: Key) -> IndexWriter:
        return self._indexes[key]

    def __contains__(self, key: Key) -> bool:
        return key in self._indexes

    def moved(self, key: Key) -> None:
        """If the index got a batch or another since, there may be something to merge and to reclaim."""
        index = self._indexes.get(key)
        if index is not None and index.generation != self._generations.get(key):
            self._generations[key] = index.generation
            self._unmerged[key] = None
            self._superseding[key] = 0.0

    def set_compaction(self, key: Key, frontier: Frontier) -> None:
        self._indexes[key].set_compaction(frontier)
        self.moved(key)

    def close(self, key: Key) -> None:
        """Page CLOSED, names gone. No effect if it is not there."""
        index = self._indexes.pop(key, None)
        if index is not None:
            index.close()
        self._readable.pop(key, None)
        self._generations.pop(key, None)
        self._unmerged.pop(key, None)
        self._superseding.pop(key, None)

    def readable(self, key: Key) -> Readable:
        """What the index holds now. The same object as long as its batches are the same."""
        reader = self._indexes[key].reader()
        oks, errs = reader.oks.batches(), reader.errs.batches()
        cached = self._readable.get(key)
        if cached is not None and cached[0] is oks and cached[1] is errs:
            return cached[2]
        found = Readable.of(key[0], reader.oks.schema, oks, errs)
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

    @property
    def count(self) -> int:
        return len(self._indexes)

    def close_all(self) -> None:
        for key in list(self._indexes):
            self.close(key)
