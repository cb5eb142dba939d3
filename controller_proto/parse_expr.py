"""Scalar expressions from text, with PostgreSQL's precedence.

From loosest to tightest: OR, AND, NOT, IS, comparisons (which do not chain), BETWEEN IN LIKE ILIKE, `||`
and the other operators, `+ -`, `* / %`, `^`, AT TIME ZONE, unary `- ~`, `::` and `[..]`. A chain of AND (or
of OR) is one call of all its parts. A number with a point or an exponent is a double; a whole number beyond
bigint is a numeric. A text cast to a type, a type followed by a text, and a number cast to a type of
numbers (by its digits as they are written) are literals of that type if they can be; any other cast, and
any function, is a call by name, whether or not the replica knows it.

Does not: type (typing_rules.py does).
"""

from __future__ import annotations

import msgspec

from controller_proto.errors import LocalProtocolError
from controller_proto.expr import Call, Case, ColumnRef, Expr, Literal
from controller_proto.literals import TYPE_NAMES, format_scalar, parse_scalar, read_type
from controller_proto.plan import Aggregate, OrderBy
from controller_proto.schema import INTEGERS, Column, ColumnType, Scalar, type_name
from controller_proto.tokens import Token, Tokens

__all__ = [
    "parse_aggregate", "parse_columns", "parse_equivalences", "parse_expr", "parse_exprs", "parse_order",
    "parse_predicates", "read_expr",
]  # fmt: skip

_NOT, _IS, _COMPARISON, _LIKE, _OTHER, _ADD, _MULTIPLY, _POWER, _AT, _UNARY = range(3, 13)
_COMPARISONS = ("=", "!=", "<>", "<", "<=", ">", ">=")
_OTHERS = (
    "||", "->", "->>", "#>", "#>>", "@>", "<@", "?", "~", "~*", "!~", "!~*", "&", "|", "#", "<<", ">>",
)  # fmt: skip
_BINARY = {
    **dict.fromkeys(_COMPARISONS, _COMPARISON), **dict.fromkeys(_OTHERS, _OTHER), "+": _ADD, "-": _ADD,
    "*": _MULTIPLY, "/": _MULTIPLY, "%": _MULTIPLY, "^": _POWER,
}  # fmt: skip
# What is called by another name than it is written.
_WRITTEN = {"<>": "!=", "^": "power", "!~": "~", "!~*": "~*"}
_MATCHES = ("between", "in", "like", "ilike")
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
            left = _is(tokens, left, depth)
        elif floor < _LIKE and (word in _MATCHES or (word == "not" and _is_match(tokens.after))):
            left = _match(tokens, left, depth)
        elif word == "at" and floor < _AT:
            for each in ("at", "time", "zone"):
                tokens.expect_word(each)
            left = Call("timezone", (read_expr(tokens, _AT, depth + 1), left))
        elif token.kind == "op" and token.value == "::":
            tokens.take()
            left = _cast(left, read_type(tokens, "literal"))
        elif tokens.accept_op("["):
            left = Call("subscript", (left, read_expr(tokens, 0, depth + 1)))
            tokens.expect_op("]")
        elif token.kind == "op" and _BINARY.get(token.value, 0) > floor:
            left = _binary(tokens, left, depth)
        else:
            return left


def _binary(tokens: Tokens, left: Expr, depth: int) -> Expr:
    written = tokens.take().value
    strength = _BINARY[written]
    if written in ("=", "!=", "<>") and tokens.is_word("any" if written == "=" else "all"):
        tokens.take()
        tokens.expect_op("(")
        call = Call("= any", (left, read_expr(tokens, 0, depth + 1)))
        tokens.expect_op(")")
        return call if written == "=" else Call("not", (call,))
    call = Call(_WRITTEN.get(written, written), (left, read_expr(tokens, strength, depth + 1)))
    if strength == _COMPARISON and tokens.is_op(*_COMPARISONS):
        raise tokens.error("comparisons do not chain: parenthesise")
    return Call("not", (call,)) if written.startswith("!~") else call


def _is_match(token: Token) -> bool:
    return token.kind == "name" and token.value.lower() in _MATCHES


def _match(tokens: Tokens, left: Expr, depth: int) -> Expr:
    """`[NOT] BETWEEN a AND b`, `[NOT] IN (a, b)`, `[NOT] LIKE a [ESCAPE b]`."""
    negated = tokens.accept_word("not")
    word = tokens.take().value.lower()
    args = [left]
    if word == "in":
        args += _list(tokens, "(", ")", depth)
    else:
        args.append(read_expr(tokens, _LIKE, depth + 1))
        if word == "between":
            tokens.expect_word("and")
            args.append(read_expr(tokens, _LIKE, depth + 1))
        elif tokens.accept_word("escape"):
            args.append(read_expr(tokens, _LIKE, depth + 1))
    call = Call(word, tuple(args))
    return Call("not", (call,)) if negated else call


def _is(tokens: Tokens, left: Expr, depth: int) -> Expr:
    tokens.expect_word("is")
    negated = tokens.accept_word("not")
    call: Expr | None = None
    for word in ("null", "true", "false", "unknown"):
        if tokens.accept_word(word):
            call = Call(f"is_{word}", (left,))
            break
    if call is None and tokens.accept_word("distinct"):
        tokens.expect_word("from")
        call = Call("is_distinct_from", (left, read_expr(tokens, _IS, depth + 1)))
    if call is None:
        raise tokens.error("expected NULL, TRUE, FALSE, UNKNOWN or DISTINCT FROM")
    return Call("not", (call,)) if negated else call


def _prefix(tokens: Tokens, depth: int) -> Expr:
    token = tokens.next
    if tokens.accept_word("not"):
        return Call("not", (read_expr(tokens, _NOT, depth + 1),))
    if tokens.accept_op("-"):
        if tokens.next.kind == "number":
            return _number(tokens, "-")
        return Call("neg", (read_expr(tokens, _UNARY, depth + 1),))
    if tokens.accept_op("~"):
        return Call("bit_not", (read_expr(tokens, _UNARY, depth + 1),))
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
        literal = _read(text, column) if column.type in _NUMBERS else None
        return _cast(_plain_number(digits, text), column) if literal is None else literal
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
        return _call(word, tokens, depth)
    if word == "array" and tokens.after.value == "[":
        tokens.take()
        return Call("array", tuple(_list(tokens, "[", "]", depth)))
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


def _call(word: str, tokens: Tokens, depth: int) -> Expr:
    """A call in brackets, or one of those that SQL writes with words between their arguments."""
    if word not in ("cast", "extract", "position", "substring", "trim"):
        return Call(word, tuple(_list(tokens, "(", ")", depth)))
    tokens.expect_op("(")
    if word == "extract" and tokens.next.kind == "name" and tokens.after.value.lower() == "from":
        args: list[Expr] = [Literal(ColumnType.TEXT, tokens.take().value.lower())]
    elif word == "trim" and tokens.is_word("both", "leading", "trailing"):
        word = {"both": "btrim", "leading": "ltrim", "trailing": "rtrim"}[tokens.take().value.lower()]
        args = [] if tokens.is_word("from") else [read_expr(tokens, _LIKE, depth + 1)]
    else:
        args = [] if tokens.is_op(")") else [read_expr(tokens, _LIKE, depth + 1)]
    if word == "cast":
        tokens.expect_word("as")
        cast = _cast(args[0], read_type(tokens, "literal"))
        tokens.expect_op(")")
        return cast
    if word == "position":
        tokens.expect_word("in")
        call = Call("strpos", (read_expr(tokens, 0, depth + 1), args[0]))
        tokens.expect_op(")")
        return call
    characters_first = False
    while not tokens.accept_op(")"):
        if tokens.is_word("from", "for"):
            characters_first = word.endswith("trim")
            tokens.take()
        else:
            tokens.expect_op(",")
        args.append(read_expr(tokens, 0, depth + 1))
    # Where SQL writes the characters first, the function takes them last.
    return Call(word, tuple(reversed(args) if characters_first else args))


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


def _cast(inner: Expr, column: Column) -> Expr:
    if isinstance(inner, Literal):
        if inner.value is None:
            return _typed(column, None)
        is_number = inner.type in _NUMBERS
        is_exact = inner.type not in (ColumnType.FLOAT32, ColumnType.FLOAT64)
        text: str | None = None
        if inner.type is ColumnType.TEXT:
            text = str(inner.value)
        elif is_number and (column.type in _NUMBERS or (column.type is ColumnType.TEXT and is_exact)):
            text = format_scalar(inner.value, inner.column)
        literal = None if text is None else _read(text, column)
        if literal is not None:
            return literal
    return Call(f"cast {type_name(column)}", (inner,))


def _read(text: str, column: Column) -> Literal | None:
    """The literal that `text` is in `column`; None if it is none: casting it is an error in data then."""
    try:
        return _parsed(text, column)
    except LocalProtocolError:
        return None


def _typed(column: Column, value: Scalar) -> Literal:
    return Literal(column.type, value, column.scale, column.fields)


def _parsed(text: str, column: Column) -> Literal:
    quoted = column.type in (ColumnType.TEXT, ColumnType.JSONB)
    nullable = msgspec.structs.replace(column, nullable=True)
    return _typed(column, parse_scalar(text, nullable, quoted=quoted))


def _literal(tokens: Tokens, text: str, column: Column) -> Literal:
    try:
        return _parsed(text, column)
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
