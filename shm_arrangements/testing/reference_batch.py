"""References of the kernels that make batches: rows put in order and summed, and what is assembled of them.

The kernels of assemble.py, intern.py and nodes.py have one reference together: a batch is of the rows it was
to be of.

Does not: know how a batch lies in memory; test_format.py reads that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from shm_arrangements.testing.meaning import SIGN, Relation, parts_of, row_key
from shm_arrangements.testing.reference import Array, reference_of


def _cell(values: Array, row: int) -> int:
    return int(values[row] if len(values) > 1 else values[0])


def _keys(relation: Relation, first: int, last: int, times: Array, codes: Array, order: Array) -> list[Any]:
    """What orders, and is equal, as the rows of an order do."""
    return [
        (int(code), row_key(relation, int(row), first, last), _cell(times, int(row)))
        for code, row in zip(codes, order, strict=True)
    ]


@reference_of("arrange.order_ties")
def order_ties(
    relation: Relation, first: int, last: int, times: Array, codes: Array, order: Array, state: Array
) -> tuple[Array, Array, Array, int]:
    keys = _keys(relation, first, last, times, codes, order)
    places = sorted(range(len(order)), key=keys.__getitem__)
    return codes, order[places], state[:0], 1


@reference_of("arrange.find_sum")
def find_sum(
    relation: Relation, first: int, last: int, times: Array, diffs: Array, codes: Array, order: Array
) -> tuple[int]:
    keys = _keys(relation, first, last, times, codes, order)
    n = len(keys)
    zeros = [k for k in range(n) if _cell(diffs, int(order[k])) == 0]
    pairs = [k - 1 for k in range(1, n) if keys[k] == keys[k - 1]]
    return (min([n, *zeros, *pairs]),)


@reference_of("arrange.sum_ties")
def sum_ties(
    relation: Relation, first: int, last: int, times: Array, diffs: Array, start: int, codes: Array,
    order: Array,
) -> tuple[Array, Array, Array, int]:  # fmt: skip
    keys = _keys(relation, first, last, times, codes, order)
    found: list[tuple[int, int, int]] = []
    at = 0
    while at < len(keys):
        end = at + 1
        while at >= start and end < len(keys) and keys[end] == keys[at]:
            end += 1
        total = sum(_cell(diffs, int(row)) for row in order[at:end])
        found += [(int(codes[at]), int(order[at]), part) for part in parts_of(total)]
        at = end
    kept = np.array(found, object).reshape(-1, 3)
    return kept[:, 0].astype(np.uint64), kept[:, 1].astype(np.uint32), kept[:, 2].astype(np.int64), len(found)


@reference_of("arrange.check_order")
def check_order(
    relation: Relation, columns: int, codes: Array, times: Array, diffs: Array
) -> tuple[Array, int]:
    n = len(codes)
    keys = _keys(relation, 0, columns, times, codes, np.arange(n))
    extreme = (-SIGN, SIGN - 1)
    first = 0  # of the rows that are the same as this one
    for k in range(n):
        if k and keys[k] < keys[k - 1]:
            return np.array([0]), k
        if k and keys[k] != keys[k - 1]:
            first = k
        parts = [_cell(diffs, row) for row in range(first, k + 1)]
        if len({part > 0 for part in parts}) > 1:
            return np.array([1]), k
        if sum(part not in extreme for part in parts) > 1:
            return np.array([2]), k
    return np.array([], np.int64), n


@reference_of("arrange.has_ties")
def has_ties(codes: Array) -> tuple[int]:
    return (int((codes[1:] == codes[:-1]).any()),)


@reference_of("arrange.is_one_word")
def is_one_word(words: Array, order: Array) -> tuple[int]:
    return (int(len(set(words[order].tolist())) == 1),)


@reference_of("arrange.is_one_diff")
def is_one_diff(diffs: Array) -> tuple[int]:
    return (int(len(set(diffs.tolist())) == 1),)


@reference_of("arrange.span")
def span(times: Array, diffs: Array) -> tuple[Array, int]:
    return np.array([times.min(), times.max()]), int(len(set(diffs.tolist())) == 1) + 2 * int(0 in diffs)


@reference_of("assemble.measure")
@reference_of("assemble.find_constants")
@reference_of("assemble.decide")
@reference_of("assemble.child_refs")
@reference_of("assemble.fill")
@reference_of("assemble.fill_words")
@reference_of("intern.intern")
@reference_of("intern.fill_indices")
@reference_of("nodes.place_nodes")
@reference_of("nodes.describe_nodes")
@reference_of("nodes.zero_gaps")
@reference_of("nodes.check_nodes")
@reference_of("nodes.verify_nodes")
def assembled(sources: Sequence[Sequence[Any]], refs: Sequence[tuple[int, int]]) -> list[Any]:
    """The rows chosen of some sources, each by its source and its place there."""
    return [sources[source][row] for source, row in refs]
