"""Who implements what: by the name of a function and the text of a signature of the table.

An implementation is of one of two kinds. A strict one gets columns, each of length 1 or n, and gives a column
of length 1 or n, with codes of errors if it has any; of rows where an argument is NULL or in error it may
give anything but an exception, and nobody sees it. An open one gets all that was evaluated, and decides about
NULL and errors itself.

A family's module is imported when its first function is compiled: few plans use them all.

Does not: evaluate arguments (expr.py does).
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import numpy as np

from clusterd.render.functions.evaluated import Codes, Evaluated, all_valid, first_errors, rows_of, with_nulls
from controller_proto.functions import FAMILIES, FUNCTIONS, USER_FUNCTIONS
from controller_proto.schema import Scalar
from shm_arrangements.columns import Column
from shm_arrangements.types import ColumnSpec

__all__ = [
    "CallSite", "Implementation", "Outcome", "Strict", "implementation", "implemented", "opened", "parted",
    "strict",
]  # fmt: skip

# Modules beside those called as the families are.
_MORE: Final[dict[str, tuple[str, ...]]] = {
    "casts": ("casts_of_moments", "casts_of_text", "casts_to_text", "json"),
    "text": ("text_forms", "bytes", "lists", "json_values"),
    "lists": ("json_values",),
    "moments": ("fields",),
    "arithmetic": ("moments", "json_values"),
    "json": ("json_texts", "json_values"),
}


@dataclass(frozen=True, slots=True)
class CallSite:
    """A call as it was resolved. constants: of an argument that is a literal its wire value, else None."""

    args: tuple[ColumnSpec, ...]
    result: ColumnSpec
    constants: tuple[Scalar, ...]


Outcome = Column | tuple[Column, Codes | None]
Strict = Callable[[CallSite, Sequence[Column]], Outcome]
Implementation = Callable[[CallSite, Sequence[Evaluated], int], Evaluated]
F = TypeVar("F", bound=Callable[..., Any])


def parted(outcome: Outcome) -> tuple[Column, Codes | None]:
    """The values of an outcome, and its codes if it has any."""
    return outcome if isinstance(outcome, tuple) else (outcome, None)


_FOUND: Final[dict[tuple[str, str], Implementation]] = {}


def strict(name: str, *signatures: str) -> Callable[[Strict], Strict]:
    """Register a strict implementation of these signatures, or of all that the function has."""

    def register(function: Strict) -> Strict:
        def run(call: CallSite, args: Sequence[Evaluated], n: int) -> Evaluated:
            columns = [each.column for each in args]
            valid = all_valid(columns)
            errors = first_errors(*(each.errors for each in args))
            column, codes = parted(function(call, columns))
            if codes is not None and valid is not None:
                codes = codes * valid  # an error of what stands in for NULL is none
            if len(column) == 1 and rows_of(columns) != 1:
                column = column.take(np.zeros(rows_of(columns), np.int64))
            return with_nulls(column, valid, errors, codes)

        _add(name, signatures, run)
        return function

    return register


def opened(name: str, *signatures: str) -> Callable[[F], F]:
    """Register an open implementation of these signatures, or of all that the function has."""

    def register(function: F) -> F:
        _add(name, signatures, function)
        return function

    return register


def _add(name: str, signatures: Sequence[str], run: Implementation) -> None:
    for text in signatures or [each.text for each in FUNCTIONS[name].signatures]:
        assert (name, text) not in _FOUND, f"{name}({text}) is implemented twice"
        _FOUND[name, text] = run


def _load(family: str) -> None:
    for module in (family, *_MORE.get(family, ())):
        importlib.import_module(f"clusterd.render.functions.{module}")


def implementation(name: str, signature: str) -> Implementation:
    """The implementation of one signature of a declared function."""
    if name in USER_FUNCTIONS:
        from clusterd.render.functions.user import user_implementation

        return user_implementation(name)
    if (name, signature) not in _FOUND:
        _load(FUNCTIONS[name].family)
    return _FOUND[name, signature]


def implemented() -> frozenset[tuple[str, str]]:
    """Every name and signature that has an implementation."""
    for family in FAMILIES:
        _load(family)
    return frozenset(_FOUND)
