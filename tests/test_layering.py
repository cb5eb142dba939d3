"""Arrows between packages and modules point down only; cores import no clock, no socket, no file system."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("controller_proto", "shm_arrangements", "clusterd")

# What a package may import beyond the standard library and itself.
ALLOWED = {
    "controller_proto": {"msgspec", "click"},
    "shm_arrangements": {
        "numpy", "numba", "llvmlite", "pyarrow", "hypothesis", "click", "pandas", "_posixshmem",
    },
    "clusterd": {
        "controller_proto", "shm_arrangements", "click", "duckdb", "h11", "llvmlite", "msgpack", "msgspec",
        "multiprocess", "numba", "numpy", "prometheus_client", "psutil", "psycopg", "pyarrow", "rich",
        "setproctitle",
    },
}  # fmt: skip

# Only these may use what is named: everything else of the package may not.
ONLY = {
    "psycopg": {"clusterd/ingest/connection.py", "clusterd/storage/postgres_"},
    "pyarrow": {
        "shm_arrangements/arrow.py",
        "clusterd/storage",
        "clusterd/render/functions",
        "clusterd/ingest/columns.py",
        "clusterd/ingest/snapshot.py",
    },
    "h11": {"clusterd/console/http.py"},
    "prometheus_client": {"clusterd/console/metrics_text.py"},
    "duckdb": {"clusterd/client/sql.py"},
    "hypothesis": {"shm_arrangements/testing"},
    "pandas": {"shm_arrangements/frames.py"},
    "click": {
        "clusterd/__main__.py",
        "clusterd/driver_cli.py",
        "clusterd/explain_cli.py",
        "clusterd/ingest/cli.py",
        "clusterd/profile_cli.py",
        "clusterd/sql_cli.py",
        "clusterd/storage/cli.py",
        "clusterd/top_cli.py",
        "shm_arrangements/cli.py",
    },
}

# Sans-I/O modules: events in, effects out.
PURE = [
    "controller_proto/framing.py", "controller_proto/codec.py", "controller_proto/stage.py",
    "controller_proto/connection.py", "controller_proto/history.py", "controller_proto/typing_rules.py",
    "controller_proto/client_end.py", "controller_proto/script.py", "controller_proto/parts.py",
    "shm_arrangements/registry.py", "shm_arrangements/frontier.py", "clusterd/multiplexer/dataflows.py",
    "clusterd/multiplexer/declared.py", "clusterd/multiplexer/events.py",
    "clusterd/multiplexer/iterations.py", "clusterd/multiplexer/machine.py",
    "clusterd/multiplexer/notices.py", "clusterd/multiplexer/peeks.py",
    "clusterd/multiplexer/placement.py", "clusterd/multiplexer/reconcile.py",
    "clusterd/multiplexer/reports.py", "clusterd/multiplexer/sessions.py",
    "clusterd/multiplexer/state.py",
    "clusterd/ingest/arrays.py", "clusterd/ingest/binding.py", "clusterd/ingest/changes.py",
    "clusterd/ingest/pgoutput.py",
    "clusterd/client/core.py", "clusterd/client/feed.py", "clusterd/client/operation.py",
    "clusterd/client/dataflows.py", "clusterd/client/modes.py", "clusterd/client/peeks.py",
    "clusterd/runtime/core.py", "clusterd/runtime/peeks.py", "clusterd/runtime/hydration.py",
    "clusterd/runtime/deadlines.py", "clusterd/runtime/retries.py", "clusterd/runtime/scans.py",
    "clusterd/runtime/company.py", "clusterd/runtime/followed.py", "clusterd/runtime/receivers.py",
    "clusterd/runtime/reports.py", "clusterd/render/expr.py",
]  # fmt: skip
IMPURE = {"socket", "time", "os", "select", "threading", "subprocess", "multiprocess", "mmap", "fcntl"}

# Layers inside a package: a module of a lower row may not import one of a higher row. Prefixes are matched.
LAYERS = {
    "controller_proto": [
        ["errors", "ids", "jsonb", "schema", "suggest"],
        ["aggregates", "framing", "expr", "moments", "tokens"],
        ["literals"], ["functions"], ["plan", "temporal"], ["dataflow", "monotonic"],
        ["command", "response", "typing_rules"],
        ["stage", "codec", "history", "parts", "validate", "parse_expr"],
        ["parse_plan", "script", "print_plan"], ["parse_dataflow"],
        ["address", "connection"], ["client_end"], ["client"],
    ],
    "shm_arrangements": [
        ["errors", "failpoints", "frontier", "lazy", "names", "text", "types"],
        ["directory"],
        ["bells", "description", "registry", "segment", "kernels.cache"],
        ["arena", "instance", "kernels.jit"],
        ["reaper", "readers", "kernels.cells", "kernels.atomics"],
        ["kernels", "clock"],
        ["columns"], ["dictionaries", "table", "values"], ["nested"], ["conversion", "arrow"],
        ["frames", "rows"], ["schema", "result", "updates"],
        ["contracts", "dump", "given", "layout", "page_layout"], ["batch", "publication"],
        ["assembler", "batch_plan", "chain", "discover", "reclaim", "snapshot", "wait"],
        ["builder", "listing", "merger", "point", "read", "verify"], ["spine", "view"],
        ["attach", "inspection", "writer"], ["index_writer"], ["testing"], ["cli"],
    ],
    "clusterd": [
        ["errors", "events", "config", "cores", "exit_codes", "functions", "internal"],
        ["introspection.sample", "introspection.durations", "introspection.page"],
        ["introspection.samples", "introspection.progress"], ["introspection.relation"],
        ["introspection.keeper", "introspection.rows_"], ["introspection.relations"],
        ["introspection.exports", "introspection.analyzed", "introspection.document"],
        ["convert", "process", "multiplexer.declared", "multiplexer.events"],
        ["multiplexer.notices", "multiplexer.placement", "multiplexer.reconcile", "multiplexer.sessions"],
        ["multiplexer.state"], ["multiplexer.peeks", "multiplexer.dataflows", "multiplexer.reports"],
        ["multiplexer.iterations"], ["multiplexer.machine"],
        ["dataflow.operator", "render.functions", "render.expr", "storage", "operators.kernels"],
        ["ingest.errors", "ingest.events", "ingest.stopping"], ["ingest.connection", "ingest.arrays"],
        ["ingest.columns", "ingest.pgoutput"], ["ingest.source", "ingest.changes"],
        ["ingest.binding"], ["ingest.shards", "ingest.status"], ["ingest.snapshot"], ["ingest.feed"],
        ["ingest.cli"],
        ["operators"], ["dataflow"], ["render"], ["runtime"], ["link", "introspection.collect_"],
        ["runtime.loop"], ["introspection.observer"], ["turns"], ["client_links"], ["endpoint", "listening"],
        ["console"], ["supervisor"], ["launcher", "client"], ["driver"],
        ["driver_cli", "explain_cli", "profile_cli", "sql_cli", "top_cli", "__main__"],
    ],
}  # fmt: skip


def _modules(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


def _imports(path: Path, *, lazy: bool = True) -> set[str]:
    tree = ast.parse(path.read_text())
    nodes = ast.walk(tree) if lazy else iter(tree.body)
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            found.add(node.module)
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return found


def _relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_imports_only_what_its_card_allows(package: str) -> None:
    import sys

    wrong = []
    for path in _modules(package):
        for name in _imports(path):
            top = name.split(".")[0]
            if top == package or top == "__future__" or top in sys.stdlib_module_names:
                continue
            if top not in ALLOWED[package]:
                wrong.append(f"{_relative(path)} imports {name}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("library", sorted(ONLY))
def test_a_library_is_used_only_where_it_belongs(library: str) -> None:
    wrong = [
        _relative(path)
        for package in PACKAGES
        for path in _modules(package)
        if any(name.split(".")[0] == library for name in _imports(path))
        and not _relative(path).startswith(tuple(ONLY[library]))
    ]
    assert not wrong, f"{library} imported by {wrong}"


def test_cores_import_no_clock_and_no_io() -> None:
    wrong = []
    for name in PURE:
        path = ROOT / name
        assert path.exists(), f"{name} is listed as pure but does not exist"
        bad = {i.split(".")[0] for i in _imports(path)} & IMPURE
        wrong += [f"{name} imports {item}" for item in sorted(bad)]
    assert not wrong, "\n".join(wrong)


def _layer(package: str, module: str) -> int | None:
    best: tuple[int, int] | None = None
    for level, names in enumerate(LAYERS[package]):
        for name in names:
            at_dot = name if name.endswith("_") else name + "."
            if (module == name or module.startswith(at_dot)) and (best is None or len(name) > best[0]):
                best = (len(name), level)
    return None if best is None else best[1]


@pytest.mark.parametrize("package", sorted(LAYERS))
def test_arrows_inside_a_package_point_down(package: str) -> None:
    wrong = []
    for path in _modules(package):
        module = path.relative_to(ROOT / package).with_suffix("").as_posix().replace("/", ".")
        if module.endswith("__init__"):
            continue
        mine = _layer(package, module)
        assert mine is not None, f"{_relative(path)} is in no layer: add it to LAYERS"
        for name in _imports(path, lazy=False):
            if not name.startswith(package + "."):
                continue
            other = _layer(package, name.removeprefix(package + "."))
            if other is not None and other > mine:
                wrong.append(f"{_relative(path)} (layer {mine}) imports {name} (layer {other})")
    assert not wrong, "\n".join(wrong)


def test_shared_memory_is_touched_by_one_module_alone() -> None:
    users = {
        _relative(path)
        for package in PACKAGES
        for path in _modules(package)
        if any("shared_memory" in name or name == "_posixshmem" for name in _imports(path))
    }
    assert users <= {"shm_arrangements/segment.py"}, users
