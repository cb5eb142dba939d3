"""What a subscription tells, as it goes over the wire: encoded batches, each message of bounded size.

A batch of many updates goes in several messages; all but the last say that more comes. Where it is cut
depends on what each row takes, so that a long row beside short ones makes a message of its own. Whole columns
are converted at once, and a message when it is taken.

Does not: know sessions, decide when something is told.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from clusterd.convert import scalars_from_column
from clusterd.dataflow.operator import Columns
from clusterd.operators.export_subscribe import Told
from clusterd.runtime.finish import split_error
from clusterd.runtime.portions import portions
from controller_proto.response import SubscribeBatch, SubscribeError, SubscribeUpdates
from shm_arrangements.updates import Updates

__all__ = ["encode_told"]

_PART_BYTES = 1 << 20  # as they are kept
_STAMP_BYTES = 16  # time and diff of an update
_encode = msgspec.msgpack.Encoder().encode


def encode_told(columns: Columns, told: Told) -> Iterator[bytes]:
    """One batch of a subscription, in the pieces that responses `said`, in order: whoever receives them."""
    upper = told.upper.to_wire()
    if told.error:
        error = split_error(told.error)
        contents = SubscribeError(error.code, error.message, error.hint)
        yield _encode(SubscribeBatch(told.lower, upper, contents))
        return
    pieces = _pieces(told.parts)
    piece = next(pieces, None)
    if piece is None:
        nothing = SubscribeUpdates(((),) * len(columns), (), (), False)
        yield _encode(SubscribeBatch(told.lower, upper, nothing))
    while piece is not None:
        following = next(pieces, None)
        values = tuple(
            scalars_from_column(spec, column) for spec, column in zip(columns, piece.columns, strict=True)
        )
        more = following is not None
        rows = SubscribeUpdates(values, tuple(piece.times.tolist()), tuple(piece.diffs.tolist()), more)
        yield _encode(SubscribeBatch(told.lower, upper, rows))
        piece = following


def _pieces(parts: Iterable[Updates]) -> Iterator[Updates]:
    """As many updates as go into a message at most."""
    for part in parts:
        cuts = portions(part.columns, len(part), row_bytes=_STAMP_BYTES, limit_bytes=_PART_BYTES)
        for lo, hi in cuts:
            yield part.slice(lo, hi)
