"""Essentials: what the relations say that fits on a terminal's page, for `clusterd top`.

Does not: ask, wait, draw again (top_cli.py does).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

__all__ = ["READ", "Named", "page"]

Named: TypeAlias = Mapping[str, Sequence[Mapping[str, Any]]]

READ = (
    "dataflows", "errors", "hydration", "import_frontiers", "peeks_active", "processes", "publications",
    "staleness",
)  # fmt: skip
_Line: TypeAlias = Sequence[str | ProgressBar]
_BAR = 16
_UNITS = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


def page(told: Named, now_ms: int, rows: int) -> RenderableType:
    """What `told` says: relations by name, rows by column. rows: of the terminal, so that it fits."""
    room = max(3, (rows - 20) // 2)  # for collections, and for peeks
    return Group(
        _summary(told),
        "",
        _processes(told["processes"], now_ms),
        "",
        _collections(told, room),
        "",
        _peeks(told["peeks_active"], now_ms, room),
    )


def _summary(told: Named) -> Text:
    ours = [each for each in told["hydration"] if not _is_observers(each)]
    waiting = sum(each["status"] != "hydrated" for each in ours)
    behind_ms = max((each["behind_ms"] for each in told["staleness"]), default=0)
    errors = sum(each["count"] for each in told["errors"])
    indexes = sum(each["bytes"] for each in told["publications"] if each["alias_of"] is None)
    return Text(
        f"collections: {len(ours)}, not hydrated: {waiting}, worst behind: {_duration(behind_ms)}; "
        f"indexes: {_bytes(indexes)}; peeks: {len(told['peeks_active'])}; errors in data: {errors}"
    )


def _processes(processes: Iterable[Mapping[str, Any]], now_ms: int) -> Table:
    lines: list[_Line] = []
    for each in sorted(processes, key=lambda each: str(each["process"])):
        at = each["sampled_at_ms"]
        lines.append(
            (
                each["process"],
                str(each["pid"]),
                f"{each['cpu_seconds']:.1f} s",
                _bytes(each["rss_bytes"]),
                _bytes(each["shared_bytes"]),
                "-" if at is None else f"{_duration(max(0, now_ms - at))} ago",
            )
        )
    return _table("process pid> cpu> memory> shared> figures-are-of>", lines, len(lines))


def _collections(told: Named, room: int) -> Table:
    held = {(each["worker"], each["id"]): each for each in told["publications"]}
    behind = {(each["worker"], each["id"]): each["behind_ms"] for each in told["staleness"]}
    waits: dict[tuple[str, int], list[str]] = {}
    for each in told["import_frontiers"]:
        if each["holds_back"]:
            waits.setdefault((each["worker"], each["dataflow"]), []).append(each["id"])
    lines: list[_Line] = []
    for each in sorted((each for each in told["hydration"] if not _is_observers(each)), key=_least_done):
        key = each["worker"], each["id"]
        index = held.get(key)
        progress = each["progress"]
        lines.append(
            (
                each["id"],
                each["status"] if each["code"] is None else f"{each['status']}: {each['code']}",
                ProgressBar(total=1.0, completed=progress or 0.0, width=_BAR),
                "-" if progress is None else f"{progress:.0%}",
                "-" if index is None else "closed" if index["upper"] is None else str(index["upper"]),
                _duration(behind.get(key, 0)),
                "-" if index is None else _bytes(index["bytes"]),
                ", ".join(sorted(waits.get((each["worker"], each["dataflow"]), ()))),
            )
        )
    return _table("collection status hydration > upper> behind> memory> waits-for?", lines, room)


def _peeks(peeks: Iterable[Mapping[str, Any]], now_ms: int, room: int) -> Table:
    lines: list[_Line] = [
        (
            each["id"],
            each["state"],
            _duration(max(0, now_ms - each["began_ms"])),
            str(each["rows_visited"]),
            each["worker"],
            each["waits_for"] or "",
            each["uuid"],
        )
        for each in sorted(peeks, key=lambda each: int(each["began_ms"]))
    ]
    return _table("peek-of state since> rows> worker waits-for? uuid?", lines, room)


def _table(heads: str, lines: Sequence[_Line], room: int) -> Table:
    """heads: `>` at the end aligns right, `?` has the column give way where there is no room for all."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for position, head in enumerate(heads.split()):
        name = head.strip(">?").replace("-", " ")
        cells = [line[position] for line in lines[:room]]
        width = max(
            len(name), *(_BAR if isinstance(cell, ProgressBar) else cell_len(cell) for cell in cells), 0
        )
        table.add_column(
            name,
            justify="right" if head.endswith(">") else "left",
            no_wrap=True,
            min_width=4 if head.endswith("?") else width,
        )
    for line in lines[:room]:
        table.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in line))
    if len(lines) > room:
        table.caption = f"and {len(lines) - room} more"
        table.caption_justify = "left"
    return table


def _least_done(each: Mapping[str, Any]) -> tuple[bool, int, str]:
    return each["status"] == "hydrated", len(each["id"]), str(each["id"])


def _is_observers(each: Mapping[str, Any]) -> bool:
    """Whether it is there for those who look, as we do."""
    return str(each["worker"]).startswith("introspection/")


def _bytes(count: int) -> str:
    for size, unit in _UNITS:
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} B"


def _duration(ms: float) -> str:
    if ms < 1_000:
        return f"{ms:.0f} ms"
    if ms < 120_000:
        return f"{ms / 1_000:.1f} s"
    minutes = int(ms) // 60_000
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h"
