"""A plan with what each line of it has cost: rows of the introspection relations, laid out.

Figures stand before the plan, whose lines are as wide as they are. A line that no operator carries out has
none, nor has the time of what is within a recursion: that is the recursion's.

Does not: read the relations (explain_cli.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from shm_arrangements.text import plural, size_text

__all__ = ["NEEDED", "analyzed", "plan_text"]

NEEDED = (
    "dataflows",
    "plan_mapping",
    "operator_elapsed",
    "arrangement_sizes",
    "hydration_operators",
    "hydration",
)
Said = Mapping[str, Sequence[Mapping[str, Any]]]  # rows by relation, of one dataflow
_HEAD = ("rows in", "rows out", "time", "longest", "memory", "")
_BLANK = ("",) * len(_HEAD)


def plan_text(said: Said) -> Iterator[str]:
    """The plan alone."""
    told = -1
    for line in sorted(said["plan_mapping"], key=lambda row: row["line"]):
        if line["line"] != told:
            told = line["line"]
            yield "  " * line["depth"] + line["text"]


def analyzed(said: Said) -> Iterator[str]:
    """said: the rows of the relations in `NEEDED` that are of the dataflow."""
    yield _summary(said)
    elapsed = {row["operator"]: row for row in said["operator_elapsed"]}
    states = {row["operator"]: row["status"] for row in said["hydration_operators"]}
    memory: dict[str, int] = {}
    for row in said["arrangement_sizes"]:
        memory[row["operator"]] = memory.get(row["operator"], 0) + row["bytes"]
    figures: list[tuple[str, ...]] = [_HEAD]
    texts = [""]
    for line in sorted(said["plan_mapping"], key=lambda row: row["line"]):
        operator = line["operator"]
        texts.append("  " * line["depth"] + line["text"])
        figures.append(
            _BLANK
            if operator not in elapsed
            else _figures(elapsed[operator], memory.get(operator, 0), states.get(operator, ""))
        )
    widths = [max(map(len, column)) for column in zip(*figures, strict=True)]
    for cells, text in zip(figures, texts, strict=True):
        numbers = "  ".join(cell.rjust(width) for cell, width in zip(cells[:-1], widths, strict=False))
        yield f"{numbers}  {cells[-1].ljust(widths[-1])}  {text}".rstrip()


def _figures(row: Mapping[str, Any], nbytes: int, state: str) -> tuple[str, ...]:
    errs = f" +{row['errs_out']:,} errors" if row["errs_out"] else ""
    took = "" if "." in row["operator"] else _time(row["elapsed_ns"])
    longest = "" if "." in row["operator"] else _time(row["longest_ns"])
    rows = f"{row['rows_in']:,}", f"{row['rows_out']:,}{errs}"
    return *rows, took, longest, size_text(nbytes) if nbytes else "", state


def _summary(said: Said) -> str:
    (row,) = said["dataflows"]
    where = "closed" if row["upper"] is None else f"computed up to {row['upper']}"
    state = row["state"]
    for made in said["hydration"]:
        if made["hydrated_ms"] is not None:
            state = f"hydrated in {_time((made['hydrated_ms'] - made['began_ms']) * 1_000_000)}"
        elif made["progress"] is not None:
            state = f"{made['status']}, {made['progress']:.0%} of {made['rows_expected']:,} updates read"
        if made["code"]:
            state = f"{made['status']} ({made['code']}: {made['message']})"
    rounds, work = plural(row["rounds"], "round"), _time(row["elapsed_ns"])
    who = f"{row['name']}, dataflow {row['dataflow']} of {row['worker']}"
    return f"{who}: {state}; {where}, {rounds}, {work} of work"


def _time(ns: int) -> str:
    """In a unit that leaves three digits or so."""
    for unit, size in (("s", 10**9), ("ms", 10**6), ("us", 10**3)):
        if ns >= size:
            return f"{ns / size:,.1f} {unit}"
    return f"{ns} ns" if ns else ""
