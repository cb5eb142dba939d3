"""Shard: one durable collection of updates, appended to by comparing and advancing its upper.

An append of `[expected, new)` puts its part on the disk under its final name, then lets the catalog's one row
decide. Killed before the catalog's commit it has done nothing, and left a file that no catalog lists, which
`sweep` removes; killed after, it has done everything. A writer that loses a race has its part removed at
once and is told both uppers. Whoever reads lists the parts in one transaction, and parts never change.

Does not: merge small parts (an append stays a file: reading n of them costs n mappings, about 0.1 ms each);
use `since` for anything but telling it; wait for news (tail.py).
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import msgspec

from clusterd.convert import column_specs, type_name_of
from clusterd.storage import catalog, parts
from clusterd.storage.appending import Appending
from clusterd.storage.catalog import Catalog
from controller_proto.errors import Refusal
from controller_proto.schema import Schema
from shm_arrangements import failpoints
from shm_arrangements.frontier import Frontier
from shm_arrangements.types import ColumnSpec
from shm_arrangements.updates import Updates

__all__ = ["Shard", "ShardStatistics"]

failpoints.declare("shard.part-written", "shard.catalog-committed")


class ShardStatistics(msgspec.Struct, frozen=True):
    """What the catalog lists."""

    parts: int
    updates: int
    nbytes: int


class Shard:
    """A handle on one shard; a process may have several, as may others, at the same time."""

    def __init__(self, directory: Path) -> None:
        self.name = directory.name
        self.directory = directory
        self._catalog = Catalog(directory / catalog.NAME)
        self.schema: Schema = self._catalog.schema()
        self.specs: tuple[ColumnSpec, ...] = column_specs(self.schema)

    @property
    def upper(self) -> Frontier:
        """First time not sealed, as of now; empty when the shard has ended. Never regresses."""
        return self._catalog.state().upper

    @property
    def since(self) -> Frontier:
        """Earliest time still told apart, as of now. Never regresses."""
        return self._catalog.state().since

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
        positions: Mapping[str, str | None] = MappingProxyType({}),
    ) -> None:
        """Add `updates`, with times in [expected_upper, new_upper), and seal up to `new_upper`: all or
        nothing.

        No updates just seal; an empty `new_upper` ends the shard. `positions` are remembered with it, by
        name; None forgets one. When this returns the append is on the disk. Raises Refusal: `upper-mismatch`
        if the shard's upper is another one (naming both), or if a time lies outside the interval;
        `schema-mismatch` naming the column.
        """
        self._check_columns(updates)
        self._check_times(updates, expected_upper, new_upper)
        found = self.upper
        if found != expected_upper:  # before the work; the catalog's row has the last word
            raise self._mismatch(expected_upper, found)
        if not len(updates):
            self._commit(expected_upper, new_upper, (), positions)
            return
        part = parts.write_part(self.directory, self.specs, parts.sort_by_time(updates))
        try:
            failpoints.hit("shard.part-written")
            self._commit(expected_upper, new_upper, (part.info,), positions)
        except Refusal:
            part.discard()
            raise
        finally:
            part.release()  # of any other failure nobody knows whether it was committed: a sweep can tell
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
        """An append of rows and errors, piece by piece (appending.py)."""
        return Appending(self.directory, self.specs, self._commit)

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
        found = self.upper
        if found.precedes(upper):
            raise ValueError(f"shard {self.name!r} is sealed up to {found}, not up to {upper}")
        infos = [info for info in self._catalog.parts(lower, upper) if not info.is_errors]
        return self._blocks(infos, self.specs, lower, upper, block_rows)

    def read_errors(self, lower: int, upper: Frontier, *, block_rows: int) -> Iterator[Updates]:
        """As `read`, of the errors in data: one column of text, `code: message`."""
        infos = [info for info in self._catalog.parts(lower, upper) if info.is_errors]
        return self._blocks(infos, parts.ERROR_SPECS, lower, upper, block_rows)

    def _blocks(
        self,
        infos: list[parts.PartInfo],
        specs: tuple[ColumnSpec, ...],
        lower: int,
        upper: Frontier,
        block_rows: int,
    ) -> Iterator[Updates]:
        end = None if upper.is_empty else upper.time
        held: list[Updates] = []
        room = block_rows
        for info in infos:
            for piece in parts.read_part(self.directory / info.file, specs, lower, end):
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

    def advance_since(self, since: Frontier) -> Frontier:
        """Promise that nobody reads below `since` any more. Returns the since that holds then."""
        return self._catalog.advance_since(since)

    def sweep(self) -> list[str]:
        """Remove the parts that no catalog lists and no living writer holds. Returns their names."""
        removed = []
        listed = self._catalog.files()
        for path in sorted(self.directory.iterdir()):
            if not path.name.startswith(parts.PREFIXES):
                continue
            if path.name in listed:
                continue
            try:
                fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                continue  # its writer renamed or removed it
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # Whoever held it may have committed it meanwhile: look again, now that nobody can.
                if path.name not in self._catalog.files():
                    path.unlink()
                    removed.append(path.name)
            except (BlockingIOError, FileNotFoundError):
                continue  # a writer is about to commit it, or it has its final name by now
            finally:
                os.close(fd)
        return removed

    def statistics(self) -> ShardStatistics:
        return ShardStatistics(*self._catalog.totals())

    def close(self) -> None:
        self._catalog.close()
