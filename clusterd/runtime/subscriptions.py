"""What a subscription tells, as it goes over the wire: encoded responses, each of bounded size.

A batch of many updates goes in several messages; all but the last say that more comes. Where it is cut
depends on what each row takes, so that a long row beside short ones makes a message of its own. Whole columns
are converted at once, and a message when it is taken.

Does not: know sessions, decide when something is told.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec
import numpy as np

from clusterd.convert import scalars_from_column
from clusterd.dataflow.operator import Columns
from clusterd.operators.export_subscribe import Told
from clusterd.runtime.finish import split_error
from controller_proto.ids import GlobalId
from controller_proto.response import SubscribeBatch, SubscribeError, SubscribeResponse, SubscribeUpdates
from shm_arrangements.columns import Column, Ints
from shm_arrangements.updates import Updates

__all__ = ["encode_told"]

_PART_ROWS = 1 << 14
_PART_BYTES = 1 << 20  # as they are kept; on the wire up to thrice as much, and a row may be longer by itself
_STAMP_BYTES = 16  # time and diff of an update
_encode = msgspec.msgpack.Encoder().encode


def encode_told(id: GlobalId, columns: Columns, told: Told) -> Iterator[bytes]:
    """The responses that tell one batch of the subscription `id`, in order."""
    upper = told.upper.to_wire()
    if told.error:
        error = split_error(told.error)
        contents = SubscribeError(error.code, error.message, error.hint)
        yield _encode(SubscribeResponse(id, SubscribeBatch(told.lower, upper, contents)))
        return
    pieces = _pieces(told.parts)
    piece = next(pieces, None)
    if piece is None:
        nothing = SubscribeUpdates(((),) * len(columns), (), (), False)
        yield _encode(SubscribeResponse(id, SubscribeBatch(told.lower, upper, nothing)))
    while piece is not None:
        following = next(pieces, None)
        values = tuple(
            scalars_from_column(spec, column) for spec, column in zip(columns, piece.columns, strict=True)
        )
        more = following is not None
        rows = SubscribeUpdates(values, tuple(piece.times.tolist()), tuple(piece.diffs.tolist()), more)
        yield _encode(SubscribeResponse(id, SubscribeBatch(told.lower, upper, rows)))
        piece = following


def _pieces(parts: Iterable[Updates]) -> Iterator[Updates]:
    """As many updates as go into a message at most."""
    for part in parts:
        for start in range(0, len(part), _PART_ROWS):
            rows = part.slice(start, min(start + _PART_ROWS, len(part)))
            ends = np.cumsum(sum(map(_row_bytes, rows.columns), np.full(len(rows), _STAMP_BYTES)))
            lo = 0
            while lo < len(rows):
                whole = (ends[lo - 1] if lo else 0) + _PART_BYTES
                hi = max(lo + 1, int(np.searchsorted(ends, whole, "right")))
                yield rows.slice(lo, hi)
                lo = hi


def _row_bytes(column: Column) -> Ints:
    """What each value takes, an empty text or list 1: (n,) int64. Nothing is decoded."""
    stored, indices = column.stored, column.indices
    if stored is not None and indices is None:
        return np.repeat(_row_bytes(stored), len(column))
    if stored is not None and indices is not None:
        offsets = stored.offsets
        assert offsets is not None
        lengths: Ints = offsets.take(indices.astype(np.int64) + 1) - offsets.take(indices) + 1
        return lengths
    offsets, children = column.offsets, column.children
    if offsets is None:
        width = column.values.itemsize * (column.values.shape[1] if column.values.ndim == 2 else 1)
        return sum(map(_row_bytes, children), np.full(len(column), 0 if children else width))
    if not children:
        return np.diff(offsets) + 1
    first = int(offsets[0])
    ends = np.zeros(int(offsets[-1]) - first + 1, np.int64)
    np.cumsum(_row_bytes(children[0].slice(first, int(offsets[-1]))), out=ends[1:])
    return np.diff(ends[offsets - first]) + 1
