"""Every function there is, by name.

Does not: say how a call is resolved (resolve.py), hold aggregates.
"""

from __future__ import annotations

from typing import Final

from controller_proto.functions import (
    arithmetic,
    casts,
    comparison,
    json,
    lists,
    logic,
    mathematics,
    moments,
    patterns,
    tables,
    text,
)
from controller_proto.functions.signatures import Function

__all__ = ["ERRORS", "FAMILIES", "FUNCTIONS", "TABLE_FUNCTIONS", "USER_FUNCTIONS"]

# The texts of errors in data, in the order of their codes, which begin at 1. Kernels know the first ones.
ERRORS: Final = (
    "division by zero",
    "bigint out of range",
    "numeric out of range",
    "double precision out of range",
    "smallint out of range",
    "integer out of range",
    "uint2 out of range",
    "uint4 out of range",
    "uint8 out of range",
    "real out of range",
    "timestamp out of range",
    "input is out of range",
    "cannot take square root of a negative number",
    "cannot take logarithm of zero",
    "cannot take logarithm of a negative number",
    "zero raised to a negative power is undefined",
    "a negative number raised to a non-integer power yields a complex result",
    *casts.MALFORMED,
    "negative substring length not allowed",
    "text too long",
    "field position must not be zero",
    "requested character not valid",
    "invalid format",
    "unrecognized encoding",
    "invalid encoded data",
    "invalid byte sequence",
    "index out of range",
    "LIKE pattern must not end with escape character",
    "invalid escape string",
    "invalid regular expression",
    "date out of range",
    "interval out of range",
    "unit not recognized",
    "unit not supported",
    "stride must be positive",
    "timestamps cannot be binned into months or years",
    "date field value out of range",
    "time field value out of range",
    "time zone not recognized",
    "cannot cast jsonb value",
    "cannot get array length of a non-array",
    "argument list must have even number of elements",
    "key must not be null",
    *tables.TABLE_ERRORS,
    "cannot delete from scalar",
    "cannot delete from object using integer index",
    "cannot set path in scalar",
    "path element is not an integer",
)

# What pages call a family, and its functions.
FAMILIES: Final[dict[str, tuple[str, tuple[Function, ...]]]] = {
    "logic": ("Logic and NULL", logic.FUNCTIONS),
    "comparison": ("Comparison", comparison.FUNCTIONS),
    "arithmetic": ("Arithmetic", arithmetic.FUNCTIONS),
    "mathematics": ("Mathematics and bits", mathematics.FUNCTIONS),
    "casts": ("Casts", casts.FUNCTIONS),
    "text": ("Text and bytes", text.FUNCTIONS),
    "patterns": ("Patterns", patterns.FUNCTIONS),
    "json": ("jsonb", json.FUNCTIONS),
    "lists": ("Lists", lists.FUNCTIONS),
    "moments": ("Dates and times", moments.FUNCTIONS),
}
FUNCTIONS: Final[dict[str, Function]] = {
    function.name: function for _, functions in FAMILIES.values() for function in functions
}
# Those of the user, which user.py adds.
USER_FUNCTIONS: Final[dict[str, Function]] = {}
# Of FlatMap: they give rows.
TABLE_FUNCTIONS: Final[dict[str, Function]] = {function.name: function for function in tables.FUNCTIONS}
