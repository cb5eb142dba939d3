"""docs/functions.md, made of the table: `python -m controller_proto.functions.page` writes it.

Does not: say anything that the table does not, but for the words above the families.
"""

from __future__ import annotations

import sys
from pathlib import Path

from controller_proto.functions.signatures import Function
from controller_proto.functions.table import FAMILIES

__all__ = ["page"]

_HEAD = """# Functions

Made by `make docs` from `controller_proto/functions/`: change it there. Meaning is PostgreSQL's, but where a
row says otherwise.

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


def _row(function: Function) -> str:
    notes = [function.doc]
    if function.constant:
        which = " and ".join(f"argument {position + 1}" for position in function.constant)
        notes.append(f"{which.capitalize()} must be a constant.")
    if function.differs:
        notes.append(f"*Differs:* {function.differs}")
    example = f"{_code(function.example)} gives {_code(function.result)}"
    errors = "; ".join(function.errors) or "-"
    cells = (
        _code(function.name), _signatures(function), " ".join(notes).replace("|", "\\|"),
        _NULLS[function.nulls], errors, example,
    )  # fmt: skip
    return f"| {' | '.join(cells)} |"


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
    return "\n".join(lines)


if __name__ == "__main__":
    Path(sys.argv[1] if len(sys.argv) > 1 else "docs/functions.md").write_text(page())
