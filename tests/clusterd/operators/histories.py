"""Random histories and what an operator makes of them, as plain Python, for oracles that recompute at every
time.

A history is a list of (port, row, time, diff). `run` cuts it into rounds and blocks at random and collects
the output; `accumulate` gives a collection as a multiset at one time. Nothing here knows an operator.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from clusterd.dataflow.operator import BLOCK_ROWS, Columns, Delta, Operator, Round, types_of
from shm_arrangements.frontier import Frontier
from shm_arrangements.types import AnyType, ColumnType
from shm_arrangements.updates import Updates

Row = tuple[Any, ...]
Change = tuple[int, Row, int, int]  # port, row, time, diff

NAN = float("nan")
EXTREMES = [-(1 << 63), (1 << 63) - 1, 0, -1]
FLOATS = [0.0, -0.0, NAN, float("inf"), float("-inf"), 0.1, -0.1, 1e308, -1e308, 5e-324, 2.5, 1e16, 1.0]
TEXTS = ["", "a", "b", "ab", "a\x00", "abcdefgh", "abcdefghi", "abcdefghj", "äöü", "long text, beyond a word"]


def key_of(row: Iterable[Any]) -> Row:
    """A row whose equal values are equal and hashable: NaN is one value, -0.0 is 0.0."""
    return tuple("nan" if v != v else (v + 0.0 if isinstance(v, float) else v) for v in row)


def value(rng: random.Random, type_: AnyType, *, nullable: bool, wild: bool = True) -> Any:
    """A small domain, so that values meet."""
    if nullable and rng.random() < 0.2:
        return None
    if type_ is ColumnType.BOOL:
        return rng.random() < 0.5
    if type_ is ColumnType.FLOAT64:
        return rng.choice(FLOATS) if wild else float(rng.randrange(4))
    if type_ is ColumnType.TEXT:
        return rng.choice(TEXTS)
    if type_ is ColumnType.NUMERIC:
        return rng.choice([0, 1, -1, 10**37, -(10**37), 5])
    return rng.choice(EXTREMES) if wild and rng.random() < 0.2 else rng.randrange(-2, 4)


def history(
    rng: random.Random, inputs: Sequence[Columns], changes: int, times: int, *, valid: bool, wild: bool = True
) -> list[Change]:
    """Inserts and retractions; if `valid`, nothing is retracted that is not there at that time."""
    out: list[Change] = []
    live: list[list[tuple[Row, int]]] = [[] for _ in inputs]
    moments = sorted(rng.randrange(times) for _ in range(changes))
    for time in moments:
        port = rng.randrange(len(inputs))
        here = live[port]
        if here and rng.random() < 0.45:
            row, diff = here.pop(rng.randrange(len(here)))
            out.append((port, row, time, -diff))
            continue
        row = tuple(value(rng, c.type, nullable=c.nullable, wild=wild) for c in inputs[port])
        diff = rng.choice([1, 1, 1, 2, 3])
        if not valid and rng.random() < 0.3:
            diff = -diff
        here.append((row, diff))
        out.append((port, row, time, diff))
    return out


def updates_of(columns: Columns, changes: Iterable[tuple[Row, int, int]]) -> Updates:
    return Updates.from_rows(types_of(columns), list(changes))


def run(
    operator: Operator,
    inputs: Sequence[Columns],
    changes: Sequence[Change],
    uppers: Sequence[int | None],
    *,
    as_of: int = 0,
    rng: random.Random | None = None,
) -> tuple[list[tuple[Row, int, int]], list[tuple[str, int, int]]]:
    """Drive the operator through the rounds ending at `uppers`; returns all (row, time, diff) of oks and of
    errs.
    """
    oks: list[tuple[Row, int, int]] = []
    errs: list[tuple[str, int, int]] = []

    def take(delta: Delta, round: Round) -> None:
        assert delta.oks.types == types_of(operator.schema)
        assert len(delta.oks) <= BLOCK_ROWS
        got = delta.oks.to_rows()
        bad = [(row[0], time, diff) for row, time, diff in delta.errs.to_rows()]
        for _, time, _ in [*got, *bad]:
            assert round.lower <= time
            assert round.upper.is_empty or time < round.upper.time
        oks.extend(got)
        errs.extend(bad)

    lower = 0
    for upper in uppers:
        round = Round(lower, Frontier.empty() if upper is None else Frontier.at(upper), as_of)
        operator.start(round)
        mine = [
            (port, row, max(time, as_of) if round.is_first else time, diff)
            for port, row, time, diff in changes
            if (round.is_first or lower <= time) and (upper is None or max(time, as_of) < upper)
        ]
        if rng is not None:
            rng.shuffle(mine)
        at = 0
        while at < len(mine):
            size = 1 << 30 if rng is None else rng.choice([1, 2, 5, 20])
            block = mine[at : at + size]
            at += size
            for port, columns in enumerate(inputs):
                part = [(row, time, diff) for p, row, time, diff in block if p == port]
                if part:
                    for delta in operator.push(port, Delta.of(updates_of(columns, part))):
                        take(delta, round)
        for delta in operator.finish():
            take(delta, round)
        lower = (1 << 64) if upper is None else upper
    return oks, errs


def random_uppers(rng: random.Random, times: int, as_of: int = 0) -> list[int | None]:
    """Ends of rounds: some in the midst, then one beyond all times, or closed."""
    inside = sorted({rng.randrange(as_of + 1, times + 1) for _ in range(rng.randrange(5))})
    return [*inside, times + 1 if rng.random() < 0.5 else None]


def accumulate(changes: Iterable[tuple[Any, int, int]], time: int) -> Counter[Any]:
    """The multiset at `time`, zero counts left out."""
    out: Counter[Any] = Counter()
    for row, at, diff in changes:
        if at <= time:
            out[key_of(row) if isinstance(row, tuple) else row] += diff
    return Counter({row: count for row, count in out.items() if count})
