"""Calls of table functions, as FlatMap needs them: resolved, their arguments widened, constants told apart.

Does not: place arguments in columns (lower.py does), run anything.
"""

from __future__ import annotations

from clusterd.convert import column_specs, to_wire, wire_schema
from clusterd.dataflow.operator import Columns
from clusterd.render.expr import compile_expr
from clusterd.render.functions import TableCall
from controller_proto.errors import Refusal
from controller_proto.expr import Call, Expr, Literal, references
from controller_proto.functions import TABLE_FUNCTIONS, Mismatch, resolve_table
from controller_proto.plan import FlatMap
from controller_proto.schema import Column, ColumnType, Schema, same_type, type_name
from controller_proto.typing_rules import expr_type

__all__ = ["is_constant", "may_fail", "table_call"]

_WHOLE = (ColumnType.INT32, ColumnType.INT64)


def table_call(plan: FlatMap, source: Columns) -> tuple[TableCall, tuple[Expr, ...]]:
    """The call of a FlatMap over rows of `source`, and its arguments as the function takes them.

    Raises Refusal(`invalid-plan`).
    """
    schema = wire_schema(source)
    types = [expr_type(arg, schema) for arg in plan.args]
    constants = tuple(arg.value if isinstance(arg, Literal) else None for arg in plan.args)
    try:
        resolved = resolve_table(plan.function, types, constants)
    except Mismatch as error:
        raise Refusal("invalid-plan", str(error)) from error
    args = tuple(
        arg if same_type(of, to) else Call(f"cast {type_name(to)}", (arg,))
        for arg, of, to in zip(plan.args, types, resolved.args, strict=True)
    )
    made = resolved.columns
    if plan.with_ordinality:
        made = (*made, Column("ordinality", ColumnType.INT64))
    call = TableCall(
        plan.function, resolved.signature.text, column_specs(Schema(resolved.args)),
        column_specs(Schema(made)), plan.with_ordinality,
    )  # fmt: skip
    return call, args


def is_constant(arg: Expr) -> bool:
    """Whether it is the same for every row, and no error."""
    return not references(arg) and compile_expr(arg, ()).run((), 1).errors is None


def may_fail(call: TableCall, args: tuple[Expr, ...]) -> bool:
    """Whether a row may become an error in the function itself."""
    if call.function == "generate_series" and to_wire(call.columns[0]).type in _WHOLE:
        return not all(isinstance(step, Literal) and step.value for step in args[2:])
    return bool(TABLE_FUNCTIONS[call.function].errors)
