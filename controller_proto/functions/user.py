"""Functions of the user, as far as plans must know them: names, signatures, and what aggregates stand for.

They are added when a process starts, from the user's module (clusterd/functions.py): the process that types
plans and those that run them load the same one. An aggregate is other aggregates and a function of them:

- by sums: each state is a function of the arguments, the aggregate is `NAME finish` of the sums of states;
- by values: it is `NAME finish` of the list that array_agg makes.

So what is incremental about it, its retractions and its errors, is what theirs is.

Does not: hold or call the user's code.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import msgspec

from controller_proto.aggregates import AGGREGATES
from controller_proto.functions.resolve import Mismatch, best_signature
from controller_proto.functions.signatures import Function, Signature, declared
from controller_proto.functions.table import FUNCTIONS, TABLE_FUNCTIONS, USER_FUNCTIONS
from controller_proto.schema import Column, ColumnType

__all__ = [
    "USER_AGGREGATES", "UserAggregate", "add_aggregate", "add_function", "forget_functions",
    "user_aggregate",
]  # fmt: skip

_NAME: Final = re.compile(r"[a-z_][a-z0-9_]*")
_KEPT: Final = frozenset({"array", "case", "cast", "extract", "false", "not", "null", "true", "trim"})
_STATES: Final = (ColumnType.INT64, ColumnType.FLOAT64, ColumnType.NUMERIC)


class UserAggregate(msgspec.Struct, frozen=True):
    """An aggregate of the user. states: the functions whose sums it is made of; none: of the values."""

    function: Function
    states: tuple[Function, ...]
    finish: Function

    @property
    def signature(self) -> Signature:
        return self.function.signatures[0]


USER_AGGREGATES: Final[dict[str, UserAggregate]] = {}


def add_function(name: str, signature: str, doc: str, *, strict: bool) -> Function:
    """Make a scalar function known. Raises ValueError that says what is wrong with it."""
    _check_name(name)
    function = _function(name, signature, doc, strict=strict)
    USER_FUNCTIONS[name] = function
    return function


def add_aggregate(name: str, signature: str, states: Sequence[str], doc: str) -> UserAggregate:
    """Make an aggregate known. states: types of its sums. Raises ValueError that says what is wrong."""
    _check_name(name)
    function = _function(name, signature, doc, strict=True)
    args, _, result = signature.rpartition("-> ")
    made = []
    for number, state in enumerate(states):
        made.append(_function(f"{name} state {number}", f"{args}-> {state}", doc, strict=True))
        if made[-1].signatures[0].result.type not in _STATES or made[-1].signatures[0].result.is_list:
            raise ValueError(f"{name}: a sum is bigint, double precision or numeric(s), not {state}")
    if not states and len(function.signatures[0].args) != 1:
        raise ValueError(f"{name}: an aggregate of values takes one argument")
    taken = ", ".join(states) if states else f"{args.strip()} list"
    finish = _function(f"{name} finish", f"{taken} -> {result}", doc, strict=True)
    for each in (*made, finish):
        USER_FUNCTIONS[each.name] = each
    USER_AGGREGATES[name] = UserAggregate(function, tuple(made), finish)
    return USER_AGGREGATES[name]


def forget_functions() -> None:
    """Forget all of them."""
    USER_FUNCTIONS.clear()
    USER_AGGREGATES.clear()


def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name) or name in _KEPT:
        raise ValueError(f"{name!r} is no name of a function")
    if name in FUNCTIONS or name in TABLE_FUNCTIONS or name in AGGREGATES:
        raise ValueError(f"{name} is built in")
    if name in USER_FUNCTIONS or name in USER_AGGREGATES:
        raise ValueError(f"{name} is declared twice")


def _function(name: str, signature: str, doc: str, *, strict: bool) -> Function:
    try:
        function = declared("user", name, signature, doc, "", "", errors="what it raises", nulls="always")
    except KeyError as error:
        raise ValueError(f"{name}: {error.args[0]!r} is no type") from error
    (found, *more) = function.signatures
    patterns = (*found.args, *found.results)
    if more or found.variadic or len(found.results) != 1 or any(each.variable for each in patterns):
        raise ValueError(f"{name}: {signature!r} is no signature of one function with types alone")
    return function


def user_aggregate(name: str, args: Sequence[Column], *, distinct: bool, ordered: bool) -> tuple[Column, ...]:
    """The columns that the arguments are widened to, then the one that comes out. Raises Mismatch."""
    aggregate = USER_AGGREGATES[name]
    signature, widened = best_signature(aggregate.function, args)
    if aggregate.states and (distinct or ordered):
        raise Mismatch(f"{name} takes no {'distinct' if distinct else 'order'}: it is made of sums")
    scale = signature.result.scale
    result = Column(name, ColumnType.BOOL, True)
    if signature.result.is_list:
        assert signature.result.type is not None
        element = Column("element", signature.result.type, True, int(scale or 0))
        return (*widened, msgspec.structs.replace(result, type=ColumnType.LIST, fields=(element,)))
    assert signature.result.type is not None
    return (*widened, msgspec.structs.replace(result, type=signature.result.type, scale=int(scale or 0)))
