"""Rows of a made-up daemon that is busy: a view that hydrates, a recursion, readers, peeks, an error."""

from __future__ import annotations

import time
from typing import Any

from clusterd.console.tables import Row
from clusterd.introspection.relations import RELATIONS

__all__ = ["busy", "row"]

_MAINTENANCE = "maintenance/0"
_FIELDS = {each.name: each.fields for each in RELATIONS}
_ZERO = {"text": "", "bigint": 0, "uint8": 0, "boolean": False, "double": 0.0}


def row(relation: str, **values: Any) -> Row:
    """A row, by column; of what is not said NULL if that may be, else nothing."""
    fields = _FIELDS[relation]
    unknown = values.keys() - {field.name for field in fields}
    assert not unknown, f"{relation} has no {unknown}"
    return tuple(
        values.get(field.name, None if field.type.endswith("?") else _ZERO[field.type]) for field in fields
    )


def busy() -> dict[str, list[Row]]:
    now_ms = time.time_ns() // 1_000_000
    m = {"worker": _MAINTENANCE}
    operators = [
        ("0", None, "import orders", 12_000_000, 300_000), ("1", None, "import parts", 3_000_000, 50_000),
        ("2", None, "arrange", 80_000_000, 300_000), ("3", None, "join", 1_900_000_000, 2_400_000),
        ("4", None, "recursion", 40_000_000, 90_000), ("4.0", "4", "distinct", 200_000_000, 90_000),
        ("4.1", "4", "join", 300_000_000, 120_000), ("5", None, "union", 1_000_000, 2_490_000),
        ("6", None, "reduce", 600_000_000, 900), ("7", None, "export u7", 9_000_000, 900),
    ]  # fmt: skip
    edges = [("0", "2"), ("2", "3"), ("1", "3"), ("1", "4"), ("4.0", "4.1"), ("4.1", "4.0"), ("3", "5")]
    edges += [("4", "5"), ("5", "6"), ("6", "7")]
    return {
        "dataflows": [
            row("dataflows", **m, dataflow=1, name="u2", state="hydrated", upper=43, elapsed_ns=10**8),
            row(
                "dataflows", **m, dataflow=7, name="orders by kind", state="hydrating", upper=0,
                is_running=True, working="3", rounds=0, elapsed_ns=3_145_000_000,
            ),
        ],
        "exports": [
            row("exports", **m, dataflow=1, id="u2", kind="index"),
            row("exports", **m, dataflow=7, id="u7", kind="index"),
        ],
        "dataflow_operators": [
            row("dataflow_operators", **m, dataflow=1, operator="0", address="1/0", name="export u2"),
            *(
                row("dataflow_operators", **m, dataflow=7, operator=o, parent=p, address=f"7/{o}", name=n)
                for o, p, n, _, _ in operators
            ),
        ],
        "operator_elapsed": [
            row("operator_elapsed", **m, dataflow=1, operator="0", name="export u2", elapsed_ns=10**8),
            *(
                row(
                    "operator_elapsed", **m, dataflow=7, operator=o, name=n, elapsed_ns=ns, rows_out=out,
                    longest_ns=ns // 7, rows_in=out // 2,
                )
                for o, _, n, ns, out in operators
            ),
        ],
        "dataflow_channels": [
            row("dataflow_channels", **m, dataflow=7, source=one, target=other) for one, other in edges
        ],
        "arrangement_sizes": [
            row("arrangement_sizes", **m, dataflow=7, operator="2", records=300_000, bytes=9_600_000),
            row("arrangement_sizes", **m, dataflow=7, operator="6", records=900, bytes=44_000),
        ],
        "import_frontiers": [
            row(
                "import_frontiers", **m, dataflow=7, id="orders", kind="shard", upper=43, dataflow_upper=0,
                holds_back=False,
            ),
            row(
                "import_frontiers", **m, dataflow=7, id="parts", kind="shard", upper=0, dataflow_upper=0,
                holds_back=True,
            ),
        ],
        "hydration": [
            row(
                "hydration", **m, id="u2", dataflow=1, status="hydrated", progress=1.0, rows_done=300_000,
                rows_expected=300_000, began_ms=now_ms - 9_000, hydrated_ms=now_ms - 8_600,
            ),
            row(
                "hydration", **m, id="u7", dataflow=7, status="hydrating", progress=0.42, rows_done=147_000,
                rows_expected=350_000, began_ms=now_ms - 4_000,
            ),
            row("hydration", **m, id="u9", dataflow=9, status="scheduled"),
        ],
        "processes": [
            row(
                "processes", process=name, role=name.partition("/")[0], pid=pid, cpu_seconds=cpu,
                rss_bytes=rss << 20, shared_bytes=rss << 19, threads=1, sampled_at_ms=now_ms,
            )
            for name, pid, cpu, rss in (
                ("supervisor", 4100, 0.2, 31), ("mux", 4102, 0.9, 31), (_MAINTENANCE, 4103, 42.5, 310),
                ("interactive/0", 4104, 3.1, 256), ("introspection/0", 4105, 2.4, 250),
            )
        ],
        "publications": [
            row(
                "publications", **m, id="u2", state="live", since=40, upper=43, held_by="peek 5f3c",
                batches=4, bytes=7_240_000, superseded=2, waiting_reads=2,
            ),
            row("publications", **m, id="u7", state="fresh", batches=0),
        ],
        "arrangement_sharing": [
            row(
                "arrangement_sharing", id="u2", reader="interactive/0", pid=4104, pinned_bytes=6_900_000,
                oldest_ms=now_ms,
            ),
            row(
                "arrangement_sharing", id="u2", reader="python[5120]", pid=5120, pinned_bytes=2_100_000,
                oldest_time=12, oldest_ms=now_ms - 95_000,
            ),
        ],
        "peeks_active": [
            row(
                "peeks_active", worker="interactive/0", role="interactive", session=3, uuid=uuid, id="u2",
                lane="point", path="key", state="parked", time=50, waits_for="u2 sealed beyond 50",
                began_ms=now_ms - 3_000,
            )
            for uuid in ("5f3c", "a/b")
        ],
        "peek_durations_histogram": [
            row("peek_durations_histogram", id="u2", phase="total", below_ns=ns, count=n)
            for ns, n in ((524_288, 90), (8_388_608, 4))
        ],
        "errors": [row("errors", **m, id="u2", count=3, sample="eval-error: division by zero", last=40)],
        "staleness": [
            row("staleness", **m, id="u2", upper=43, inputs_upper=43),
            row("staleness", **m, id="u7", upper=0, inputs_upper=43, lag=43, behind_ms=4_000),
        ],
        "config": [
            row("config", name="wait_limit", value="0.0", kind="setting"),
            row("config", name="validate", value="false", kind="start"),
        ],
    }  # fmt: skip
