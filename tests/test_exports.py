"""What a module offers: its `__all__`, or every name without an underscore where it has none.

Each name exists, is documented, and is made in the one place that offers it; only a package's `__init__`
offers what others make. Who imports a name takes it from there.
"""

from __future__ import annotations

import ast
import gc
import importlib
import inspect
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("controller_proto", "shm_arrangements", "clusterd", "bench")
PROGRAMS = ROOT / "bench" / "peers"  # run by interpreters that have what they import, and imported by none


@cache
def _modules() -> dict[str, tuple[ModuleType, ast.Module]]:
    found = {}
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            if parts[-1] != "__main__" and path.parent != PROGRAMS:
                name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
                found[name] = importlib.import_module(name), ast.parse(path.read_text())
    return found


@pytest.fixture(autouse=True, scope="module")
def settled() -> None:
    """As in conftest.py, once all modules and their trees are there, which are most of what there is."""
    _modules()
    gc.collect()
    gc.freeze()


def _made(tree: ast.Module | ast.If) -> set[str]:
    """Names that a module binds at its top level, for the type checker or not, and does not import."""
    made: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.If):
            made |= _made(node)
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            made.add(node.name)
        elif isinstance(node, ast.Assign):
            made.update(n.id for t in node.targets for n in ast.walk(t) if isinstance(n, ast.Name))
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            made.add(node.target.id)
    return made


def _offered(module: ModuleType, tree: ast.Module) -> list[str]:
    listed: list[str] | None = getattr(module, "__all__", None)
    return listed if listed is not None else sorted(n for n in _made(tree) if not n.startswith("_"))


def test_what_is_offered_exists_and_is_listed_once() -> None:
    wrong = []
    for name, (module, tree) in _modules().items():
        offered = _offered(module, tree)
        wrong += [f"{name}.{item} is not there" for item in offered if not hasattr(module, item)]
        wrong += [f"{name}.{item} is listed twice" for item in set(offered) if offered.count(item) > 1]
    assert not wrong, "\n".join(wrong)


def test_only_an_init_offers_what_others_make_and_it_makes_nothing() -> None:
    wrong = []
    for name, (module, tree) in _modules().items():
        if hasattr(module, "__path__"):
            wrong += [f"{name} makes {item}" for item in _made(tree) - {"__all__"}]
        else:
            wrong += [
                f"{name} offers {item} of another" for item in set(_offered(module, tree)) - _made(tree)
            ]
    assert not wrong, "\n".join(wrong)


def test_a_name_is_imported_from_where_it_is_offered() -> None:
    """Private names stay in their module, and nothing is taken from who only imported it."""
    wrong = []
    for name, (_, tree) in _modules().items():
        for node in ast.walk(tree):
            if not isinstance(node, ast.ImportFrom) or node.module not in _modules():
                continue
            source, made = _modules()[node.module]
            for alias in node.names:
                if f"{node.module}.{alias.name}" in _modules():
                    continue
                if hasattr(source, "__all__") and alias.name not in source.__all__:
                    wrong.append(f"{name} imports {alias.name}, which {node.module} does not list")
                elif not hasattr(source, "__path__") and alias.name not in _made(made):
                    wrong.append(f"{name} imports {alias.name} from {node.module}, which did not make it")
                elif alias.name.startswith("_"):
                    wrong.append(f"{name} imports {node.module}.{alias.name}")
    assert not wrong, "\n".join(wrong)


def test_what_is_offered_is_documented() -> None:
    wrong = []
    for name, (module, tree) in _modules().items():
        if tree.body and not (module.__doc__ or "").strip():
            wrong.append(f"{name} does not say what it is")
        for item in _offered(module, tree):
            value = getattr(module, item, None)
            if (inspect.isclass(value) or inspect.isfunction(value)) and not (
                value.__dict__.get("__doc__") if inspect.isclass(value) else value.__doc__
            ):
                wrong.append(f"{name}.{item} has no docstring")
    assert not wrong, "\n".join(wrong)


def test_a_constant_stands_in_one_place_of_a_package() -> None:
    """Kernels are left out: numba freezes the globals of a file, so each has its own."""
    homes: dict[tuple[str, str, str], list[str]] = {}
    for name, (module, tree) in _modules().items():
        for item in set(_offered(module, tree)) & _made(tree):
            value = getattr(module, item)
            if not (inspect.isclass(value) or callable(value) or ".kernels." in name):
                homes.setdefault((name.split(".")[0], item, repr(value)), []).append(name)
    several = {key: names for key, names in homes.items() if len(names) > 1}
    assert not several, several
