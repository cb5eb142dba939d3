"""Relations: what lowering knows of a collection before it is a node.

A relation is a base and stages that are pending on it. The base is a node; or imported indexes of the
collection, to be streamed or looked up; or a join, a table function or a temporal filter that is no node yet,
because how it is made depends on what is asked of it. Nodes are made when first needed, once.

Does not: decide how anything is made.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace

from clusterd.dataflow.operator import Columns
from clusterd.operators.mfp import StageSpec
from clusterd.render.equivalences import Equivalences
from clusterd.render.functions import TableCall
from clusterd.render.physical import DeltaJoinNode, JoinNode
from clusterd.render.stages import columns_after, merged
from controller_proto.dataflow import Export
from controller_proto.expr import Expr

__all__ = ["PendingFilter", "PendingFlatMap", "PendingJoin", "Relation"]


@dataclass(frozen=True, eq=False, slots=True)
class PendingJoin:
    """A join whose order and kind are open. Its columns are those of its inputs, side by side."""

    inputs: tuple[Relation, ...]
    equivalences: Equivalences
    null_safe: bool
    delta: bool


@dataclass(frozen=True, eq=False, slots=True)
class PendingFlatMap:
    """A table function over a relation. Its columns are the relation's, then the function's."""

    source: Relation
    call: TableCall
    args: tuple[Expr, ...]


@dataclass(frozen=True, eq=False, slots=True)
class PendingFilter:
    """A temporal filter over a relation: a stage that is an operator of its own."""

    source: Relation
    stage: StageSpec


@dataclass(slots=True)
class Relation:
    """A collection: `columns` as they come out of the pending `stages` over `base` columns.

    The base is `node`, or `pending`, or the first of `arranged`. A pending JoinNode or DeltaJoinNode has
    neither output nor closure yet: `stages` become these. streamed: the node whose output the relation is.
    """

    base: Columns
    node: int | None = None
    pending: PendingJoin | PendingFlatMap | PendingFilter | JoinNode | DeltaJoinNode | None = None
    arranged: tuple[Export, ...] = ()
    stages: tuple[StageSpec, ...] = ()
    columns: Columns = ()
    streamed: int | None = None

    def then(self, *stages: StageSpec) -> Relation:
        """This with further stages pending."""
        columns = columns_after(stages, self.columns)
        return replace(self, stages=self.stages + stages, columns=columns, streamed=None)

    @property
    def identity(self) -> Hashable:
        """Equal for relations that are the same rows, as far as their making tells. Valid while they live."""
        base = None if self.pending is None else id(self.pending)
        first = self.arranged[0].id if self.arranged and self.node is None else None
        return self.node, base, first, merged(self.stages, self.base)
