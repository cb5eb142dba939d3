"""The aggregates: which there are, what they take, and the type of what they give. As data, and one rule.

Types follow PostgreSQL, but that a numeric has one scale and 38 digits here:
- count is a bigint and never NULL.
- sum of any integer is `numeric`, of a numeric a numeric of its scale, of real and double precision the same.
- avg of an integer or a numeric is a numeric with 16 digits behind the point, or as many as the argument has
  if those are more; half a unit is rounded away from zero. avg of real and double precision is double
  precision: the exact sum, rounded once, over the count.
- variance and stddev are double precision for every argument (PostgreSQL gives a numeric for an exact one,
  with about as many digits that count; in 38 digits not all would fit). They are made of exact sums of values
  and squares, whose combination is rounded once before it is divided.
- min and max keep the type, whatever it is; array_agg makes a list of it.

NULL: count counts values that are not NULL, array_agg and jsonb_agg keep NULLs, all others skip them and are
NULL over nothing else. A sample of one value has no variance: NULL.

Does not: evaluate (clusterd/operators does), look at plans (typing_rules.py does).
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from controller_proto.schema import INTEGERS, Column, ColumnType, type_name

__all__ = ["AGGREGATES", "AVERAGE_SCALE", "AggregateRule", "aggregate_result"]

AVERAGE_SCALE = 16

_FLOATS = frozenset({ColumnType.FLOAT32, ColumnType.FLOAT64})
_EXACT = frozenset({*INTEGERS, ColumnType.NUMERIC})
_NUMBERS = _EXACT | _FLOATS
_BOOL = frozenset({ColumnType.BOOL})
_TEXTS = frozenset({ColumnType.TEXT, ColumnType.BYTEA})


class AggregateRule(msgspec.Struct, frozen=True):
    """takes: types of the first argument, None for all. arguments: how many it has in all.

    kind: `accumulable` (sums), `hierarchical` (an order), `basic` (all rows of the group). is_ordered: it
    takes an `order by`.
    """

    kind: str
    takes: frozenset[ColumnType] | None
    signatures: str
    doc: str
    arguments: int = 1
    is_ordered: bool = False


_SPREAD_DOCS = {
    "var_samp": "Variance of a sample: the sum of squared distances from the mean, over n - 1.",
    "var_pop": "Variance of a population: the same, over n.",
    "variance": "`var_samp`.",
    "stddev_samp": "Square root of `var_samp`.",
    "stddev_pop": "Square root of `var_pop`.",
    "stddev": "`stddev_samp`.",
}
_SPREADS = {
    name: AggregateRule("accumulable", _NUMBERS, "number -> double precision", doc)
    for name, doc in _SPREAD_DOCS.items()
}
_SUMS = "integer -> numeric; numeric(s) -> numeric(s); real -> real; double precision -> double precision"
_MEANS = (
    "integer -> numeric(16); numeric(s) -> numeric(max(s, 16)); real, double precision -> double precision"
)

AGGREGATES: dict[str, AggregateRule] = {
    "count": AggregateRule("accumulable", None, "any -> bigint", "Values that are not NULL; of `*`: rows."),
    "sum": AggregateRule("accumulable", _NUMBERS, _SUMS, "The exact sum; of floats, rounded once."),
    "avg": AggregateRule("accumulable", _NUMBERS, _MEANS, "The mean."),
    **_SPREADS,
    "bool_and": AggregateRule("accumulable", _BOOL, "boolean -> boolean", "Whether all values are true."),
    "bool_or": AggregateRule("accumulable", _BOOL, "boolean -> boolean", "Whether any value is true."),
    "min": AggregateRule("hierarchical", None, "T -> T", "The least value."),
    "max": AggregateRule("hierarchical", None, "T -> T", "The greatest value."),
    "array_agg": AggregateRule("basic", None, "T -> T list", "The values, NULLs too.", is_ordered=True),
    "string_agg": AggregateRule(
        "basic", _TEXTS, "text, text -> text; bytea, bytea -> bytea",
        "The values one after the other, before each but the first its separator.", 2, True,
    ),
    "jsonb_agg": AggregateRule(
        "basic", None, "any -> jsonb", "The values as a JSON array, NULL as null.", is_ordered=True
    ),
    "jsonb_object_agg": AggregateRule(
        "basic", frozenset({ColumnType.TEXT}), "text, any -> jsonb",
        "An object of keys and values; of equal keys the last counts, a NULL key is an error of its row.",
        2, True,
    ),
}  # fmt: skip


def aggregate_result(function: str, args: Sequence[Column]) -> Column:
    """The column that `function` makes of columns `args`; no args: of `*`.

    Raises ValueError that says what does not fit.
    """
    rule = AGGREGATES.get(function)
    if rule is None:
        raise ValueError(f"{function} is not known; there are {', '.join(AGGREGATES)}")
    if not args and function == "count":
        return Column(function, ColumnType.INT64)
    if not args:
        raise ValueError(f"{function} needs an argument")
    if len(args) != rule.arguments:
        raise ValueError(
            f"{function} takes {rule.arguments} argument{'s' * (rule.arguments > 1)}, not {len(args)}"
        )
    of = args[0]
    if rule.takes is not None and of.type not in rule.takes:
        raise ValueError(f"{function} of {type_name(of)}")
    if function == "string_agg" and args[1].type is not of.type:
        raise ValueError(f"{function} of {type_name(of)} and {type_name(args[1])}")
    match function:
        case "count":
            return Column(function, ColumnType.INT64)
        case "array_agg":
            return Column(function, ColumnType.LIST, fields=(of,))
        case "jsonb_agg" | "jsonb_object_agg":
            return Column(function, ColumnType.JSONB)
        case "sum" if of.type in INTEGERS:
            return Column(function, ColumnType.NUMERIC, of.nullable)
        case "avg" if of.type in _EXACT:
            return Column(function, ColumnType.NUMERIC, of.nullable, max(of.scale, AVERAGE_SCALE))
        case "avg" | "var_pop" | "stddev_pop":
            return Column(function, ColumnType.FLOAT64, of.nullable)
        case _ if function in _SPREADS:
            return Column(function, ColumnType.FLOAT64, True)
    return msgspec.structs.replace(of, name=function)
