"""docs/protocol.md says what the structs say: every message, every field, every type, every code."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from controller_proto import command, dataflow, response
from controller_proto.command import Finishing
from controller_proto.errors import CODES
from controller_proto.schema import ColumnType
from controller_proto.stage import Stage

PAGE = (Path(__file__).parent.parent.parent / "docs" / "protocol.md").read_text()


def _section(title: str) -> str:
    return PAGE.split(f"## {title}\n", 1)[1].split("\n## ", 1)[0]


def _rows(title: str) -> dict[str, list[str]]:
    """The rows of the table of a section: first cell -> the others."""
    cells = [
        [c.strip() for c in line.strip("|").split("|")]
        for line in _section(title).split("\n")
        if line[:1] == "|"
    ]
    return {row[0].strip("`"): row[1:] for row in cells[2:]}


def _words(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


@pytest.mark.parametrize("member", command.Command.__args__, ids=lambda m: m.__name__)
def test_every_command_stands_in_its_table_with_its_fields(member: type[msgspec.Struct]) -> None:
    row = _rows("Commands")[str(member.__struct_config__.tag)]
    assert _words(row[0]) == [field for field in member.__struct_fields__ if field != "seq"]


@pytest.mark.parametrize("member", response.Response.__args__, ids=lambda m: m.__name__)
def test_every_response_stands_in_its_table_with_its_fields(member: type[msgspec.Struct]) -> None:
    row = _rows("Responses")[str(member.__struct_config__.tag)]
    assert _words(row[0]) == list(member.__struct_fields__)


def test_the_tables_name_no_message_that_there_is_not() -> None:
    for title, union in (("Commands", command.Command), ("Responses", response.Response)):
        assert set(_rows(title)) == {member.__struct_config__.tag for member in union.__args__}


def test_the_parts_of_a_dataflow_and_of_a_peek_are_named() -> None:
    text = _section("Commands")
    for struct in (
        dataflow.DataflowHeader,
        dataflow.SourceImport,
        dataflow.IndexImport,
        dataflow.Export,
        dataflow.DataflowBody,
        dataflow.Build,
        Finishing,
    ):
        for field in struct.__struct_fields__:
            assert f"`{field}`" in text, (struct.__name__, field)


def test_every_result_of_a_peek_is_named() -> None:
    text = _section("Responses")
    for member in response.PeekResult.__args__:
        assert f"`{member.__struct_config__.tag}`" in text
        for field in member.__struct_fields__:
            assert f"`{field}`" in text


def test_the_codes_are_one_closed_list() -> None:
    named = {word for row in _rows("Codes").values() for cell in row for word in _words(cell)}
    assert named == CODES


def test_every_type_of_column_is_named() -> None:
    assert set(_rows("Values")) == {type_.value for type_ in ColumnType}


def test_the_stages_are_named() -> None:
    for stage in (Stage.CREATION, Stage.INITIALISATION, Stage.COMPUTATION):
        assert f"`{stage.value}`" in _section("Stages")
