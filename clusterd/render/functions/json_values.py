"""jsonb as values of Python: what changes it, and containment, once for each distinct value.

Numbers are kept as the texts they are, so what is not changed is written as it was.

Does not: read parts of JSON (json.py), or make it of other values (json_texts.py).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from json.encoder import encode_basestring
from typing import Any, Final

from clusterd.render.functions.registry import CallSite, Outcome, Strict, strict
from clusterd.render.functions.texts import Failed, by_distinct
from shm_arrangements.columns import Column
from shm_arrangements.types import ColumnType

_JSONB, _BOOL = ColumnType.JSONB, ColumnType.BOOL
_INTEGER: Final = re.compile(r"-?[0-9]{1,18}")


class _Number(str):
    """A number as it is written."""

    __slots__ = ()


def _parsed(text: str) -> Any:
    return json.loads(text, parse_int=_Number, parse_float=_Number)


def _written(value: Any) -> str:
    if isinstance(value, _Number):
        return str(value)
    if isinstance(value, dict):
        return f"{{{','.join(f'{encode_basestring(key)}:{_written(value[key])}' for key in sorted(value))}}}"
    if isinstance(value, list):
        return f"[{','.join(map(_written, value))}]"
    return encode_basestring(value) if isinstance(value, str) else json.dumps(value)


def _changed(function: Callable[..., Any]) -> Strict:
    """`function` of parsed values, of which the first is written again."""

    def of_texts(text: str, *others: Any) -> Any:
        value = function(_parsed(text), *others)
        return value if isinstance(value, Failed) else _written(value)

    return lambda call, args: by_distinct(_JSONB, of_texts, *args)


def _joined(a: Any, text: str) -> Any:
    b = _parsed(text)
    if isinstance(a, dict) and isinstance(b, dict):
        return {**a, **b}
    return [*(a if isinstance(a, list) else [a]), *(b if isinstance(b, list) else [b])]


def _without_key(value: Any, key: str) -> Any:
    if isinstance(value, dict):
        return {name: each for name, each in value.items() if name != key}
    if isinstance(value, list):
        return [each for each in value if isinstance(each, _Number) or each != key]
    return Failed("cannot delete from scalar")


def _without_element(value: Any, index: int) -> Any:
    if isinstance(value, dict):
        return Failed("cannot delete from object using integer index")
    if not isinstance(value, list):
        return Failed("cannot delete from scalar")
    at = index + len(value) if index < 0 else index
    return [each for place, each in enumerate(value) if place != at]


def _stripped(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _stripped(each) for key, each in value.items() if each is not None}
    return list(map(_stripped, value)) if isinstance(value, list) else value


def _set(value: Any, path: Sequence[str | None], text: str, creates: bool = True) -> Any:
    if not isinstance(value, dict | list):
        return Failed("cannot set path in scalar")
    return _set_in(value, tuple(path), _parsed(text), creates) if path else value


def _set_in(value: Any, path: tuple[str | None, ...], new: Any, creates: bool) -> Any:
    name, rest = path[0], path[1:]
    if isinstance(value, dict) and name is not None:
        if name in value:
            made = _set_in(value[name], rest, new, creates) if rest else new
            return made if isinstance(made, Failed) else {**value, name: made}
        return value if rest or not creates else {**value, name: new}
    if isinstance(value, list) and name is not None:
        if not _INTEGER.fullmatch(name):
            return Failed("path element is not an integer")
        at = int(name)
        place = at + len(value) if at < 0 else at
        if 0 <= place < len(value):
            made = _set_in(value[place], rest, new, creates) if rest else new
            return made if isinstance(made, Failed) else [*value[:place], made, *value[place + 1 :]]
        return value if rest or not creates else [new, *value] if at < 0 else [*value, new]
    return value


strict("||", "jsonb, jsonb -> jsonb")(_changed(_joined))
strict("-", "jsonb, text -> jsonb")(_changed(_without_key))
strict("-", "jsonb, bigint -> jsonb")(_changed(_without_element))
strict("jsonb_strip_nulls")(_changed(_stripped))
strict("jsonb_set")(_changed(_set))


def _equal(a: Any, b: Any) -> bool:
    return type(a) is type(b) and bool(a == b)


def _contains(whole: Any, part: Any) -> bool:
    if isinstance(whole, dict) and isinstance(part, dict):
        return all(key in whole and _contains(whole[key], value) for key, value in part.items())
    if isinstance(whole, list) and isinstance(part, list):
        return all(any(_contains(each, wanted) for each in whole) for wanted in part)
    return _equal(whole, part)


def _holds(whole: str, part: str) -> bool:
    a, b = _parsed(whole), _parsed(part)
    if isinstance(a, list) and not isinstance(b, list | dict):
        return any(_equal(each, b) for each in a)  # an array contains a scalar among its elements
    return _contains(a, b)


@strict("@>", "jsonb, jsonb -> boolean")
def _contained(call: CallSite, args: Sequence[Column]) -> Outcome:
    return by_distinct(_BOOL, _holds, *args)


@strict("<@", "jsonb, jsonb -> boolean")
def _part_of(call: CallSite, args: Sequence[Column]) -> Outcome:
    return by_distinct(_BOOL, lambda part, whole: _holds(whole, part), *args)
