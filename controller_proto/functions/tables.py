"""Table functions, of FlatMap: each gives rows for a row, in an order that `with ordinality` counts.

All are strict: no row comes of a NULL argument.

Does not: compute anything; clusterd/render/functions/unnesting.py and series.py do.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from controller_proto.functions.signatures import declared

_table = partial(declared, "tables")
_SAMPLE = 'jsonb "{\\"a\\": [1, \\"x\\"], \\"b\\": null}"'
_NO_STEP, _MIXED = "step size cannot equal zero", "step size must not mix signs"
_INVALID = "invalid regular expression"
_OBJECT, _SCALAR = "cannot extract elements from an object", "cannot extract elements from a scalar"
_EACH = "cannot call jsonb_each on a non-object"
_KEYS = "cannot call jsonb_object_keys on a non-object"
# Those that are of table functions alone, in the order of their codes.
TABLE_ERRORS: Final = (_NO_STEP, _MIXED, _OBJECT, _SCALAR, _EACH, _KEYS)

_SERIES = "; ".join([
    *(f"{t}, {t} -> {t}; {t}, {t}, {t} -> {t}" for t in ("integer", "bigint", "numeric(s)")),
    *(f"{t}, {t}, interval -> {t}" for t in ("timestamp", "timestamptz")),
])  # fmt: skip

FUNCTIONS: Final = (
    _table("generate_series", _SERIES,
           "From the first to the second, by the third or by 1. A step of months keeps the day that the "
           "month before had.", "generate_series(1, 7, 3)", "1; 4; 7",
           errors=f"{_NO_STEP}; {_MIXED}; numeric out of range",
           differs="Of dates PostgreSQL makes timestamptz, here they become timestamps, as in DuckDB. A step "
                   "with months and another part of the other sign is an error."),
    _table("generate_subscripts", "any list, bigint -> bigint",
           "The positions of a list; none of a dimension other than 1.",
           'generate_subscripts(array["a", "b"], 1)', "1; 2"),
    _table("unnest", "T list -> T", "The elements.", "unnest(array[1, null::bigint, 3])", "1; null; 3",
           differs="Of lists of lists the lists; PostgreSQL goes down to what is no array."),
    _table("jsonb_array_elements", "jsonb -> value: jsonb", "The elements of an array.",
           'jsonb_array_elements(jsonb "[1, {\\"a\\": 2}]")', '"1"; "{\\"a\\":2}"',
           errors=f"{_OBJECT}; {_SCALAR}"),
    _table("jsonb_array_elements_text", "jsonb -> value: text?", "As texts; of a JSON null NULL.",
           'jsonb_array_elements_text(jsonb "[1, \\"x\\", null]")', '"1"; "x"; null',
           errors=f"{_OBJECT}; {_SCALAR}"),
    _table("jsonb_each", "jsonb -> key: text, value: jsonb", "The keys and values of an object.",
           f"jsonb_each({_SAMPLE})", '"a" "[1,\\"x\\"]"; "b" "null"', errors=_EACH),
    _table("jsonb_each_text", "jsonb -> key: text, value: text?", "As texts; of a JSON null NULL.",
           f"jsonb_each_text({_SAMPLE})", '"a" "[1,\\"x\\"]"; "b" null', errors=_EACH),
    _table("jsonb_object_keys", "jsonb -> text", "The keys of an object.", f"jsonb_object_keys({_SAMPLE})",
           '"a"; "b"', errors=_KEYS),
    _table("regexp_extract", "text, text -> text",
           "What the groups of a pattern, the first argument, take of the first part that fits: a column "
           "for each, called as the group is or `column1` and so on. No row if nothing fits.",
           'regexp_extract("(\\\\w+)@(?P<host>\\\\w+)", "ann@home")', '"ann" "home"', errors=_INVALID,
           constant=(0,), differs="Neither PostgreSQL's nor, as a table function, DuckDB's. A group that "
                                  "took no part gives an empty text."),
    _table("regexp_matches", "text, text -> text list; text, text, text -> text list",
           "What the groups take, or all of it if there are none, of the first part that fits; with the "
           "flag `g` of each. A pattern has up to 9 groups.",
           'regexp_matches("foobarbaz", "(b.)(.)", "g")', '{"ba","r"}; {"ba","z"}', errors=_INVALID,
           differs="A group that took no part gives an empty text. What regular expressions are: as of "
                   "`regexp_match`."),
    _table("regexp_split_to_table", "text, text -> text", "The parts between those that fit.",
           'regexp_split_to_table("a, b,c", ", *")', '"a"; "b"; "c"', errors=_INVALID),
    _table("string_to_table", "text, text -> text", "The parts between separators; of an empty text none.",
           'string_to_table("a,b", ",")', '"a"; "b"',
           differs="Of a NULL separator PostgreSQL makes single characters."),
)  # fmt: skip
