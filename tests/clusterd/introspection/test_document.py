"""What is written of the introspection relations, and plans laid out with what they cost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from click.testing import CliRunner

from clusterd.__main__ import main
from clusterd.introspection.analyzed import NEEDED, analyzed, plan_text
from clusterd.introspection.document import document
from clusterd.introspection.relations import RELATIONS

DOCS = Path(__file__).parents[3] / "docs" / "introspection.md"


def test_the_document_is_that_of_the_relations() -> None:
    assert DOCS.read_text() == document(), "write it anew with `make docs`"


def test_the_command_lists_every_relation_and_every_column() -> None:
    listed = CliRunner().invoke(main, ["introspection"])
    assert listed.exit_code == 0
    assert [line.split()[0] for line in listed.output.splitlines()] == [each.name for each in RELATIONS]
    columns = CliRunner().invoke(main, ["introspection", "hydration"]).output.splitlines()[2:]
    (hydration,) = [each for each in RELATIONS if each.name == "hydration"]
    assert [line.split()[:2] for line in columns] == [[each.name, each.type] for each in hydration.fields]
    wrong = CliRunner().invoke(main, ["introspection", "hydratoin"])
    assert wrong.exit_code == 2
    assert "hydration" in wrong.output


def test_a_plan_is_laid_out_with_the_figures_of_the_operators_of_each_line() -> None:
    said: dict[str, list[dict[str, Any]]] = {name: [] for name in NEEDED}
    said["dataflows"] = [
        {
            "name": "totals", "dataflow": 7, "worker": "solo/0", "state": "hydrated", "upper": 9, "rounds": 2,
            "elapsed_ns": 1_500_000_000,
        }
    ]  # fmt: skip
    said["hydration"] = [
        {"hydrated_ms": 1_250, "began_ms": 1_000, "progress": 1.0, "status": "hydrated", "code": None}
    ]
    said["plan_mapping"] = [
        {"line": 1, "depth": 1, "text": "Source u1000", "operator": "0"},
        {"line": 0, "depth": 0, "text": "Export index u1", "operator": "1"},
        {"line": 2, "depth": 1, "text": "n0", "operator": None},
    ]
    said["operator_elapsed"] = [
        {"operator": "0", "rows_in": 0, "rows_out": 1234, "errs_out": 0, "elapsed_ns": 900, "longest_ns": 0},
        {
            "operator": "1", "rows_in": 1234, "rows_out": 0, "errs_out": 2, "elapsed_ns": 2_500_000,
            "longest_ns": 900_000,
        },
    ]  # fmt: skip
    said["arrangement_sizes"] = [{"operator": "1", "bytes": 1024}, {"operator": "1", "bytes": 512}]
    said["hydration_operators"] = [{"operator": "1", "status": "hydrated"}]
    assert list(plan_text(said)) == ["Export index u1", "  Source u1000", "  n0"]
    assert list(analyzed(said)) == [
        "totals, dataflow 7 of solo/0: hydrated in 250.0 ms; computed up to 9, 2 rounds, 1.5 s of work",
        "rows in     rows out    time   longest   memory",
        "  1,234  0 +2 errors  2.5 ms  900.0 us  1.5 KiB  hydrated  Export index u1",
        "      0        1,234  900 ns                                 Source u1000",
        "                                                             n0",
    ]
