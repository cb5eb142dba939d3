"""Casts, `x::type` or `cast(x AS type)`, each by the types it goes from and to."""

from __future__ import annotations

from typing import Final

from controller_proto.functions.signatures import declared

_INTEGERS: Final = ("smallint", "integer", "bigint", "uint2", "uint4", "uint8")
_FLOATS: Final = ("real", "double precision")
_READ: Final = (
    "boolean", *_INTEGERS, *_FLOATS, "bytea", "date", "time", "timestamp", "timestamptz", "interval", "uuid",
    "jsonb",
)  # fmt: skip
# Of texts that are no value of a type.
MALFORMED: Final = tuple(f"invalid input syntax for type {name}" for name in (*_READ, "numeric"))


def _pairs() -> list[str]:
    numbers = (*_INTEGERS, "numeric(s)", *_FLOATS)
    pairs = ["T -> T"]
    pairs += [f"{a} -> {b}" for a in numbers for b in numbers if a != b or b == "numeric(s)"]
    pairs += [
        "date -> timestamp", "date -> timestamptz", "timestamp -> timestamptz", "timestamptz -> timestamp",
        "timestamp -> date", "timestamptz -> date", "timestamp -> time", "timestamptz -> time",
        "time -> interval", "interval -> time",
    ]  # fmt: skip
    pairs += [f"text -> {name}" for name in (*_READ, "numeric(s)")]
    pairs += [f"{name} -> text" for name in (*_READ, "numeric(s)")]
    pairs += [f"boolean -> {name}" for name in _INTEGERS] + [f"{name} -> boolean" for name in _INTEGERS]
    pairs += [f"jsonb -> {name}" for name in ("boolean", *_INTEGERS, "numeric(s)", *_FLOATS)]
    return [*pairs, "any -> text"]


FUNCTIONS: Final = (
    declared(
        "casts", "cast", "; ".join(_pairs()),
        "The same value in another type. A number becomes an integer by rounding, a double half to even, a "
        "numeric half away from zero; a numeric gets more or fewer digits behind the point.",
        "2.5::double precision::bigint", "2",
        errors="; ".join(f"{name} out of range" for name in (*_INTEGERS, "numeric", *_FLOATS, "timestamp"))
        + "; " + "; ".join((*MALFORMED, "cannot cast jsonb value")),
        differs="A jsonb is printed without blanks. A double becomes a numeric by the shortest digits that "
                "read back as it (PostgreSQL: by 15). Texts of moments are read in ISO form alone, and the "
                "numeric NaN is none.",
    ),
)  # fmt: skip
