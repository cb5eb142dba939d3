"""Scalar expressions, as data. Meaning: PostgreSQL's, with three-valued logic. What fails is an error in data
(`eval-error: division by zero`), never an exception.

The functions of `Call` are those of the table (functions/, docs/functions.md); a cast is `cast TYPE`.

Does not: type (typing_rules.py does).
"""

from __future__ import annotations

import msgspec

from controller_proto.schema import Column, ColumnType, Scalar, freeze

__all__ = ["Call", "Case", "ColumnRef", "Expr", "Literal", "is_told", "references"]


class ColumnRef(msgspec.Struct, frozen=True, tag="col", tag_field="e"):
    """Column `index` of the input row."""

    index: int


class Literal(msgspec.Struct, frozen=True, tag="lit", tag_field="e"):
    """A value of `type`; None is NULL. scale, fields: as a Column of that type has them."""

    type: ColumnType
    value: Scalar
    scale: int = 0
    fields: tuple[Column, ...] = ()

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "value", freeze((self.value,))[0])
        _ = self.column

    @property
    def column(self) -> Column:
        """A column that it could stand in. Raises ValueError if scale or fields do not go with the type."""
        return Column("literal", self.type, self.value is None, self.scale, self.fields)


class Call(msgspec.Struct, frozen=True, tag="call", tag_field="e"):
    """`function` of `args`."""

    function: str
    args: tuple[Expr, ...]


class Case(msgspec.Struct, frozen=True, tag="case", tag_field="e"):
    """`CASE WHEN condition THEN then ELSE otherwise END`; an arm not taken is not evaluated."""

    condition: Expr
    then: Expr
    otherwise: Expr


Expr = ColumnRef | Literal | Call | Case


def is_told(expr: Expr) -> bool:
    """Whether it is `error("...")`, which stands for a value of any type."""
    return isinstance(expr, Call) and expr.function == "error" and len(expr.args) == 1


def references(expr: Expr) -> frozenset[int]:
    """The columns an expression reads."""
    match expr:
        case ColumnRef(index):
            return frozenset((index,))
        case Literal():
            return frozenset()
        case Case(condition, then, otherwise):
            return references(condition) | references(then) | references(otherwise)
        case Call(_, args):
            return frozenset().union(*map(references, args))
