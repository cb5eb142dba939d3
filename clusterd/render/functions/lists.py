"""Lists: their elements are one column, which is compared, taken and joined as a whole.

Does not: loop over rows in Python but for `@>`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow.compute as pc

from clusterd.render.functions.casts_to_text import text_of
from clusterd.render.functions.comparison import order_of
from clusterd.render.functions.evaluated import Bools, Evaluated, Ints, fixed, rows_of, with_nulls
from clusterd.render.functions.patterns import list_of_arrow
from clusterd.render.functions.registry import CallSite, Outcome, opened, strict
from clusterd.render.functions.text import joined
from clusterd.render.functions.texts import by_constants, by_distinct, plain_texts, spread, to_arrow
from shm_arrangements.columns import Column
from shm_arrangements.types import AnyType, ColumnType, ListType

__all__ = ["Lists", "list_column", "lists_of"]

_TEXT, _BIGINT, _BOOL = ColumnType.TEXT, ColumnType.INT64, ColumnType.BOOL
_NO_VALUES: Final = np.empty(0, np.uint8)


@dataclass(frozen=True, slots=True)
class Lists:
    """elements: of all lists; ends (n + 1,): where those of each begin; owner: the list of each element."""

    elements: Column
    ends: Ints

    @property
    def sizes(self) -> Ints:
        return np.diff(self.ends)

    @property
    def owner(self) -> Ints:
        return np.repeat(np.arange(len(self.ends) - 1, dtype=np.int64), self.sizes)


def lists_of(column: Column, n: int) -> Lists:
    """A column of lists, of length 1 or n, as n lists."""
    column = spread(column.plain(), n).plain()
    offsets = column.offsets
    assert offsets is not None
    first, last = int(offsets[0]), int(offsets[-1])
    return Lists(column.children[0].slice(first, last), offsets - first)


def list_column(type_: AnyType, elements: Column, ends: Ints) -> Column:
    """Lists of type `type_`, each of the elements between two of `ends`."""
    return Column(type_, _NO_VALUES, ends, children=(elements,))


def _ends(sizes: Ints) -> Ints:
    ends = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=ends[1:])
    return ends


def _nulls(column: Column) -> Bools:
    valid = column.validity
    return np.zeros(len(column), np.bool_) if valid is None else ~valid


def _element_type(type_: AnyType) -> AnyType:
    assert isinstance(type_, ListType)
    return type_.element.type


@opened("array")
def _array(call: CallSite, args: Sequence[Evaluated], n: int) -> Evaluated:
    columns = [spread(each.column, n) for each in args]
    rows = np.arange(n, dtype=np.int64)[:, None] + n * np.arange(len(args), dtype=np.int64)
    elements = Column.concat(_element_type(call.result.type), columns).take(rows.reshape(-1))
    made = list_column(call.result.type, elements, np.arange(n + 1, dtype=np.int64) * len(args))
    return with_nulls(made, None, *(each.errors for each in args))


@strict("subscript")
def _subscript(call: CallSite, args: Sequence[Column]) -> Outcome:
    n = rows_of(args)
    lists = lists_of(args[0], n)
    at = np.broadcast_to(args[1].values, n)
    there = (at >= 1) & (at <= lists.sizes)
    if not len(lists.elements):
        return Column.nulls(call.result.type, n)
    found = lists.elements.take(np.where(there, lists.ends[:-1] + at - 1, 0))
    return with_nulls(found, there).column


@strict("cardinality")
def _cardinality(call: CallSite, args: Sequence[Column]) -> Outcome:
    return Column(_BIGINT, lists_of(args[0], len(args[0])).sizes)


@strict("array_length")
def _length(call: CallSite, args: Sequence[Column]) -> Outcome:
    n = rows_of(args)
    sizes = lists_of(args[0], n).sizes
    there = sizes > 0
    if len(args) == 2:
        there = there & (args[1].values == 1)
    return with_nulls(Column(_BIGINT, sizes * there), there).column


strict("array_upper")(_length)


@strict("array_lower")
def _lower(call: CallSite, args: Sequence[Column]) -> Outcome:
    n = rows_of(args)
    there = (lists_of(args[0], n).sizes > 0) & (args[1].values == 1)
    return with_nulls(Column(_BIGINT, there.astype(np.int64)), there).column


def _equal(lists: Lists, value: Column) -> tuple[Bools, Bools, Bools]:
    """Of each element: whether it equals its list's value, is NULL, and has a NULL to be compared with."""
    wanted = value.take(lists.owner)
    _, equal = order_of(lists.elements, wanted)
    none, null_wanted = _nulls(lists.elements), _nulls(wanted)
    return equal & ~none & ~null_wanted, none, null_wanted


def _some(lists: Lists, which: Bools) -> Bools:
    """Which lists have such an element."""
    found: Bools = np.bincount(lists.owner[which], minlength=len(lists.ends) - 1) > 0
    return found


@opened("= any")
def _any(call: CallSite, args: Sequence[Evaluated], n: int) -> Evaluated:
    lists = lists_of(args[1].column, n)
    equal, none, null_wanted = _equal(lists, spread(args[0].column, n))
    found = _some(lists, equal)
    known = found | ~_some(lists, none | null_wanted)
    return fixed(_BOOL, found, known & ~_nulls(args[1].column), args[0].errors, args[1].errors)


def _same(lists: Lists, value: Column) -> Bools:
    """Of each element whether it is not distinct from its list's value."""
    equal, none, null_wanted = _equal(lists, value)
    return equal | (none & null_wanted)


@opened("array_position")
def _position(call: CallSite, args: Sequence[Evaluated], n: int) -> Evaluated:
    lists = lists_of(args[0].column, n)
    at = np.flatnonzero(_same(lists, spread(args[1].column, n)))[::-1]
    found = np.zeros(n, np.int64)
    owner = lists.owner[at]
    found[owner] = at - lists.ends[owner] + 1  # the first is written last
    return fixed(_BIGINT, found, found > 0, args[0].errors, args[1].errors)


def _joined(type_: AnyType, first: Lists, second: Lists, n: int) -> Column:
    """The elements of each list of the first, then those of the second."""
    ends = _ends(first.sizes + second.sizes)
    rows = np.empty(int(ends[-1]), np.int64)
    begun = np.arange(len(first.elements)) - first.ends[first.owner] + ends[first.owner]
    rows[begun] = np.arange(len(first.elements))
    after = (ends[:-1] + first.sizes)[second.owner]
    rows[np.arange(len(second.elements)) - second.ends[second.owner] + after] = len(
        first.elements
    ) + np.arange(len(second.elements))
    both = Column.concat(_element_type(type_), (first.elements, second.elements))
    return list_column(type_, both.take(rows), ends)


def _ones(column: Column, n: int) -> Lists:
    """Each value as a list of its own."""
    return Lists(spread(column.plain(), n), np.arange(n + 1, dtype=np.int64))


def _as_lists(type_: AnyType, argument: Evaluated, n: int) -> Lists:
    is_list = isinstance(argument.column.type, ListType) and argument.column.type == type_
    return lists_of(argument.column, n) if is_list else _ones(argument.column, n)


@opened("array_append")
@opened("array_prepend")
@opened("array_cat")
def _cat(call: CallSite, args: Sequence[Evaluated], n: int) -> Evaluated:
    type_ = call.result.type
    first, second = (_as_lists(type_, each, n) for each in args)
    both_null = None
    if call.result.nullable:
        both_null = ~(_nulls(args[0].column) & _nulls(args[1].column))
    made = _joined(type_, first, second, n)
    return with_nulls(made, both_null, args[0].errors, args[1].errors)


@strict("||", "T list, T list -> T list")
def _concat(call: CallSite, args: Sequence[Column]) -> Outcome:
    n = rows_of(args)
    return _joined(call.result.type, lists_of(args[0], n), lists_of(args[1], n), n)


def _kept(lists: Lists, keep: Bools) -> Lists:
    sizes = np.bincount(lists.owner[keep], minlength=len(lists.ends) - 1)
    return Lists(lists.elements.take(np.flatnonzero(keep)), _ends(sizes.astype(np.int64)))


@opened("array_remove")
def _remove(call: CallSite, args: Sequence[Evaluated], n: int) -> Evaluated:
    lists = lists_of(args[0].column, n)
    left = _kept(lists, ~_same(lists, spread(args[1].column, n)))
    made = list_column(call.result.type, left.elements, left.ends)
    return with_nulls(made, ~_nulls(args[0].column), args[0].errors, args[1].errors)


@opened("array_positions")
def _positions(call: CallSite, args: Sequence[Evaluated], n: int) -> Evaluated:
    lists = lists_of(args[0].column, n)
    same = _same(lists, spread(args[1].column, n))
    places = np.flatnonzero(same)
    owner = lists.owner[places]
    sizes = np.bincount(owner, minlength=n).astype(np.int64)
    made = list_column(call.result.type, Column(_BIGINT, places - lists.ends[owner] + 1), _ends(sizes))
    return with_nulls(made, ~_nulls(args[0].column), args[0].errors, args[1].errors)


@opened("array_replace")
def _replace(call: CallSite, args: Sequence[Evaluated], n: int) -> Evaluated:
    lists = lists_of(args[0].column, n)
    same = _same(lists, spread(args[1].column, n))
    instead = spread(args[2].column, n).take(lists.owner)
    count = len(lists.elements)
    both = Column.concat(lists.elements.type, (lists.elements, instead))
    elements = both.take(np.arange(count, dtype=np.int64) + same * count)
    made = list_column(call.result.type, elements, lists.ends)
    return with_nulls(made, ~_nulls(args[0].column), *(each.errors for each in args))


@opened("array_to_string")
def _to_string(call: CallSite, args: Sequence[Evaluated], n: int) -> Evaluated:
    lists = lists_of(args[0].column, n)
    kind = call.args[0].type
    assert isinstance(kind, ListType)
    none = _nulls(lists.elements)
    texts = text_of(kind.element, lists.elements)
    keep = ~none
    if len(args) == 3:
        instead = spread(args[2].column, n).take(lists.owner)
        both = Column.concat(_TEXT, (texts, instead))
        texts = both.take(np.arange(len(texts), dtype=np.int64) + none * len(texts))
        keep = keep | ~_nulls(instead)
    kept = _kept(Lists(texts, lists.ends), keep)
    between = spread(args[1].column, n).take(kept.owner)
    is_last = np.zeros(len(kept.elements), np.bool_)
    is_last[kept.ends[1:][kept.sizes > 0] - 1] = True
    data, offsets = plain_texts(joined(kept.elements, with_nulls(between, ~is_last).column))
    valid = ~_nulls(args[0].column) & ~_nulls(args[1].column)
    return with_nulls(Column(_TEXT, data, offsets[kept.ends]), valid, *(each.errors for each in args))


@strict("string_to_array")
def _of_string(call: CallSite, args: Sequence[Column]) -> Outcome:
    type_ = call.result.type

    def split(column: Column, separator: str) -> Column:
        if separator:
            lists = lists_of(
                list_of_arrow(type_, pc.split_pattern(to_arrow(column), pattern=separator)), len(column)
            )
        else:
            lists = _ones(column, len(column))
        is_empty = np.diff(plain_texts(column)[1]) == 0
        left = _kept(lists, ~is_empty[lists.owner])
        return list_column(type_, left.elements, left.ends)

    return by_constants(type_, split, *args)


def _key(value: Any) -> Any:
    # NaN is itself here.
    return "NaN" if isinstance(value, float) and value != value else value


def _holds(whole: Sequence[Any], part: Sequence[Any]) -> bool:
    there = [_key(value) for value in whole]
    return all(value is not None and _key(value) in there for value in part)


@strict("@>", "T list, T list -> boolean")
def _contains(call: CallSite, args: Sequence[Column]) -> Outcome:
    return by_distinct(_BOOL, _holds, *args)


@strict("<@", "T list, T list -> boolean")
def _part_of(call: CallSite, args: Sequence[Column]) -> Outcome:
    return by_distinct(_BOOL, lambda part, whole: _holds(whole, part), *args)
