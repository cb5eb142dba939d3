"""Lazy: a package that offers names of its modules and imports a module when one of its names is asked for.

So the package itself costs nothing to import, which matters to those of its modules that must stay light
(the reaper, the sweep, the command line). A name that a function and a module share (`attach`) is the
function: importing the module does not bind it over that.

Does not: offer modules; they are imported by their own names.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable, Mapping
from types import ModuleType
from typing import Any

_HOMES = "_homes"


class _Package(ModuleType):
    """A package some of whose names are not there before they are used."""

    def __getattr__(self, name: str) -> Any:
        home = self.__dict__.get(_HOMES, {}).get(name)
        if home is None:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(home), name)
        self.__dict__[name] = value
        return value

    def __setattr__(self, name: str, value: Any) -> None:
        if not (isinstance(value, ModuleType) and name in self.__dict__.get(_HOMES, {})):
            super().__setattr__(name, value)

    def __dir__(self) -> Iterable[str]:
        return sorted({*super().__dir__(), *self.__dict__[_HOMES]})


def offer(package: str, names: Mapping[str, Iterable[str]]) -> None:
    """Let `package`, which is being imported, offer `names`: by module, as it is called in the package."""
    module = sys.modules[package]
    module.__class__ = _Package
    homes = {name: f"{package}.{home}" for home, offered in names.items() for name in offered}
    module.__dict__[_HOMES] = homes
