"""Expressions and plans as text, in the notation that parse_expr.py and parse_plan.py read.

Right because reading what is printed gives the same thing again, for all that the notation can say. An
Mfp with several parts is printed as the lines `Project`, `Filter`, `Map`, which is the order they apply
in, from below.

Does not: print what the notation has no form for (a call or a literal that no text yields is printed near
enough to be understood).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from controller_proto.expr import Call, Case, ColumnRef, Expr, Literal
from controller_proto.literals import format_scalar
from controller_proto.plan import (
    Aggregate,
    ArrangeBy,
    Constant,
    FlatMap,
    Get,
    Join,
    Let,
    LetRec,
    Mfp,
    Negate,
    OrderBy,
    Plan,
    Reduce,
    Threshold,
    TopK,
    Union,
)
from controller_proto.schema import ColumnType, Row, Schema, type_name
from controller_proto.tokens import quote

__all__ = ["format_expr", "format_order", "format_types", "print_plan"]

_OR, _AND, _NOT, _IS, _COMPARISON, _LIKE, _OTHER, _ADD, _MULTIPLY, _UNARY, _ATOM = range(1, 12)
_BINARY = {
    **dict.fromkeys(("=", "!=", "<", "<=", ">", ">="), _COMPARISON),
    **dict.fromkeys(("||", "->", "->>", "#>", "#>>", "@>", "<@", "?"), _OTHER),
    **dict.fromkeys(("~", "~*", "&", "|", "#", "<<", ">>"), _OTHER),
    "+": _ADD, "-": _ADD, "*": _MULTIPLY, "/": _MULTIPLY, "%": _MULTIPLY,
}  # fmt: skip
_TESTS = ("is_null", "is_true", "is_false", "is_unknown")


def format_expr(expr: Expr, floor: int = 0) -> str:
    """`expr` as text, in parentheses if it binds less tightly than `floor`.

    >>> format_expr(Call("not", (Call("is_null", (ColumnRef(0),)),)))
    '#0 IS NOT NULL'
    """
    text, strength = _expr(expr)
    return text if strength >= floor else f"({text})"


def _expr(expr: Expr) -> tuple[str, int]:
    match expr:
        case ColumnRef(index):
            return f"#{index}", _ATOM
        case Literal():
            return _literal(expr), _ATOM
        case Case():
            return _case(expr), _ATOM
        case Call(function, args):
            return _call(function, args)


def _literal(literal: Literal) -> str:
    name = type_name(literal.column)
    if literal.value is None:
        return f"null::{name}"
    text = format_scalar(literal.value, literal.column)
    match literal.type:
        case ColumnType.BOOL | ColumnType.INT64 | ColumnType.TEXT:
            return text
        case ColumnType.FLOAT64 if text[-1].isdigit():
            return text
        case _ if text[0] == '"':
            return f"{name} {text}"
        case _ if text[-1].isdigit():
            return f"{text}::{name}"
        case _:
            return f"{quote(text)}::{name}"


def _case(expr: Case) -> str:
    arms = []
    rest: Expr = expr
    while isinstance(rest, Case):
        arms.append(f"WHEN {format_expr(rest.condition)} THEN {format_expr(rest.then)}")
        rest = rest.otherwise
    return f"CASE {' '.join(arms)} ELSE {format_expr(rest)} END"


def _call(function: str, args: Sequence[Expr]) -> tuple[str, int]:
    if function in ("and", "or") and len(args) > 1:
        strength = _AND if function == "and" else _OR
        return f" {function.upper()} ".join(format_expr(a, strength + 1) for a in args), strength
    if function in _BINARY and len(args) == 2:
        strength = _BINARY[function]
        left = format_expr(args[0], strength + (strength == _COMPARISON))
        return f"{left} {function} {format_expr(args[1], strength + 1)}", strength
    if len(args) == 1 and (function in ("not", "neg", "bit_not", *_TESTS) or function.startswith("cast ")):
        return _unary(function, args[0])
    listed = ", ".join(format_expr(a) for a in args)
    match function, len(args):
        case "is_distinct_from", 2:
            return _distinct("IS DISTINCT FROM", args), _IS
        case "like" | "ilike", 2:
            words = f"{format_expr(args[0], _OTHER)} {function.upper()} {format_expr(args[1], _OTHER)}"
            return words, _LIKE
        case "between", 3:
            low, high = (format_expr(a, _OTHER) for a in args[1:])
            return f"{format_expr(args[0], _OTHER)} BETWEEN {low} AND {high}", _LIKE
        case "in", count if count > 1:
            return f"{format_expr(args[0], _OTHER)} IN ({', '.join(map(format_expr, args[1:]))})", _LIKE
        case "= any", 2:
            return f"{format_expr(args[0], _LIKE)} = ANY({format_expr(args[1])})", _COMPARISON
        case "subscript", 2:
            return f"{format_expr(args[0], _ATOM)}[{format_expr(args[1])}]", _ATOM
        case "array", _:
            return f"array[{listed}]", _ATOM
    return f"{function}({listed})", _ATOM


def _unary(function: str, arg: Expr) -> tuple[str, int]:
    match function:
        case "not":
            if isinstance(arg, Call) and arg.function in _TESTS and len(arg.args) == 1:
                return f"{format_expr(arg.args[0], _IS)} IS NOT {arg.function[3:].upper()}", _IS
            if isinstance(arg, Call) and arg.function == "is_distinct_from" and len(arg.args) == 2:
                return _distinct("IS NOT DISTINCT FROM", arg.args), _IS
            return f"NOT {format_expr(arg, _NOT)}", _NOT
        case "neg":
            text = format_expr(arg, _UNARY)
            # `-1` is a literal, and `--` would be read as two of them.
            ambiguous = text[0].isdigit() or text[0] == "-"
            return f"-({text})" if ambiguous else f"-{text}", _UNARY
        case "bit_not":
            return f"~ {format_expr(arg, _UNARY)}", _UNARY
        case _ if function in _TESTS:
            return f"{format_expr(arg, _IS)} IS {function[3:].upper()}", _IS
        case _:
            return f"({format_expr(arg)})::{function[5:]}", _ATOM


def _distinct(words: str, args: Sequence[Expr]) -> str:
    return f"{format_expr(args[0], _IS)} {words} {format_expr(args[1], _COMPARISON)}"


def format_types(schema: Schema) -> str:
    """`(bigint, text?)`."""
    return "(" + ", ".join(type_name(c) + "?" * c.nullable for c in schema.columns) + ")"


def format_order(order: Iterable[OrderBy]) -> str:
    """`#1 desc nulls_first, #2`."""
    return ", ".join(
        f"#{item.column}" + " desc" * item.descending + " nulls_first" * item.nulls_first for item in order
    )


def print_plan(plan: Plan, indent: int = 0) -> list[str]:
    """The lines of `plan`."""
    pad = "  " * indent
    if isinstance(plan, Let):
        return _let(plan, indent)
    if isinstance(plan, LetRec):
        return _let_rec(plan, indent)
    if isinstance(plan, Mfp):
        return _mfp(plan, indent)
    if isinstance(plan, Constant):
        return [pad + line for line in _constant(plan)]
    below = [line for each in _inputs(plan) for line in print_plan(each, indent + 1)]
    return [pad + _head(plan), *below]


def _inputs(plan: Plan) -> tuple[Plan, ...]:
    match plan:
        case Join() | Union():
            return plan.inputs
        case FlatMap() | Reduce() | TopK() | Negate() | Threshold() | ArrangeBy():
            return (plan.input,)
        case _:
            return ()


def _head(plan: Plan) -> str:
    match plan:
        case Get(id):
            return f"Get {id}"
        case FlatMap(_, function, args):
            return f"FlatMap {function}({_list(args)})" + " with ordinality" * plan.with_ordinality
        case Join():
            return _join(plan)
        case Reduce(_, key, ()) if not plan.monotonic and plan.expected_group_size is None:
            return f"Distinct project=[{_list(key)}]"
        case Reduce():
            return _reduce(plan)
        case TopK():
            return _top_k(plan)
        case ArrangeBy(_, keys):
            return f"ArrangeBy keys=[{', '.join(f'[{_list(key)}]' for key in keys)}]"
        case _:
            return type(plan).__name__


def _list(exprs: Iterable[Expr]) -> str:
    return ", ".join(format_expr(expr) for expr in exprs)


def _join(plan: Join) -> str:
    if not plan.equivalences:
        return "CrossJoin"
    classes = (" = ".join(format_expr(e, _OTHER) for e in members) for members in plan.equivalences)
    kind = "" if plan.kind == "differential" else f" type={plan.kind}"
    return f"Join on=({' AND '.join(classes)}){kind}" + " null_safe" * plan.null_safe


def _reduce(plan: Reduce) -> str:
    words = ["Reduce"]
    if plan.group_key:
        words.append(f"group_by=[{_list(plan.group_key)}]")
    words.append(f"aggregates=[{', '.join(_aggregate(a) for a in plan.aggregates)}]")
    if plan.monotonic:
        words.append("monotonic")
    if plan.expected_group_size is not None:
        words.append(f"exp_group_size={plan.expected_group_size}")
    return " ".join(words)


def _aggregate(aggregate: Aggregate) -> str:
    if aggregate.expr is None:
        return f"{aggregate.function}(*)"
    args = _list((aggregate.expr, *aggregate.args))
    order = f" order by {format_order(aggregate.order_by)}" if aggregate.order_by else ""
    return f"{aggregate.function}({'distinct ' * aggregate.distinct}{args}{order})"


def _top_k(plan: TopK) -> str:
    words = ["TopK"]
    if plan.group_key:
        words.append(f"group_by=[{', '.join(f'#{c}' for c in plan.group_key)}]")
    if plan.order:
        words.append(f"order_by=[{format_order(plan.order)}]")
    if plan.limit is not None:
        words.append(f"limit={format_expr(plan.limit, _ATOM)}")
    if plan.offset:
        written = str(plan.offset) if isinstance(plan.offset, int) else format_expr(plan.offset, _ATOM)
        words.append(f"offset={written}")
    if plan.monotonic:
        words.append("monotonic")
    return " ".join(words)


def _mfp(plan: Mfp, indent: int) -> list[str]:
    heads = []
    if plan.projection is not None:
        heads.append(f"Project ({', '.join(f'#{c}' for c in plan.projection)})")
    if plan.predicates:
        heads.append("Filter " + " AND ".join(format_expr(p, _NOT) for p in plan.predicates))
    if plan.maps or not heads:
        heads.append(f"Map ({_list(plan.maps)})")
    lines = ["  " * (indent + depth) + head for depth, head in enumerate(heads)]
    return lines + print_plan(plan.input, indent + len(heads))


def _constant(plan: Constant) -> list[str]:
    empty = "" if plan.rows or plan.error else " <empty>"
    error = f" error({quote(plan.error)})" if plan.error else ""
    head = f"Constant{empty}{error} // {{ types: {quote(format_types(plan.schema))} }}"
    return [head, *("  - " + _row(row, diff, plan.schema) for row, diff in plan.rows)]


def _row(row: Row, diff: int, schema: Schema) -> str:
    values = ", ".join(format_scalar(v, c) for v, c in zip(row, schema.columns, strict=True))
    return f"({values})" if diff == 1 else f"(({values}) x {diff})"


def _let(plan: Let, indent: int) -> list[str]:
    pad = "  " * indent
    lines = [pad + "With"]
    rest: Plan = plan
    while isinstance(rest, Let):
        lines += [f"{pad}  cte {rest.id} =", *print_plan(rest.value, indent + 2)]
        rest = rest.body
    return [*lines, pad + "Return", *print_plan(rest, indent + 1)]


def _let_rec(plan: LetRec, indent: int) -> list[str]:
    pad = "  " * indent
    limit = ""
    if plan.limit is not None:
        limit = f" [recursion_limit={plan.limit}{', return_at_limit' * plan.return_at_limit}]"
    lines = [f"{pad}With Mutually Recursive{limit}"]
    for id, schema, value in plan.bindings:
        lines.append(f"{pad}  cte {id} = // {{ types: {quote(format_types(schema))} }}")
        lines += print_plan(value, indent + 2)
    return [*lines, pad + "Return", *print_plan(plan.body, indent + 1)]
