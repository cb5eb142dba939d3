"""Comparison, of any type: NaN equals NaN and is greater than every number, text is ordered by bytes."""

from __future__ import annotations

from functools import partial
from typing import Final

from controller_proto.functions.signatures import declared

_comparison = partial(declared, "comparison")

# What compares its arguments, and so never fails because one of them has no room for the digits of another.
COMPARED: Final = frozenset({"=", "!=", "<", "<=", ">", ">=", "between", "in", "is_distinct_from", "= any"})

FUNCTIONS: Final = (
    _comparison("=", "T, T -> boolean", "Equal.", '"a" = "b"', "false",
                differs="DuckDB compares a bigint and a numeric as doubles where digits do not suffice."),
    _comparison("!=", "T, T -> boolean", "Not equal; `<>` is the same.", "1 <> 2", "true"),
    _comparison("<", "T, T -> boolean", "Less.", '"NaN"::float8 < 1.0', "false"),
    _comparison("<=", "T, T -> boolean", "Less or equal.", "1 <= 1.5", "true"),
    _comparison(">", "T, T -> boolean", "Greater.", '"b" > "a"', "true"),
    _comparison(">=", "T, T -> boolean", "Greater or equal.",
                'date "2013-01-02" >= timestamp "2013-01-02 00:00:01"', "false"),
    _comparison("is_distinct_from", "T, T -> boolean",
                "`x IS [NOT] DISTINCT FROM y`: not equal, where NULL equals NULL.",
                "1 IS DISTINCT FROM null::bigint", "true", nulls="never"),
)  # fmt: skip
