"""Shard: one durable collection of updates, appended to by comparing and advancing its upper.

An append of `[expected, new)` puts its part on the disk under its final name, then lets the catalog's one row
decide. Killed before the catalog's commit it has done nothing, and left a file that no catalog lists, which
`sweep` removes; killed after, it has done everything. A writer that loses a race has its part removed at
once and is told both uppers. Whoever reads lists the parts in one transaction, and parts never change; where
one was merged away between its listing and its opening, which may be long after, the list is read again.

Does not: merge by itself (merging.py says when, and `merge` does it); wait for news (tail.py).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType

import msgspec

from clusterd.convert import column_specs, type_name_of
from clusterd.storage import parts
from clusterd.storage.appending import Appending
from clusterd.storage.catalog import LOCK_BRIEFLY_S, LOCK_WAIT_S, Catalog
from clusterd.storage.merging import LARGEST_BYTES, LARGEST_INLINE_BYTES, merge_updates, plan_merge
from controller_proto.errors import Refusal
from controller_proto.schema import Schema
from shm_arrangements import failpoints
from shm_arrangements.frontier import Frontier
from shm_arrangements.types import ColumnSpec
from shm_arrangements.updates import Updates

__all__ = ["Shard", "ShardStatistics"]

failpoints.declare(
    "shard.part-written", "shard.catalog-committed", "shard.merge-written", "shard.merge-committed"
)


_Listing = tuple[int, Frontier, Sequence[parts.PartInfo]]  # of an interval
_NOTHING_LISTED: _Listing = (0, Frontier.minimum(), ())


class ShardStatistics(msgspec.Struct, frozen=True):
    """What the catalog lists."""

    parts: int
    updates: int
    nbytes: int


class Shard:
    """A handle on one shard; a process may have several, as may others, at the same time."""

    def __init__(self, name: str, catalog: Catalog, where: parts.Parts) -> None:
        self.name = name
        self._catalog = catalog
        self._parts = where
        self.schema: Schema = catalog.schema()
        self.specs: tuple[ColumnSpec, ...] = column_specs(self.schema)
        # Many dataflows read the same interval, one after the other: nothing can be added to what is sealed.
        self._listed = _NOTHING_LISTED
        self._is_brief = False
        self._checked: tuple[int, Frontier] | None = None  # what may be read, in this `briefly`

    @property
    def upper(self) -> Frontier:
        """First time not sealed, as of now; empty when the shard has ended. Never regresses."""
        return self._catalog.state().upper

    @property
    def since(self) -> Frontier:
        """Earliest time still told apart, as of now. Never regresses."""
        return self._catalog.state().since

    @contextmanager
    def briefly(self) -> Iterator[None]:
        """Within, locks of others are waited for but for a moment: for who has other things to do, and comes
        back after a Refusal(`timeout`).
        """
        self._catalog.wait_for_locks(LOCK_BRIEFLY_S)
        self._is_brief = True
        try:
            yield
        finally:
            self._is_brief, self._checked = False, None
            self._catalog.wait_for_locks(LOCK_WAIT_S)

    @property
    def positions(self) -> dict[str, str]:
        """What appends said to remember, by name; as of now."""
        return self._catalog.positions()

    def append(
        self,
        updates: Updates,
        expected_upper: Frontier,
        new_upper: Frontier,
        *,
        errors: Updates | None = None,
        positions: Mapping[str, str | None] = MappingProxyType({}),
    ) -> None:
        """Add `updates`, and `errors` in data (one column of text), with times in
        [expected_upper, new_upper), and seal up to `new_upper`: all or nothing.

        No updates just seal; an empty `new_upper` ends the shard. `positions` are remembered with it, by
        name; None forgets one. When this returns the append is on the disk. Raises Refusal: `upper-mismatch`
        if the shard's upper is another one (naming both), or if a time lies outside the interval;
        `schema-mismatch` naming the column.
        """
        self._check_columns(updates)
        halves = [(parts.ROWS, self.specs, updates)]
        if errors is not None:
            halves.append((parts.ERRORS, parts.ERROR_SPECS, errors))
        for _, _, half in halves:
            self._check_times(half, expected_upper, new_upper)
        found = self.upper
        if found != expected_upper:  # before the work; the catalog's row has the last word
            raise self._mismatch(expected_upper, found)
        written: list[parts.WrittenPart] = []
        try:
            for kind, specs, half in halves:
                if len(half):
                    written.append(parts.write_part(self._parts, specs, parts.sort_by_time(half), kind))
                    failpoints.hit("shard.part-written")
            self._commit(expected_upper, new_upper, [part.info for part in written], positions)
        except Refusal:
            for part in written:
                part.discard()
            raise
        finally:
            for part in written:
                part.release()  # of any other failure nobody knows if it was committed: a sweep can tell
        if written:
            failpoints.hit("shard.catalog-committed")

    def _commit(
        self,
        expected: Frontier,
        new: Frontier,
        written: Sequence[parts.PartInfo],
        positions: Mapping[str, str | None] = MappingProxyType({}),
    ) -> None:
        found = self._catalog.compare_and_append(expected, new, written, positions)
        if found != expected:
            raise self._mismatch(expected, found)

    def begin(self) -> Appending:
        """An append of rows and errors, piece by piece (appending.py), which merges small parts."""
        return Appending(
            self._parts, self.specs, self._commit, lambda: self.merge(largest_bytes=LARGEST_INLINE_BYTES)
        )

    def _mismatch(self, expected: Frontier, found: Frontier) -> Refusal:
        return Refusal(
            "upper-mismatch",
            f"shard {self.name!r} has upper {found}, the append expected {expected}",
            "the shard has ended" if found.is_empty else "read the upper again, and append from there",
        )

    def _check_columns(self, updates: Updates) -> None:
        if len(updates.columns) != len(self.specs):
            raise Refusal(
                "schema-mismatch",
                f"{len(updates.columns)} columns for shard {self.name!r}, which has {len(self.specs)}",
            )
        for spec, column in zip(self.specs, updates.columns, strict=True):
            if column.type != spec.type:
                given, wanted = type_name_of(column.type), type_name_of(spec.type)
                raise Refusal("schema-mismatch", f"column {spec.name!r} is {wanted}, not {given}")
            if not spec.nullable and column.null_count:
                raise Refusal(
                    "schema-mismatch", f"column {spec.name!r} is not nullable, and a row has NULL there"
                )

    def _check_times(self, updates: Updates, lower: Frontier, upper: Frontier) -> None:
        if upper.precedes(lower):
            raise Refusal("upper-mismatch", f"new upper {upper} is before the expected upper {lower}")
        if not len(updates):
            return
        least, most = int(updates.times.min()), int(updates.times.max())
        if not lower.less_equal(least):
            raise Refusal(
                "upper-mismatch",
                f"time {least} is below the expected upper {lower} of shard {self.name!r}",
                "times that are sealed cannot change any more",
            )
        if upper.less_equal(most):
            raise Refusal("upper-mismatch", f"time {most} is not before the new upper {upper}")

    def read(self, lower: int, upper: Frontier, *, block_rows: int) -> Iterator[Updates]:
        """The rows' updates with lower <= time < upper, in blocks of at most `block_rows`, not consolidated.

        `upper` is not beyond the shard's. Small parts are put together, up to `block_rows`; what fills a
        block alone is a view of the mapped file.
        """
        return self._read(False, lower, upper, block_rows)

    def read_errors(self, lower: int, upper: Frontier, *, block_rows: int) -> Iterator[Updates]:
        """As `read`, of the errors in data: one column of text, `code: message`."""
        return self._read(True, lower, upper, block_rows)

    def _read(self, errors: bool, lower: int, upper: Frontier, block_rows: int) -> Iterator[Updates]:
        if self._checked != (lower, upper):
            self._check_readable(lower, upper)
            self._checked = (lower, upper) if self._is_brief else None
        specs = parts.ERROR_SPECS if errors else self.specs
        end = None if upper.is_empty else upper.time
        before: list[parts.PartInfo] | None = None
        while True:
            if self._listed[:2] != (lower, upper):
                self._listed = lower, upper, self._catalog.parts(lower, upper)
            infos = [info for info in self._listed[2] if info.is_errors == errors]
            try:
                opened = [self._parts.read(info.file, specs, lower, end) for info in infos]
            except FileNotFoundError as error:
                self._listed = _NOTHING_LISTED
                if infos == before:
                    raise self._lacking(error) from error
                before = infos
                self._check_readable(lower, upper)  # what they were merged to may have later times
            else:
                return self._blocks(opened, block_rows)

    def _check_readable(self, lower: int, upper: Frontier) -> None:
        """Raises ValueError, Refusal(`below-since`)."""
        state = self._catalog.state()
        if state.upper.precedes(upper):
            raise ValueError(f"shard {self.name!r} is sealed up to {state.upper}, not up to {upper}")
        # From 0 on it is a collection at a time, which its reader chose. Else it is what came after what was
        # read before: up to since nobody can tell any more what that is.
        if lower and not state.since.precedes(Frontier.at(lower)):
            raise Refusal(
                "below-since",
                f"shard {self.name!r} has since {state.since}, and updates from {lower} on were asked for",
                "read the collection anew, from time 0 on",
            )

    def _lacking(self, error: FileNotFoundError) -> Refusal:
        missing = f"shard {self.name!r} lacks a part: {error}"
        return Refusal("format-mismatch", missing, "its files were removed")

    def _blocks(self, opened: list[Iterator[Updates]], block_rows: int) -> Iterator[Updates]:
        held: list[Updates] = []
        room = block_rows
        for piece in itertools.chain.from_iterable(opened):
            start = 0
            while len(piece) - start >= room:
                yield Updates.concat([*held, piece.slice(start, start + room)])
                start += room
                held, room = [], block_rows
            if start < len(piece):
                held.append(piece.slice(start, len(piece)))
                room -= len(piece) - start
        if held:
            yield Updates.concat(held)

    def merge(self, *, largest_bytes: int = LARGEST_BYTES) -> int:
        """Merge parts of up to `largest_bytes` until they are few. Returns how many are fewer than before.

        Another writer or merger is not in the way. Raises Refusal(`format-mismatch`) if a part is lacking.
        """
        fewer = 0
        chosen: list[parts.PartInfo] = []
        while True:
            state = self._catalog.state()
            before, chosen = chosen, plan_merge(self._catalog.parts(0, Frontier.empty()), largest_bytes)
            if not chosen:
                return fewer
            specs = parts.ERROR_SPECS if chosen[0].is_errors else self.specs
            kind = parts.ERRORS if chosen[0].is_errors else parts.ROWS
            try:
                opened = [self._parts.read(info.file, specs, 0, None) for info in chosen]
            except FileNotFoundError as error:
                if chosen == before:
                    raise self._lacking(error) from error
                continue  # somebody else has merged them
            merged = merge_updates(list(itertools.chain.from_iterable(opened)), state.since, state.upper)
            files = [info.file for info in chosen]
            if self._replace(files, merged, specs, kind):
                fewer += len(files) - bool(len(merged))

    def _replace(
        self, files: Sequence[str], merged: Updates, specs: tuple[ColumnSpec, ...], kind: str
    ) -> bool:
        if len(merged):
            written = [parts.write_part(self._parts, specs, parts.sort_by_time(merged), kind)]
        else:
            written = []
        try:
            failpoints.hit("shard.merge-written")
            replaced = self._catalog.replace_parts(files, [part.info for part in written])
            if not replaced:
                for part in written:
                    part.discard()
        except Refusal:
            for part in written:
                part.discard()
            raise
        finally:
            for part in written:
                part.release()
        failpoints.hit("shard.merge-committed")
        if replaced:
            self._parts.retire(files)
        return replaced

    def advance_since(self, since: Frontier) -> Frontier:
        """Promise that nobody asks for the collection at a time below `since` any more, nor for the updates
        from such a time on. Returns the since that holds then.
        """
        return self._catalog.advance_since(since)

    def sweep(self) -> list[str]:
        """Remove the parts that no catalog lists and no living writer holds. Returns their names."""
        return self._parts.sweep(self._catalog)

    def statistics(self) -> ShardStatistics:
        return ShardStatistics(*self._catalog.totals())

    def close(self) -> None:
        self._catalog.close()
