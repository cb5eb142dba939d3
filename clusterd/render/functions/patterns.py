"""LIKE and regular expressions, by Arrow's RE2: one pattern is compiled once for a column.

Does not: loop over rows in Python.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from clusterd.render.functions.evaluated import code_of
from clusterd.render.functions.registry import CallSite, Outcome, Strict, strict
from clusterd.render.functions.texts import by_constants, from_arrow, to_arrow
from controller_proto.functions import scan_groups
from shm_arrangements.columns import Column
from shm_arrangements.types import AnyType, ColumnType

__all__ = ["by_pattern", "list_of_arrow", "unused_characters"]

_TEXT, _BOOL, _BIGINT = ColumnType.TEXT, ColumnType.BOOL, ColumnType.INT64
_WHOLE: Final = re.compile(r"(?s)(%?)([^%_\\]*)(%?)")
_FLAGS: Final = frozenset("gincmps")


def _failed(type_: AnyType, column: Column, error: str) -> Outcome:
    n = len(column)
    return Column.zeros(type_, n), np.full(n, code_of(error), np.uint32)


def _flags(found: Any) -> Column:
    return Column(_BOOL, found.to_numpy(zero_copy_only=False))


# LIKE.


@functools.lru_cache(1024)
def _like_regex(pattern: str, escape: str) -> str | None:
    """The regular expression of a LIKE pattern; None if its last character is the escape."""
    out, at = [], 0
    while at < len(pattern):
        character = pattern[at]
        if escape and character == escape:
            at += 1
            if at == len(pattern):
                return None
            out.append(re.escape(pattern[at]))
        else:
            out.append({"%": ".*", "_": "."}.get(character) or re.escape(character))
        at += 1
    return f"(?s)^(?:{''.join(out)})$"


def _liking(ignore_case: bool) -> Strict:
    def like(column: Column, pattern: str, escape: str = "\\") -> Outcome:
        if len(escape) > 1:
            return _failed(_BOOL, column, "invalid escape string")
        texts = to_arrow(column)
        simple = None if ignore_case or escape in pattern else _WHOLE.fullmatch(pattern)
        if simple is not None:
            before, middle, after = simple.groups()
            if before and after:
                return _flags(pc.match_substring(texts, pattern=middle))
            if before or after:
                return _flags((pc.ends_with if before else pc.starts_with)(texts, pattern=middle))
            return _flags(pc.equal(texts, middle))
        regex = _like_regex(pattern, escape)
        if regex is None:
            return _failed(_BOOL, column, "LIKE pattern must not end with escape character")
        return _flags(pc.match_substring_regex(texts, pattern=regex, ignore_case=ignore_case))

    return lambda call, args: by_constants(_BOOL, like, *args)


strict("like")(_liking(False))
strict("ilike")(_liking(True))


# Regular expressions.


def _regex(pattern: str, flags: str) -> str | None:
    """The pattern for RE2; None if a flag is none of ours."""
    if not _FLAGS.issuperset(flags):
        return None
    lines = any(flag in flags for flag in "nm")
    case = "i" if "i" in flags else ""
    return f"(?{case}{'m' if lines else 's'}){pattern}"


def by_pattern(
    type_: AnyType, function: Callable[..., Column], column: Column, pattern: str, flags: str = ""
) -> Outcome:
    """`function(texts, regex)`; a pattern that is none is an error of every row."""
    regex = _regex(pattern, flags)
    if regex is not None:
        try:
            return function(to_arrow(column), regex)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            pass  # it is none
    return _failed(type_, column, "invalid regular expression")


def _matches(texts: Any, regex: str) -> Column:
    return _flags(pc.match_substring_regex(texts, pattern=regex))


@strict("~")
@strict("regexp_like")
def _like(call: CallSite, args: Sequence[Column]) -> Outcome:
    return by_constants(_BOOL, functools.partial(by_pattern, _BOOL, _matches), *args)


@strict("~*")
def _like_ignoring_case(call: CallSite, args: Sequence[Column]) -> Outcome:
    return by_constants(_BOOL, lambda c, pattern: by_pattern(_BOOL, _matches, c, pattern, "i"), *args)


@strict("regexp_count")
def _count(call: CallSite, args: Sequence[Column]) -> Outcome:
    def count(texts: Any, regex: str) -> Column:
        found = pc.count_substring_regex(texts, pattern=regex)
        return Column(_BIGINT, found.to_numpy().astype(np.int64))

    return by_constants(_BIGINT, functools.partial(by_pattern, _BIGINT, count), *args)


def _rewrite(match: re.Match[str]) -> str:
    """What follows a backslash in a replacement, as RE2 writes it."""
    character = match[1]
    if character == "&":
        return r"\0"
    return match[0] if character in "\\0123456789" and character else r"\\" + character


@strict("regexp_replace")
def _replace(call: CallSite, args: Sequence[Column]) -> Outcome:
    def replace(column: Column, pattern: str, replacement: str, flags: str = "") -> Outcome:
        rewritten = re.sub(r"(?s)\\(.?)", _rewrite, replacement)

        def run(texts: Any, regex: str) -> Column:
            most = None if "g" in flags else 1
            replaced = pc.replace_substring_regex(
                texts, pattern=regex, replacement=rewritten, max_replacements=most
            )
            return from_arrow(_TEXT, replaced)

        return by_pattern(_TEXT, run, column, pattern, flags)

    return by_constants(_TEXT, replace, *args)


@strict("regexp_match")
def _match(call: CallSite, args: Sequence[Column]) -> Outcome:
    type_ = call.result.type

    def match(column: Column, pattern: str, flags: str = "") -> Outcome:
        named, names = scan_groups(pattern)
        named, groups = (named, len(names)) if names else (f"(?P<g1>{pattern})", 1)

        def run(texts: Any, regex: str) -> Column:
            found = pc.extract_regex(texts, pattern=regex)
            n = len(found)
            fits = found.is_valid().to_numpy(zero_copy_only=False)
            parts = [from_arrow(_TEXT, each) for each in found.flatten()]
            rows = np.arange(n, dtype=np.int64)[:, None] + n * np.arange(groups, dtype=np.int64)
            elements = Column.concat(_TEXT, parts).take(rows[fits].reshape(-1))
            elements = Column(_TEXT, elements.values, elements.offsets)
            ends = np.concatenate(([0], np.cumsum(fits * groups))).astype(np.int64)
            valid = None if fits.all() else fits
            return Column(type_, np.empty(0, np.uint8), ends, valid, children=(elements,))

        return by_pattern(type_, run, column, named, flags)

    return by_constants(type_, match, *args)


@strict("regexp_substr")
def _substring(call: CallSite, args: Sequence[Column]) -> Outcome:
    def part(texts: Any, regex: str) -> Column:
        return from_arrow(_TEXT, pc.extract_regex(texts, pattern=regex).flatten()[0])

    def run(column: Column, pattern: str) -> Outcome:
        return by_pattern(_TEXT, part, column, f"(?P<g0>{scan_groups(pattern)[0]})")

    return by_constants(_TEXT, run, *args)


def list_of_arrow(type_: AnyType, lists: Any) -> Column:
    """A list column of an Arrow list of texts without NULLs."""
    elements = from_arrow(_TEXT, lists.values)
    return Column(
        type_, np.empty(0, np.uint8), lists.offsets.to_numpy().astype(np.int64), children=(elements,)
    )


def unused_characters(texts: Any, count: int) -> list[str]:
    """So many characters that no text has."""
    candidates = map(chr, range(0xE000, 0xF8FF))
    free = (c for c in candidates if not pc.any(pc.match_substring(texts, pattern=c), min_count=0).as_py())
    return list(itertools.islice(free, count))


@strict("regexp_split_to_array")
def _split(call: CallSite, args: Sequence[Column]) -> Outcome:
    type_ = call.result.type

    def split(texts: Any, regex: str) -> Column:
        # Arrow's own function never ends where a pattern fits nothing at all (an empty part).
        begin, end = unused_characters(texts, 2)
        marked = pc.replace_substring_regex(texts, pattern=regex, replacement=rf"{begin}\0{end}")
        # An empty part at an end of the text splits nothing.
        marked = pc.replace_substring_regex(marked, f"^{begin}{end}|{begin}{end}$", "")
        marked = pc.replace_substring_regex(marked, f"{begin}[^{end}]*{end}", begin)
        return list_of_arrow(type_, pc.split_pattern(marked, pattern=begin))

    return by_constants(type_, functools.partial(by_pattern, type_, split), *args)
