"""Logic, and what asks for NULL. Errors combine like values: what decides makes an error beside it unseen."""

from __future__ import annotations

from functools import partial
from typing import Final

from controller_proto.functions.signatures import declared

_logic = partial(declared, "logic")

FUNCTIONS: Final = (
    _logic("and", "boolean... -> boolean", "FALSE if an argument is, whatever the others are, also errors.",
           "and(null::boolean, false)", "false", nulls="some"),
    _logic("or", "boolean... -> boolean", "TRUE if an argument is, whatever the others are, also errors.",
           "or(null::boolean, true)", "true", nulls="some"),
    _logic("not", "boolean -> boolean", "The opposite.", "not true", "false"),
    _logic("between", "T, T, T -> boolean", "`x BETWEEN low AND high`: `x >= low AND x <= high`.",
           "2 BETWEEN 1 AND 3", "true", nulls="some"),
    _logic("in", "T, T... -> boolean", "`x IN (a, b)`: `x = a OR x = b`.", "2 IN (1, 2)", "true",
           nulls="some"),
    _logic("is_null", "any -> boolean", "`x IS NULL`, `x IS NOT NULL`.", "null::bigint IS NULL", "true",
           nulls="never"),
    _logic("is_true", "boolean -> boolean", "`x IS TRUE`, `x IS NOT TRUE`.", "null::boolean IS TRUE", "false",
           nulls="never"),
    _logic("is_false", "boolean -> boolean", "`x IS FALSE`, `x IS NOT FALSE`.", "null::boolean IS NOT FALSE",
           "true", nulls="never"),
    _logic("is_unknown", "boolean -> boolean", "`x IS UNKNOWN`, `x IS NOT UNKNOWN`.",
           "null::boolean IS UNKNOWN", "true", nulls="never"),
    _logic("coalesce", "T... -> T", "The first argument that is not NULL; what follows it is not looked at.",
           "coalesce(null::bigint, 2, 1 / 0)", "2", nulls="all"),
    _logic("nullif", "T, T -> T", "NULL if both are equal, else the first.", "nullif(1, 1)", "null",
           nulls="always"),
    _logic("greatest", "T... -> T", "The greatest argument; NULLs are passed over.",
           "greatest(1, null::bigint, 3)", "3", nulls="all"),
    _logic("least", "T... -> T", "The least argument; NULLs are passed over.", "least(2, 1.5)", "1.5",
           nulls="all"),
    _logic("num_nulls", "any... -> bigint", "How many arguments are NULL.", "num_nulls(1, null::text)", "1",
           nulls="never"),
    _logic("num_nonnulls", "any... -> bigint", "How many arguments are not NULL.",
           "num_nonnulls(1, null::text)", "1", nulls="never"),
    _logic("error", "text -> boolean", "An error that says so; an arm of CASE has the type of the other.",
           'CASE WHEN true THEN error("no such fruit") ELSE 1 END', "error: no such fruit", constant=(0,),
           errors="its text"),
)  # fmt: skip
