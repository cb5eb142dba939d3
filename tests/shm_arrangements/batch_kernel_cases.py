"""How arguments are drawn of the kernels that make batches."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from shm_arrangements.assembler import Assembler
from shm_arrangements.batch import Batch
from shm_arrangements.batch_plan import Plan
from shm_arrangements.builder import HeapAllocator, build_batch
from shm_arrangements.description import Description
from shm_arrangements.frontier import Frontier
from shm_arrangements.kernels import arrange, sort
from shm_arrangements.kernels.refs import ROW_BITS
from shm_arrangements.schema import ArrangementSchema
from shm_arrangements.testing import reference_batch as reference
from shm_arrangements.testing.model import normal_row
from shm_arrangements.updates import Updates
from tests.shm_arrangements.kernel_cases import (
    InOut,
    Out,
    Scratch,
    case,
    diff_values,
    draw_pool,
    draw_specs,
    draw_table,
    i64,
    together,
    u64,
    words,
)

ANY_TIME = Description(Frontier.minimum(), Frontier.empty(), Frontier.minimum())


def _draw_tied(draw: Any) -> tuple[Any, ...]:
    """A table of rows of few codes, often many of one; times and diffs of each, or one for all."""
    specs = draw_specs(draw)
    pool = draw_pool(draw, specs)
    n = draw(st.sampled_from([0, 1, 2, 9, 30, 120]))
    rng = np.random.default_rng(draw(st.integers(0, 999)))
    rows = [pool[at] for at in rng.integers(0, len(pool), n)]
    codes = u64(np.sort(rng.integers(0, draw(st.sampled_from([1, 3, 50])), n)))
    order = rng.permutation(n).astype(np.uint32)
    times = u64(rng.integers(0, 4, n))
    diffs = i64([draw(diff_values) for _ in range(n)]) if n < 10 else i64(rng.choice([-1, 0, 1, 1], n))
    if n and draw(st.booleans()):
        times, diffs = times[:1].copy(), diffs[:1].copy()
    first = draw(st.integers(0, len(specs)))
    table = draw_table(draw, specs, rows)
    return table, first, len(specs), times, diffs, codes, order


def _in_order(drawn: tuple[Any, ...]) -> Any:
    """The same with its order sorted."""
    table, first, last, times, diffs, codes, order = drawn
    if len(order):
        order = reference.order_ties(*table.reference, first, last, times, codes, order, i64([]))[1]
    return table, first, last, times, diffs, codes, order


@case("arrange.order_ties")
def _order_ties(draw: Any) -> list[Any]:
    table, first, last, times, _, codes, order = _draw_tied(draw)
    n = len(order)
    return [
        table, first, last, times, InOut(codes), InOut(order), Scratch(n, np.uint64), Scratch(n, np.uint32),
        Scratch(sort.TALLIES, np.uint32), Scratch((14, 3), np.uint64), Scratch((arrange.DEPTH, 3), np.int64),
        InOut(i64([0, 0])),
    ]  # fmt: skip


@case("arrange.find_sum")
def _find_sum(draw: Any) -> list[Any]:
    return list(_in_order(_draw_tied(draw)))


@case("arrange.sum_ties")
def _sum_ties(draw: Any) -> list[Any]:
    table, first, last, times, diffs, codes, order = _in_order(_draw_tied(draw))
    if len(order):
        (start,) = reference.find_sum(*table.reference, first, last, times, diffs, codes, order)
    else:
        start, times, diffs = 0, u64([0]), i64([1])
    out = Out(len(order), np.int64)
    return [table, first, last, times, diffs, start, InOut(codes), InOut(order), out]


@case("arrange.check_order")
def _check_order(draw: Any) -> list[Any]:
    specs = draw_specs(draw)
    pool = sorted(draw_pool(draw, specs), key=repr)
    n = draw(st.integers(1, 8))
    rows = [draw(st.sampled_from(pool)) for _ in range(n)]
    codes = u64(sorted(draw(st.integers(0, 2)) for _ in range(n)))
    if draw(st.booleans()):
        codes = codes[::-1].copy()
    times = u64([draw(st.integers(0, 1)) for _ in range(n)])
    diffs = i64([draw(st.sampled_from([1, 2, -1, (1 << 63) - 1, -(1 << 63)])) for _ in range(n)])
    if draw(st.booleans()):
        times, diffs = times[:1].copy(), diffs[:1].copy()
    return [draw_table(draw, specs, rows), len(specs), codes, times, diffs, Out(1, np.int64)]


@case("arrange.has_ties")
def _has_ties(draw: Any) -> list[Any]:
    return [u64(sorted(draw(st.lists(words, max_size=6))))]


@case("arrange.is_one_word")
def _is_one_word(draw: Any) -> list[Any]:
    times = draw(st.lists(st.integers(0, 1), min_size=1, max_size=5))
    order = draw(st.lists(st.integers(0, len(times) - 1), min_size=1, max_size=5))
    return [u64(times), np.array(order, np.uint32)]


@case("arrange.is_one_diff")
def _is_one_diff(draw: Any) -> list[Any]:
    return [i64(draw(st.lists(st.sampled_from([1, -1]), min_size=1, max_size=4)))]


@case("arrange.span")
def _span(draw: Any) -> list[Any]:
    n = draw(st.integers(1, 6))
    times = [draw(words) for _ in range(n)]
    return [u64(times), i64([draw(st.sampled_from([1, 1, -1])) for _ in range(n)]), Out(2, np.uint64)]


@together(
    "assemble.measure", "assemble.find_constants", "assemble.decide", "assemble.child_refs", "assemble.fill",
    "assemble.fill_words", "intern.intern", "intern.fill_indices", "nodes.place_nodes",
    "nodes.describe_nodes", "nodes.zero_gaps", "nodes.check_nodes", "nodes.verify_nodes",
)  # fmt: skip
def _assemble(draw: Any) -> tuple[Any, Any]:
    """Batches, a choice of their rows, and the batch that is assembled of it, in pieces, as it reads back."""
    specs = draw_specs(draw)
    schema = ArrangementSchema(specs, tuple(range(draw(st.integers(0, min(2, len(specs)))))))
    types = [spec.type for spec in specs]
    pool = draw_pool(draw, specs)
    repeat = draw(st.sampled_from([1, 1, 60]))  # enough rows for a dictionary
    batches = [
        build_batch(
            Updates.from_rows(types, [(draw(st.sampled_from(pool)), t, 1) for t in range(n * repeat)]),
            schema, ANY_TIME, HeapAllocator(),
        )
        for n in draw(st.lists(st.integers(0, 4), min_size=1, max_size=3))
    ]  # fmt: skip
    places = [(source, row) for source, batch in enumerate(batches) for row in range(len(batch))]
    chosen = places if draw(st.booleans()) else [place for place in places if draw(st.booleans())]
    if not chosen:
        return [], []
    sources = [Updates(b.columns, b.times, b.diffs).to_rows() for b in batches]
    came = [row for row, _, _ in _assembled(draw, schema, batches, chosen)]
    should = [row for row, _, _ in reference.assembled(sources, chosen)]
    return list(map(normal_row, came)), list(map(normal_row, should))


def _assembled(draw: Any, schema: ArrangementSchema, batches: list[Batch], chosen: list[Any]) -> list[Any]:
    refs = i64([source << ROW_BITS | row for source, row in chosen])
    plan = Plan(schema, batches)
    while plan.needs_rows and len(refs):
        piece = draw(st.integers(1, len(refs)))
        plan.add(refs[:piece])
        refs = refs[piece:]
    plan.settle(len(chosen), 7, 1)
    assembler = Assembler(plan, HeapAllocator())
    refs = i64([source << ROW_BITS | row for source, row in chosen])
    while len(refs):
        piece = draw(st.integers(1, len(refs)))
        assembler.fill(refs[:piece], refs[:0])
        refs = refs[piece:]
    assembler.write_header(ANY_TIME)
    sealed = assembler.seal(None)
    again = Batch.from_buffer(schema, sealed._buffer.copy())  # type: ignore[union-attr]
    again.verify()
    assert again.nbytes == sealed.nbytes
    assert (again.table.cells[:, :1] == sealed.table.cells[:, :1]).all()
    codes = np.concatenate([batch.codes for batch in batches])
    starts = np.cumsum([0] + [len(batch) for batch in batches])
    assert again.codes.tolist() == [int(codes[starts[source] + row]) for source, row in chosen]
    return Updates(again.columns, again.times, again.diffs).to_rows()
