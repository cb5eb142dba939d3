"""Join against recomputation at every time, tactic against tactic, and its cost."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from clusterd.dataflow.operator import BLOCK_ROWS, Columns, Delta, OperatorStatistics, Round
from clusterd.operators.aggregates import AggregateCall
from clusterd.operators.common import ImportedRound
from clusterd.operators.join import Closure, JoinOperator
from clusterd.operators.join_arrange import ArrangeOperator
from clusterd.operators.join_tactic import JoinTactic, Pairs, Part
from clusterd.operators.kernels.join import ANY
from clusterd.operators.reduce import ReduceOperator
from shm_arrangements.builder import HeapAllocator, build_batch
from shm_arrangements.columns import Column
from shm_arrangements.description import Description
from shm_arrangements.frontier import MAX_TIME, Frontier
from shm_arrangements.rows import RowImage
from shm_arrangements.schema import ArrangementSchema
from shm_arrangements.types import ColumnSpec, ColumnType
from shm_arrangements.updates import Updates
from shm_arrangements.writer import ERRS_SCHEMA
from tests.clusterd.operators.histories import (
    NAN,
    Change,
    Row,
    accumulate,
    history,
    key_of,
    random_uppers,
    run,
)
from tests.clusterd.operators.imported import Imported

I64, F64, TEXT, NUMERIC = ColumnType.INT64, ColumnType.FLOAT64, ColumnType.TEXT, ColumnType.NUMERIC


def columns(*types: ColumnType, nullable: bool = True, prefix: str = "c") -> Columns:
    return tuple(ColumnSpec(f"{prefix}{i}", t, nullable) for i, t in enumerate(types))


class PlainTactic:
    """Every row with every row; nothing is clever."""

    def pairs(
        self,
        left: Part,
        right: Part,
        as_of: int,
        null_safe: bool,
        room: Callable[[], int],
        order: int = ANY,
    ) -> Iterator[Pairs]:
        assert order == ANY
        found: list[tuple[int, int, int, int]] = []
        wide: list[tuple[int, int]] = []
        keys = [
            list(zip(*(c.to_pylist() for c in p.batch.key_columns()), strict=True)) for p in (left, right)
        ]
        for i, j in itertools.product(range(len(left.batch)), range(len(right.batch))):
            x, y = (key_of(keys[0][i]), key_of(keys[1][j])) if keys[0] or keys[1] else ((), ())
            if x != y or (None in x and not null_safe):
                continue
            s = max(int(left.batch.times[i]), as_of)
            t = max(int(right.batch.times[j]), as_of)
            if left.first <= s <= left.last and right.first <= t <= right.last:
                product = int(left.batch.diffs[i]) * int(right.batch.diffs[j])
                if abs(product) >= 1 << 48:
                    wide.append((i, j))
                else:
                    found.append((i, j, max(s, t), product))
        odd = tuple(np.array([w[k] for w in wide], np.int64) for k in (0, 1))
        while found or wide:
            piece, found = found[: room()], found[room() :]
            a, b, times, diffs = (np.array([f[k] for f in piece], np.int64) for k in range(4))
            yield Pairs(a, b, times.astype(np.uint64), diffs, (odd[0], odd[1]), len(piece))
            odd = (np.zeros(0, np.int64), np.zeros(0, np.int64))
            wide = []


class Importing:
    """A join of two inputs, whose changes come by ports 0 and 1; an imported side is an index elsewhere.

    Before the first round nothing has been imported, so all is delta, also what was merged and compacted.
    """

    def __init__(
        self,
        inputs: Sequence[Columns],
        keys: Sequence[tuple[int, ...]],
        imported: Sequence[bool],
        *,
        null_safe: bool = False,
        tactic: JoinTactic | None = None,
        output_columns: Sequence[int] | None = None,
        closure: Closure | None = None,
        closure_columns: Columns | None = None,
    ) -> None:
        self.sides = [
            Imported(c, k) if elsewhere else ArrangeOperator(c, k)
            for c, k, elsewhere in zip(inputs, keys, imported, strict=True)
        ]
        self.inner = JoinOperator(
            self.sides[0].arranged,
            self.sides[1].arranged,
            null_safe=null_safe,
            tactic=tactic,
            output_columns=output_columns,
            closure=closure,
            closure_columns=closure_columns,
        )
        self.schema = self.inner.schema

    def start(self, round: Round) -> None:
        for side in self.sides:
            side.start(round)
        self.inner.start(round)

    def push(self, port: int, delta: Delta) -> Iterator[Delta]:
        for pause in self.sides[port].push(0, delta):
            assert not len(pause)
        return iter(())

    def finish(self) -> Iterator[Delta]:
        for side in self.sides:
            for pause in side.finish():
                assert not len(pause)
        yield from self.inner.finish()
        for side in self.sides:
            if isinstance(side, Imported):
                side.finished()

    def statistics(self) -> OperatorStatistics:
        return self.inner.statistics()

    def close(self) -> None:
        for side in self.sides:
            side.close()
        self.inner.close()


def join_naively(
    left: Counter[Row], right: Counter[Row], keys: Sequence[tuple[int, ...]], *, null_safe: bool
) -> Counter[Row]:
    out: Counter[Row] = Counter()
    for (x, n), (y, m) in itertools.product(left.items(), right.items()):
        a, b = tuple(x[k] for k in keys[0]), tuple(y[k] for k in keys[1])
        if a == b and (null_safe or None not in a):
            out[x + y] += n * m
    return out


SIDES = [True, False]
LEFT = columns(I64, TEXT, F64)
RIGHT = columns(TEXT, F64, I64, NUMERIC)
KEYS: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
    ((0,), (2,)), ((1,), (0,)), ((2, 1), (1, 0)), ((0, 1, 2), (2, 0, 1)), ((), ()),
]  # fmt: skip


def check(
    seed: int, arranged: tuple[bool, bool], *, null_safe: bool, tactic: JoinTactic | None = None
) -> None:
    rng = random.Random(seed)
    keys = KEYS[seed % len(KEYS)]
    times = rng.choice([3, 12])
    as_of = rng.choice([0, 2])
    past = history(rng, [LEFT, RIGHT], 60, times, valid=seed % 3 > 0)
    operator = Importing([LEFT, RIGHT], keys, arranged, null_safe=null_safe, tactic=tactic)
    uppers = random_uppers(rng, times, as_of)
    oks, errs = run(operator, [LEFT, RIGHT], past, uppers, as_of=as_of, rng=rng)
    assert not errs
    for time in range(as_of, times + 1):
        left, right = (accumulate([(r, t, d) for p, r, t, d in past if p == port], time) for port in (0, 1))
        want = join_naively(left, right, keys, null_safe=null_safe)
        assert accumulate(oks, time) == Counter({r: n for r, n in want.items() if n}), (
            f"seed {seed} time {time}"
        )


@pytest.mark.slow
@pytest.mark.parametrize("arranged", list(itertools.product(SIDES, SIDES)))
@pytest.mark.parametrize("null_safe", [True, False])
def test_every_time_equals_recomputation(arranged: tuple[bool, bool], null_safe: bool) -> None:
    for seed in range(15):
        check(seed, arranged, null_safe=null_safe)


@pytest.mark.slow
def test_the_plain_tactic_agrees() -> None:
    for seed in range(10):
        check(seed, (seed % 2 == 0, False), null_safe=seed % 4 == 0, tactic=PlainTactic())


@pytest.mark.slow
@pytest.mark.parametrize("arranged", [(False, False), (True, False), (True, True)])
def test_colliding_hashes_never_make_a_wrong_row(
    arranged: tuple[bool, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RowImage, "hash", lambda self, columns=None: np.full(len(self), 77, np.uint64))
    for seed in range(10):
        check(seed, arranged, null_safe=seed % 2 == 0)


def at_times(
    inputs: Sequence[Columns],
    keys: Sequence[tuple[int, ...]],
    changes: Sequence[Change],
    last: int,
    **options: Any,
) -> list[Counter[Row]]:
    """The join at times 0..last: tick by tick and all at once, streamed and imported."""
    answers = []
    for arranged in itertools.product(SIDES, SIDES):
        for uppers in ([t + 1 for t in range(last + 1)], [last + 1]):
            operator = Importing(inputs, keys, arranged, **options)
            oks, errs = run(operator, inputs, changes, [*uppers])
            assert not errs
            answers.append([accumulate(oks, t) for t in range(last + 1)])
    assert all(answer == answers[0] for answer in answers)
    return answers[0]


KV = columns(I64, TEXT, nullable=False)


def test_c1_linear_join_with_a_tick_that_changes_both() -> None:
    changes: list[Change] = [
        *((0, (k, v), 0, 1) for k, v in ((1, "a"), (2, "b"), (3, "c"))),
        *((1, (k, v), 0, 1) for k, v in ((1, "x"), (2, "y"), (2, "z"))),
        (1, (2, "y"), 1, -1), (1, (3, "w"), 1, 1), (0, (3, "d"), 1, 1),
    ]  # fmt: skip
    assert at_times([KV, KV], [(0,), (0,)], changes, 1) == [
        Counter([(1, "a", 1, "x"), (2, "b", 2, "y"), (2, "b", 2, "z")]),
        Counter([(1, "a", 1, "x"), (2, "b", 2, "z"), (3, "c", 3, "w"), (3, "d", 3, "w")]),
    ]


def test_c3_multiplicities_multiply() -> None:
    changes: list[Change] = [
        (0, (1, "a"), 0, 2),
        (1, (1, "x"), 0, 3),
        (0, (1, "a"), 1, -1),
        (1, (1, "x"), 2, -3),
    ]
    row = (1, "a", 1, "x")
    assert at_times([KV, KV], [(0,), (0,)], changes, 2) == [Counter({row: 6}), Counter({row: 3}), Counter()]


def test_c7_an_empty_input_and_then_not() -> None:
    changes: list[Change] = [(0, (1, "2"), 0, 1), (0, (2, "3"), 0, 1), (1, (1, "7"), 1, 1)]
    assert at_times([KV, KV], [(0,), (0,)], changes, 1) == [Counter(), Counter([(1, "2", 1, "7")])]


def test_c8_self_join_deltas_are_exact() -> None:
    past = [((1, "a"), 0, 1), ((1, "b"), 0, 1), ((1, "b"), 1, -1)]
    changes = [(port, row, time, diff) for row, time, diff in past for port in (0, 1)]
    oks, _ = run(Importing([KV, KV], [(0,), (0,)], (False, False)), [KV, KV], changes, [1, 2])
    net: Counter[Row] = Counter()
    for row, time, diff in oks:
        if time == 1:
            net[row[1::2]] += diff
    assert {row: n for row, n in net.items() if n} == {("a", "b"): -1, ("b", "a"): -1, ("b", "b"): -1}
    assert len(accumulate(oks, 0)) == 4
    assert accumulate(oks, 1) == Counter([(1, "a", 1, "a")])


def test_c10_null_keys_match_only_if_asked() -> None:
    types = columns(I64, TEXT)
    changes: list[Change] = [(0, (None, "a"), 0, 1), (1, (None, "x"), 0, 1)]
    assert at_times([types, types], [(0,), (0,)], changes, 0) == [Counter()]
    assert at_times([types, types], [(0,), (0,)], changes, 0, null_safe=True) == [
        Counter([(None, "a", None, "x")])
    ]


def test_bug25_zeros_and_nans_join_as_postgres_compares() -> None:
    types = columns(F64)
    other = -NAN
    left = [0.0, -0.0, NAN, other]
    changes: list[Change] = [*((0, (v,), 1, 1) for v in left), (1, (-0.0,), 1, 1), (1, (NAN,), 1, 1)]
    (_, got) = at_times([types, types], [(0,), (0,)], changes, 1)
    assert got == Counter({(0.0, 0.0): 2, ("nan", "nan"): 2})


def test_bug46_each_pair_once_over_compacted_and_merged_arrangements() -> None:
    rng = random.Random(46)
    types = columns(I64, I64, nullable=False)
    changes: list[Change] = []
    live: list[dict[int, int]] = [{}, {}]
    for time in range(52):
        for port in (0, 1):
            for _ in range(20):
                key = rng.randrange(40)
                if key in live[port]:
                    changes.append((port, (key, live[port][key]), time, -1))
                live[port][key] = rng.randrange(1000)
                changes.append((port, (key, live[port][key]), time, 1))
    operator = Importing([types, types], [(0,), (0,)], (True, True))
    oks, errs = run(operator, [types, types], changes, [51, 52], as_of=50, rng=rng)
    assert not errs
    for time in (50, 51):
        left, right = (
            accumulate([(r, t, d) for p, r, t, d in changes if p == port], time) for port in (0, 1)
        )
        assert accumulate(oks, time) == join_naively(left, right, [(0,), (0,)], null_safe=False)
    assert all(time == 50 for _, time, _ in oks if time < 51)


def test_output_columns_and_closure_shape_the_rows() -> None:
    changes: list[Change] = [(0, (1, "a"), 0, 1), (1, (1, "x"), 0, 1), (1, (1, "y"), 0, 1)]
    operator = Importing([KV, KV], [(0,), (0,)], (False, True), output_columns=(3, 1))
    assert accumulate(run(operator, [KV, KV], changes, [None])[0], 0) == Counter([("x", "a"), ("y", "a")])

    def drop_x(updates: Updates) -> Delta:
        keep = np.array([v != "x" for v in updates.columns[0].to_pylist()])
        return Delta.of(updates.filter(keep))

    closed = Importing(
        [KV, KV], [(0,), (0,)], (False, False), output_columns=(3,), closure=drop_x, closure_columns=KV[1:]
    )
    assert accumulate(run(closed, [KV, KV], changes, [None])[0], 0) == Counter([("y",)])


def test_errors_of_both_kinds_of_sides_pass() -> None:
    """Also those of a row that would have had no partner."""
    view = ImportedRound(ArrangementSchema(KV, (0,)))
    arrange = ArrangeOperator(KV, (0,))
    join = JoinOperator(arrange.arranged, view)
    streamed, imported = (
        Updates.from_rows((TEXT,), [((f"eval-error: {name}",), 1, 1)])
        for name in ("of the stream", "of the index")
    )
    round = Round(0, Frontier.at(2), 0)
    arrange.start(round)
    join.start(round)
    description = Description(Frontier.minimum(), Frontier.at(2), Frontier.minimum())
    view.set(round, (), (), [build_batch(imported, ERRS_SCHEMA, description, HeapAllocator())])
    errors = Delta(Updates.empty((I64, TEXT)), streamed)
    deltas = [*arrange.push(0, errors), *arrange.finish(), *join.finish()]
    errs = sorted(row for delta in deltas for row in delta.errs.to_rows())
    assert errs == [(("eval-error: of the index",), 1, 1), (("eval-error: of the stream",), 1, 1)]
    assert not any(len(delta.oks) for delta in deltas)


def test_keys_of_other_types_are_refused() -> None:
    with pytest.raises(ValueError, match="keys of a join differ"):
        Importing([KV, KV], [(0,), (1,)], (False, False))
    with pytest.raises(ValueError, match="keys of a join differ"):
        Importing([KV, KV], [(0,), ()], (False, False))


@pytest.mark.parametrize("tactic", [None, PlainTactic()])
@pytest.mark.parametrize("arranged", [(False, False), (True, True), (True, False)])
def test_bug32_multiplicities_beyond_64_bits_are_errors_that_heal(
    arranged: tuple[bool, bool], tactic: JoinTactic | None
) -> None:
    one = columns(I64, nullable=False)
    for diff in (3037000500, 4294967296, 1 << 62):
        changes: list[Change] = [
            (port, (7,), time, d) for time, d in ((1, diff), (2, 2 - diff)) for port in (0, 1)
        ]
        changes += [(0, (8,), 1, 3), (1, (8,), 1, 1)]
        for uppers in ([2, 3], [3], [2, 3, None]):
            operator = Importing([one, one], [(0,), (0,)], arranged, tactic=tactic)
            oks, errs = run(operator, [one, one], changes, [*uppers])
            text = f"multiplicity-overflow: join: row (7, 7) has multiplicity {diff * diff}"
            assert accumulate(errs, 1) == Counter([text])
            assert accumulate(oks, 1) == Counter({(8, 8): 3})
            assert not accumulate(errs, 2)
            assert accumulate(oks, 2) == Counter({(7, 7): 4, (8, 8): 3})
            assert len(operator.inner._watch) == 0


@pytest.mark.slow
def test_random_large_multiplicities_are_exact_or_an_error() -> None:
    one = columns(I64, nullable=False)
    for seed in range(30):
        rng = random.Random(seed)
        changes: list[Change] = []
        for time in range(6):
            for port in (0, 1):
                size = rng.choice([1, 20, 31, 40, 62])
                changes.append((port, (rng.randrange(2),), time, rng.randrange(-(1 << size), 1 << size) or 1))
        inside = [(r, t, d) for _, r, t, d in changes]
        if any(abs(n) >= 1 << 63 for t in range(6) for n in accumulate(inside, t).values()):
            continue
        operator = Importing([one, one], [(0,), (0,)], (seed % 2 == 0, seed % 3 == 0))
        oks, errs = run(operator, [one, one], changes, random_uppers(rng, 6), rng=rng)
        for time in range(6):
            left, right = (
                accumulate([(r, t, d) for p, r, t, d in changes if p == port], time) for port in (0, 1)
            )
            true = join_naively(left, right, [(0,), (0,)], null_safe=False)
            fits = {row: n for row, n in true.items() if n and -(1 << 63) <= n < 1 << 63}
            assert accumulate(oks, time) == Counter(fits), f"seed {seed} time {time}"
            wrong = [
                f"multiplicity-overflow: join: row {row} has multiplicity {n}"
                for row, n in true.items()
                if row not in fits and n
            ]
            assert accumulate(errs, time) == Counter(wrong), f"seed {seed} time {time}"


def test_an_input_whose_sum_leaves_64_bits_does_no_harm() -> None:
    one = columns(I64, nullable=False)
    most = (1 << 63) - 1
    changes: list[Change] = [
        (0, (7,), 0, most), (0, (7,), 0, most), (1, (7,), 0, 1),
        (0, (7,), 1, -most), (0, (7,), 1, 5 - most), (1, (7,), 2, 1),
    ]  # fmt: skip
    oks, errs = run(Importing([one, one], [(0,), (0,)], (False, False)), [one, one], changes, [1, 2, 3])
    assert accumulate(errs, 0) == Counter(
        [f"multiplicity-overflow: join: row (7, 7) has multiplicity {2 * most}"]
    )
    assert not accumulate(errs, 1)
    assert [accumulate(oks, t) for t in range(3)] == [Counter(), Counter({(7, 7): 5}), Counter({(7, 7): 10})]


def numbers(*arrays: np.ndarray[Any, Any], time: int = 0) -> Updates:
    n = len(arrays[0])
    return Updates(
        tuple(Column(I64, np.ascontiguousarray(a, np.int64)) for a in arrays),
        np.full(n, time, np.uint64), np.ones(n, np.int64),
    )  # fmt: skip


def push_all(operator: Any, port: int, updates: Updates) -> None:
    for lo in range(0, len(updates), BLOCK_ROWS):
        block = updates.slice(lo, min(lo + BLOCK_ROWS, len(updates)))
        assert not any(map(len, operator.push(port, Delta.of(block))))


@pytest.mark.slow
def test_an_exploding_join_comes_in_blocks_and_feeds_a_count() -> None:
    types = columns(I64, I64, nullable=False)
    join = Importing([types, types], [(0,), (0,)], (False, False), output_columns=(0, 3))
    count = ReduceOperator(join.schema, (0,), [AggregateCall("count"), AggregateCall("sum", 1)])
    round = Round(0, Frontier.at(1), 0)
    join.start(round)
    count.start(round)
    n = 4000
    for port in (0, 1):
        push_all(join, port, numbers(np.arange(n) % 4, np.arange(n)))
    for delta in join.finish():
        assert len(delta) <= BLOCK_ROWS
        assert list(count.push(0, delta)) == []
    got = {row[0]: row[1:] for d in count.finish() for row, _, _ in d.oks.to_rows()}
    assert got == {k: (n // 4 * n // 4, n // 4 * sum(range(k, n, 4))) for k in range(4)}


@pytest.mark.slow
@pytest.mark.parametrize("arranged", [False, True])
def test_work_follows_the_change_not_the_state(arranged: bool) -> None:
    steps = []
    types = columns(I64, I64, nullable=False)
    for rows in (20_000, 200_000):
        operator = Importing([types, types], [(0,), (0,)], (arranged, arranged))
        inner = operator.inner
        operator.start(Round(0, Frontier.at(1), 0))
        keys = np.random.default_rng(1).permutation(rows)
        for port in (0, 1):
            push_all(operator, port, numbers(keys, keys + port))
        assert sum(len(d) for d in operator.finish()) == rows
        before = inner.statistics().touched_rows
        for t in range(1, 51):
            operator.start(Round(t, Frontier.at(t + 1), 0))
            push_all(operator, t % 2, numbers(np.array([t * 7, t * 11 + 1]), np.array([1, 2]), time=t))
            assert sum(len(d) for d in operator.finish()) >= 2
        steps.append(inner.statistics().touched_rows - before)
    assert steps[1] < 1.6 * steps[0] < 1.6 * 50 * 1000


def test_a_join_that_finds_nothing_still_pauses() -> None:
    """All pairs lie outside the times wanted: pieces of work end, though no row comes."""
    schema = ArrangementSchema(columns(I64, I64, nullable=False), (0,))
    n = 3000
    description = Description(Frontier.minimum(), Frontier.at(2), Frontier.minimum())
    batch = build_batch(numbers(np.zeros(n), np.arange(n)), schema, description, HeapAllocator())
    from clusterd.operators.join_tactic import PIECE_STEPS, KernelTactic

    pieces = list(KernelTactic(64).pairs(Part(batch, 0, MAX_TIME), Part(batch, 1, 1), 0, False, lambda: 64))
    assert all(len(p.times) == 0 and p.steps <= 1.1 * PIECE_STEPS for p in pieces)
    assert len(pieces) >= n * n // PIECE_STEPS
