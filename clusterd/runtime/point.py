"""Point: the answer to a peek of one key, in little more than the time of its message.

Most peeks ask for one key of an index without errors, and most keys have one row, in one batch, once. Such a
row is found and read without making an array (shm_arrangements.point). Where that cannot be told, or the
answer could be near a limit, nothing is said here, and the peek is evaluated like any other; so what is said
is what evaluate.py would say, byte for byte.

Does not: answer with an error, finish, stash, convert: only columns whose stored values are the wire's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from controller_proto.command import Peek
from controller_proto.response import PeekResponse, PeekRows
from shm_arrangements.batch import Batch
from shm_arrangements.schema import ArrangementSchema
from shm_arrangements.types import VARIABLE, ColumnType
from shm_arrangements.view import ReadView

__all__ = ["MOST_BYTES", "PointReads"]

# Their wire value is what the library takes and gives. Not JSON: as a key it is found by its canonical form.
_SAME: Final = frozenset(
    {
        ColumnType.BOOL, ColumnType.INT16, ColumnType.INT32, ColumnType.INT64, ColumnType.UINT16,
        ColumnType.UINT32, ColumnType.UINT64, ColumnType.FLOAT32, ColumnType.FLOAT64, ColumnType.TEXT,
        ColumnType.BYTEA,
    }
)  # fmt: skip
MOST_BYTES: Final = 1 << 12  # of a row and of an answer; who has less to give asks nobody here
_FIXED_BYTES: Final = 8  # at most, of a value of those types
_ONE: Final = (1,)
_encode = msgspec.msgpack.Encoder().encode


class PointReads:
    """Of one snapshot without errors: what finds its rows, at the time that was asked for last."""

    __slots__ = ("_fits", "_name", "_none", "_oks", "_schema", "_view")

    def __init__(self, name: str, schema: ArrangementSchema, oks: Sequence[Batch]) -> None:
        self._name = name
        self._schema = schema
        self._oks = oks
        fixed = sum(spec.type not in VARIABLE for spec in schema.columns)
        self._fits = (
            bool(schema.key)
            and all(spec.type in _SAME for spec in schema.columns)
            and fixed * _FIXED_BYTES <= MOST_BYTES // 2
        )
        self._none = PeekRows(((),) * len(schema.columns), ())
        self._view: ReadView | None = None

    def answer(self, peek: Peek, time: int, at: int, served_by: str) -> bytes | None:
        """The encoded PeekResponse to a peek without finishing, read at `time`; None if it is not known here.

        at: the time to look for in the batches. Rows and answer have MOST_BYTES at most.
        """
        keys = peek.keys
        if not self._fits or keys is None or len(keys) != 1:
            return None
        view = self._view
        if view is None or view.at != at:
            view = self._view = ReadView(self._name, self._schema, self._oks, (), at)
        key = keys[0]
        row = view.only_row(key[0] if len(key) == 1 else key)
        if row is None:
            return None
        result = PeekRows(tuple([(value,) for value in row]), _ONE) if row else self._none
        response = _encode(PeekResponse(peek.uuid, result, time, served_by))
        return response if len(response) <= MOST_BYTES // 2 else None
