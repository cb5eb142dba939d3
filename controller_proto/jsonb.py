"""The one form of a JSON text: two texts that mean the same value become the same, so bytes compare values.

Keys are sorted by code point and of equal ones the last counts; there are no blanks outside strings; only
what must be escaped is. A number is exact: its digits without zeros that say nothing, written out where the
first stands up to 400 places from the point (all of double precision is), else with an exponent; there is no
-0. So 1.0, 1e0 and 1 are one number, as in PostgreSQL.

Does not: keep a text as it was written (that is what text is for), interpret numbers as floats.
"""

from __future__ import annotations

import json
import re
from json.encoder import encode_basestring
from typing import Any

__all__ = ["canonical_json", "json_problem"]

_MAX_NESTING = 256  # a level costs three Python frames of the usual thousand, and whoever reads it pays again
_MAX_PLACES = 400
_NUMBER = re.compile(r"(-?)([0-9]+)(?:\.([0-9]+))?(?:[eE]([+-]?[0-9]+))?")


class _Number(str):
    """The text of a number, told from a string."""

    __slots__ = ()


def canonical_json(text: str) -> str:
    """The canonical form of a JSON text. Raises ValueError that names it.

    >>> canonical_json('{"b": [1.50, 1e2], "a": "x", "b": -0.0}')
    '{"a":"x","b":0}'
    """
    try:
        value = json.loads(text, parse_float=_Number, parse_int=_Number, parse_constant=_constant)
        out: list[str] = []
        _write(value, out, 0)
        canonical = "".join(out)
        canonical.encode()
    except RecursionError:
        raise ValueError(f"{_shown(text)} is no jsonb: nested deeper than {_MAX_NESTING}") from None
    except UnicodeEncodeError:
        raise ValueError(f"{_shown(text)} is no jsonb: half of a surrogate pair") from None
    except ValueError as error:
        raise ValueError(f"{_shown(text)} is no jsonb: {error}") from None
    return canonical


def json_problem(text: str) -> str | None:
    """Say why `text` is no JSON; None if it is."""
    try:
        canonical_json(text)
    except ValueError as error:
        return str(error)
    return None


def _constant(name: str) -> Any:
    raise ValueError(f"{name} is no number of JSON")


def _write(value: Any, out: list[str], depth: int) -> None:
    if depth > _MAX_NESTING:
        raise RecursionError
    if isinstance(value, dict):
        opening = "{"
        for key in sorted(value):
            out += (opening, encode_basestring(key), ":")
            _write(value[key], out, depth + 1)
            opening = ","
        out.append("}" if value else "{}")
    elif isinstance(value, list):
        opening = "["
        for item in value:
            out.append(opening)
            _write(item, out, depth + 1)
            opening = ","
        out.append("]" if value else "[]")
    elif isinstance(value, _Number):
        out.append(_number(value))
    elif isinstance(value, str):
        out.append(encode_basestring(value))
    else:
        out.append("null" if value is None else "true" if value else "false")


def _number(text: str) -> str:
    match = _NUMBER.fullmatch(text)
    assert match is not None
    sign, whole, fraction, exponent = match[1], match[2], match[3] or "", match[4] or "0"
    if len(exponent) > 12:
        raise ValueError(f"the exponent {exponent[:20]}... is beyond all bounds")
    digits = whole + fraction
    kept = digits.lstrip("0")
    if not kept:
        return "0"
    # The value is 0.KEPT times 10 ** places.
    places = len(whole) - (len(digits) - len(kept)) + int(exponent)
    kept = kept.rstrip("0")
    if not -_MAX_PLACES < places <= _MAX_PLACES:
        point = "." if len(kept) > 1 else ""
        return f"{sign}{kept[0]}{point}{kept[1:]}e{places - 1}"
    if places <= 0:
        return f"{sign}0.{'0' * -places}{kept}"
    if len(kept) <= places:
        return sign + kept.ljust(places, "0")
    return f"{sign}{kept[:places]}.{kept[places:]}"


def _shown(text: str) -> str:
    return repr(text) if len(text) <= 60 else repr(text[:60]) + "..."
