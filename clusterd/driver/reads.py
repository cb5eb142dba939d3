"""Reads of scripts: peek arguments to a Peek, answers to lines.

The replica is the judge of a read: what does not fit an index is sent as it looks (`_guess`), so that the
refusal a script expects is the replica's own.

Does not: wait (driver.py does).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Literal, TypeVar, cast

import msgspec

from controller_proto.command import Finishing, Peek, ReadLimits
from controller_proto.dataflow import Export, WireFrontier
from controller_proto.errors import Disconnected, LocalProtocolError, ProtocolError, Refusal
from controller_proto.literals import format_scalar, parse_scalar
from controller_proto.parse_dataflow import parse_frontier
from controller_proto.parse_expr import parse_columns, parse_exprs, parse_order, parse_predicates
from controller_proto.response import PeekCanceled, PeekError, PeekResponse
from controller_proto.schema import Column, ColumnType, Row, Scalar
from controller_proto.script import Words
from controller_proto.tokens import Tokens
from controller_proto.validate import validate_peek

__all__ = [
    "answer_count",
    "answer_lines",
    "columns_of",
    "error_line",
    "frontier_of",
    "parse_time",
    "parse_u64",
    "peek_from_words",
    "placed",
]

T = TypeVar("T")

_LOOKS = {str: Column("", ColumnType.TEXT), float: Column("", ColumnType.FLOAT64)}
_MOST_LINES = 1_000_000  # beyond it an answer is a mistake of the script


def error_line(error: ProtocolError) -> str:
    """`error: CODE: MESSAGE`; a connection that is over is only that."""
    if isinstance(error, Disconnected):
        return "error: disconnected"
    return f"error: {error.code}: {error.message}"


@contextmanager
def placed(place: str) -> Iterator[None]:
    """What is wrong inside is said to be wrong at `place`."""
    try:
        yield
    except LocalProtocolError as error:
        raise LocalProtocolError(error.code, f"{place}: {error.message}", error.hint) from error


def parse_u64(text: str, what: str) -> int:
    """The number; `what` names the argument. Raises LocalProtocolError `bad-message`."""
    if not (text.isascii() and text.isdigit() and int(text) < 1 << 64):
        raise LocalProtocolError("bad-message", f"{what}={text} is no u64")
    return int(text)


def frontier_of(words: Words, name: str, default: str | None = None) -> WireFrontier:
    """The frontier that the argument `name` is. Raises LocalProtocolError `bad-message`."""
    text = words.one(name) if default is None else words.get(name) or default
    with placed(f"{name}="):
        return parse_frontier(text)


def parse_time(text: str) -> int | None:
    """A u64, or None for `latest`."""
    return None if text == "latest" else parse_u64(text, "ts")


def peek_from_words(words: Words, uuid: str, id: str, index: Export | None) -> Peek:
    """The Peek that these words ask for. index: what is known of `id`. Raises LocalProtocolError."""
    time = parse_time(words.one("ts"))
    limit, offset = words.get("limit"), words.get("offset")
    finishing = Finishing(
        maps=_read(words, "map", lambda tokens: parse_exprs(tokens, "(", ")")) or (),
        predicates=_read(words, "filter", parse_predicates) or (),
        order_by=_read(words, "order-by", parse_order) or (),
        limit=None if limit is None else parse_u64(limit, "limit"),
        offset=0 if offset is None else parse_u64(offset, "offset"),
        projection=_read(words, "project", lambda tokens: parse_columns(tokens, "(", ")")),
    )
    keys = _read(words, "keys", lambda tokens: _keys(tokens, index))
    counts = {
        name: parse_u64(text, name)
        for name in ("rows-read", "result-rows", "result-bytes")
        if (text := words.get(name)) is not None
    }
    limits = ReadLimits(
        **{name.replace("-", "_"): most for name, most in counts.items()}, run_s=_seconds(words, "run-secs")
    )
    runtime = cast("Literal['any', 'interactive', 'maintenance']", words.get("runtime") or "any")
    return Peek(0, uuid, id, time, keys, finishing, _seconds(words, "wait-secs"), runtime, limits)


def _seconds(words: Words, name: str) -> float | None:
    text = words.get(name)
    if text is None:
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < math.inf:
        raise LocalProtocolError("bad-message", f"{name}={text} is no time in seconds")
    return seconds


def _read(words: Words, name: str, read: Callable[[Tokens], T]) -> T | None:
    """The argument `name` as it is read, all of it; None if it is not given."""
    text = words.get(name)
    if text is None:
        return None
    with placed(f"{name}="):
        tokens = Tokens(_bare(text) if name == "filter" else text)
        value = read(tokens)
        tokens.expect_end()
    return value


def _bare(text: str) -> str:
    """Without the parentheses that only keep the words together: `(#0 > 1 AND #1 = 2)`."""
    depth = 0
    for position, char in enumerate(text):
        depth += (char == "(") - (char == ")")
        if depth == 0:
            return text[1:-1] if char == ")" and position == len(text) - 1 else text
    return text


def _keys(tokens: Tokens, index: Export | None) -> tuple[Row, ...]:
    """`[(1, "a"), (2, b)]`."""
    keys: list[Row] = []
    tokens.expect_op("[")
    while not tokens.accept_op("]"):
        if keys:
            tokens.expect_op(",")
        keys.append(_key(tokens, index))
    return tuple(keys)


def _key(tokens: Tokens, index: Export | None) -> Row:
    values: list[Scalar] = []
    tokens.expect_op("(")
    while not tokens.accept_op(")"):
        if values:
            tokens.expect_op(",")
        text, quoted = tokens.take_value()
        values.append(_value(text, quoted, index, len(values)))
    return tuple(values)


def _value(text: str, quoted: bool, index: Export | None, position: int) -> Scalar:
    if index is not None and position < len(index.key) and index.key[position] < index.schema.arity:
        column = index.schema.columns[index.key[position]]
        try:
            return parse_scalar(text, msgspec.structs.replace(column, nullable=True), quoted=quoted)
        except LocalProtocolError:
            pass
    return text if quoted else _guess(text)


def _guess(text: str) -> Scalar:
    if text.lower() in ("null", "true", "false"):
        return {"null": None, "true": True, "false": False}[text.lower()]
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        return text


def columns_of(peek: Peek, index: Export | None) -> tuple[Column, ...] | None:
    """The columns of the answer; None if they are not known."""
    if index is None:
        return None
    try:
        return validate_peek(peek, index).columns
    except Refusal:
        return None


def answer_lines(answer: PeekResponse, columns: Sequence[Column] | None) -> list[str]:
    """A line a row, as often as it is there; or the error; or `canceled`."""
    result = answer.result
    if isinstance(result, PeekCanceled):
        return ["canceled"]
    if isinstance(result, PeekError):
        return [f"error: {result.code}: {result.message}"]
    if sum(result.counts) > _MOST_LINES:
        return [f"error: {sum(result.counts)} rows are too many to print"]
    if any(len(column) != len(result.counts) for column in result.columns):
        return [f"error: {[len(c) for c in result.columns]} values for {len(result.counts)} rows"]
    shown = [
        [_shown(value, None if columns is None else columns[position]) for value in column]
        for position, column in enumerate(result.columns)
    ]
    lines = []
    for number, count in enumerate(result.counts):
        line = " ".join(column[number] for column in shown)
        lines += [line] * count if count > 0 else [f"error: a row with count {count}: {line}"]
    return lines


def answer_count(answer: PeekResponse) -> list[str]:
    """How many rows; or the error; or `canceled`."""
    if isinstance(answer.result, PeekCanceled | PeekError):
        return answer_lines(answer, None)
    return [str(sum(answer.result.counts))]


def _shown(value: Scalar, column: Column | None) -> str:
    if column is None:  # then as it looks
        if isinstance(value, tuple):
            return "{" + ",".join(_shown(part, None) for part in value) + "}"
        column = _LOOKS.get(type(value), Column("", ColumnType.INT64))
    return format_scalar(value, column)
