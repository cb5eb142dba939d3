"""Evaluating a peek: what a collection holds at one time, or why that cannot be told.

The checks that are left once `since <= t < upper` holds, in the protocol's order: errors (any, whatever was
selected), rows (a negative count is an error that names the row), then the limits of the finishing. Which of
several errors is told does not depend on how the collection is cut into batches: the least one.

A read by key is one piece of work. A scan goes in pieces, all rows of a key in one, so that a worker can
answer others meanwhile; the batches it reads were taken when it began, and do not change. A large answer is
encoded in pieces as well, into a stash: rows as Python's own values take ten times what they take in columns.

Does not: wait, choose the time, hold anything back.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import NDArray

from clusterd.convert import column_from_scalars, scalars_from_column, to_wire
from clusterd.runtime.finish import PLAIN, Finisher, plan_finishing, rows_nbytes, split_error
from clusterd.runtime.limits import Limits
from clusterd.runtime.point import MOST_BYTES, PointReads
from clusterd.runtime.portions import portions
from clusterd.runtime.sorting import Rows, joined
from clusterd.runtime.stash import Stash
from controller_proto.command import NO_LIMITS, Peek
from controller_proto.dataflow import Export
from controller_proto.errors import Refusal
from controller_proto.literals import format_scalar
from controller_proto.response import PeekError, PeekPart, PeekResponse, PeekResult, PeekRows
from controller_proto.schema import Row, scalar_problem
from controller_proto.validate import validate_peek
from shm_arrangements import read
from shm_arrangements.batch import Batch
from shm_arrangements.columns import Column
from shm_arrangements.errors import MultiplicityOverflow
from shm_arrangements.rows import RowSpec, encode
from shm_arrangements.schema import ArrangementSchema
from shm_arrangements.types import ColumnSpec

__all__ = [
    "ErrorResponse", "Readable", "Stashing", "answer_point", "check_peek", "evaluate", "evaluate_pieces",
]  # fmt: skip

Ints = NDArray[np.int64]

_PIECE_ROWS = 1 << 16  # of a scan: some milliseconds
_PART_BYTES = 256 << 10  # of a stashed answer: what others wait behind, on the way to one connection
_COUNT_BYTES = 8
_encode = msgspec.msgpack.Encoder().encode


@dataclass(frozen=True, slots=True)
class Readable:
    """A snapshot of both halves of an index; its batches do not change. name: for messages.

    last: a later time reads as this one does; None where the batches hold what there is.
    """

    name: str
    schema: ArrangementSchema
    oks: Sequence[Batch]
    errs: Sequence[Batch]
    clean: bool  # errs hold no row at any time
    points: PointReads
    last: int | None = None

    @staticmethod
    def of(
        name: str,
        schema: ArrangementSchema,
        oks: Sequence[Batch],
        errs: Sequence[Batch],
        *,
        last: int | None = None,
    ) -> Readable:
        clean, points = not any(map(len, errs)), PointReads(name, schema, oks)
        return Readable(name, schema, tuple(oks), tuple(errs), clean, points, last)

    def read_time(self, time: int) -> int:
        """The time to look for in the batches, of a read at `time`."""
        return time if self.last is None else min(time, self.last)


class ErrorResponse(bytes):
    """An encoded PeekResponse that is an error: told apart from others without decoding it."""


@dataclass(frozen=True, slots=True)
class Stashing:
    """When and where an answer is stashed.

    limit_bytes: of an answer that is not, as `max_result_bytes` counts. message_bytes: of an encoded message.
    """

    limit_bytes: int
    message_bytes: int
    create: Callable[[], Stash]


def check_peek(peek: Peek, index: Export) -> None:
    """Whether keys and finishing fit the index. Raises Refusal(`invalid-plan`).

    As controller_proto's `validate_peek`, but that a peek without finishing costs next to nothing.
    """
    if peek.finishing != PLAIN or len(peek.keys or ()) > 1:
        validate_peek(peek, index)
        return
    for key in peek.keys or ():
        if len(key) != len(index.key):
            validate_peek(peek, index)  # words it
        for value, position in zip(key, index.key, strict=True):
            if value is not None and scalar_problem(value, index.schema.columns[position]) is not None:
                validate_peek(peek, index)


def answer_point(peek: Peek, time: int, index: Readable, *, limit_bytes: int, served_by: str) -> bytes | None:
    """As `evaluate`, if that is soon said: of one key with one row, or none. Else None.

    limit_bytes: the least of those that answers have, 0 if there are others.
    """
    if not index.clean or peek.finishing != PLAIN or limit_bytes < MOST_BYTES or peek.limits != NO_LIMITS:
        return None
    return index.points.answer(peek, time, index.read_time(time), served_by)


def evaluate(
    peek: Peek,
    time: int,
    index: Readable,
    *,
    limits: Limits,
    served_by: str,
    piece_rows: int = _PIECE_ROWS,
) -> bytes:
    """The encoded PeekResponse of `peek` at `time`."""
    pieces = evaluate_pieces(peek, time, index, limits=limits, served_by=served_by, piece_rows=piece_rows)
    while True:
        try:
            next(pieces)
        except StopIteration as end:
            response: bytes = end.value
            return response


def evaluate_pieces(
    peek: Peek,
    time: int,
    index: Readable,
    *,
    limits: Limits,
    served_by: str,
    piece_rows: int = _PIECE_ROWS,
    stashing: Stashing | None = None,
) -> Generator[None, None, bytes | Stash]:
    """As `evaluate`, as a generator that yields after each piece of work and returns the response, or the
    stash of its messages. Without `stashing` an answer is one message, however large.
    """
    result: PeekResult
    try:
        specs, parts = yield from _rows(peek, time, index, limits, piece_rows)
        nbytes = sum(rows_nbytes(columns, len(counts)) for columns, counts in parts)
        if stashing is not None and nbytes > stashing.limit_bytes:
            return (yield from _stash(peek, time, served_by, specs, parts, stashing))
        result = _peek_rows(specs, joined(parts))
        response = _encode(PeekResponse(peek.uuid, result, time, served_by))
        if stashing is not None and len(response) > stashing.message_bytes:  # of many empty texts, say
            return (yield from _stash(peek, time, served_by, specs, parts, stashing))
    except Refusal as refusal:
        result = PeekError(refusal.code, refusal.message, refusal.hint)
    except MultiplicityOverflow:
        why = f"a multiplicity of {index.name} leaves 64 bits at {time}"
        result = PeekError("multiplicity-overflow", why)
    except OSError as error:
        why = f"a large answer could not be stashed: {error}"
        result = PeekError("limit", why, "free room, or read less")
    else:
        return response
    return ErrorResponse(_encode(PeekResponse(peek.uuid, result, time, served_by)))


def _rows(
    peek: Peek, time: int, index: Readable, limits: Limits, piece_rows: int
) -> Generator[None, None, tuple[tuple[ColumnSpec, ...], list[Rows]]]:
    if not index.clean:
        _require_no_errors(index, time)
    finisher = Finisher(plan_finishing(peek.finishing, index.schema.columns), time=time, limits=limits)
    found = 0
    negative: list[tuple[tuple[Column, ...], Ints]] = []
    for columns, counts in _found(peek, time, index, piece_rows):
        found += len(counts)
        limits.require_read(found, index.name, time)
        if len(counts) and counts.min() < 0:
            rows = np.flatnonzero(counts < 0)
            negative.append((tuple(column.take(rows) for column in columns), counts.take(rows)))
        elif not negative:
            yield from finisher.add(columns, counts)
        yield
    if negative:
        raise _negative(index, time, negative)
    parts = yield from finisher.finish()
    return finisher.columns, parts


def _peek_rows(specs: tuple[ColumnSpec, ...], rows: Rows, parts: int = 0) -> PeekRows:
    columns, counts = rows
    found = tuple(scalars_from_column(spec, column) for spec, column in zip(specs, columns, strict=True))
    return PeekRows(found, tuple(counts.tolist()), parts)


def _stash(
    peek: Peek,
    time: int,
    served_by: str,
    specs: tuple[ColumnSpec, ...],
    parts: list[Rows],
    stashing: Stashing,
) -> Generator[None, None, Stash]:
    """The messages of a large answer: parts, then the response with the last rows."""
    stash = stashing.create()
    try:
        pieces = _pieces(parts)
        piece = next(pieces, None)
        while piece is not None:
            following = next(pieces, None)
            rows = _peek_rows(specs, piece, len(stash))
            if following is not None:
                message = _encode(PeekPart(peek.uuid, rows.columns, rows.counts))
            else:
                message = _encode(PeekResponse(peek.uuid, rows, time, served_by))
            _require_frame(message, stashing.message_bytes)
            stash.append(message)
            piece = following
            yield
    except BaseException:
        stash.close()
        raise
    return stash


def _pieces(parts: list[Rows]) -> Iterator[Rows]:
    """As many rows as go into a message at most; a part is let go when it is over."""
    parts.reverse()
    while parts:
        columns, counts = parts.pop()
        for lo, hi in portions(columns, len(counts), row_bytes=_COUNT_BYTES, limit_bytes=_PART_BYTES):
            yield tuple(column.slice(lo, hi) for column in columns), counts[lo:hi]


def _require_frame(message: bytes, limit_bytes: int) -> None:
    if len(message) > limit_bytes:
        why = f"a row takes {len(message)} bytes, a frame {limit_bytes} at most"
        raise Refusal("result-too-large", why, "read fewer columns, or raise max_frame_bytes")


def _found(
    peek: Peek, time: int, index: Readable, piece_rows: int
) -> Iterator[tuple[tuple[Column, ...], Ints]]:
    """The rows that the keys select, with counts as they are."""
    keys, time = peek.keys, index.read_time(time)
    if keys is None:
        yield from read.scan_pieces_at(index.oks, time, piece_rows, schema=index.schema)
    elif keys and index.schema.key:
        columns = _key_columns(keys, index.schema)
        for at in range(0, len(columns[0]), piece_rows):
            part = (
                columns if len(keys) <= piece_rows else tuple(c.slice(at, at + piece_rows) for c in columns)
            )
            found, counts, _ = read.lookup_at(index.oks, time, part, schema=index.schema)
            yield found, counts
    elif keys:
        found, counts, _ = read.lookup_at(index.oks, time, (), schema=index.schema)
        yield found, counts


def _key_columns(keys: Sequence[Row], schema: ArrangementSchema) -> tuple[Column, ...]:
    """The keys in key order, each once: what is one key by the rows' own equality."""
    try:
        columns = tuple(
            column_from_scalars(spec, [key[i] for key in keys]) for i, spec in enumerate(schema.key_specs)
        )
    except ValueError as error:
        raise Refusal("invalid-plan", f"key: {error}") from error
    if len(keys) == 1:
        return columns
    image = encode(columns, RowSpec(tuple((spec.type, True) for spec in schema.key_specs)))
    order = image.sort_order()
    starts = image.run_starts(order)
    if len(starts) == len(keys):
        return columns
    once = np.sort(order.take(starts))
    return tuple(column.take(once) for column in columns)


def _require_no_errors(index: Readable, time: int) -> None:
    columns, counts = read.scan_at(index.errs, index.read_time(time))
    if not len(counts):
        return
    texts = columns[0].take(np.flatnonzero(counts > 0)).to_pylist()
    if not texts:
        raise Refusal(
            "invalid-data", f"an error of {index.name} was retracted more often than made, at {time}"
        )
    raise split_error(min(texts))


def _negative(index: Readable, time: int, found: Sequence[tuple[tuple[Column, ...], Ints]]) -> Refusal:
    """Of all rows with a negative count the least."""
    columns = tuple(
        Column.concat(cs[0].type, cs) for cs in zip(*(columns for columns, _ in found), strict=True)
    )
    counts = np.concatenate([counts for _, counts in found])
    first = int(encode(columns, RowSpec.of(index.schema.columns), len(counts)).sort_order()[0])
    specs = zip(index.schema.columns, columns, strict=True)
    row = ", ".join(_shown(spec, column.slice(first, first + 1)) for spec, column in specs)
    return Refusal(
        "invalid-data",
        f"row ({row}) of {index.name} has multiplicity {int(counts[first])} at {time}",
        "the source retracts a row more often than it inserted it",
    )


def _shown(spec: ColumnSpec, column: Column) -> str:
    text = format_scalar(scalars_from_column(spec, column)[0], to_wire(spec))
    return text if len(text) <= 42 else text[:41] + "..."
