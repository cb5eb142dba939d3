"""Delta joins against recomputation at every time, over arrangements of both kinds; overflow and cost."""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np
import pytest

from clusterd.dataflow.operator import BLOCK_ROWS, Columns, Delta, OperatorStatistics, Round
from clusterd.operators.join_arrange import ArrangeOperator
from clusterd.operators.join_delta import DeltaInput, DeltaJoinOperator, Lookup
from clusterd.operators.join_tactic import PIECE_STEPS
from shm_arrangements.columns import Column
from shm_arrangements.frontier import Frontier
from shm_arrangements.rows import RowImage
from shm_arrangements.types import ColumnSpec, ColumnType
from shm_arrangements.updates import Updates
from tests.clusterd.operators.histories import Change, Row, accumulate, history, random_uppers, run
from tests.clusterd.operators.imported import Imported

I64, F64, TEXT = ColumnType.INT64, ColumnType.FLOAT64, ColumnType.TEXT
Key = tuple[int, ...]
Class = dict[int, int]  # by input, the column that is equal


class Delta3:
    """A delta join of inputs whose changes come by ports; classes say which columns are equal.

    Each input has an arrangement for every key that a path looks up, imported or local.
    """

    def __init__(
        self, inputs: Sequence[Columns], classes: Sequence[Class], imported: bool, *, null_safe: bool = False
    ) -> None:
        self._keys: list[dict[Key, Imported | ArrangeOperator]] = [{} for _ in inputs]
        paths = []
        for start in range(len(inputs)):
            joined, path = [start], []
            while rest := [i for i in range(len(inputs)) if i not in joined]:
                other = min(
                    rest, key=lambda i: (not any(i in c and set(joined) & c.keys() for c in classes), i)
                )
                shared = [c for c in classes if other in c and set(joined) & c.keys()]
                key = tuple(c[other] for c in shared)
                if key not in self._keys[other]:
                    make = Imported if imported else ArrangeOperator
                    self._keys[other][key] = make(inputs[other], key)
                sources = [next(i for i in joined if i in c) for c in shared]
                at = list(self._keys[other]).index(key)
                from_ = tuple((i, c[i]) for i, c in zip(sources, shared, strict=True))
                path.append(Lookup(other, at, from_))
                joined.append(other)
            paths.append(path)
        self._all = [each for keys in self._keys for each in keys.values()]
        arranged = [DeltaInput(tuple(e.arranged for e in keys.values())) for keys in self._keys]
        self.inner = DeltaJoinOperator(arranged, paths, null_safe=null_safe)
        self.schema = self.inner.schema

    def start(self, round: Round) -> None:
        for each in self._all:
            each.start(round)
        self.inner.start(round)

    def push(self, port: int, delta: Delta) -> Iterator[Delta]:
        for each in self._keys[port].values():
            assert not any(map(len, each.push(0, delta)))
        return iter(())

    def finish(self) -> Iterator[Delta]:
        for each in self._all:
            assert not any(map(len, each.finish()))
        yield from self.inner.finish()
        for each in self._all:
            if isinstance(each, Imported):
                each.finished()

    def statistics(self) -> OperatorStatistics:
        return self.inner.statistics()

    def close(self) -> None:
        for each in self._all:
            each.close()


def columns(*types: ColumnType, nullable: bool = True) -> Columns:
    return tuple(ColumnSpec(f"c{i}", t, nullable) for i, t in enumerate(types))


def naive(parts: Sequence[Counter[Row]], classes: Sequence[Class], *, null_safe: bool) -> Counter[Row]:
    out: Counter[Row] = Counter()
    for rows in itertools.product(*(part.items() for part in parts)):
        values = [[rows[i][0][c] for i, c in each.items()] for each in classes]
        if all(len(set(v)) == 1 and (null_safe or v[0] is not None) for v in values):
            out[sum((row for row, _ in rows), ())] += math.prod(n for _, n in rows)
    return Counter({row: n for row, n in out.items() if n})


SHAPES: list[tuple[list[Columns], list[Class]]] = [
    # C4: a chain through the middle, which is arranged by two keys.
    ([columns(I64, TEXT), columns(I64, F64), columns(TEXT, I64)], [{0: 0, 1: 0}, {0: 1, 2: 0}]),
    # C6: a star on one key.
    ([columns(I64), columns(I64, TEXT), columns(I64, F64)], [{0: 0, 1: 0, 2: 0}]),
    # a triangle
    ([columns(I64, TEXT), columns(TEXT, F64), columns(I64, F64)], [{0: 1, 1: 0}, {0: 0, 2: 0}, {1: 1, 2: 1}]),
    # no equality at all, and a chain of four
    ([columns(I64), columns(TEXT), columns(I64)], []),
    ([columns(I64, I64)] * 4, [{0: 1, 1: 0}, {1: 1, 2: 0}, {2: 1, 3: 0}]),
]  # fmt: skip


def check(seed: int, imported: bool, *, null_safe: bool) -> None:
    rng = random.Random(seed)
    inputs, classes = SHAPES[seed % len(SHAPES)]
    times, as_of = rng.choice([3, 9]), rng.choice([0, 2])
    size = 40 if classes else 15
    past = history(rng, inputs, size, times, valid=seed % 3 > 0, wild=False)
    operator = Delta3(inputs, classes, imported, null_safe=null_safe)
    oks, errs = run(operator, inputs, past, random_uppers(rng, times, as_of), as_of=as_of, rng=rng)
    assert not errs
    for time in range(as_of, times + 1):
        parts = [accumulate([(r, t, d) for p, r, t, d in past if p == i], time) for i in range(len(inputs))]
        assert accumulate(oks, time) == naive(parts, classes, null_safe=null_safe), f"seed {seed} time {time}"


@pytest.mark.slow
@pytest.mark.parametrize("imported", [True, False])
@pytest.mark.parametrize("null_safe", [True, False])
def test_every_time_equals_recomputation(imported: bool, null_safe: bool) -> None:
    for seed in range(30):
        check(seed, imported, null_safe=null_safe)


@pytest.mark.slow
def test_colliding_hashes_never_make_a_wrong_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RowImage, "hash", lambda self, columns=None: np.full(len(self), 77, np.uint64))
    for seed in range(10):
        check(seed, seed % 2 == 0, null_safe=seed % 3 == 0)


@pytest.mark.parametrize("imported", [True, False])
@pytest.mark.parametrize("uppers", [[1, 2], [2], [None]])
def test_c6_rows_that_come_to_all_inputs_at_once_make_one_row(
    imported: bool, uppers: list[int | None]
) -> None:
    one = columns(I64, nullable=False)
    changes: list[Change] = [(port, (7,), 1, 1) for port in range(3)]
    operator = Delta3([one] * 3, [{0: 0, 1: 0, 2: 0}], imported)
    oks, _ = run(operator, [one] * 3, changes, uppers)
    assert oks == [((7, 7, 7), 1, 1)]


@pytest.mark.parametrize("imported", [True, False])
def test_bug32_multiplicities_beyond_64_bits_are_errors_that_heal(imported: bool) -> None:
    one = columns(I64, nullable=False)
    for diff in (2097152, 3037000500, 1 << 31, 1 << 62):
        changes: list[Change] = [
            (port, (7,), time, d) for time, d in ((1, diff), (2, 2 - diff)) for port in range(3)
        ]
        changes += [(port, (8,), 1, 3 - port) for port in range(3)]
        for uppers in ([2, 3], [3], [2, 3, None]):
            operator = Delta3([one] * 3, [{0: 0, 1: 0, 2: 0}], imported)
            oks, errs = run(operator, [one] * 3, changes, [*uppers])
            text = f"multiplicity-overflow: join: row (7, 7, 7) has multiplicity {diff**3}"
            assert accumulate(errs, 1) == Counter([text])
            assert accumulate(oks, 1) == Counter({(8, 8, 8): 6})
            assert not accumulate(errs, 2)
            assert accumulate(oks, 2) == Counter({(7, 7, 7): 8, (8, 8, 8): 6})
            assert len(operator.inner._watch) == 0


@pytest.mark.slow
def test_random_large_multiplicities_are_exact_or_an_error() -> None:
    one = columns(I64, nullable=False)
    for seed in range(40):
        rng = random.Random(seed)
        changes: list[Change] = []
        for time in range(5):
            for port in range(3):
                size = rng.choice([1, 20, 22, 31, 62])
                changes.append((port, (rng.randrange(2),), time, rng.randrange(-(1 << size), 1 << size) or 1))
        each = [[(r, t, d) for p, r, t, d in changes if p == port] for port in range(3)]
        if any(abs(n) >= 1 << 63 for t in range(5) for part in each for n in accumulate(part, t).values()):
            continue
        operator = Delta3([one] * 3, [{0: 0, 1: 0, 2: 0}], seed % 2 == 0)
        oks, errs = run(operator, [one] * 3, changes, random_uppers(rng, 5), rng=rng)
        for time in range(5):
            true = naive([accumulate(part, time) for part in each], [{0: 0, 1: 0, 2: 0}], null_safe=False)
            fits = {row: n for row, n in true.items() if -(1 << 63) <= n < 1 << 63}
            assert accumulate(oks, time) == Counter(fits), f"seed {seed} time {time}"
            wrong = [
                f"multiplicity-overflow: join: row {row} has multiplicity {n}"
                for row, n in true.items()
                if row not in fits
            ]
            assert accumulate(errs, time) == Counter(wrong), f"seed {seed} time {time}"


def test_bug46_each_combination_once_over_compacted_and_merged_arrangements() -> None:
    rng = random.Random(46)
    pair = columns(I64, I64, nullable=False)
    changes: list[Change] = []
    live: list[dict[int, int]] = [{} for _ in range(3)]
    for time in range(42):
        for port in range(3):
            for _ in range(5):
                key = rng.randrange(12)
                if key in live[port]:
                    changes.append((port, (key, live[port][key]), time, -1))
                live[port][key] = rng.randrange(1000)
                changes.append((port, (key, live[port][key]), time, 1))
    classes: list[Class] = [{0: 0, 1: 0, 2: 0}]
    oks, errs = run(Delta3([pair] * 3, classes, True), [pair] * 3, changes, [41, 42], as_of=40, rng=rng)
    assert not errs
    for time in (40, 41):
        parts = [accumulate([(r, t, d) for p, r, t, d in changes if p == port], time) for port in range(3)]
        assert accumulate(oks, time) == naive(parts, classes, null_safe=False)


def numbers(*arrays: np.ndarray, time: int = 0) -> Updates:
    n = len(arrays[0])
    return Updates(
        tuple(Column(I64, np.ascontiguousarray(a, np.int64)) for a in arrays),
        np.full(n, time, np.uint64), np.ones(n, np.int64),
    )  # fmt: skip


def push_all(operator: Delta3, port: int, updates: Updates) -> None:
    for lo in range(0, len(updates), BLOCK_ROWS):
        operator.push(port, Delta.of(updates.slice(lo, min(lo + BLOCK_ROWS, len(updates)))))


@pytest.mark.slow
def test_work_follows_the_change_not_the_state() -> None:
    pair = columns(I64, I64, nullable=False)
    classes: list[Class] = [{0: 0, 1: 0}, {0: 1, 2: 0}]
    steps = []
    for rows in (10_000, 100_000):
        operator = Delta3([pair] * 3, classes, True)
        operator.start(Round(0, Frontier.at(1), 0))
        keys = np.random.default_rng(1).permutation(rows)
        for port in range(3):
            push_all(operator, port, numbers(keys, keys))
        assert sum(len(d) for d in operator.finish()) == rows
        before = operator.statistics()
        assert before.state_rows == 0
        for t in range(1, 31):
            operator.start(Round(t, Frontier.at(t + 1), 0))
            push_all(operator, t % 3, numbers(np.array([t * 7]), np.array([t * 7]), time=t))
            assert sum(len(d) for d in operator.finish()) >= 1
        steps.append(operator.statistics().touched_rows - before.touched_rows)
    assert steps[1] < 1.6 * steps[0] < 1.6 * 30 * 1000


@pytest.mark.slow
def test_bug55_a_join_that_explodes_comes_in_blocks_and_pauses_where_nothing_comes() -> None:
    pair = columns(I64, I64, nullable=False)
    # Everything meets in the last two, nothing in the first: many pairs, no row.
    operator = Delta3([pair] * 3, [{1: 0, 2: 0}, {0: 1, 1: 1}], False)
    operator.start(Round(0, Frontier.at(1), 0))
    n = 3000
    for port in range(3):
        push_all(operator, port, numbers(np.zeros(n), np.arange(n) + port * n))
    pauses, before, most = 0, 0, 0
    for delta in operator.finish():
        assert len(delta) <= BLOCK_ROWS
        pauses += len(delta) == 0
        now = operator.statistics().touched_rows
        most, before = max(most, now - before), now
    assert operator.statistics().touched_rows > n * n
    assert pauses > n * n // (4 * PIECE_STEPS)
    assert most < 4 * PIECE_STEPS
