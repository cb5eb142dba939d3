"""Rehearsal: everything that the first read of a life would have to load, done once before anyone waits.

Kernels are compiled by then (operators/kernels/warm.py); what is left is what Python makes on first use. A
small index in private memory is read by key and by scan, with a finishing that looks for a pattern in texts.

Does not: touch shared memory or files.
"""

from __future__ import annotations

from clusterd.convert import arrangement_schema
from clusterd.render.functions.pandas_of_arrow import settle_pandas
from clusterd.runtime.evaluate import Readable, check_peek, evaluate
from clusterd.runtime.limits import Limits
from controller_proto.command import Finishing, Peek
from controller_proto.dataflow import Export
from controller_proto.expr import Call, ColumnRef, Literal
from controller_proto.plan import OrderBy
from controller_proto.schema import SAMPLE_SCHEMA, ColumnType
from shm_arrangements.builder import HeapAllocator, build_batch
from shm_arrangements.description import Description
from shm_arrangements.frontier import Frontier
from shm_arrangements.updates import Updates

__all__ = ["rehearse"]


def rehearse(*, has_functions: bool) -> None:
    """Once, before the worker says that it is ready. has_functions: of the user, which may use pandas."""
    settle_pandas(wanted=has_functions)
    schema = arrangement_schema(SAMPLE_SCHEMA, (0,))
    rows = [((k, text), 0, 1) for k, text in enumerate(("a", "b", "abcdefghij", ""))]
    updates = Updates.from_rows([column.type for column in schema.columns], rows)
    description = Description(Frontier.minimum(), Frontier.at(1), Frontier.minimum())
    index = Readable.of("u1", schema, [build_batch(updates, schema, description, HeapAllocator())], [])
    export = Export("u1", "index", "u1", SAMPLE_SCHEMA, (0,))
    finishing = Finishing(
        maps=(Call("+", (ColumnRef(0), Literal(ColumnType.INT64, 1))),),
        predicates=(
            Call(">", (ColumnRef(0), Literal(ColumnType.INT64, 0))),
            Call("~", (ColumnRef(1), Literal(ColumnType.TEXT, "[a-z]"))),
        ),
        order_by=(OrderBy(1, descending=True),),
        limit=2,
        projection=(1, 2),
    )
    for peek in (
        Peek(1, "key", "u1", 0, ((2,),)),
        Peek(1, "keys", "u1", 0, ((2,), (1,), (2,))),
        Peek(1, "scan", "u1", 0),
        Peek(1, "finish", "u1", 0, None, finishing),
    ):
        check_peek(peek, export)
        evaluate(peek, 0, index, limits=Limits(1 << 20), served_by="solo")
