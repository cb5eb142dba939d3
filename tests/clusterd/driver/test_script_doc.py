"""What is written about the script language: nothing is left out, and the example is the one that is run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from clusterd.driver.driver import DIRECTIVES
from clusterd.driver_cli import main
from controller_proto.literals import format_scalar, parse_scalar, parse_type
from controller_proto.parse_plan import OPERATORS, parse_plan
from controller_proto.schema import ColumnType
from controller_proto.script import parse_script
from controller_proto.tokens import Tokens

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "script.md").read_text()


@pytest.mark.parametrize("name", [*DIRECTIVES, *OPERATORS])
def test_the_page_has_a_row_for_every_directive_and_every_operator(name: str) -> None:
    first_cells = [line.split("|")[1] for line in PAGE.splitlines() if line.startswith("| ")]
    assert any(f"`{name}`" in cell for cell in first_cells)


def test_the_page_names_no_directive_and_no_operator_that_is_not_there() -> None:
    page = PAGE.replace(_values(), "")
    first_cells = [line.split("|")[1] for line in page.splitlines() if line.startswith("| `")]
    named = [name.strip(" `") for cell in first_cells for name in cell.split(",")]
    assert sorted(named) == sorted([*DIRECTIVES, *OPERATORS])


_READS = {
    "keys", "map", "filter", "order-by", "offset", "limit", "project", "schema", "name", "uuid", "wait-secs",
    "rows-read", "result-rows", "result-bytes", "run-secs", "runtime",
}  # fmt: skip


@pytest.mark.parametrize("name", DIRECTIVES)
def test_the_page_and_the_driver_say_the_same_of_what_a_directive_takes(name: str) -> None:
    rows = [line.replace("\\|", "\0").split("|") for line in PAGE.splitlines() if line.startswith("| `")]
    (cell,) = (row[2].replace("\0", "|") for row in rows if f"`{name}`" in row[1])
    directive = DIRECTIVES[name]
    shown = {}
    for item in " ".join(re.findall("`([^`]+)`", re.sub("body `[^`]+`", "", cell))).split():
        match = re.fullmatch(r"(\[?)([a-z-]+)(=?)([a-z|-]*).*", item)
        if match is not None and (match[1] or match[3]):
            choices = match[4] if "|" in match[4] else ""
            shown[match[2]] = (not match[1], not match[3], choices)
    given = {a.name: (a.required, a.flag, "|".join(a.choices)) for a in directive.arguments.values()}
    reads = "peek" in cell or "see below" in cell
    if directive.instead:  # "a body, or `ref=`"
        shown[directive.instead] = (False, False, "")
    if reads:
        paragraph = PAGE.split("**Reads**")[1].split("\n\n")[0]
        below = set(re.findall(r"`\[?([a-z-]+)=", paragraph)) | set(re.findall(r" \[?([a-z-]+)=", paragraph))
        assert below - {"ts", "timeout-secs"} == _READS
        given = {n: a for n, a in given.items() if n in shown or n not in below | {"id"}}
    assert shown == given
    assert ("body" in cell) == bool(directive.body)


def test_what_the_page_shows_of_every_operator_is_read() -> None:
    rows = [
        re.split(r"(?<!\\)\|", line) for line in PAGE.split("## Plans")[1].splitlines() if line[:1] == "|"
    ]
    shown = [row[2].split("`")[1].replace("\\|", "|") for row in rows if len(row) > 2 and "`" in row[2]]
    assert len(shown) == len(OPERATORS) - 1  # With and Return are one row
    for line in shown:
        name = line.split()[0]
        if name == "With":
            parse_plan(["With", "  cte l0 =", "    Get u1", "Return", "  Get l0"])
        else:
            inputs = {"Get": 0, "Constant": 0, "Join": 2, "CrossJoin": 2, "Union": 2}.get(name, 1)
            parse_plan([line, *["  Get u1"] * inputs])


def _values() -> str:
    return PAGE.split("## Values\n")[1].split("\n## ")[0]


def test_every_type_has_a_row_and_what_it_shows_is_read_and_printed_as_it_is() -> None:
    shown: dict[str, str] = {}
    for line in _values().splitlines():
        if line.startswith("| `"):
            names, values = (re.findall("`([^`]+)`", cell) for cell in line.split("|")[1:3])
            shown |= {name: values[min(at, len(values) - 1)] for at, name in enumerate(names)}
    columns = [parse_type(name, "c") for name in shown]
    assert {column.type for column in columns} == set(ColumnType)
    for column, text in zip(columns, shown.values(), strict=True):
        if text == "-5" and column.type.value.startswith("uint"):
            text = "5"
        taken, quoted = Tokens(text).take_value()
        assert format_scalar(parse_scalar(taken, column, quoted=quoted), column) == text, text


def test_the_readme_shows_the_script_that_is_run() -> None:
    script = (ROOT / "tests" / "e2e" / "scripts" / "readme_flights.spec").read_text()
    assert parse_script(script).stanzas
    assert f"```\n{script}```\n" in (ROOT / "README.md").read_text()


def test_readme_and_help_say_where_the_page_is() -> None:
    assert "(docs/script.md)" in (ROOT / "README.md").read_text()
    assert "docs/script.md" in CliRunner().invoke(main, ["--help"]).output


@pytest.mark.parametrize("command", sorted(main.commands))
def test_every_command_has_examples_and_is_told_of_in_readme_and_page(command: str) -> None:
    assert re.search(f"clusterd-test-driver {command}\\b", (ROOT / "README.md").read_text())
    assert f"`{command}`" in PAGE
    page = CliRunner().invoke(main, [command, "--help"]).output
    assert f"Examples:\n    clusterd-test-driver {command} " in page
    assert "..." not in CliRunner().invoke(main, ["--help"]).output.split("Commands:")[1]
