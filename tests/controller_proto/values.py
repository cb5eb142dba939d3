"""Hypothesis strategies for columns of every type and values that stand in them; used by several tests."""

from __future__ import annotations

import struct
import uuid
from typing import Any

from hypothesis import strategies as st

from controller_proto.jsonb import canonical_json
from controller_proto.schema import INTEGERS, Column, ColumnType, Scalar

T = ColumnType
FLAT = [type_ for type_ in T if type_ not in (T.LIST, T.RECORD)]
I64 = st.integers(-(1 << 63), (1 << 63) - 1)
I32 = st.integers(-(1 << 31), (1 << 31) - 1)


def _real(value: float) -> float:
    return float(struct.unpack("<f", struct.pack("<f", value))[0])


_json: Any = st.recursive(
    st.sampled_from(["null", "true", "false", "1", "-2.50", "1e3", '"a"', '"\\u00e9\\n"', "0.10", "-0"]),
    lambda inner: (
        st.lists(inner, max_size=3).map(lambda items: f"[{' , '.join(items)}]")
        | st.lists(st.tuples(st.sampled_from(['"a"', '"b"', '""']), inner), max_size=3).map(
            lambda items: "{" + ", ".join(f"{key}: {value}" for key, value in items) + "}"
        )
    ),
    max_leaves=4,
)
_VALUES: dict[ColumnType, st.SearchStrategy[Any]] = {
    **{type_: st.integers(*bounds) | st.integers(0, 9) for type_, bounds in INTEGERS.items()},
    T.BOOL: st.booleans(),
    T.FLOAT32: st.floats(allow_nan=False, width=32).map(_real),
    T.FLOAT64: st.floats(allow_nan=False),
    T.TEXT: st.text(max_size=8),
    T.BYTEA: st.binary(max_size=8),
    T.DATE: I32 | st.integers(-719162, 2932896),
    T.TIME: st.integers(0, 86_400_000_000),
    T.TIMESTAMP: I64 | st.integers(0, 1 << 52),
    T.TIMESTAMPTZ: I64 | st.integers(0, 1 << 52),
    T.INTERVAL: st.tuples(I32, I32, I64) | st.tuples(*[st.integers(-20, 20)] * 3),
    T.UUID: st.uuids().map(str) | st.just(str(uuid.UUID(int=0))),
    T.JSONB: _json.map(canonical_json),
}


def numerics(scale: int) -> st.SearchStrategy[str]:
    """Digits as they are printed."""

    def text(value: int) -> str:
        digits = str(abs(value)).rjust(scale + 1, "0")
        point = f"{digits[:-scale]}.{digits[-scale:]}" if scale else digits
        return "-" * (value < 0) + point

    return (st.integers(-(10**38) + 1, 10**38 - 1) | st.integers(-200, 200)).map(text)


def values_of(column: Column) -> st.SearchStrategy[Scalar]:
    """Values that stand in `column`, in the form that reading a script gives them."""
    if column.type is T.NUMERIC:
        found: st.SearchStrategy[Any] = numerics(column.scale)
    elif column.type is T.LIST:
        found = st.lists(values_of(column.fields[0]), max_size=3).map(tuple)
    elif column.type is T.RECORD:
        found = st.tuples(*map(values_of, column.fields))
    else:
        found = _VALUES[column.type]
    return found | st.none() if column.nullable else found


_names = st.sampled_from(["a", "b", "c d", ""])
flat_columns = st.builds(Column, _names, st.sampled_from(FLAT), st.booleans()) | st.builds(
    Column, _names, st.just(T.NUMERIC), st.booleans(), st.integers(0, 38)
)


def _nested(inner: st.SearchStrategy[Column]) -> st.SearchStrategy[Column]:
    return st.builds(
        Column, _names, st.just(T.LIST), st.booleans(), st.just(0), st.tuples(inner)
    ) | st.builds(
        Column, _names, st.just(T.RECORD), st.booleans(), st.just(0), st.lists(inner, max_size=3).map(tuple)
    )


columns = st.recursive(flat_columns, _nested, max_leaves=3)


def _typed(column: Column) -> st.SearchStrategy[tuple[Column, Scalar]]:
    nullable = Column("c", column.type, True, column.scale, column.fields)
    return st.tuples(st.just(nullable), values_of(nullable))


every_type = st.sampled_from(FLAT).map(lambda type_: Column("c", type_)) | columns
typed_values = every_type.flatmap(_typed)
