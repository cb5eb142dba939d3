"""Table functions of what is one value and holds many: lists, jsonb, and texts that are taken apart.

Texts are read a few megabytes at a time, and what was found is handed on in pieces.

Does not: loop over rows in Python.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import numpy as np
import pyarrow.compute as pc

from clusterd.operators.kernels import json as kernels
from clusterd.render.functions.evaluated import Evaluated, Ints, code_of
from clusterd.render.functions.expanding import Expand, Made, TableCall, cut_rows, expanding
from clusterd.render.functions.json import found_parts, json_kinds, spans_of
from clusterd.render.functions.lists import lists_of
from clusterd.render.functions.patterns import by_pattern, list_of_arrow, unused_characters
from clusterd.render.functions.registry import CallSite, Outcome, implementation, parted
from clusterd.render.functions.texts import by_constants, from_arrow, spread
from controller_proto.functions import scan_groups
from shm_arrangements.columns import Column
from shm_arrangements.types import AnyType, ColumnSpec, ColumnType, ListType

__all__: list[str] = []

_TEXT: Final = ColumnType.TEXT
_MOST_BYTES: Final = 1 << 22  # of text that is read in one go: a few ms
_MOST_GROUPS: Final = 9  # RE2 has no more in a replacement
_TEXTS: Final = ColumnSpec("texts", ListType(ColumnSpec("element", _TEXT, False)), False)


def _pieces(column: Column, n: int) -> Iterator[tuple[int, int]]:
    """Ranges of the n rows that hold a few megabytes of `column`, or one row."""
    offsets = column.plain().offsets
    if offsets is None or len(column) != n:
        yield 0, n
        return
    part = (offsets[:-1] - offsets[0]) // _MOST_BYTES
    starts = [0, *(np.flatnonzero(np.diff(part)) + 1).tolist(), n]
    yield from itertools.pairwise(starts)


def _part(column: Column, lo: int, hi: int) -> Column:
    return column if len(column) == 1 else column.slice(lo, hi)


@expanding("unnest")
def _unnest(call: TableCall, args: Sequence[Column], n: int) -> Iterator[Made]:
    lists = lists_of(args[0], n)
    for rows, places in cut_rows(lists.ends):
        yield rows, (lists.elements.slice(places.start, places.stop),)


# jsonb.

_OBJECT, _SCALAR = "cannot extract elements from an object", "cannot extract elements from a scalar"


def _ends(counts: Ints) -> Ints:
    ends = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(np.maximum(counts, 0), out=ends[1:])
    return ends


@expanding("jsonb_array_elements")
@expanding("jsonb_array_elements_text")
def _elements(call: TableCall, args: Sequence[Column], n: int) -> Iterator[Made]:
    column = spread(args[0], n).plain()
    as_text = call.columns[0].type is _TEXT
    for first, last in _pieces(column, n):
        part = column.slice(first, last)
        data, lo, hi = spans_of(part)
        counts = np.empty(last - first, np.int64)
        kernels.count_elements(data, lo, hi, counts)
        wrong = np.flatnonzero(counts < 0)
        if len(wrong):
            is_object = json_kinds(part.take(wrong)) == 0
            codes = np.where(is_object, code_of(_OBJECT), code_of(_SCALAR)).astype(np.uint32)
            yield first + wrong, codes
            fine = np.flatnonzero(counts >= 0)
            lo, hi = lo[fine], hi[fine]
        ends = _ends(counts)
        spans = [np.empty(int(ends[-1]), np.int64) for _ in range(2)]
        kernels.span_elements(data, np.ascontiguousarray(lo), np.ascontiguousarray(hi), *spans)
        for rows, places in cut_rows(ends):
            yield first + rows, (found_parts(data, spans[0][places], spans[1][places], as_text),)


def _of_objects(error: str, *, with_values: bool) -> Expand:
    """The keys of objects, and their values."""

    def expand(call: TableCall, args: Sequence[Column], n: int) -> Iterator[Made]:
        column = spread(args[0], n).plain()
        as_text = call.function == "jsonb_each_text"
        for first, last in _pieces(column, n):
            data, lo, hi = spans_of(column.slice(first, last))
            counts = np.empty(last - first, np.int64)
            kernels.count_members(data, lo, hi, counts)
            wrong = np.flatnonzero(counts < 0)
            if len(wrong):
                yield first + wrong, np.full(len(wrong), code_of(error), np.uint32)
                fine = np.flatnonzero(counts >= 0)
                lo, hi = lo[fine], hi[fine]
            ends = _ends(counts)
            spans = [np.empty(int(ends[-1]), np.int64) for _ in range(4)]
            kernels.span_members(data, np.ascontiguousarray(lo), np.ascontiguousarray(hi), *spans)
            for rows, places in cut_rows(ends):
                key_lo, key_hi, lo, hi = (each[places] for each in spans)
                keys = (found_parts(data, key_lo, key_hi, True),)
                values = (found_parts(data, lo, hi, as_text),) if with_values else ()
                yield first + rows, (*keys, *values)

    return expand


expanding("jsonb_each")(_of_objects("cannot call jsonb_each on a non-object", with_values=True))
expanding("jsonb_each_text")(_of_objects("cannot call jsonb_each on a non-object", with_values=True))
expanding("jsonb_object_keys")(
    _of_objects("cannot call jsonb_object_keys on a non-object", with_values=False)
)


# Texts.


def _outcome(outcome: Outcome, n: int) -> tuple[Column, Any]:
    column, codes = parted(outcome)
    if codes is not None:
        codes = np.broadcast_to(codes, n)
    return spread(column, n), codes


def _by_lists(find: Callable[[TableCall, Sequence[Column]], Outcome]) -> Expand:
    """Of a function that makes a list of each row's texts: its elements."""

    def expand(call: TableCall, args: Sequence[Column], n: int) -> Iterator[Made]:
        for first, last in _pieces(args[0], n):
            found, codes = _outcome(find(call, [_part(each, first, last) for each in args]), last - first)
            if codes is not None:
                wrong = np.flatnonzero(codes)
                yield first + wrong, codes[wrong]
                found = _without(found, codes != 0)
            lists = lists_of(found, last - first)
            for rows, places in cut_rows(lists.ends):
                yield first + rows, (lists.elements.slice(places.start, places.stop),)

    return expand


def _without(column: Column, which: Any) -> Column:
    """The lists, those of `which` empty."""
    n = len(column)
    empty = Column.zeros(column.type, 1)
    return Column.concat(column.type, (column, empty)).take(np.where(which, n, np.arange(n)))


def _listed(name: str, signature: str) -> Callable[[TableCall, Sequence[Column]], Outcome]:
    """A scalar function that makes lists."""
    run = implementation(name, signature)

    def find(call: TableCall, args: Sequence[Column]) -> Outcome:
        site = CallSite(call.args, _TEXTS, (None,) * len(args))
        evaluated = run(site, [Evaluated(each) for each in args], max(map(len, args)))
        return evaluated.column, evaluated.errors

    return find


_SPLIT: Final = "text, text -> text list"
expanding("regexp_split_to_table")(_by_lists(_listed("regexp_split_to_array", _SPLIT)))
expanding("string_to_table")(_by_lists(_listed("string_to_array", _SPLIT)))


def _matches(type_: AnyType) -> Callable[..., Outcome]:
    """A list of the lists that the groups take, `type_` being that of these."""
    outer = ListType(ColumnSpec("element", type_, False))

    def matches(column: Column, pattern: str, flags: str = "") -> Outcome:
        groups = len(scan_groups(pattern)[1])

        def run(texts: Any, regex: str) -> Column:
            begin, between, end = unused_characters(texts, 3)
            taken = between.join(f"\\{group}" for group in range(1, groups + 1)) if groups else "\\0"
            most = None if "g" in flags else 1
            marked = pc.replace_substring_regex(
                texts, pattern=regex, replacement=f"{begin}{taken}{end}", max_replacements=most
            )
            parts = pc.split_pattern(marked, pattern=begin)
            ends = parts.offsets.to_numpy().astype(np.int64)
            is_first = np.zeros(len(parts.values), np.bool_)
            is_first[ends[:-1]] = True  # what stands before the first match
            found = parts.values.take(np.flatnonzero(~is_first))
            found = pc.list_element(pc.split_pattern(found, pattern=end, max_splits=1), 0)
            made = list_of_arrow(type_, pc.split_pattern(found, pattern=between))
            return Column(outer, np.empty(0, np.uint8), ends - np.arange(len(ends)), children=(made,))

        if groups > _MOST_GROUPS:
            codes = np.full(len(column), code_of("invalid regular expression"), np.uint32)
            return Column.zeros(outer, len(column)), codes
        return by_pattern(outer, run, column, pattern, flags)

    return matches


def _find_matches(call: TableCall, args: Sequence[Column]) -> Outcome:
    type_ = call.columns[0].type
    return by_constants(ListType(ColumnSpec("element", type_, False)), _matches(type_), *args)


expanding("regexp_matches")(_by_lists(_find_matches))


@expanding("regexp_extract")
def _extract(call: TableCall, args: Sequence[Column], n: int) -> Iterator[Made]:
    pattern, texts = args
    named, _ = scan_groups(str(pattern.to_pylist()[0]))
    for first, last in _pieces(texts, n):
        part = spread(_part(texts, first, last), last - first)
        fits: list[Any] = []

        def run(arrow: Any, regex: str, fits: list[Any] = fits) -> Column:
            found = pc.extract_regex(arrow, pattern=regex)
            rows = np.flatnonzero(found.is_valid().to_numpy(zero_copy_only=False))
            fits += [rows, [from_arrow(_TEXT, each) for each in found.flatten()]]
            return Column.zeros(_TEXT, 1)

        outcome = by_pattern(_TEXT, run, part, named)
        if isinstance(outcome, tuple) and outcome[1] is not None:
            yield np.arange(first, last), np.broadcast_to(outcome[1], last - first)
            continue
        rows, columns = fits
        taken = (each.take(rows) for each in columns)
        yield first + rows, tuple(Column(_TEXT, each.plain().values, each.plain().offsets) for each in taken)
