"""Which overload a call is, what its arguments are widened to, and what it gives.

Of the overloads that take so many arguments, the one that needs the least widening; of equal ones, the one
declared first. Widening never loses: an integer becomes a larger integer, a numeric, or (where PostgreSQL
does, and then it may lose digits as there) a double; a date becomes a timestamp, that a timestamptz. A cast
is exact about its source: nothing is widened first.

Does not: evaluate, look into arguments (but for constants, on which a type may depend).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

import msgspec

from controller_proto.errors import LocalProtocolError
from controller_proto.functions.groups import scan_groups
from controller_proto.functions.signatures import Function, Pattern, Signature
from controller_proto.functions.table import FUNCTIONS, TABLE_FUNCTIONS, USER_FUNCTIONS
from controller_proto.literals import parse_type
from controller_proto.schema import INTEGERS, MAX_SCALE, Column, ColumnType, Scalar, same_type, type_name
from controller_proto.suggest import did_you_mean, nearest

__all__ = [
    "Mismatch",
    "Resolved",
    "ResolvedTable",
    "best_signature",
    "common_type",
    "resolve",
    "resolve_table",
]

T = ColumnType
_FLOATS: Final = (T.FLOAT32, T.FLOAT64)
# What values of a type are widened to, the nearest first.
_WIDER: Final = {
    T.INT16: (T.INT32, T.INT64, T.NUMERIC, T.FLOAT64),
    T.INT32: (T.INT64, T.NUMERIC, T.FLOAT64),
    T.INT64: (T.NUMERIC, T.FLOAT64),
    T.UINT16: (T.UINT32, T.INT32, T.UINT64, T.INT64, T.NUMERIC, T.FLOAT64),
    T.UINT32: (T.UINT64, T.INT64, T.NUMERIC, T.FLOAT64),
    T.UINT64: (T.NUMERIC, T.FLOAT64),
    T.NUMERIC: (T.FLOAT64,),
    T.FLOAT32: (T.FLOAT64,),
    T.DATE: (T.TIMESTAMP, T.TIMESTAMPTZ),
    T.TIMESTAMP: (T.TIMESTAMPTZ,),
}
_KNOWN_CALLS: Final = 4096  # kinds of calls, by function and types: some 2 MB
_QUOTIENT_SCALE: Final = 16  # as that of avg
# Of `extract`, by field: digits behind the point.
_FIELD_SCALES: Final = {"second": 6, "epoch": 6, "julian": 6, "milliseconds": 3}


class Mismatch(Exception):
    """No such call; the message says what does not fit."""


class Resolved(NamedTuple):
    """args: the columns that the arguments are widened to. result: the column that comes out."""

    function: Function
    signature: Signature
    args: tuple[Column, ...]
    result: Column


class ResolvedTable(NamedTuple):
    """args: the columns that the arguments are widened to. columns: those that are appended."""

    function: Function
    signature: Signature
    args: tuple[Column, ...]
    columns: tuple[Column, ...]


class _Matched(NamedTuple):
    """cost: how far arguments are widened. bound, scales: what variables and scales stand for."""

    cost: int
    args: tuple[Column, ...]
    bound: dict[str, Column]
    scales: dict[str, int]


def common_type(a: Column, b: Column) -> Column | None:
    """A column of the type that values of both are widened to; None if there is none."""
    if same_type(a, b):
        return a
    types = {a.type, b.type}
    if types <= INTEGERS.keys():
        least, most = (pick(INTEGERS[t][end] for t in types) for pick, end in ((min, 0), (max, 1)))
        candidates = (a.type, b.type, *INTEGERS)  # one of the two, if it holds the other
        holding = (t for t in candidates if INTEGERS[t][0] <= least and most <= INTEGERS[t][1])
        return Column("", next(holding, T.NUMERIC))
    if types <= {*INTEGERS, T.NUMERIC}:
        return Column("", T.NUMERIC, scale=max(a.scale, b.scale))
    if types <= {*INTEGERS, *_FLOATS, T.NUMERIC}:
        return Column("", T.FLOAT64)
    for wide in (T.TIMESTAMP, T.TIMESTAMPTZ):
        if all(t is wide or wide in _WIDER.get(t, ()) for t in types):
            return Column("", wide)
    if types == {T.LIST}:
        (x,), (y,) = a.fields, b.fields
        element = common_type(x, y)
        if element is not None:
            nullable = x.nullable or y.nullable
            return Column("", T.LIST, fields=(msgspec.structs.replace(element, nullable=nullable),))
    return None


def resolve(name: str, args: Sequence[Column], constants: Sequence[Scalar]) -> Resolved:
    """The call of `name` on `args`. constants: of an argument that is a literal its value, else None.

    Raises Mismatch.
    """
    if name.startswith("cast "):
        return _cast(name, args)
    function = FUNCTIONS.get(name) or USER_FUNCTIONS.get(name)
    if function is None or name == "cast":
        meant = nearest(name, [*FUNCTIONS, *USER_FUNCTIONS])
        raise Mismatch(f"function {name!r} is not known" + (f"; did you mean {meant}?" if meant else ""))
    if not function.constant and name in FUNCTIONS:
        return _known(name, tuple([each if not each.name else _unnamed(each) for each in args]))
    found = _resolved(function, args, constants)
    if name == "extract":
        scale = _FIELD_SCALES.get(str(constants[0]).lower(), 0)
        return found._replace(result=msgspec.structs.replace(found.result, scale=scale))
    return found


@lru_cache(maxsize=_KNOWN_CALLS)
def _known(name: str, args: tuple[Column, ...]) -> Resolved:
    """A call whose type depends on the types of its arguments alone, which have no names here.

    A plan has many calls of few kinds, and each is asked for several times on its way to an operator.
    """
    return _resolved(FUNCTIONS[name], args, (None,) * len(args))


def _unnamed(column: Column) -> Column:
    return Column("", column.type, column.nullable, column.scale, column.fields)


def _resolved(function: Function, args: Sequence[Column], constants: Sequence[Scalar]) -> Resolved:
    signature, matched = _best(function, args, constants)
    result = _nullable(_result(signature.result, matched.bound, matched.scales), function, args)
    return Resolved(function, signature, matched.args, result)


def _best(
    function: Function, args: Sequence[Column], constants: Sequence[Scalar]
) -> tuple[Signature, _Matched]:
    """The signature that widens least, and how."""
    name = function.name
    fitting = [signature for signature in function.signatures if signature.takes(len(args))]
    if not fitting:
        raise Mismatch(f"{name} takes {_counts(function.signatures)}, {len(args)} given")
    for position in function.constant:
        if constants[position] is None:
            raise Mismatch(f"argument {position + 1} of {name} must be a constant")
    matches = ((signature, _fit(signature, args)) for signature in fitting)
    found = [(signature, matched) for signature, matched in matches if matched is not None]
    if not found:
        raise Mismatch(f"{name} of {_types(args)}")
    return min(found, key=lambda pair: pair[1].cost)


def resolve_table(name: str, args: Sequence[Column], constants: Sequence[Scalar]) -> ResolvedTable:
    """The call of table function `name` on `args`. constants: as of `resolve`. Raises Mismatch."""
    function = TABLE_FUNCTIONS.get(name)
    if function is None:
        raise Mismatch(f"table function {name!r} is not known; {did_you_mean(name, TABLE_FUNCTIONS)}")
    signature, matched = _best(function, args, constants)
    if name == "regexp_extract":
        groups = scan_groups(str(constants[0]))[1]
        if not groups:
            raise Mismatch("regexp_extract needs a pattern with a group")
        named = ((group or f"column{number}") for number, group in enumerate(groups, 1))
        return ResolvedTable(function, signature, matched.args, tuple(Column(n, T.TEXT) for n in named))
    made = [(each, _result(each, matched.bound, matched.scales)) for each in signature.results]
    columns = tuple(
        msgspec.structs.replace(
            column,
            name=each.name or name,
            nullable=column.nullable or (each.null_elements and not each.is_list),
        )
        for each, column in made
    )
    return ResolvedTable(function, signature, matched.args, columns)


def best_signature(function: Function, args: Sequence[Column]) -> tuple[Signature, tuple[Column, ...]]:
    """The signature that widens `args` least, and what they are widened to. Raises Mismatch."""
    signature, matched = _best(function, args, (None,) * len(args))
    return signature, matched.args


def _types(args: Iterable[Column]) -> str:
    names = [type_name(each) for each in args]
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}" if names else "nothing"


def _counts(signatures: Iterable[Signature]) -> str:
    counts = sorted({len(each.args) for each in signatures})
    more = " or more" if any(each.variadic for each in signatures) else ""
    text = " or ".join(map(str, counts)) + more
    return f"{text} argument" if text == "1" else f"{text} arguments"


def _cast(name: str, args: Sequence[Column]) -> Resolved:
    try:
        target = parse_type(name[len("cast ") :], "cast")
    except LocalProtocolError as error:
        raise Mismatch(error.message) from error
    if len(args) != 1:
        raise Mismatch(f"{name} takes 1 argument, {len(args)} given")
    function, source = FUNCTIONS["cast"], args[0]
    for signature in function.signatures:
        of, to = signature.args[0], signature.result
        if of.type is source.type and to.type is target.type and not to.is_list:
            return Resolved(function, signature, (source,), _nullable(target, function, args))
        is_any = of.variable == "any" and to.type is target.type
        if of.variable == "T" and same_type(source, target):
            return Resolved(function, signature, (source,), _nullable(target, function, args))
        if is_any:
            return Resolved(function, signature, (source,), _nullable(target, function, args))
    raise Mismatch(f"cast of {type_name(source)} to {type_name(target)}")


def _nullable(column: Column, function: Function, args: Sequence[Column]) -> Column:
    nulls = function.nulls
    some = all if nulls == "all" else any
    nullable = nulls == "always" or (nulls != "never" and some(each.nullable for each in args))
    return msgspec.structs.replace(column, name=function.name, nullable=nullable)


def _fit(signature: Signature, args: Sequence[Column]) -> _Matched | None:
    """The arguments as this signature takes them, and how far they are widened for it."""
    patterns = [signature.pattern(position) for position in range(len(args))]
    bound: dict[str, Column] = {}
    for pattern, arg in zip(patterns, args, strict=True):
        if pattern.variable in ("T", "U") and not _bind(pattern, arg, bound):
            return None
    scales = _scales(patterns, args)
    cost = 0
    widened: list[Column] = []
    for pattern, arg in zip(patterns, args, strict=True):
        to = _wanted(pattern, arg, bound, scales)
        if to is None:
            return None
        cost += _distance(arg, to)
        widened.append(to)
    return _Matched(cost, tuple(widened), bound, scales)


def _bind(pattern: Pattern, arg: Column, bound: dict[str, Column]) -> bool:
    """Widen what the variable stands for to hold `arg` too."""
    if pattern.is_list:
        if arg.type is not T.LIST:
            return False
        arg = arg.fields[0]
    known = bound.get(pattern.variable)
    common = arg if known is None else common_type(known, arg)
    if common is None:
        return False
    nullable = arg.nullable or (known is not None and known.nullable)
    bound[pattern.variable] = msgspec.structs.replace(common, name="element", nullable=nullable)
    return True


def _scales(patterns: Sequence[Pattern], args: Sequence[Column]) -> dict[str, int]:
    scales: dict[str, int] = {}
    for pattern, arg in zip(patterns, args, strict=True):
        if pattern.scale:
            written = int(pattern.scale) if pattern.scale.isdigit() else arg.scale
            scales[pattern.scale] = max(scales.get(pattern.scale, 0), written)
    return scales


def _wanted(pattern: Pattern, arg: Column, bound: dict[str, Column], scales: dict[str, int]) -> Column | None:
    """The column that `arg` is widened to; None if it cannot be."""
    if pattern.variable == "any":
        return arg if not pattern.is_list or arg.type is T.LIST else None
    if pattern.variable:
        to = bound[pattern.variable]
        return Column("", T.LIST, fields=(to,)) if pattern.is_list else to
    assert pattern.type is not None
    if pattern.is_list:
        fits = arg.type is T.LIST and arg.fields[0].type is pattern.type
        return arg if fits else None
    if arg.type is not pattern.type and pattern.type not in _WIDER.get(arg.type, ()):
        return None
    scale = 0
    if pattern.type is T.NUMERIC:
        scale = scales.get(pattern.scale, 0)
        if scale < arg.scale:
            return None
    return Column("", pattern.type, scale=scale, fields=arg.fields if arg.type is pattern.type else ())


def _distance(arg: Column, to: Column) -> int:
    if arg.type is to.type:
        return 0
    wider = _WIDER.get(arg.type, ())
    return 1 + wider.index(to.type) if to.type in wider else 0


def _result(pattern: Pattern, bound: dict[str, Column], scales: dict[str, int]) -> Column:
    """The column that comes out."""
    if pattern.variable:
        column = bound[pattern.variable]
    else:
        assert pattern.type is not None
        column = Column("", pattern.type, scale=_scale_of(pattern.scale, scales))
    if pattern.is_list:
        element = msgspec.structs.replace(column, nullable=column.nullable or pattern.null_elements)
        return Column("", T.LIST, fields=(element,))
    return column


def _scale_of(scale: str, scales: dict[str, int]) -> int:
    if scale == "s+t":
        return min(scales["s"] + scales["t"], MAX_SCALE)
    if scale == "q":
        return max(_QUOTIENT_SCALE, scales["s"], scales["t"])
    return int(scale) if scale.isdigit() else scales.get(scale, 0)
