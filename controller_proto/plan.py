"""Plan nodes, as data: what a build computes. Columns are positions; `Join` numbers them across its inputs.

Every node of the design stands here, so that the wire does not move when one gets rendered; `clusterd`
refuses by name (`invalid-plan`) those that it does not render yet.
"""

from __future__ import annotations

import msgspec

from controller_proto.expr import Expr
from controller_proto.ids import GlobalId
from controller_proto.schema import I64, U64, Row, Schema, freeze

__all__ = [
    "Aggregate", "ArrangeBy", "Constant", "FlatMap", "Get", "Join", "Let", "LetRec", "Mfp", "Negate",
    "OrderBy", "Plan", "Reduce", "Threshold", "TopK", "Union", "free_ids",
]  # fmt: skip


class Get(msgspec.Struct, frozen=True, tag="get", tag_field="p"):
    """A collection: an import, an earlier build, or (`l0`) a binding of an enclosing Let."""

    id: GlobalId


class Constant(msgspec.Struct, frozen=True, tag="constant", tag_field="p"):
    """Rows with their diffs, at every time; or, if `error` is not empty, that error alone."""

    rows: tuple[tuple[Row, I64], ...]
    schema: Schema
    error: str = ""

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "rows", tuple((freeze(row), diff) for row, diff in self.rows))


class Mfp(msgspec.Struct, frozen=True, tag="mfp", tag_field="p"):
    """Append `maps` as columns (each sees those before it), keep rows where all `predicates` hold, project.

    `projection` None keeps all columns; it may repeat and reorder.
    """

    input: Plan
    maps: tuple[Expr, ...] = ()
    predicates: tuple[Expr, ...] = ()
    projection: tuple[int, ...] | None = None


class FlatMap(msgspec.Struct, frozen=True, tag="flat-map", tag_field="p"):
    """Each row once for every row that table function `function` gives for it, with that row appended.

    with_ordinality: and behind it its number, from 1.
    """

    input: Plan
    function: str
    args: tuple[Expr, ...]
    with_ordinality: bool = False


class Join(msgspec.Struct, frozen=True, tag="join", tag_field="p"):
    """Rows of the product of the inputs in which the members of each equivalence class are equal.

    Equality is SQL's (NULL matches nothing, NaN matches NaN), unless `null_safe`.
    """

    inputs: tuple[Plan, ...]
    equivalences: tuple[tuple[Expr, ...], ...]
    null_safe: bool = False
    kind: str = "differential"


class OrderBy(msgspec.Struct, frozen=True):
    """One column of an order; NULL is last unless `nulls_first`, whichever way the values go."""

    column: int
    descending: bool = False
    nulls_first: bool = False


class Aggregate(msgspec.Struct, frozen=True):
    """function: one of aggregates.py; `expr` None is `count(*)`. distinct: each value counts once.

    `args` are those after the first; `order_by` says in which order an ordered aggregate takes its rows.
    """

    function: str
    expr: Expr | None = None
    distinct: bool = False
    args: tuple[Expr, ...] = ()
    order_by: tuple[OrderBy, ...] = ()


class Reduce(msgspec.Struct, frozen=True, tag="reduce", tag_field="p"):
    """One row a group: the group's key, then the aggregates. Without aggregates: distinct keys.

    monotonic: as of TopK.
    """

    input: Plan
    group_key: tuple[Expr, ...]
    aggregates: tuple[Aggregate, ...] = ()
    monotonic: bool = False
    expected_group_size: U64 | None = None


class TopK(msgspec.Struct, frozen=True, tag="top-k", tag_field="p"):
    """Rows at positions [offset, offset + limit) of each group in `order`, ties broken by the whole row.

    Both may be any integer expression over the columns of `group_key`, so they are of the group: NULL is no
    limit, or no offset; one that is negative, or fails, is an error in data while the group has rows, and if
    it reads no column it is refused. monotonic: the input only grows. Over what takes rows away by itself
    (monotonic.py) that is refused; a row that an import takes away is an error in data, which stays.
    """

    input: Plan
    group_key: tuple[int, ...]
    order: tuple[OrderBy, ...]
    limit: Expr | None = None
    offset: U64 | Expr = 0
    monotonic: bool = False


class Negate(msgspec.Struct, frozen=True, tag="negate", tag_field="p"):
    """Every row as often as it was missing."""

    input: Plan


class Threshold(msgspec.Struct, frozen=True, tag="threshold", tag_field="p"):
    """The rows with a positive count."""

    input: Plan


class Union(msgspec.Struct, frozen=True, tag="union", tag_field="p"):
    """The sum of inputs of the same types."""

    inputs: tuple[Plan, ...]


class ArrangeBy(msgspec.Struct, frozen=True, tag="arrange-by", tag_field="p"):
    """The input, arranged by each of `keys`."""

    input: Plan
    keys: tuple[tuple[Expr, ...], ...]


class Let(msgspec.Struct, frozen=True, tag="let", tag_field="p"):
    """`body`, in which `id` names `value`."""

    id: GlobalId
    value: Plan
    body: Plan


class LetRec(msgspec.Struct, frozen=True, tag="let-rec", tag_field="p"):
    """`body`, in which the bindings name the fixed point of their values, or what `limit` rounds give."""

    bindings: tuple[tuple[GlobalId, Schema, Plan], ...]
    body: Plan
    limit: U64 | None = None
    return_at_limit: bool = False


Plan = (
    Get | Constant | Mfp | FlatMap | Join | Reduce | TopK | Negate | Threshold | Union | ArrangeBy | Let
    | LetRec
)  # fmt: skip


def free_ids(plan: Plan) -> frozenset[GlobalId]:
    """The collections and bindings that `plan` reads and does not bind itself."""
    match plan:
        case Get(id):
            return frozenset((id,))
        case Constant():
            return frozenset()
        case Join(inputs) | Union(inputs):
            return frozenset().union(*map(free_ids, inputs))
        case Let(id, value, body):
            return free_ids(value) | (free_ids(body) - {id})
        case LetRec(bindings, body):
            found = free_ids(body).union(*(free_ids(value) for _, _, value in bindings))
            return found - {id for id, _, _ in bindings}
        case _:
            return free_ids(plan.input)
