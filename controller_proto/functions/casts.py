"""Casts, `x::type` or `cast(x AS type)`, each by the types it goes from and to."""

from __future__ import annotations

from typing import Final

from controller_proto.functions.signatures import declared

_INTEGERS: Final = ("smallint", "integer", "bigint", "uint2", "uint4", "uint8")
_FLOATS: Final = ("real", "double precision")


def _pairs() -> list[str]:
    numbers = (*_INTEGERS, "numeric(s)", *_FLOATS)
    pairs = ["T -> T"]
    pairs += [f"{a} -> {b}" for a in numbers for b in numbers if a != b or b == "numeric(s)"]
    pairs += [
        "date -> timestamp", "date -> timestamptz", "timestamp -> timestamptz", "timestamptz -> timestamp",
        "timestamp -> date", "timestamptz -> date", "timestamp -> time", "timestamptz -> time",
        "time -> interval", "interval -> time",
    ]  # fmt: skip
    return pairs


FUNCTIONS: Final = (
    declared(
        "casts", "cast", "; ".join(_pairs()),
        "The same value in another type. A number becomes an integer by rounding, a double half to even, a "
        "numeric half away from zero; a numeric gets more or fewer digits behind the point.",
        "2.5::double precision::bigint", "2",
        errors="; ".join(f"{name} out of range" for name in (*_INTEGERS, "numeric", *_FLOATS, "timestamp")),
    ),
)  # fmt: skip
