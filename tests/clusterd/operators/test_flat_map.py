"""Table functions on each row: every series, errors that retract, blocks of bounded size."""

from __future__ import annotations

import itertools
import random
from collections import Counter

import pytest

from clusterd.dataflow.operator import BLOCK_ROWS, Columns, Delta, Round
from clusterd.operators.flat_map import FlatMapOperator
from clusterd.render.tables import table_call
from controller_proto.expr import ColumnRef
from controller_proto.plan import FlatMap, Get
from shm_arrangements.frontier import Frontier
from shm_arrangements.types import ColumnSpec, ColumnType
from tests.clusterd.operators.histories import Change, accumulate, run, updates_of

I64, TEXT = ColumnType.INT64, ColumnType.TEXT
ROW: Columns = (
    ColumnSpec("name", TEXT, True), ColumnSpec("start", I64, True), ColumnSpec("stop", I64, True),
    ColumnSpec("step", I64, True),
)  # fmt: skip
LEAST, MOST = -(1 << 63), (1 << 63) - 1
NO_STEP = "eval-error: step size cannot equal zero"


def series(*args: int, kept: tuple[int, ...] = (0,)) -> FlatMapOperator:
    plan = FlatMap(Get("u1"), "generate_series", tuple(map(ColumnRef, args)), with_ordinality=True)
    return FlatMapOperator(ROW, kept, table_call(plan, ROW)[0], args)


def rows_of(row: tuple[object, ...], args: tuple[int, ...]) -> Counter[tuple[object, ...]]:
    start, stop, step = (*(row[k] for k in args), 1)[:3]
    if start is None or stop is None or step is None or step == 0:
        return Counter()
    assert isinstance(start, int) and isinstance(stop, int) and isinstance(step, int)  # noqa: PT018
    values = range(start, stop + (1 if step > 0 else -1), step)
    return Counter((row[0], value, number) for number, value in enumerate(values, 1))


@pytest.mark.slow
@pytest.mark.parametrize("args", [(1, 2), (1, 2, 3)])
def test_every_time_equals_recomputation(args: tuple[int, ...]) -> None:
    for seed in range(40):
        rng = random.Random(seed)
        past: list[Change] = []
        for time in sorted(rng.randrange(6) for _ in range(40)):
            row = (rng.choice("ab"), *(rng.choice([None, *range(-3, 4)]) for _ in range(3)))
            past.append((0, row, time, rng.choice([1, 2, -1])))
        oks, errs = run(series(*args), [ROW], past, [2, 7], rng=rng)
        for time in range(7):
            wanted: Counter[tuple[object, ...]] = Counter()
            failed = 0
            for row, count in accumulate([(row, t, d) for _, row, t, d in past], time).items():
                for made, copies in rows_of(row, args).items():
                    wanted[made] += copies * count
                failed += count * (len(args) == 3 and row[3] == 0 and None not in (row[1], row[2]))
            assert accumulate(oks, time) == Counter({row: n for row, n in wanted.items() if n})
            assert accumulate(errs, time) == Counter({NO_STEP: failed} if failed else {})


@pytest.mark.parametrize(
    ("start", "stop", "step", "wanted"),
    [
        (MOST - 1, MOST, 1, [MOST - 1, MOST]),
        (LEAST + 1, LEAST, -1, [LEAST + 1, LEAST]),
        (LEAST, MOST, MOST, [LEAST, -1, MOST - 1]),
        (MOST, LEAST, LEAST, [MOST, -1]),
        (3, 3, 7, [3]),
        (3, 2, 1, []),
        (2, 3, -1, []),
        (None, 3, 0, []),
    ],
)
def test_series_at_the_ends_of_their_range(
    start: int | None, stop: int, step: int, wanted: list[int]
) -> None:
    oks, errs = run(series(1, 2, 3), [ROW], [(0, ("a", start, stop, step), 0, 1)], [1])
    assert [row[1] for row, _, _ in oks] == wanted
    assert not errs


def test_a_huge_series_is_cut_into_blocks_and_can_be_left_at_any() -> None:
    operator = series(1, 2)
    operator.start(Round(0, Frontier.at(1), 0))
    made = operator.push(0, Delta.of(updates_of(ROW, [(("a", LEAST, MOST, None), 0, 3)])))
    for number, block in enumerate(itertools.islice(made, 5)):
        assert len(block.oks) == BLOCK_ROWS
        assert set(block.oks.diffs.tolist()) == {3}
        assert block.oks.columns[-1].values[[0, -1]].tolist() == [
            number * BLOCK_ROWS + 1, (number + 1) * BLOCK_ROWS,
        ]  # fmt: skip
    operator.close()


def test_a_piece_holds_no_more_than_a_few_copies_of_a_large_row() -> None:
    operator = series(1, 2)
    operator.start(Round(0, Frontier.at(1), 0))
    rows = [(("x" * (5 << 20), 1, 7, None), 0, 1), (("y", 1, 3, None), 0, 1)]
    pieces = [len(delta.oks) for delta in operator.push(0, Delta.of(updates_of(ROW, rows)))]
    assert pieces == [3, 3, 4]


def test_errors_of_the_input_pass() -> None:
    operator = series(1, 2)
    operator.start(Round(0, Frontier.at(1), 0))
    errs = updates_of((ColumnSpec("error", TEXT, False),), [(("eval-error: x",), 0, 1)])
    (delta,) = operator.push(0, Delta(updates_of(ROW, []), errs))
    assert delta.errs.to_rows() == [(("eval-error: x",), 0, 1)]
