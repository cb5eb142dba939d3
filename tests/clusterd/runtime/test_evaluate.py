"""Evaluating and finishing a peek over heap batches: each rule by example, all against a naive reading."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np
import pytest

from clusterd.convert import arrangement_schema
from clusterd.runtime.evaluate import Readable, answer_point, check_peek, evaluate, evaluate_pieces
from clusterd.runtime.limits import Limits
from controller_proto.command import Finishing, Peek, ReadLimits
from controller_proto.dataflow import Export
from controller_proto.errors import Refusal
from controller_proto.expr import Call, ColumnRef, Literal
from controller_proto.plan import OrderBy
from controller_proto.response import PeekError, PeekResponse, PeekResult, PeekRows
from controller_proto.schema import Column, ColumnType, Schema
from shm_arrangements.batch import Batch
from shm_arrangements.builder import HeapAllocator, build_batch
from shm_arrangements.columns import Column as Values
from shm_arrangements.description import Description
from shm_arrangements.frontier import Frontier
from shm_arrangements.types import ColumnType as Kind
from shm_arrangements.updates import Updates
from shm_arrangements.writer import ERRS_SCHEMA

T = ColumnType
Update = tuple[tuple[Any, ...], int, int]
KV = Schema((Column("k", T.INT64), Column("v", T.INT64)))
KT = Schema((Column("k", T.INT64, True), Column("s", T.TEXT, True)))
BIG = 60 << 20


def index(
    schema: Schema,
    updates: list[Update],
    *,
    key: tuple[int, ...] = (0,),
    errs: Sequence[Update] = (),
    cuts: int = 1,
) -> Readable:
    """An index of some batches, cut by time into `cuts`."""
    arranged = arrangement_schema(schema, key)
    return Readable.of("u1", arranged, _batches(arranged, updates, cuts), _batches(ERRS_SCHEMA, errs, cuts))


def _batches(arranged: Any, updates: Sequence[Update], cuts: int) -> list[Batch]:
    bounds = [0, *range(1, cuts), 100]
    types = [c.type for c in arranged.columns]
    made = []
    for lower, upper in itertools.pairwise(bounds):
        part = [u for u in updates if lower <= u[1] < upper]
        description = Description(Frontier.at(lower), Frontier.at(upper), Frontier.minimum())
        made.append(build_batch(Updates.from_rows(types, part), arranged, description, HeapAllocator()))
    return made


def ask(
    readable: Readable,
    time: int = 50,
    *,
    keys: tuple[tuple[Any, ...], ...] | None = None,
    limit_bytes: int = BIG,
    piece_rows: int = 1 << 16,
    **finishing: Any,
) -> PeekResponse:
    peek = Peek(1, "p", "u1", time, keys, Finishing(**finishing))
    raw = evaluate(peek, time, readable, limits=Limits(limit_bytes), served_by="solo", piece_rows=piece_rows)
    response = msgspec.msgpack.decode(raw, type=PeekResponse)
    assert (response.uuid, response.time, response.served_by) == ("p", time, "solo")
    return response


def ask_point(
    readable: Readable, key: tuple[Any, ...], time: int = 50, limit_bytes: int = BIG
) -> bytes | None:
    """What is soon said of one key; that it is what evaluating it says, byte for byte."""
    peek = Peek(1, "p", "u1", time, (key,))
    told = answer_point(peek, time, readable, limit_bytes=limit_bytes, served_by="solo")
    if told is not None:
        assert told == evaluate(peek, time, readable, limits=Limits(BIG), served_by="solo")
    return told


def rows(response: PeekResponse) -> list[tuple[Any, ...]]:
    result = response.result
    assert isinstance(result, PeekRows), result
    assert all(count > 0 for count in result.counts)
    listed = list(zip(*result.columns, strict=True)) if result.columns else [()] * len(result.counts)
    return [row for row, count in zip(listed, result.counts, strict=True) for _ in range(count)]


def error(response: PeekResponse) -> PeekError:
    assert isinstance(response.result, PeekError), response.result
    return response.result


def plus(rows_: list[tuple[Any, ...]], time: int = 0) -> list[Update]:
    return [(row, time, 1) for row in rows_]


def test_rows_come_by_value_column_by_column_null_last() -> None:
    readable = index(KT, plus([(2, "b"), (None, "a"), (1, None), (1, "z"), (1, "ab"), (None, None)]))
    assert rows(ask(readable)) == [
        (1, "ab"), (1, "z"), (1, None), (2, "b"), (None, "a"), (None, None),
    ]  # fmt: skip


def test_b1_counts_are_multiplicities_at_the_time() -> None:
    updates = [((1, 7), 0, 3), ((2, 7), 0, 1), ((1, 7), 1, -1), ((1, 7), 2, -2)]
    for cuts in (1, 3):
        readable = index(KV, updates, cuts=cuts)
        assert rows(ask(readable, 0)) == [(1, 7)] * 3 + [(2, 7)]
        assert rows(ask(readable, 1)) == [(1, 7)] * 2 + [(2, 7)]
        assert rows(ask(readable, 2)) == [(2, 7)]


def test_b5_keys_are_a_set_in_any_order_and_an_empty_list_selects_nothing() -> None:
    readable = index(KV, plus([(k, 0) for k in range(2000)]), cuts=2)
    assert rows(ask(readable, keys=((1999,), (5,), (500,)))) == [(5, 0), (500, 0), (1999, 0)]
    assert rows(ask(readable, keys=((5,), (5,), (5,)))) == [(5, 0)]
    assert rows(ask(readable, keys=((3000,), (4000,)))) == []
    assert rows(ask(readable, keys=())) == []
    assert rows(ask(readable, keys=((None,),))) == []


def test_null_and_nan_can_be_looked_up_and_are_one_key_each() -> None:
    readable = index(KT, plus([(None, "a"), (None, "b"), (1, "c")]))
    assert rows(ask(readable, keys=((None,), (None,)))) == [(None, "a"), (None, "b")]
    floats = Schema((Column("f", T.FLOAT64), Column("v", T.INT64)))
    readable = index(floats, plus([(math.nan, 1), (0.0, 2)]))
    found = ask(readable, keys=((math.nan,), (float("-nan"),), (-0.0,), (0.0,)))
    assert [row[1] for row in rows(found)] == [2, 1]


def test_equal_numerics_written_differently_are_one_key() -> None:
    numeric = Schema((Column("n", T.NUMERIC), Column("v", T.INT64)))
    readable = index(numeric, plus([(1, 5)]))
    assert rows(ask(readable, keys=(("1",), ("01",), ("+1",)))) == [("1", 5)]


def test_b4_an_empty_key_holds_all_rows() -> None:
    readable = index(KV, plus([(1, 1), (2, 2)]), key=())
    assert rows(ask(readable)) == [(1, 1), (2, 2)]
    assert rows(ask(readable, keys=((),))) == [(1, 1), (2, 2)]


def test_b7_a_scan_that_pauses_after_every_row_gives_what_one_that_does_not_gives() -> None:
    updates = [((n % 500, n), n % 5, 1) for n in range(2_000)] + [
        ((n % 500, n), 5, -1) for n in range(0, 2_000, 3)
    ]
    for cuts in (1, 6):
        readable = index(KV, updates, cuts=cuts)
        for time in (2, 50):
            wanted = rows(ask(readable, time))
            assert rows(ask(readable, time, piece_rows=1)) == wanted
            by_key = ((499,), (5,), (77_777,), (5,))
            assert rows(ask(readable, time, keys=by_key, piece_rows=1)) == rows(
                ask(readable, time, keys=by_key)
            )
            # Two at once, one piece of each at a time: neither goes on where the other is.
            ordered: dict[str, Any] = {"order_by": (OrderBy(1, descending=True),), "limit": 7, "offset": 2}
            peeks = [
                Peek(1, "a", "u1", time, None, Finishing()),
                Peek(1, "b", "u1", time, None, Finishing(**ordered)),
            ]
            running = [
                evaluate_pieces(peek, time, readable, limits=Limits(BIG), served_by="solo", piece_rows=3)
                for peek in peeks
            ]
            answers: dict[str, PeekResponse] = {}
            while len(answers) < 2:
                for each in running:
                    try:
                        next(each)
                    except StopIteration as end:
                        if end.value is not None:
                            answer = msgspec.msgpack.decode(end.value, type=PeekResponse)
                            answers[answer.uuid] = answer
            assert rows(answers["a"]) == wanted
            assert rows(answers["b"]) == rows(ask(readable, time, **ordered))


def test_b9_order_limit_and_offset_count_multiplicity() -> None:
    readable = index(KV, [((1, 30), 0, 1), ((2, 10), 0, 1), ((3, 20), 0, 1), ((4, 10), 0, 2)])
    order = (OrderBy(1), OrderBy(0))
    assert rows(ask(readable, order_by=order, limit=3, offset=1, projection=(1, 0))) == [
        (10, 4),
        (10, 4),
        (20, 3),
    ]
    assert rows(ask(readable, limit=0)) == []
    assert rows(ask(readable, order_by=(OrderBy(1, descending=True),), limit=1)) == [(1, 30)]
    greater = Call(">", (ColumnRef(1), Literal(T.INT64, 10)))
    added = Call("+", (ColumnRef(0), ColumnRef(1)))
    assert rows(ask(readable, predicates=(greater,), maps=(added,), projection=(2,))) == [(23,), (31,)]


def test_bug39_windows_without_an_order_partition_the_rows() -> None:
    one = Schema((Column("v", T.INT64),))
    readable = index(one, [((2,), 0, 2), ((1,), 0, 1)])
    ordered = (OrderBy(0),)
    assert rows(ask(readable, order_by=ordered, limit=1, offset=1)) == [(2,)]
    assert rows(ask(readable, order_by=ordered, limit=2, offset=2)) == [(2,)]
    assert rows(ask(readable, order_by=ordered, offset=3)) == []
    windows = [rows(ask(readable, limit=1, offset=i)) for i in range(3)]
    assert sorted(row for window in windows for row in window) == [(1,), (2,), (2,)]


def test_windows_reach_to_the_ends_of_their_range() -> None:
    one = Schema((Column("v", T.INT64),))
    few = index(one, plus([(1,), (2,)]))
    assert rows(ask(few, limit=(1 << 64) - 1)) == [(1,), (2,)]
    assert rows(ask(few, limit=(1 << 64) - 1, offset=1)) == [(2,)]
    assert rows(ask(few, offset=(1 << 64) - 1)) == []
    assert rows(ask(few, limit=1, offset=(1 << 64) - 1)) == []
    most = (1 << 63) - 1
    many = index(one, [((1,), 0, most), ((2,), 0, most), ((3,), 0, most)])
    found = [
        ask(many, order_by=(OrderBy(0),), offset=offset, limit=limit).result
        for offset, limit in [(5, None), (most - 1, 3), (0, 7)]
    ]
    assert [each.counts for each in found if isinstance(each, PeekRows)] == [
        (most - 5, most, most), (1, 2), (7,),
    ]  # fmt: skip


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("nulls_first", [False, True])
def test_nulls_go_where_they_are_told_whichever_way_the_values_go(
    descending: bool, nulls_first: bool
) -> None:
    readable = index(KT, plus([(None, "x"), (2, "y"), (7, "z")]))
    values = [row[0] for row in rows(ask(readable, order_by=(OrderBy(0, descending, nulls_first),)))]
    known = [7, 2] if descending else [2, 7]
    assert values == ([None, *known] if nulls_first else [*known, None])


def test_texts_that_share_a_long_beginning_are_ordered_too() -> None:
    readable = index(KT, plus([(1, "aaaaaaaaaaaab"), (2, "aaaaaaaaaaaaa"), (3, "aaaaaaaa"), (4, "")]))
    down = rows(ask(readable, order_by=(OrderBy(1, descending=True),)))
    assert [row[0] for row in down] == [1, 2, 3, 4]


def test_equal_rows_of_a_projection_are_one_row_unless_an_order_was_asked_for() -> None:
    readable = index(KV, plus([(1, 5), (2, 5), (3, 4)]))
    result = ask(readable, projection=(1,)).result
    assert isinstance(result, PeekRows)
    assert (result.columns, result.counts) == (((4, 5),), (1, 2))
    assert ask(readable, projection=()).result == PeekRows((), (3,))
    assert rows(ask(readable, projection=(1, 1, 0), limit=1)) == [(5, 5, 1)]


def test_b15_a_negative_multiplicity_is_an_error_that_names_the_least_row() -> None:
    for cuts in (1, 2):
        readable = index(
            KT, [((3, "c"), 0, -2), ((1, "a"), 0, -1), ((2, "b"), 0, 1), ((1, "a"), 1, 1)], cuts=cuts
        )
        for piece_rows in (1, 1 << 16):
            found = error(ask(readable, 0, piece_rows=piece_rows, limit=0))
            assert found.code == "invalid-data"
            assert found.message == 'row (1, "a") of u1 has multiplicity -1 at 0'
        assert rows(ask(readable, 0, keys=((2,),))) == [(2, "b")]
        assert "(3" in error(ask(readable, 1)).message


def test_d7_d8_an_error_of_the_collection_wins_over_any_selection_and_heals() -> None:
    broken = [(("eval-error: division by zero",), 1, 1), (("eval-error: division by zero",), 3, -1)]
    readable = index(KV, plus([(1, 1)]), errs=broken)
    never = Call("=", (ColumnRef(0), Literal(T.INT64, 99)))
    for how in ({}, {"limit": 0}, {"keys": ()}, {"keys": ((4,),)}, {"predicates": (never,)}):
        found = error(ask(readable, 1, **how))  # type: ignore[arg-type]
        assert (found.code, found.message) == ("eval-error", "division by zero")
    assert rows(ask(readable, 0)) == [(1, 1)]
    assert rows(ask(readable, 3)) == [(1, 1)]


def test_an_error_retracted_more_often_than_made_is_invalid_data() -> None:
    readable = index(KV, [], errs=[(("eval-error: x",), 0, -1)])
    assert error(ask(readable)).code == "invalid-data"


def test_an_error_of_the_finishing_is_the_answer_unless_the_row_is_filtered() -> None:
    readable = index(KV, plus([(0, 1), (2, 1)]))
    quotient = Call("/", (Literal(T.INT64, 10), ColumnRef(0)))
    assert error(ask(readable, maps=(quotient,))).code == "eval-error"
    filtered = Call("!=", (ColumnRef(0), Literal(T.INT64, 0)))
    assert rows(ask(readable, maps=(quotient,), predicates=(filtered,))) == [(2, 1, 5)]
    assert rows(ask(readable, maps=(quotient,), projection=(0,))) == [(0,), (2,)]


def test_b16_a_result_over_the_limit_is_an_error_that_names_it_and_a_limit_helps() -> None:
    readable = index(KT, plus([(k, "x" * 1024) for k in range(1000)]))
    for piece_rows in (10, 1 << 16):
        found = error(ask(readable, limit_bytes=100 << 10, piece_rows=piece_rows))
        assert found.code == "result-too-large"
        assert "max_result_bytes is 102400" in found.message
    assert len(rows(ask(readable, limit_bytes=100 << 10, limit=5))) == 5
    assert error(ask(readable, limit_bytes=100 << 10, offset=5)).code == "result-too-large"
    assert len(rows(ask(readable, limit_bytes=100 << 10, projection=(0,)))) == 1000


@pytest.mark.parametrize("piece_rows", [1, 3, BIG])
def test_limits_name_themselves_and_are_the_same_however_the_scan_is_cut(piece_rows: int) -> None:
    readable = index(KT, [((k, f"v{k}"), 0, 2) for k in range(20)])

    def told(limits: Limits, **finishing: Any) -> PeekResult:
        peek = Peek(1, "p", "u1", 0, None, Finishing(**finishing))
        raw = evaluate(peek, 0, readable, limits=limits, served_by="solo", piece_rows=piece_rows)
        return msgspec.msgpack.decode(raw, type=PeekResponse).result

    def code_and_why(limits: Limits, **finishing: Any) -> tuple[str, str]:
        result = told(limits, **finishing)
        assert isinstance(result, PeekError)
        return result.code, result.message

    allowed = Limits(BIG, result_rows=40, rows_read=20)
    assert isinstance(told(allowed), PeekRows)
    why = "u1 has more rows to read at 0 than max_rows_read, which is 19"
    assert code_and_why(Limits(BIG, rows_read=19), limit=1) == ("limit", why)
    why = "the answer has 40 rows, max_result_rows is 39"
    assert code_and_why(Limits(BIG, result_rows=39)) == ("result-too-large", why)
    assert code_and_why(Limits(BIG, result_rows=39), offset=0, limit=100) == ("result-too-large", why)
    assert isinstance(told(Limits(BIG, result_rows=39), limit=39), PeekRows)
    assert isinstance(told(Limits(BIG, result_rows=39), offset=1), PeekRows)
    own = allowed.of(ReadLimits(rows_read=100, result_rows=10, result_bytes=1))
    assert (own.result_bytes, own.result_rows, own.rows_read) == (1, 10, 20)
    assert code_and_why(own) == ("result-too-large", "the answer has 40 rows, limits.result_rows is 10")
    assert code_and_why(own, limit=1)[1].endswith("bytes, limits.result_bytes is 1")


def test_a_point_read_over_a_limit_of_rows_is_refused_as_any_other() -> None:
    readable = index(KT, [((1, "a"), 0, 3)])
    peek = Peek(1, "p", "u1", 0, ((1,),), limits=ReadLimits(result_rows=2))
    assert answer_point(peek, 0, readable, limit_bytes=BIG, served_by="solo") is None
    raw = evaluate(peek, 0, readable, limits=Limits(BIG).of(peek.limits), served_by="solo")
    result = msgspec.msgpack.decode(raw, type=PeekResponse).result
    assert isinstance(result, PeekError)
    assert result.message == "the answer has 3 rows, limits.result_rows is 2"


def test_the_size_is_the_same_however_the_scan_is_cut() -> None:
    readable = index(KT, plus([(k, "x" * (k % 50)) for k in range(500)]), cuts=3)
    told = {error(ask(readable, limit_bytes=10, piece_rows=n)).message for n in (1 << 16,)}
    assert len(told) == 1


def test_a_data_error_wins_over_a_size_limit() -> None:
    readable = index(KV, [*plus([(k, 0) for k in range(100)]), ((1000, 0), 0, -1)])
    assert error(ask(readable, limit_bytes=10, piece_rows=1)).code == "invalid-data"


def test_a_multiplicity_beyond_64_bits_is_a_data_error() -> None:
    top = (1 << 63) - 1
    readable = index(KV, [((1, 1), 0, top), ((1, 1), 1, top)], cuts=2)
    assert error(ask(readable)).code == "multiplicity-overflow"
    assert error(ask(readable, keys=((1,),))).code == "multiplicity-overflow"


def test_a_scan_goes_in_pieces_and_a_key_is_never_cut() -> None:
    readable = index(KV, plus([(k % 10, k) for k in range(1000)]))
    peek = Peek(1, "p", "u1", 50)
    pieces = evaluate_pieces(peek, 50, readable, limits=Limits(BIG), served_by="solo", piece_rows=100)
    assert sum(1 for _ in pieces) >= 5
    assert rows(ask(readable, piece_rows=100)) == rows(ask(readable))


def test_a_peek_is_checked_against_its_index() -> None:
    export = Export("u1", "index", "u9", KV, (0,))
    check_peek(Peek(1, "p", "u1", 0, ((1,), (None,))), export)
    for keys in (((1, 2),), (("x",),), ((True,),), ((1 << 63,),)):
        with pytest.raises(Refusal, match="invalid-plan"):
            check_peek(Peek(1, "p", "u1", 0, keys), export)
    for finishing in (
        Finishing(projection=(2,)),
        Finishing(order_by=(OrderBy(2),)),
        Finishing(predicates=(ColumnRef(0),)),
        Finishing(maps=(ColumnRef(5),)),
    ):
        with pytest.raises(Refusal, match="invalid-plan"):
            check_peek(Peek(1, "p", "u1", 0, None, finishing), export)


def _order_key(order: tuple[OrderBy, ...]) -> Any:
    class Reverse:
        def __init__(self, value: Any) -> None:
            self.value = value

        def __lt__(self, other: Reverse) -> bool:
            return bool(other.value < self.value)

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Reverse) and self.value == other.value

    def one(value: Any, by: OrderBy) -> tuple[Any, ...]:
        if value is None:
            return (0 if by.nulls_first else 2,)
        value = value.encode() if isinstance(value, str) else value
        return (1, Reverse(value) if by.descending else value)

    def key(row: tuple[Any, ...]) -> Any:
        parts = [one(row[by.column], by) for by in order]
        return (*parts, *(one(value, OrderBy(i)) for i, value in enumerate(row)))

    return key


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_random_peeks_are_what_a_naive_reading_says(seed: int) -> None:
    rng = random.Random(seed)
    texts = ["", "a", "b", "aaaaaaaaaaaaaaaax", "aaaaaaaaaaaaaaaay", None]
    for _ in range(150):
        updates: list[Update] = []
        for _ in range(rng.randrange(60)):
            row = (rng.choice([None, *range(8)]), rng.choice(texts))
            updates.append((row, rng.randrange(5), rng.choice([1, 1, 2, 3])))
            if rng.random() < 0.3:
                updates.append((row, rng.randrange(updates[-1][1], 6), -updates[-1][2]))
        readable = index(KT, updates, cuts=rng.randrange(1, 6), key=rng.choice([(0,), (1,), (0, 1), ()]))
        time = rng.randrange(6)
        counts: dict[tuple[Any, ...], int] = {}
        for row, at, diff in updates:
            if at <= time:
                counts[row] = counts.get(row, 0) + diff
        held = [row for row, count in counts.items() for _ in range(count)]
        keys = None
        if rng.random() < 0.5:
            some = [rng.choice([(0, "a"), (3, None), (None, ""), (7, "b"), (1, "a")]) for _ in range(3)]
            keys = tuple(tuple(row[i] for i in readable.schema.key) for row in some)
            held = [row for row in held if tuple(row[i] for i in readable.schema.key) in keys]
        order = tuple(
            OrderBy(rng.randrange(2), rng.random() < 0.5, rng.random() < 0.5) for _ in range(rng.randrange(3))
        )
        limit, offset = rng.choice([None, 0, 2, 5]), rng.choice([0, 0, 1, 3])
        projection = rng.choice([None, (0,), (1, 0), (1,)])
        held = sorted(held, key=_order_key(order))[offset : None if limit is None else offset + limit]
        if projection is not None:
            held = [tuple(row[i] for i in projection) for row in held]
            if not order:
                held = sorted(held, key=_order_key(()))
        found = ask(
            readable, time, keys=keys, piece_rows=rng.choice([1, 7, 1 << 16]),
            order_by=order, limit=limit, offset=offset, projection=projection,
        )  # fmt: skip
        assert rows(found) == held, (seed, updates, keys, order, limit, offset, projection)


def test_limits_keep_only_what_they_may_need() -> None:
    n = 300_000
    one = Schema((Column("v", T.INT64),))
    arranged = arrangement_schema(one, (0,))
    values = np.random.default_rng(1).permutation(n).astype(np.int64)
    updates = Updates((Values(Kind.INT64, values),), np.zeros(n, np.uint64), np.ones(n, np.int64))
    description = Description(Frontier.at(0), Frontier.at(1), Frontier.minimum())
    readable = Readable.of("u1", arranged, [build_batch(updates, arranged, description, HeapAllocator())], [])
    assert rows(ask(readable, 0, limit=3, offset=2)) == [(2,), (3,), (4,)]
    assert rows(ask(readable, 0, limit=2, order_by=(OrderBy(0, descending=True),))) == [(n - 1,), (n - 2,)]


def test_a_key_with_one_row_or_none_is_soon_answered() -> None:
    readable = index(KV, plus([(k, 7 * k) for k in range(100)]), cuts=3)
    assert all(ask_point(readable, (k,)) is not None for k in (0, 1, 99, 100, -1, 2**63 - 1))
    texts = index(KT, plus([(1, "b"), (2, None), (3, "")]), key=(1,))
    assert all(ask_point(texts, (s,)) is not None for s in ("b", "", "c"))


def test_what_takes_longer_to_answer_is_not_said_soon() -> None:
    row = [((1, 10), 0, 1)]
    assert ask_point(index(KV, [*row, ((1, 11), 0, 1)]), (1,)) is None  # two rows
    assert ask_point(index(KV, [((1, 10), 0, 2)]), (1,)) is None  # twice
    assert ask_point(index(KV, [((1, 10), 0, -1)]), (1,)) is None  # an error
    assert ask_point(index(KV, row, errs=[(("division-by-zero: x",), 0, 1)]), (1,)) is None
    assert ask_point(index(KV, row, key=()), ()) is None
    assert ask_point(index(KV, row), (1,), limit_bytes=100) is None
    long = index(KT, plus([(1, "x" * 5000)]))
    assert ask_point(long, (1,)) is None
    numerics = Schema((Column("k", T.INT64), Column("n", T.NUMERIC, scale=2)))
    assert ask_point(index(numerics, [((1, 100), 0, 1)]), (1,)) is None
    documents = Schema((Column("j", T.JSONB), Column("v", T.INT64)))
    assert ask_point(index(documents, [(('{"a": 1}', 1), 0, 1)]), ('{"a":1}',)) is None
    peek = Peek(1, "p", "u1", 50, ((1,),), Finishing(limit=1))
    assert answer_point(peek, 50, index(KV, row), limit_bytes=BIG, served_by="solo") is None


@pytest.mark.parametrize("seed", range(20))
def test_what_is_soon_said_is_what_evaluating_says_at_every_time(seed: int) -> None:
    rng = random.Random(seed)
    print(f"seed {seed}")
    kinds: list[tuple[T, Callable[[], Any]]] = [
        (T.INT64, lambda: rng.randrange(-4, 4)),
        (T.UINT64, lambda: rng.choice([0, 1, 2**63, 2**64 - 1])),
        (T.FLOAT64, lambda: rng.choice([0.0, -0.0, 1.5, math.inf, math.nan])),
        (T.FLOAT32, lambda: rng.choice([0.0, -0.0, 0.1, -2.5])),
        (T.BOOL, lambda: rng.random() < 0.5),
        (T.TEXT, lambda: "ab\u00e9"[: rng.randrange(4)]),
        (T.BYTEA, lambda: b"ab\0"[: rng.randrange(4)]),
        (T.INT16, lambda: rng.randrange(-2, 2)),
    ]
    chosen = [rng.choice(kinds) for _ in range(rng.randrange(1, 4))]
    nullable = [rng.random() < 0.5 for _ in chosen]
    schema = Schema(
        tuple(
            Column(f"c{i}", kind, null)
            for i, ((kind, _), null) in enumerate(zip(chosen, nullable, strict=True))
        )
    )

    def value(i: int) -> Any:
        return None if nullable[i] and rng.random() < 0.3 else chosen[i][1]()

    columns = range(len(chosen))
    key = tuple(rng.sample(columns, rng.randrange(1, len(chosen) + 1)))
    updates = [
        (tuple(value(i) for i in columns), rng.randrange(100), 1 if rng.random() < 0.8 else -1)
        for _ in range(rng.randrange(12))
    ]
    readable = index(schema, updates, key=key, cuts=rng.randrange(1, 4))
    asked = [tuple(row[i] for i in key) for row, _, _ in updates]
    asked += [tuple(value(i) for i in key) for _ in range(6)]
    for time in rng.sample(range(100), 8):
        for one in asked:
            ask_point(readable, one, time)
