"""What a subscription tells, as it goes over the wire: encoded responses, each of bounded size.

A batch of many updates goes in several messages; all but the last say that more comes. Whole columns are
converted at once, and a message when it is taken.

Does not: know sessions, decide when something is told.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from clusterd.convert import scalars_from_column
from clusterd.dataflow.operator import Columns
from clusterd.operators.export_subscribe import Told
from clusterd.runtime.finish import split_error
from controller_proto.ids import GlobalId
from controller_proto.response import SubscribeBatch, SubscribeError, SubscribeResponse, SubscribeUpdates

__all__ = ["encode_told"]

_PART_ROWS = 1 << 14
_PART_BYTES = 1 << 20  # of columns, roughly; a row may be longer by itself
_encode = msgspec.msgpack.Encoder().encode


def encode_told(id: GlobalId, columns: Columns, told: Told) -> Iterator[bytes]:
    """The responses that tell one batch of the subscription `id`, in order."""
    upper = told.upper.to_wire()
    if told.error:
        error = split_error(told.error)
        contents = SubscribeError(error.code, error.message, error.hint)
        yield _encode(SubscribeResponse(id, SubscribeBatch(told.lower, upper, contents)))
        return
    updates = told.updates
    step = min(_PART_ROWS, max(1, len(updates) * _PART_BYTES // max(1, updates.nbytes)))
    for lo in range(0, max(1, len(updates)), step):
        part = updates.slice(lo, min(lo + step, len(updates)))
        values = tuple(
            scalars_from_column(spec, column) for spec, column in zip(columns, part.columns, strict=True)
        )
        more = lo + step < len(updates)
        rows = SubscribeUpdates(values, tuple(part.times.tolist()), tuple(part.diffs.tolist()), more)
        yield _encode(SubscribeResponse(id, SubscribeBatch(told.lower, upper, rows)))
