"""Functions of the user: a Python module of them is named at launch, and plans call them like any other.

    from clusterd.functions import aggregate, scalar

    @scalar("celsius", "double precision -> double precision")
    def celsius(fahrenheit):
        return (fahrenheit - 32) / 1.8

A function is given whole columns and gives one of the same length: numpy arrays as of
`shm_arrangements.conversion`, or, with `arrow=True`, pyarrow Arrays. It is to be deterministic, of each row
by itself, and quick: nothing else happens meanwhile. What it raises is an error of the rows for which it does
so when they are given alone; the text stands in the answer, and is kept, so values do not belong there.

Does not: evaluate (clusterd/render/functions/user.py), reload, run anything in a sandbox.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from clusterd.errors import DaemonError
from controller_proto.functions import add_aggregate, add_function, forget_functions

__all__ = ["Definition", "FunctionsError", "aggregate", "definition", "load_functions", "scalar", "unload"]

F = TypeVar("F", bound=Callable[..., Any])
_MODULE: Final = "clusterd_user_functions"


class FunctionsError(DaemonError):
    """The module of the user's functions cannot be used; the message names it, or the function."""


@dataclass(frozen=True, slots=True)
class Definition:
    """call: what the user wrote. strict: no row with a NULL is given to it. arrow: it takes pyarrow Arrays.

    part: which of the arrays that it returns counts, if it returns several. is_grouped: it takes the values
    of groups, and where each begins.
    """

    name: str
    call: Callable[..., Any]
    strict: bool = True
    arrow: bool = False
    part: int | None = None
    is_grouped: bool = False


_DEFINED: Final[dict[str, Definition]] = {}
_LOADED: Final[list[str]] = []


def scalar(name: str, signature: str, *, strict: bool = True, arrow: bool = False) -> Callable[[F], F]:
    """Declare a scalar function: `@scalar("celsius", "double precision -> double precision")`.

    signature: types as in docs/functions.md, none of them variable. strict: NULL of a NULL argument, which
    it never sees; else numpy arrays with a NULL are masked ones. It may give NULLs: masked values, NaT,
    None among objects, or Arrow's. Raises FunctionsError.
    """

    def declare(call: F) -> F:
        try:
            add_function(name, signature, _doc(call), strict=strict)
        except ValueError as error:
            raise FunctionsError(f"function {error}") from error
        _DEFINED[name] = Definition(name, call, strict, arrow)
        return call

    return declare


def aggregate(
    name: str, signature: str, *, state: Sequence[str] = (), arrow: bool = False
) -> Callable[[F], F]:
    """Declare an aggregate, of sums or of values. NULLs are left out; of none but NULLs the result is NULL.

    Of sums, with `state`, their types (bigint, double precision, numeric(s)): the class that follows has
    `add(*columns)`, which gives an array for each, and `finish(*sums)`, which gives the results. Sums are
    kept exactly and follow retractions; a change costs nothing but itself.

    Of values, without `state`: the function that follows is given the values of several groups one after the
    other, each group's in order, and the positions (groups + 1,) where groups begin; it gives a result for
    each group. A change costs its group. It may have `distinct`, and an `order by`.

    Raises FunctionsError.
    """

    def declare(made: F) -> F:
        try:
            found = add_aggregate(name, signature, state, _doc(made))
        except ValueError as error:
            raise FunctionsError(f"aggregate {error}") from error
        add, finish = getattr(made, "add", None), getattr(made, "finish", None)
        if state and not (callable(add) and callable(finish)):
            raise FunctionsError(f"aggregate {name}: a class with add and finish is wanted")
        for number, each in enumerate(found.states):
            assert add is not None
            _DEFINED[each.name] = Definition(each.name, add, arrow=arrow, part=number)
        if found.states:
            assert finish is not None
            _DEFINED[found.finish.name] = Definition(found.finish.name, finish, arrow=arrow)
        else:
            _DEFINED[found.finish.name] = Definition(found.finish.name, made, arrow=arrow, is_grouped=True)
        return made

    return declare


def _doc(made: Any) -> str:
    return (made.__doc__ or "").strip().partition("\n")[0]


def definition(name: str) -> Definition:
    """What stands behind a function of the user. Raises KeyError."""
    return _DEFINED[name]


def load_functions(source: str) -> None:
    """Import the user's module, `PATH.py` or the name of one, once in a process. Raises FunctionsError."""
    if source in _LOADED:
        return
    try:
        _import(source)
    except FunctionsError as error:
        raise FunctionsError(f"functions of {source}: {error.message}") from error
    except (Exception, SystemExit) as error:  # whatever the user's module does
        raise FunctionsError(f"functions of {source}: {type(error).__name__}: {error}") from error
    _LOADED.append(source)


def _import(source: str) -> None:
    with contextlib.redirect_stdout(sys.stderr):  # stdout is for READY
        if source.endswith(".py"):
            spec = importlib.util.spec_from_file_location(_MODULE, Path(source))
            assert spec is not None and spec.loader is not None  # noqa: PT018
            module = importlib.util.module_from_spec(spec)
            sys.modules[_MODULE] = module
            spec.loader.exec_module(module)
        else:
            importlib.import_module(source)


def unload() -> None:
    """Forget all functions of the user, for tests."""
    _LOADED.clear()
    _DEFINED.clear()
    forget_functions()
