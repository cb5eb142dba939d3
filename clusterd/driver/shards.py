"""Directives that write source data, directly into shards."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from clusterd.convert import column_specs
from clusterd.driver.directive import Directive
from clusterd.driver.reads import frontier_of, parse_u64, placed
from clusterd.driver.rows import synthetic, updates_from_lines
from clusterd.driver.state import OK, Run
from controller_proto.errors import LocalProtocolError
from controller_proto.literals import parse_type
from controller_proto.schema import Column, Schema
from controller_proto.script import Words, split_line
from controller_proto.tokens import tokenize
from shm_arrangements.frontier import Frontier
from shm_arrangements.updates import Updates

__all__ = ["DIRECTIVES"]

_TIMES = 1 << 64
_MOST_BYTES = 8 << 30  # of made-up rows, which one append holds in memory


def define_schema(run: Run, words: Words, body: Sequence[str]) -> list[str]:
    columns = []
    for number, line in enumerate(body, 1):
        with placed(f"line {number}"):
            columns.append(_column(line))
    run.schemas[words.one("name")] = Schema(tuple(columns))
    return OK


def _column(line: str) -> Column:
    """`column type [nullable]`."""
    name, *words_of_type = split_line(line) or [""]
    nullable = words_of_type[-1:] == ["nullable"]
    text = " ".join(words_of_type[: len(words_of_type) - nullable])
    if not text:
        raise LocalProtocolError("bad-message", f"expected `column type [nullable]`, not {line.strip()!r}")
    if text.startswith('"'):
        text = tokenize(text)[0].value
    return parse_type(text, name, nullable=nullable)


def write_rows(run: Run, words: Words, body: Sequence[str]) -> list[str]:
    shard, at = words.one("shard"), _write_time(words)
    schema = run.schema(words.get("schema"), shard)
    _append(run, shard, schema, updates_from_lines(body, schema, at), Frontier.at(at + 1))
    return [f"wrote {len(body)}"]


def _write_time(words: Words) -> int:
    """A time with one after it, which the write raises the upper to."""
    at = parse_u64(words.one("ts"), "ts")
    if at == _TIMES - 1:
        raise LocalProtocolError("bad-message", f"ts={at} is the greatest time: there is no upper beyond it")
    return at


def write_single_ts(run: Run, words: Words, body: Sequence[str]) -> list[str]:
    shard, at = words.one("shard"), _write_time(words)
    made = _synthetic(run, words, shard, lambda rows: np.full(rows, at, dtype=np.uint64))
    _append(run, shard, made[0], made[1], Frontier.at(at + 1))
    return [f"wrote {len(made[1])}"]


def write_spread(run: Run, words: Words, body: Sequence[str]) -> list[str]:
    shard, n_ts = words.one("shard"), parse_u64(words.one("n-ts"), "n-ts")
    upper = Frontier.minimum()
    if run.store is not None and shard in run.store.list():
        upper = run.store.shard(shard).upper
    if upper.is_empty:
        raise LocalProtocolError("upper-mismatch", f"shard {shard} is closed: nothing more can be written")
    first = upper.time
    if first + n_ts >= _TIMES or n_ts >= _TIMES // 2 // _MOST_BYTES:
        raise LocalProtocolError("bad-message", f"n-ts={n_ts} is too many times from {first} on")
    schema, updates = _synthetic(
        run,
        words,
        shard,
        lambda rows: np.uint64(first) + (np.arange(rows) * n_ts // max(rows, 1)).astype("u8"),
    )
    _append(run, shard, schema, updates, Frontier.at(first + n_ts))
    return [f"wrote {len(updates)}"]


def advance_shard(run: Run, words: Words, body: Sequence[str]) -> list[str]:
    shard, upper = words.one("shard"), frontier_of(words, "upper")
    schema = run.schema(words.get("schema"), shard)
    nothing = Updates.empty([spec.type for spec in column_specs(schema)])
    _append(run, shard, schema, nothing, Frontier.from_wire(upper))
    return OK


def _synthetic(run: Run, words: Words, shard: str, times: Callable[[int], Any]) -> tuple[Schema, Updates]:
    rows = parse_u64(words.one("count"), "count")
    start = parse_u64(words.get("start") or "0", "start")
    row_bytes = parse_u64(words.get("row-bytes") or "64", "row-bytes")
    if rows * max(row_bytes, 1) > _MOST_BYTES:
        raise LocalProtocolError("bad-message", f"count={rows} of row-bytes={row_bytes} is more than 8 GiB")
    schema = run.schema(words.get("schema"), shard)
    return schema, synthetic(schema, start, rows, row_bytes, times(rows))


def _append(run: Run, shard: str, schema: Schema, updates: Updates, upper: Frontier) -> None:
    handle = run.storage().create_shard(shard, schema)
    handle.append(updates, handle.upper, upper)


DIRECTIVES: Mapping[str, Directive] = {
    "define-schema": Directive(
        define_schema, "name=", "A schema that schema= may name.", "column type [nullable]"
    ),
    "write-rows": Directive(
        write_rows,
        "shard= ts= [schema=]",
        "Writes rows at one time.",
        "a row: its values, with blanks between them; x -1 at its end retracts it, x 3 adds it thrice",
    ),
    "write-single-ts": Directive(
        write_single_ts,
        "shard= ts= count= [start=] [row-bytes=] [schema=]",
        "Writes made-up rows at one time.",
    ),
    "write-spread": Directive(
        write_spread,
        "shard= count= n-ts= [start=] [row-bytes=] [schema=]",
        "Writes made-up rows over so many times, from the upper of the shard on.",
    ),
    "advance-shard": Directive(
        advance_shard,
        "shard= upper= [schema=]",
        "Raises the upper of a shard without data; upper=[] ends it.",
    ),
}
