"""Plans from text: one operator a line, its inputs indented below it.

Every node of the language is read, also those that the replica refuses by name, so that the refusal is
its own. `Project`, `Map` and `Filter` are each one Mfp; they are not merged here, since what a script
says is what the replica gets. Errors name the line.

Does not: type or validate (typing_rules.py, validate.py); read dataflow headers (parse_dataflow.py).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from controller_proto.errors import LocalProtocolError
from controller_proto.expr import ColumnRef, Expr
from controller_proto.literals import parse_row, parse_types
from controller_proto.parse_expr import (
    parse_aggregate,
    parse_columns,
    parse_equivalences,
    parse_exprs,
    parse_order,
    parse_predicates,
    read_expr,
)
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
from controller_proto.schema import Row, Schema
from controller_proto.suggest import not_called
from controller_proto.tokens import Tokens, tokenize

__all__ = ["OPERATORS", "Line", "parse_plan", "plan_of", "tree"]

_PRIMARY = 9  # binds as tightly as a unary minus: what may stand after `limit=` without parentheses
_MAX_DEPTH = 100  # a level costs four Python frames of the usual thousand


@dataclass(slots=True)
class Line:
    """A line of a body and the lines indented below it. number: from 1, within the body."""

    number: int
    text: str
    children: list[Line] = field(default_factory=list)

    def error(self, message: str) -> LocalProtocolError:
        return LocalProtocolError("invalid-plan", f"line {self.number}: {message}")


def tree(lines: Sequence[str]) -> list[Line]:
    """The lines of a body as a tree, by indentation; blank ones are skipped. Raises LocalProtocolError."""
    roots: list[Line] = []
    open_lines: list[tuple[int, Line]] = []
    for number, text in enumerate(lines, 1):
        if not text.strip():
            continue
        indent = len(text) - len(text.lstrip())
        line = Line(number, text.strip())
        while open_lines and open_lines[-1][0] >= indent:
            open_lines.pop()
        siblings = open_lines[-1][1].children if open_lines else roots
        if len(open_lines) > _MAX_DEPTH:
            raise line.error("nested too deeply")
        siblings.append(line)
        open_lines.append((indent, line))
    return roots


def parse_plan(lines: Sequence[str]) -> Plan:
    """The one plan that is all of `lines`. Raises LocalProtocolError `invalid-plan`."""
    return plan_of(tree(lines))


def plan_of(lines: Sequence[Line]) -> Plan:
    """The one plan of these sibling lines (With and Return are two)."""
    plans = _plans(lines)
    if len(plans) != 1:
        if not lines:
            raise LocalProtocolError("invalid-plan", "a plan is missing")
        raise lines[0].error(f"{len(plans)} plans stand where one is expected")
    return plans[0]


def _plans(lines: Sequence[Line]) -> list[Plan]:
    plans = []
    position = 0
    while position < len(lines):
        line = lines[position]
        if line.text.split()[0].lower() == "with":
            body = lines[position + 1] if position + 1 < len(lines) else None
            if body is None or body.text.lower() != "return":
                raise line.error("With is followed by Return, at the same indentation")
            plans.append(_with(line, body))
            position += 2
        else:
            plans.append(_node(line))
            position += 1
    return plans


def _node(line: Line) -> Plan:
    name, _, rest = line.text.partition(" ")
    reader = _READERS.get(name.lower())
    if reader is None:
        raise line.error(not_called("operator", name, OPERATORS))
    try:
        tokens = Tokens(rest)
        plan = reader(line, tokens)
        if tokens.next.kind == "comment":
            tokens.take()
        tokens.expect_end()
    except LocalProtocolError as error:
        if error.message.startswith("line "):
            raise
        raise LocalProtocolError(error.code, f"line {line.number}: {error.message}", error.hint) from error
    return plan


def _input(line: Line) -> Plan:
    inputs = _plans(line.children)
    if len(inputs) != 1:
        raise line.error(f"{line.text.split()[0]} has one input, {len(inputs)} are given")
    return inputs[0]


def _inputs(line: Line) -> tuple[Plan, ...]:
    return tuple(_plans(line.children))


def _get(line: Line, tokens: Tokens) -> Plan:
    if line.children:
        raise line.error("Get has no input")
    if tokens.next.kind not in ("name", "number"):
        raise tokens.error("expected an id")
    id = tokens.take().value
    return Get(id if id[0].isalpha() else "u" + id)


def _constant(line: Line, tokens: Tokens) -> Plan:
    empty = tokens.accept_op("<")
    if empty:
        tokens.expect_word("empty")
        tokens.expect_op(">")
    error = ""
    if tokens.accept_word("error"):
        tokens.expect_op("(")
        error = tokens.take().value
        tokens.expect_op(")")
    if tokens.next.kind != "comment":
        raise tokens.error('expected // { types: ".." }')
    schema = _types(line, tokens.take().value)
    if empty and line.children:
        raise line.error("<empty> has no rows")
    return Constant(tuple(_constant_row(child, schema) for child in line.children), schema, error)


def _types(line: Line, comment: str) -> Schema:
    match = re.fullmatch(r'//\s*\{\s*types:\s*("(?:[^"\\]|\\.)*")\s*\}\s*', comment)
    if match is None:
        raise line.error('expected // { types: "(bigint, text?)" }')
    return parse_types(tokenize(match[1])[0].value)


def _constant_row(line: Line, schema: Schema) -> tuple[Row, int]:
    """`- (1, "a")` or `- ((1, "a") x 2)`."""
    tokens = Tokens(line.text)
    tokens.expect_op("-")
    tokens.expect_op("(")
    counted = tokens.accept_op("(")
    items: list[tuple[str, bool]] = []
    while not tokens.accept_op(")"):
        if items:
            tokens.expect_op(",")
        items.append(tokens.take_value())
    diff = 1
    if counted:
        tokens.expect_word("x")
        negative = tokens.accept_op("-")
        token = tokens.take()
        if not token.value.isdigit():
            raise line.error(f"expected a count, not {token.value!r}")
        diff = -int(token.value) if negative else int(token.value)
        tokens.expect_op(")")
    tokens.expect_end()
    return parse_row(items, schema), diff


def _project(line: Line, tokens: Tokens) -> Plan:
    return Mfp(_input(line), projection=parse_columns(tokens, "(", ")"))


def _map(line: Line, tokens: Tokens) -> Plan:
    return Mfp(_input(line), maps=parse_exprs(tokens, "(", ")"))


def _filter(line: Line, tokens: Tokens) -> Plan:
    return Mfp(_input(line), predicates=parse_predicates(tokens))


def _flat_map(line: Line, tokens: Tokens) -> Plan:
    if tokens.next.kind != "name":
        raise tokens.error("expected a table function")
    function, args = tokens.take().value.lower(), parse_exprs(tokens, "(", ")")
    with_ordinality = tokens.accept_word("with")
    if with_ordinality:
        tokens.expect_word("ordinality")
    return FlatMap(_input(line), function, args, with_ordinality)


def _join(line: Line, tokens: Tokens) -> Plan:
    classes: tuple[tuple[Expr, ...], ...] = ()
    kind, null_safe = "differential", False
    while tokens.next.kind == "name":
        word = _argument(tokens)
        if word == "on":
            classes = parse_equivalences(tokens)
        elif word == "type" and tokens.is_word("differential", "delta"):
            kind = tokens.take().value.lower()
        elif word == "null_safe":
            null_safe = True
        else:
            raise tokens.error("expected on=(..), type=differential, type=delta or null_safe")
    if not classes:
        raise tokens.error("Join needs on=(..); without it, it is a CrossJoin:")
    return Join(_inputs(line), classes, null_safe, kind)


def _cross_join(line: Line, tokens: Tokens) -> Plan:
    return Join(_inputs(line), ())


def _distinct(line: Line, tokens: Tokens) -> Plan:
    if _argument(tokens) != "project":
        raise tokens.error("expected project=[..]")
    return Reduce(_input(line), parse_exprs(tokens, "[", "]"))


def _reduce(line: Line, tokens: Tokens) -> Plan:
    key: tuple[Expr, ...] = ()
    aggregates: list[Aggregate] = []
    monotonic, size = False, None
    while tokens.next.kind == "name":
        word = _argument(tokens)
        if word == "group_by":
            key = parse_exprs(tokens, "[", "]")
        elif word == "aggregates":
            tokens.expect_op("[")
            while not tokens.accept_op("]"):
                if aggregates:
                    tokens.expect_op(",")
                aggregates.append(parse_aggregate(tokens))
        elif word == "monotonic":
            monotonic = True
        elif word == "exp_group_size":
            size = _whole(tokens)
        else:
            raise tokens.error("expected group_by=[..], aggregates=[..], monotonic or exp_group_size=N")
    return Reduce(_input(line), key, tuple(aggregates), monotonic, size)


def _top_k(line: Line, tokens: Tokens) -> Plan:
    key: list[int] = []
    order: tuple[OrderBy, ...] = ()
    limit: Expr | None = None
    offset: int | Expr = 0
    monotonic = False
    while tokens.next.kind == "name":
        word = _argument(tokens)
        if word == "group_by":
            for expr in parse_exprs(tokens, "[", "]"):
                if not isinstance(expr, ColumnRef):
                    raise tokens.error("TopK groups by columns; Map what is computed")
                key.append(expr.index)
        elif word == "order_by":
            order = parse_order(tokens)
        elif word == "limit":
            limit = read_expr(tokens, _PRIMARY)
        elif word == "offset":
            offset = _whole(tokens) if tokens.next.value.isdigit() else read_expr(tokens, _PRIMARY)
        elif word == "monotonic":
            monotonic = True
        else:
            raise tokens.error("expected group_by=[..], order_by=[..], limit=, offset= or monotonic")
    return TopK(_input(line), tuple(key), order, limit, offset, monotonic)


def _negate(line: Line, tokens: Tokens) -> Plan:
    return Negate(_input(line))


def _threshold(line: Line, tokens: Tokens) -> Plan:
    return Threshold(_input(line))


def _union(line: Line, tokens: Tokens) -> Plan:
    return Union(_inputs(line))


def _arrange_by(line: Line, tokens: Tokens) -> Plan:
    if _argument(tokens) != "keys":
        raise tokens.error("expected keys=[[..], ..]")
    keys: list[tuple[Expr, ...]] = []
    tokens.expect_op("[")
    while not tokens.accept_op("]"):
        if keys:
            tokens.expect_op(",")
        keys.append(parse_exprs(tokens, "[", "]"))
    return ArrangeBy(_input(line), tuple(keys))


def _argument(tokens: Tokens) -> str:
    """A flag, or the name before `=`."""
    word = tokens.take().value.lower()
    tokens.accept_op("=")
    return word


def _whole(tokens: Tokens) -> int:
    if not tokens.next.value.isdigit():
        raise tokens.error("expected a whole number")
    return int(tokens.take().value)


def _with(line: Line, body: Line) -> Plan:
    match = re.fullmatch(
        r"with(?P<recursive> mutually recursive)?"
        r"(?: \[recursion_limit=(?P<limit>\d+)(?P<return>, return_at_limit)?\])?",
        " ".join(line.text.split()),
        re.IGNORECASE,
    )
    if match is None:
        raise line.error("expected With, or With Mutually Recursive [recursion_limit=N, return_at_limit]")
    bindings = [_binding(child) for child in line.children]
    result = plan_of(body.children)
    if match["recursive"]:
        typed = []
        for child, (id, schema, value) in zip(line.children, bindings, strict=True):
            if schema is None:
                raise child.error(f'a recursive binding needs its types: cte {id} = // {{ types: ".." }}')
            typed.append((id, schema, value))
        limit = int(match["limit"]) if match["limit"] else None
        return LetRec(tuple(typed), result, limit, bool(match["return"]))
    if match["limit"]:
        raise line.error("recursion_limit belongs to With Mutually Recursive")
    for id, _, value in reversed(bindings):
        result = Let(id, value, result)
    return result


def _binding(line: Line) -> tuple[str, Schema | None, Plan]:
    match = re.fullmatch(r"cte (l\d+) =\s*(//.*)?", line.text)
    if match is None:
        raise line.error("expected cte l0 =")
    schema = _types(line, match[2]) if match[2] else None
    return match[1], schema, plan_of(line.children)


_BY_NAME: dict[str, Callable[[Line, Tokens], Plan]] = {
    "Get": _get,
    "Constant": _constant,
    "Project": _project,
    "Map": _map,
    "Filter": _filter,
    "FlatMap": _flat_map,
    "Join": _join,
    "CrossJoin": _cross_join,
    "Distinct": _distinct,
    "Reduce": _reduce,
    "TopK": _top_k,
    "Negate": _negate,
    "Threshold": _threshold,
    "Union": _union,
    "ArrangeBy": _arrange_by,
}
OPERATORS = (*_BY_NAME, "With", "Return")  # as they are usually written; read without regard to case
_READERS = {name.lower(): reader for name, reader in _BY_NAME.items()}
