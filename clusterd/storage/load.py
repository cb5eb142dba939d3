"""Load files of rows into a shard: each row once, whatever ends the load and however often it runs.

What is appended and how far that goes in the file (positions.py) is one transaction of the shard's catalog.
So a load that was killed goes on behind its last append, and a file that is loaded again has nothing to give,
or what was written to it since.

Rows get their times from a column of the file: an integer is the time itself, a timestamp counts as
microseconds since 1970-01-01 UTC; the column stays in the rows. Times have to be at or beyond the shard's
upper, for what is sealed cannot change, and rows need not be in their order: such a file is one append, all
of its rows or none. A file that is followed cannot wait for its end, so rows that come late get the first
time that is not sealed. Without a time column a piece of the file is an append, at the shard's next time.

Does not: wait for files to grow (follow.py), check values (file_rows.py), print.
"""

from __future__ import annotations

import base64
import itertools
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from clusterd.convert import column_specs
from clusterd.storage.file_rows import (
    columns_of,
    equal_to,
    file_schema,
    position_of,
    times_of,
    validate_time_column,
)
from clusterd.storage.keyed import KeyedState
from clusterd.storage.positions import find_position, position_after
from clusterd.storage.shard import Shard
from clusterd.storage.store import Store
from clusterd.storage.tables import Opening, Source, open_source
from controller_proto.errors import Refusal
from controller_proto.schema import Column as WireColumn
from controller_proto.schema import ColumnType as WireType
from controller_proto.schema import Schema, freeze
from shm_arrangements.columns import Column
from shm_arrangements.frontier import MAX_TIME, Frontier
from shm_arrangements.rows import Words
from shm_arrangements.types import ColumnSpec, ColumnType
from shm_arrangements.updates import Updates

__all__ = ["Loaded", "Loader", "Target"]

_BLOCK_ROWS = 65_536
_FAILED = "errors by key"  # no name of a file, which are absolute


class Target(msgspec.Struct, frozen=True):
    """Which shard, and how rows come to it.

    time_column: None is the shard's next time. asked: the file's columns as the shard shall have them; None
    are those of the shard, or where there is none those that hold what the file has. key: the columns that
    tell rows apart, of a key-value feed; none if rows only add. file_column: a text column that the file does
    not have, for its name; rows of a file that is gone or replaced are then retracted.
    """

    shard: str
    time_column: str | None = None
    asked: Schema | None = None
    key: tuple[str, ...] = ()
    file_column: str | None = None


class Loaded(msgspec.Struct, frozen=True):
    """What a load did. rows: taken from the file; before: those taken earlier. Times are those of `rows`,
    None without any. upper: the shard's, behind it. failed: what is wrong by then, a text for each key of a
    feed that is an error in data.
    """

    rows: int
    before: int
    min_time: int | None
    max_time: int | None
    upper: tuple[int, ...]
    failed: tuple[str, ...] = ()


class _Batch(msgspec.Struct, frozen=True):
    """Rows of one append: their times, None for the shard's next one, and where in the file they end."""

    columns: tuple[Column, ...]
    times: Words | None
    next: int
    done: float
    errors: Mapping[int, str]


class _Raced(Exception):
    """Another writer appended; nothing of ours is in."""


class Loader:
    """Takes files into one shard, one after the other. follows: they may grow (see the head).

    progress: called with the rows of a file that are in by now, and the share of it.
    """

    def __init__(
        self, store: Store, target: Target, *, follows: bool, progress: Callable[[int, float], None]
    ) -> None:
        if target.key and target.file_column is not None:
            raise Refusal(
                "schema-mismatch",
                f"file column {target.file_column!r} in a key-value feed, whose rows belong to no file",
                "leave out --upsert or --file-column",
            )
        self._store = store
        self._target = target
        self._follows = follows
        self._progress = progress
        self._keyed: KeyedState | None = None
        self._keyed_upper = Frontier.minimum()

    def take(self, file: Path) -> Loaded:
        """Append what of `file` is not in the shard, which is made with it if it is not there.

        Raises Refusal: `format-mismatch` (a broken file), `schema-mismatch` (a column, the time column, or a
        value, by file, row and column), `upper-mismatch` (times that are sealed), `invalid-data` (a key has
        several rows in the shard); OSError if the file cannot be read. What was appended before stays.
        """
        _check_file(file)
        steps: list[Loaded] = []
        while True:
            try:
                steps.extend(self._steps(file))
            except _Raced:
                self._keyed = None
                continue
            times = [(s.min_time, s.max_time) for s in steps if s.min_time is not None]
            least, most = zip(*times, strict=True) if times else ((None,), (None,))
            rows = sum(step.rows for step in steps)
            failed = () if self._keyed is None else tuple(str(error[-1]) for error in self._keyed.failed)
            return Loaded(rows, steps[0].before, min(least), max(most), steps[-1].upper, failed)

    def forget(self, name: str) -> int:
        """The file of that name is gone: its position goes and, with a file column, its rows. Returns how
        many those were.
        """
        while name in self.known:
            shard = self._store.shard(self._target.shard)
            upper = shard.upper
            gone = self._retraction(shard, upper, name)
            try:
                self._append(shard.schema, gone, upper, _after(upper.time), {name: None})
            except _Raced:
                continue
            return len(gone)
        return 0

    @property
    def known(self) -> Mapping[str, str]:
        """The positions in the shard, by the names of their files."""
        name = self._target.shard
        if not self._store.has_shard(name):
            return {}
        found = self._store.shard(name).positions
        return {file: position for file, position in found.items() if file != _FAILED}

    def _steps(self, file: Path) -> Iterator[Loaded]:
        """Take what there is, a step an append, at least one. Raises _Raced."""
        target, name = self._target, str(file)
        shard = self._store.shard(target.shard) if self._store.has_shard(target.shard) else None
        # The upper first: if it is the same at the append, so was what is read here.
        upper = Frontier.minimum() if shard is None else shard.upper
        known = self.known
        found = find_position(known, file, renamed=target.file_column is None)
        positions: dict[str, str | None] = {}
        gone: Updates | None = None
        kept = target.key if target.time_column is None else (*target.key, target.time_column)
        start = Opening(whole=not self._follows, kept=kept if target.key else ())
        if found is not None:
            start = msgspec.structs.replace(start, start=found[1].offset, rows=found[1].rows)
            # Logs that are rotated pass their names on: what was known by this one is found by that.
            positions = {} if found[0] == name else {found[0]: known.get(name)}
        elif shard is not None and name in known:
            gone = self._retraction(shard, upper, name)
        if found is not None and positions and shard is not None:  # the same file has another name
            positions[name] = msgspec.json.encode(found[1]).decode()
            upper = self._append(shard.schema, _none(shard), upper, _after(upper.time), positions)
        if found is not None and found[1].whole:
            yield Loaded(0, start.rows, None, None, upper.to_wire())
            return
        rows = start.rows
        with open_source(file, self._asked(shard), start) as source:
            if source.schema is None:
                if not self._follows:
                    raise Refusal("schema-mismatch", f"{file} is empty", "say its columns with --columns")
                yield Loaded(0, rows, None, None, upper.to_wire())
                return
            schema = self._schema(source, shard)
            specs = column_specs(schema)
            if shard is not None:
                self._store.create_shard(target.shard, schema)  # refuses another schema before rows are read
            for batch in self._batches(source, specs, file, rows):
                count = len(batch.columns[0])
                updates = self._dated(batch, upper)
                least, most = int(updates.times.min()), int(updates.times.max())
                updates, errors = self._changes(updates, batch.errors, specs, upper)
                if gone is not None:
                    updates, gone = Updates.concat([gone, updates]), None
                position = position_after(file, batch.next, rows + count, grows=source.grows)
                set_to: dict[str, str | None] = {name: msgspec.json.encode(position).decode()}
                if self._keyed is not None and errors is not None and len(errors):
                    set_to[_FAILED] = _encoded(self._keyed.failed)
                upper = self._append(
                    schema, updates, upper, Frontier.join(upper, _after(most)), set_to, errors
                )
                yield Loaded(count, rows, least, most, upper.to_wire())
                rows += count
                self._progress(rows, batch.done)
        if rows > start.rows:
            return
        if gone is not None:
            upper = self._append(schema, gone, upper, _after(upper.time), {name: None})
        elif shard is None:
            upper = self._store.create_shard(target.shard, schema).upper
        yield Loaded(0, rows, None, None, upper.to_wire())

    def _asked(self, shard: Shard | None) -> Schema | None:
        """The file's columns, as far as it is said what they are."""
        if self._target.asked is not None or shard is None:
            return self._target.asked
        kept = tuple(c for c in shard.schema.columns if c.name != self._target.file_column)
        return Schema(kept)

    def _schema(self, source: Source, shard: Shard | None) -> Schema:
        """The shard's columns."""
        schema = file_schema(source.schema, self._asked(shard) or source.columns)
        specs = column_specs(schema)
        if self._target.time_column is not None:
            at = position_of(specs, self._target.time_column, "to take times from")
            validate_time_column(specs[at])
        for name in self._target.key:
            position_of(specs, name, "to tell rows apart by")
        if self._target.file_column is None:
            return schema
        if self._target.file_column in [spec.name for spec in specs]:
            hint = "name another file column"
            raise Refusal("schema-mismatch", f"the file has a column {self._target.file_column!r}", hint)
        return Schema((*schema.columns, WireColumn(self._target.file_column, WireType.TEXT)))

    def _batches(
        self, source: Source, specs: tuple[ColumnSpec, ...], file: Path, rows: int
    ) -> Iterator[_Batch]:
        """The rows, an append each. rows: how many were before."""
        target = self._target
        own = specs if target.file_column is None else specs[:-1]
        at = None if target.time_column is None else position_of(own, target.time_column, "")
        held: list[_Batch] = []
        for piece in source.pieces:
            count = len(piece.table)
            if not count:
                continue
            columns = columns_of(piece.table, own, file, rows + 1, nulls=bool(target.key))
            times = None if at is None else times_of(columns[at], own[at].name, file, rows + 1)
            if target.file_column is not None:
                columns = (*columns, Column.constant(ColumnType.TEXT, file.name, count))
            rows += count
            held.append(_Batch(columns, times, piece.next, piece.done, piece.errors))
            if at is None or self._follows:
                yield held.pop()
            else:
                self._progress(rows, piece.done)
        if held:  # their times are in any order: one append
            columns = tuple(
                Column.concat(spec.type, [batch.columns[i] for batch in held]) for i, spec in enumerate(specs)
            )
            all_times = np.concatenate([batch.times for batch in held if batch.times is not None])
            before = itertools.accumulate((len(batch.columns[0]) for batch in held), initial=0)
            errors = {
                start + at: text
                for start, batch in zip(before, held, strict=False)
                for at, text in batch.errors.items()
            }
            yield _Batch(columns, all_times, held[-1].next, 1.0, errors)

    def _dated(self, batch: _Batch, upper: Frontier) -> Updates:
        """The rows once each, at their times. Raises Refusal(`upper-mismatch`) if those are sealed."""
        count = len(batch.columns[0])
        if upper.is_empty:
            raise _sealed(self._target.shard, upper, 0)
        if batch.times is None:
            times = np.full(count, upper.time, np.uint64)
        elif self._follows:
            times = np.maximum(batch.times, np.uint64(upper.time))
        else:
            times = batch.times
            if not upper.less_equal(int(times.min())):
                raise _sealed(self._target.shard, upper, int(times.min()))
        return Updates(batch.columns, times, np.ones(count, np.int64))

    def _changes(
        self, updates: Updates, wrong: Mapping[int, str], specs: tuple[ColumnSpec, ...], upper: Frontier
    ) -> tuple[Updates, Updates | None]:
        """What the rows change: of a key-value feed what they replace too, and errors."""
        if not self._target.key:
            return updates, None
        if self._keyed is None or self._keyed_upper != upper:
            key = [position_of(specs, name, "") for name in self._target.key]
            self._keyed = KeyedState(specs, key)
            if self._store.has_shard(self._target.shard):
                shard = self._store.shard(self._target.shard)
                self._keyed.read(shard, upper, _decoded(shard.positions.get(_FAILED)))
        return self._keyed.replace(updates.columns, updates.times, wrong)

    def _retraction(self, shard: Shard, upper: Frontier, name: str) -> Updates:
        """What takes back, at `upper`, the rows that came from the file of that name."""
        found = [_none(shard)]
        if self._target.file_column is not None:
            at = position_of(shard.specs, self._target.file_column, "to find the rows of a file by")
            blocks = shard.read(0, upper, block_rows=_BLOCK_ROWS)
            found += [block.filter(equal_to(block.columns[at], Path(name).name)) for block in blocks]
        rows = Updates.concat(found)
        if upper.is_empty:
            raise _sealed(shard.name, upper, 0)
        return Updates(rows.columns, np.full(len(rows), upper.time, np.uint64), -rows.diffs).consolidate()

    def _append(
        self,
        schema: Schema,
        updates: Updates,
        expected: Frontier,
        new: Frontier,
        positions: Mapping[str, str | None],
        errors: Updates | None = None,
    ) -> Frontier:
        """Append, to a shard that is made if it is not there; returns `new`."""
        name = self._target.shard

        def append(shard: Shard) -> None:
            shard.append(updates, expected, new, errors=errors, positions=positions)

        try:
            self._store.create_shard(name, schema, fill=append)
        except Refusal as refusal:
            if refusal.code == "upper-mismatch" and self._store.shard(name).upper != expected:
                raise _Raced from refusal
            raise
        self._keyed_upper = new
        self._store.shard(name).merge()
        return new


def _check_file(file: Path) -> None:
    """Raises Refusal(`format-mismatch`) if its rows cannot be told to have been taken; FileNotFoundError."""
    if not stat.S_ISREG(file.stat().st_mode):
        hint = "a load reads what it took again, to know it: write the rows to a file"
        raise Refusal("format-mismatch", f"{str(file)!r} is no regular file", hint)
    try:
        str(file).encode()
    except UnicodeEncodeError as error:
        hint = "rename it: the shard's catalog keeps the name"
        raise Refusal("format-mismatch", f"the name {str(file)!r} is not UTF-8", hint) from error


def _none(shard: Shard) -> Updates:
    return Updates.empty([spec.type for spec in shard.specs])


def _encoded(failed: Sequence[tuple[Any, ...]]) -> str:
    return base64.b64encode(msgspec.msgpack.encode(failed)).decode()


def _decoded(text: str | None) -> Sequence[tuple[Any, ...]]:
    return [] if text is None else list(map(freeze, msgspec.msgpack.decode(base64.b64decode(text))))


def _after(time: int) -> Frontier:
    return Frontier.empty() if time == MAX_TIME else Frontier.at(time + 1)


def _sealed(name: str, upper: Frontier, least: int) -> Refusal:
    if upper.is_empty:
        return Refusal("upper-mismatch", f"shard {name!r} has ended", "load into another shard")
    return Refusal(
        "upper-mismatch",
        f"shard {name!r} already holds times up to {upper.time - 1}, and the file has rows at {least}",
        "what is sealed cannot change; leave out --time-column to take the shard's next time",
    )
