"""How a function is declared: signatures in a small notation, and what is said beside them.

A signature is `ARGUMENT, ARGUMENT -> RESULT`. An argument is a type, or

- `T` (`U`): any type, the same wherever it stands; arguments of several types are widened to one;
- `any`: any type, each argument its own;
- `T list`, `text list`: a list of these; `text? list` (a result): one whose elements may be NULL;
- `numeric(s)`: a numeric of any scale; where `s` stands twice all are given the greater scale. A result of
  `numeric(s+t)` has the sum of two scales, up to 38; `numeric(q)` that of a quotient (resolve.py);
- the last one followed by `...`: as often as one likes, at least once.

A table function gives columns: `T`, or several as `key: text, value: text?`; with `?` it may be NULL.

A plain `numeric` has scale 0. What takes nothing is `-> RESULT`.

Does not: resolve calls (resolve.py), say how anything is computed.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import msgspec

from controller_proto.schema import ColumnType

__all__ = ["Function", "Pattern", "Signature", "declared", "signatures"]

_TYPES = {type_.value: type_ for type_ in ColumnType}
Nulls = Literal["strict", "some", "always", "never", "all"]


class Pattern(NamedTuple):
    """An argument or a result. variable: `T`, `U`, `any` or empty. type: where there is no variable.

    scale: of a numeric, as it is written. is_list: a list of that. null_elements: whose elements may be NULL;
    of a column of a table function, whether it may itself. name: of such a column.
    """

    variable: str
    type: ColumnType | None
    scale: str
    is_list: bool
    null_elements: bool
    name: str = ""


class Signature(NamedTuple):
    """One overload. text: as it was declared, which is its name. variadic: the last argument repeats.

    results: what comes out; several of a table function alone.
    """

    text: str
    args: tuple[Pattern, ...]
    variadic: bool
    results: tuple[Pattern, ...]

    @property
    def result(self) -> Pattern:
        """What comes out of a scalar function."""
        return self.results[0]

    def takes(self, count: int) -> bool:
        """Whether so many arguments may be given."""
        return count >= len(self.args) if self.variadic else count == len(self.args)

    def pattern(self, position: int) -> Pattern:
        """What the argument at `position` must be."""
        return self.args[min(position, len(self.args) - 1)]


class Function(msgspec.Struct, frozen=True):
    """A function of the table.

    nulls: `strict` (NULL if an argument is), `some` (only if an argument is), `always` (NULL may come out
    whatever came in), `never`, or `all` (only if all arguments are). example: a call with literals, and
    the result as it is printed, or `error: ...`. errors: those it raises itself, of `ERRORS`. differs: from
    PostgreSQL or DuckDB, in words. constant: positions of arguments that must be literals.
    """

    name: str
    family: str
    signatures: tuple[Signature, ...]
    doc: str
    example: str
    result: str
    errors: tuple[str, ...] = ()
    nulls: Nulls = "strict"
    differs: str = ""
    constant: tuple[int, ...] = ()


def _pattern(text: str) -> Pattern:
    is_list = text.endswith(" list")
    base = text.removesuffix(" list")
    null_elements = base.endswith("?")
    base = base.removesuffix("?")
    if base in ("T", "U", "any"):
        return Pattern(base, None, "", is_list, null_elements)
    scale = ""
    if base.startswith("numeric("):
        base, scale = "numeric", base[len("numeric(") : -1]
    return Pattern("", _TYPES[base], scale, is_list, null_elements)


def _result(text: str) -> Pattern:
    name, colon, type_ = text.rpartition(": ")
    return _pattern(type_)._replace(name=name) if colon else _pattern(text)


def _signature(text: str) -> Signature:
    left, _, results = text.partition("-> ")
    parts = [part for part in left.strip().split(", ") if part]
    variadic = bool(parts) and parts[-1].endswith("...")
    if variadic:
        parts[-1] = parts[-1].removesuffix("...")
    return Signature(text, tuple(map(_pattern, parts)), variadic, tuple(map(_result, results.split(", "))))


def signatures(text: str) -> tuple[Signature, ...]:
    """Signatures separated by semicolons; `{a|b}` stands for one signature with each."""
    found: list[Signature] = []
    for one in text.split(";"):
        opening = one.find("{")
        if opening < 0:
            found.append(_signature(one.strip()))
            continue
        words = one[opening : one.index("}", opening) + 1]
        for word in words[1:-1].split("|"):
            found += signatures(one.replace(words, word))
    return tuple(found)


def declared(
    family: str, name: str, text: str, doc: str, example: str, result: str, *, errors: str = "",
    nulls: Nulls = "strict", differs: str = "", constant: tuple[int, ...] = (),
) -> Function:  # fmt: skip
    """A function, with its signatures in the notation above and its errors separated by semicolons."""
    return Function(
        name, family, signatures(text), doc, example, result,
        tuple(error.strip() for error in errors.split(";") if error), nulls, differs, constant,
    )  # fmt: skip
