"""What the command lines say of themselves: each command has an example, each option a meaning."""

from __future__ import annotations

import re

import click
import pytest
from click.testing import CliRunner

from clusterd.__main__ import main as clusterd
from clusterd.driver_cli import main as driver
from clusterd.ingest.cli import main as ingest

COMMANDS = [
    *((clusterd, "clusterd", name) for name in ("", *clusterd.list_commands(click.Context(clusterd)))),
    *((driver, "clusterd-test-driver", name) for name in ("", *driver.commands)),
    *((ingest, "clusterd-ingest", name) for name in ("", *ingest.commands)),
]


@pytest.mark.parametrize(("group", "program", "name"), COMMANDS)
@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_help_is_complete(group: click.Group, program: str, name: str, flag: str) -> None:
    done = CliRunner().invoke(group, [*name.split(), flag])
    assert done.exit_code == 0, done.output
    assert re.search(rf"\n  Examples?:\n    {program} {name}", done.output)
    command = group.get_command(click.Context(group), name) if name else group
    assert command is not None
    for parameter in command.params:
        assert isinstance(parameter, click.Argument) or getattr(parameter, "help", None)


@pytest.mark.parametrize("group", [clusterd, driver, ingest])
def test_the_summary_of_each_command_is_whole(group: click.Group) -> None:
    assert not re.search(r"\w\.\.\.\n", CliRunner().invoke(group, ["--help"]).output)


def test_the_version_is_that_of_the_package() -> None:
    assert re.fullmatch(r"\S+ \d+\.\d+\.\d+\n", CliRunner().invoke(clusterd, ["--version"]).output)
