"""Text: values, sizes and frontiers as people read them, and as CSV and JSON carry them.

Does not: print.
"""

from __future__ import annotations

import datetime
import decimal
import json
import math
from collections.abc import Iterable, Sequence
from typing import Any, Final

from shm_arrangements.frontier import Frontier

NULL: Final = "NULL"
BAR_CELLS: Final = 40

_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB")
_NON_FINITE: Final = {math.inf: "Infinity", -math.inf: "-Infinity"}


def size_text(nbytes: int) -> str:
    """Bytes with a unit.

    >>> size_text(512), size_text(20_480), size_text(3 << 30)
    ('512 B', '20.0 KiB', '3.0 GiB')
    """
    size, unit = float(nbytes), 0
    while size >= 1024 and unit < len(_UNITS) - 1:
        size, unit = size / 1024, unit + 1
    return f"{size:.1f} {_UNITS[unit]}" if unit else f"{nbytes} B"


def duration_text(seconds: float) -> str:
    """Seconds, in the two largest units that say something.

    >>> duration_text(0.05), duration_text(61), duration_text(90_061)
    ('0.1 s', '1 min 1 s', '1 d 1 h')
    """
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = int(seconds)
    parts = [(whole // 86_400, "d"), (whole // 3600 % 24, "h"), (whole // 60 % 60, "min"), (whole % 60, "s")]
    first = next(i for i, (count, _) in enumerate(parts) if count)
    return " ".join(f"{count} {unit}" for count, unit in parts[first : first + 2] if count)


def plural(count: int, word: str) -> str:
    """A number of things.

    >>> plural(1, "batch"), plural(2000, "batch"), plural(0, "page")
    ('1 batch', '2,000 batches', '0 pages')
    """
    ending = "" if count == 1 else "es" if word.endswith("ch") else "s"
    return f"{count:,} {word}{ending}"


def frontier_text(frontier: Frontier) -> str:
    """The time, or "closed"."""
    return "closed" if frontier.is_empty else str(frontier.time)


def value_text(value: Any) -> str:
    """A value of `conversion.to_python`, without quotes; NULL is "NULL"."""
    if value is None:
        return NULL
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, bytes):
        return "\\x" + value.hex()
    if isinstance(value, decimal.Decimal):
        return f"{value:f}"
    if isinstance(value, datetime.datetime):
        return value.isoformat(" ")
    if isinstance(value, list | tuple):
        return json.dumps(json_value(value), ensure_ascii=False)
    return str(value)


def json_value(value: Any) -> Any:
    """A value of `conversion.to_python` as JSON has it: numbers, booleans and null, lists, else text."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else _NON_FINITE.get(value, "NaN")
    if isinstance(value, list | tuple):
        return [json_value(item) for item in value]
    return value_text(value)


def csv_line(values: Iterable[Any]) -> str:
    """A line of CSV (RFC 4180) without its end: NULL is nothing, the empty text is quoted."""
    return ",".join("" if value is None else _csv_field(value_text(value)) for value in values)


def table_lines(
    rows: Sequence[Sequence[str]], right: Iterable[int] = (), *, widths: Sequence[int] = ()
) -> list[str]:
    """Rows of cells, aligned, two spaces between them; the columns in `right` to the right.

    widths: least widths, to go on as an earlier call of the same table began (`table_widths`).
    """
    to_right = set(right)
    used = table_widths(rows, widths)
    lines = []
    for row in rows:
        cells = [
            cell.rjust(width) if at in to_right else cell.ljust(width)
            for at, (cell, width) in enumerate(zip(row, used, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return lines


def table_widths(rows: Sequence[Sequence[str]], least: Sequence[int] = ()) -> list[int]:
    """How wide each column has to be."""
    widths = list(least) or [0] * max(map(len, rows), default=0)
    for row in rows:
        widths = [max(width, len(cell)) for width, cell in zip(widths, row, strict=True)]
    return widths


def bar_text(part: float, largest: float) -> str:
    """`part` as a bar, where `largest` is BAR_CELLS long; whatever is not nothing is seen."""
    if part <= 0 or largest <= 0:
        return ""
    return "#" * max(1, round(BAR_CELLS * part / largest))


def _csv_field(text: str) -> str:
    if text and not any(sign in text for sign in ',"\r\n'):
        return text
    doubled = text.replace('"', '""')
    return f'"{doubled}"'
