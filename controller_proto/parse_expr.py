"""Scalar expressions from text, with PostgreSQL's precedence.

From loosest to tightest: OR, AND, NOT, IS, comparisons (which do not chain), `||`, `+ -`, `* / %`, unary `-`,
`::`. A chain of AND (or of OR) is one call of all its parts. A number with a point or an exponent is a
double; a whole number beyond bigint is a numeric. A text cast to a type, a type followed by a text, and a
number cast to a type of numbers (by its digits as they are written) are literals of that type; any other
cast, and any function, is a call by name, whether or not the replica knows it.

Does not: type (typing_rules.py does).
"""

from __future__ import annotations

import msgspec

from controller_proto.errors import LocalProtocolError
from controller_proto.expr import Call, Case, ColumnRef, Expr, Literal
from controller_proto.literals import TYPE_NAMES, format_scalar, parse_scalar, read_type
from controller_proto.plan import Aggregate, OrderBy
from controller_proto.schema import INTEGERS, Column, ColumnType, Scalar, type_name
from controller_proto.tokens import Tokens

__all__ = [
    "parse_aggregate", "parse_columns", "parse_equivalences", "parse_expr", "parse_exprs", "parse_order",
    "parse_predicates", "read_expr",
]  # fmt: skip

_NOT, _IS, _COMPARISON, _UNARY = 3, 4, 5, 9
_COMPARISONS = ("=", "!=", "<>", "<", "<=", ">", ">=")
_BINARY = {"||": 6, "+": 7, "-": 7, "*": 8, "/": 8, "%": 8, **dict.fromkeys(_COMPARISONS, _COMPARISON)}
_LOGIC = {"or": 1, "and": 2}
_NUMBERS = frozenset({*INTEGERS, ColumnType.NUMERIC, ColumnType.FLOAT32, ColumnType.FLOAT64})
_MAX_DEPTH = 150  # below what typing_rules refuses, and below the stack: a level here is three frames


def parse_expr(text: str) -> Expr:
    """The expression that is all of `text`. Raises LocalProtocolError `invalid-plan`.

    >>> parse_expr("NOT #0 IS NULL")
    Call(function='not', args=(Call(function='is_null', args=(ColumnRef(index=0),)),))
    """
    tokens = Tokens(text)
    expr = read_expr(tokens)
    tokens.expect_end()
    return expr


def read_expr(tokens: Tokens, floor: int = 0, depth: int = 0) -> Expr:
    """The longest expression from here whose operators bind tighter than `floor`."""
    if depth > _MAX_DEPTH:
        raise tokens.error("nested too deeply")
    left = _prefix(tokens, depth)
    while True:
        token = tokens.next
        word = token.value.lower() if token.kind == "name" else ""
        if word in _LOGIC and _LOGIC[word] > floor:
            parts = [left]
            while tokens.accept_word(word):
                parts.append(read_expr(tokens, _LOGIC[word], depth + 1))
            left = Call(word, tuple(parts))
        elif word == "is" and floor < _IS:
            left = _is(tokens, left)
        elif token.kind == "op" and token.value == "::":
            tokens.take()
            left = _cast(left, read_type(tokens, "literal"), tokens)
        elif token.kind == "op" and _BINARY.get(token.value, 0) > floor:
            strength = _BINARY[token.value]
            tokens.take()
            right = read_expr(tokens, strength, depth + 1)
            left = Call("!=" if token.value == "<>" else token.value, (left, right))
            if strength == _COMPARISON and tokens.is_op(*_COMPARISONS):
                raise tokens.error("comparisons do not chain: parenthesise")
        else:
            return left


def _is(tokens: Tokens, left: Expr) -> Expr:
    tokens.expect_word("is")
    negated = tokens.accept_word("not")
    for word in ("null", "true", "false"):
        if tokens.accept_word(word):
            call = Call(f"is_{word}", (left,))
            return Call("not", (call,)) if negated else call
    raise tokens.error("expected NULL, TRUE or FALSE")


def _prefix(tokens: Tokens, depth: int) -> Expr:
    token = tokens.next
    if tokens.accept_word("not"):
        return Call("not", (read_expr(tokens, _NOT, depth + 1),))
    if tokens.accept_op("-"):
        if tokens.next.kind == "number":
            return _number(tokens, "-")
        return Call("neg", (read_expr(tokens, _UNARY, depth + 1),))
    if tokens.accept_op("("):
        inner = read_expr(tokens, 0, depth + 1)
        tokens.expect_op(")")
        return inner
    if token.kind == "number":
        return _number(tokens)
    if token.kind == "text":
        return Literal(ColumnType.TEXT, tokens.take().value)
    if token.kind == "column":
        return ColumnRef(int(tokens.take().value[1:]))
    if token.kind == "name":
        return _named(tokens, depth)
    raise tokens.error("expected an expression")


def _number(tokens: Tokens, sign: str = "") -> Expr:
    digits = tokens.take().value
    text = sign + digits
    if tokens.accept_op("::"):
        column = read_type(tokens, "literal")
        if column.type in _NUMBERS:
            return _literal(tokens, text, column)
        return _cast(_plain_number(digits, text), column, tokens)
    return _plain_number(digits, text)


def _plain_number(digits: str, text: str) -> Literal:
    if not digits.isdigit():
        return Literal(ColumnType.FLOAT64, float(text))
    if len(digits) < 20 and -(1 << 63) <= int(text) < 1 << 63:
        return Literal(ColumnType.INT64, int(text))
    return Literal(ColumnType.NUMERIC, text)


def _named(tokens: Tokens, depth: int) -> Expr:
    word = tokens.next.value.lower()
    if word == "case":
        tokens.take()
        return _case(tokens, depth)
    called = tokens.after.kind == "op" and tokens.after.value == "("
    if called and word not in ("numeric", "record"):
        tokens.take()
        return Call(word, tuple(_list(tokens, "(", ")", depth)))
    if word in ("true", "false"):
        tokens.take()
        return Literal(ColumnType.BOOL, word == "true")
    if word == "null":
        tokens.take()
        if not tokens.accept_op("::"):
            raise tokens.error("a null needs a type, as in null::bigint,")
        return _typed(read_type(tokens, "literal"), None)
    if tokens.after.kind == "text" or word in TYPE_NAMES:
        column = read_type(tokens, "literal")
        if tokens.next.kind != "text":
            raise tokens.error(f"expected a text after {type_name(column)}")
        return _literal(tokens, tokens.take().value, column)
    raise tokens.error("no column is known by name: write #0, #1, ...;")


def _case(tokens: Tokens, depth: int) -> Expr:
    """After CASE, or after an arm: WHEN .. THEN .. and what follows it."""
    tokens.expect_word("when")
    condition = read_expr(tokens, 0, depth + 1)
    tokens.expect_word("then")
    then = read_expr(tokens, 0, depth + 1)
    if tokens.is_word("when"):
        return Case(condition, then, _case(tokens, depth + 1))
    tokens.expect_word("else")
    otherwise = read_expr(tokens, 0, depth + 1)
    tokens.expect_word("end")
    return Case(condition, then, otherwise)


def _cast(inner: Expr, column: Column, tokens: Tokens) -> Expr:
    if isinstance(inner, Literal):
        if inner.value is None:
            return _typed(column, None)
        if inner.type is ColumnType.TEXT:
            return _literal(tokens, str(inner.value), column)
        is_number = inner.type in _NUMBERS
        if (is_number and column.type in _NUMBERS) or (column.type is ColumnType.TEXT and is_number):
            return _literal(tokens, format_scalar(inner.value, inner.column), column)
    return Call(f"cast {type_name(column)}", (inner,))


def _typed(column: Column, value: Scalar) -> Literal:
    return Literal(column.type, value, column.scale, column.fields)


def _literal(tokens: Tokens, text: str, column: Column) -> Literal:
    quoted = column.type in (ColumnType.TEXT, ColumnType.JSONB)
    try:
        return _typed(
            column, parse_scalar(text, msgspec.structs.replace(column, nullable=True), quoted=quoted)
        )
    except LocalProtocolError as error:
        raise tokens.error(error.message.removeprefix("column literal: ") + ",") from error


def _list(tokens: Tokens, opening: str, closing: str, depth: int = 0) -> list[Expr]:
    tokens.expect_op(opening)
    items: list[Expr] = []
    while not tokens.accept_op(closing):
        if items:
            tokens.expect_op(",")
        items.append(read_expr(tokens, 0, depth + 1))
    return items


def parse_exprs(tokens: Tokens, opening: str, closing: str) -> tuple[Expr, ...]:
    """A list of expressions in brackets: `(#0 + 1, #1)` or `[#0, #1]`."""
    return tuple(_list(tokens, opening, closing))


def parse_columns(tokens: Tokens, opening: str, closing: str) -> tuple[int, ...]:
    """A list of columns in brackets; a bare number counts as one: `(#0, #2)`, `[0]`."""
    columns: list[int] = []
    tokens.expect_op(opening)
    while not tokens.accept_op(closing):
        if columns:
            tokens.expect_op(",")
        token = tokens.next
        if token.kind != "column" and not (token.kind == "number" and token.value.isdigit()):
            raise tokens.error("expected a column")
        columns.append(int(tokens.take().value.removeprefix("#")))
    return tuple(columns)


def parse_predicates(tokens: Tokens) -> tuple[Expr, ...]:
    """An expression whose outermost AND, if it has one, is taken apart."""
    parts = [read_expr(tokens, _LOGIC["and"])]
    while tokens.accept_word("and"):
        parts.append(read_expr(tokens, _LOGIC["and"]))
    if not tokens.is_word("or"):
        return tuple(parts)
    arms = [parts[0] if len(parts) == 1 else Call("and", tuple(parts))]
    while tokens.accept_word("or"):
        arms.append(read_expr(tokens, _LOGIC["or"]))
    return (Call("or", tuple(arms)),)


def parse_equivalences(tokens: Tokens) -> tuple[tuple[Expr, ...], ...]:
    """`(#0 = #2 AND #1 = #3 = #5)`: classes of expressions that must be equal."""
    classes: list[tuple[Expr, ...]] = []
    tokens.expect_op("(")
    while not classes or tokens.accept_word("and"):
        members = [read_expr(tokens, _COMPARISON)]
        while tokens.accept_op("="):
            members.append(read_expr(tokens, _COMPARISON))
        classes.append(tuple(members))
    tokens.expect_op(")")
    return tuple(classes)


def parse_order(tokens: Tokens) -> tuple[OrderBy, ...]:
    """`[#1 desc nulls_first, #2]`; ascending and NULL last unless it says otherwise."""
    items: list[OrderBy] = []
    tokens.expect_op("[")
    while not tokens.accept_op("]"):
        if items:
            tokens.expect_op(",")
        items.append(_order_item(tokens))
    return tuple(items)


def _order_item(tokens: Tokens) -> OrderBy:
    if tokens.next.kind != "column":
        raise tokens.error("expected a column")
    column = int(tokens.take().value[1:])
    descending = tokens.accept_word("desc")
    if not descending:
        tokens.accept_word("asc")
    first = tokens.accept_word("nulls_first")
    if not first:
        tokens.accept_word("nulls_last")
    return OrderBy(column, descending, first)


def parse_aggregate(tokens: Tokens) -> Aggregate:
    """`count(*)`, `sum(distinct #1)`, `string_agg(#1, "," order by #2 desc)`."""
    if tokens.next.kind != "name":
        raise tokens.error("expected an aggregate")
    function = tokens.take().value.lower()
    tokens.expect_op("(")
    if tokens.accept_op("*"):
        tokens.expect_op(")")
        return Aggregate(function)
    distinct = tokens.accept_word("distinct")
    args = [read_expr(tokens)]
    while tokens.accept_op(","):
        args.append(read_expr(tokens))
    order: list[OrderBy] = []
    if tokens.accept_word("order"):
        tokens.expect_word("by")
        order.append(_order_item(tokens))
        while tokens.accept_op(","):
            order.append(_order_item(tokens))
    tokens.expect_op(")")
    return Aggregate(function, args[0], distinct, tuple(args[1:]), tuple(order))
