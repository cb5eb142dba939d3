"""docs/functions.md, made of the tables: `python -m controller_proto.functions.page` writes it.

Does not: say anything that the tables do not, but for the words above the families.
"""

from __future__ import annotations

import sys
from pathlib import Path

from controller_proto.aggregates import AGGREGATES
from controller_proto.functions.signatures import Function
from controller_proto.functions.table import FAMILIES, TABLE_FUNCTIONS

__all__ = ["page"]

_HEAD = """# Functions

Made by `make docs` from `controller_proto/functions/` and `aggregates.py`: change it there. Meaning is
PostgreSQL's, but where a row says otherwise.

`T` and `U` stand for any type, the same wherever they stand; arguments of several types are widened to one:
an integer to a larger one, to a numeric, to a double; a date to a timestamp, that to a timestamptz. `any` is
any type, `...` as many arguments as one likes, and `numeric(s)` a numeric of any scale. A call is resolved to
the signature that widens least, and of equal ones to the first.

NULL: `if an argument is` (the function is strict), `only if an argument is`, `only if all are`, `never`, or
`may be` whatever the arguments are. An error is data: the row becomes an error in its place, and is gone
when the row is retracted; nothing is an error of a row where an argument is NULL. Constant expressions are
computed when a dataflow is made, and fail for each row as they would have there.

Besides there are `CASE WHEN condition THEN value ... ELSE value END`, of which only the arm taken is
computed, and literals (docs/script.md).
"""
_NULLS = {
    "strict": "if an argument is",
    "some": "only if an argument is",
    "all": "only if all are",
    "never": "never",
    "always": "may be",
}


_AGGREGATES = """\
## Aggregates

Of a `Reduce`. NULLs are skipped, and the result over nothing else is NULL, but where a row says otherwise.
Each takes `distinct`: every value counts once. `array_agg`, `string_agg`, `jsonb_agg` and `jsonb_object_agg`
take an `order by` of columns, and go by their arguments after that (of distinct values: by those alone).

Sums are exact whatever is added and taken away again; one that does not fit its type is an error in data
(`eval-error`), as is a list of more than 16,777,216 values, and more than 2^63 - 1 rows are a
`multiplicity-overflow`; all of them heal. Rows taken away too often give signed counts, and signed sums and
means of signed values; for other aggregates that is an error (`invalid-data`), for variances and for sums and
means of unsigned integers as far as it shows in them.

*Differs:* `avg` has 16 digits behind the point, or as many as its argument, where PostgreSQL has at least 16
that count. Variances of exact numbers are double precision, not numeric. `sum` of any integer is numeric.
`jsonb_object_agg` takes text keys. Values come in a fixed order where PostgreSQL has none.
"""

_TABLES = """\
## Table functions

Of a `FlatMap`: each row once for every row that the function gives for it, with the function's columns
appended, and with the row's own count. `with ordinality` behind the call appends a bigint `ordinality`,
which counts from 1. No row comes of a NULL argument; a row for which the function fails is an error in its
place. Results are made in pieces of bounded size, however long a series is.
"""

_USER = """
## Functions of the user

A Python module of them is named at launch, `clusterd serve --functions PATH.py` (or the name of one), and
so for `clusterd-test-driver run` and `clusterd.launcher.launch`. Each process that types or runs plans loads
it when it starts; a client that sends plans calls `clusterd.functions.load_functions` with the same module.
What the replica has loaded decides: it checks every plan by it, and refuses (`invalid-plan`) one with a
function that it does not know. A module that cannot be used ends the launch with one line that names it.

In it `@scalar(NAME, SIGNATURE)` declares a function and `@aggregate(NAME, SIGNATURE)` an aggregate
(`clusterd/functions.py`; docs/example_functions.py is one of each kind). A signature has one overload of the
types above, `numeric(2)` for a scale; arguments are widened to it as everywhere. A name that is built in
cannot be taken.

- They are given whole columns and give one of the same length: numpy arrays (with NULLs, masked ones), or
  with `arrow=True` Arrow's. `strict=False` shows NULLs to a scalar function; else the result of a NULL is
  NULL.
- They are to be deterministic, and to give each row what they would give it alone: a plan's answer must not
  depend on how its input was cut.
- What they raise is an error of the row (`eval-error: NAME: ValueError: text`), found by halving rows until
  it stands alone; so is a result of another type or length. It is retracted with its row.
- An aggregate with `state=[...]` is made of sums: `add(columns)` gives an array for each, `finish(sums)` the
  results. Sums are exact, also of doubles, and follow retractions, and a change costs no more than itself.
  One without is given all values of the groups that changed, in order, and where each group begins.
  `distinct` and `order by` are for these alone. NULLs are left out.
- Meanwhile nothing else happens in the worker: it is not cut into chunks, and has no time limit.
"""


def _code(text: str) -> str:
    # A bar ends a cell even within code.
    return f"`{text}`".replace("|", "\\|")


def _signatures(function: Function) -> str:
    shown = [signature.text for signature in function.signatures]
    if function.name == "cast":
        by_target: dict[str, list[str]] = {}
        for text in shown:
            source, _, target = text.partition(" -> ")
            by_target.setdefault(target, []).append(source)
        return "<br>".join(
            f"to {_code(to)}: from {_code(', '.join(sources))}" for to, sources in by_target.items()
        )
    return "<br>".join(map(_code, shown))


def _cells(function: Function) -> tuple[str, ...]:
    notes = [function.doc]
    if function.constant:
        which = " and ".join(f"argument {position + 1}" for position in function.constant)
        notes.append(f"{which.capitalize()} must be a constant.")
    if function.differs:
        notes.append(f"*Differs:* {function.differs}")
    example = f"{_code(function.example)} gives {_code(function.result)}"
    errors = "; ".join(function.errors) or "-"
    return (
        _code(function.name), _signatures(function), " ".join(notes).replace("|", "\\|"),
        _NULLS[function.nulls], errors, example,
    )  # fmt: skip


def _row(function: Function) -> str:
    return f"| {' | '.join(_cells(function))} |"


def _table_row(function: Function) -> str:
    cells = _cells(function)
    return f"| {' | '.join((*cells[:3], *cells[4:]))} |"


def page() -> str:
    """The text of docs/functions.md."""
    lines = [_HEAD]
    for title, functions in FAMILIES.values():
        lines += [
            f"## {title}",
            "",
            "| name | signatures | | NULL | errors | example |",
            "|---|---|---|---|---|---|",
        ]
        lines += [*map(_row, functions), ""]
    lines += [_TABLES, "| name | signatures | | errors | example |", "|---|---|---|---|---|"]
    lines += [*map(_table_row, TABLE_FUNCTIONS.values()), ""]
    lines += [_AGGREGATES, "| name | signatures | |", "|---|---|---|"]
    for name, rule in AGGREGATES.items():
        signatures = "<br>".join(map(_code, rule.signatures.split("; ")))
        lines.append(f"| {_code(name)} | {signatures} | {rule.doc} |")
    return "\n".join([*lines, ""]) + _USER


if __name__ == "__main__":
    Path(sys.argv[1] if len(sys.argv) > 1 else "docs/functions.md").write_text(page())
