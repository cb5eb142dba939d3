"""Files: what passes, what is rewritten, what is skipped; without a replica where none is needed."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner

from clusterd.driver.run import Outcome, Target, run_file, write_junit
from clusterd.driver_cli import main
from controller_proto.command import Command, Peek
from controller_proto.response import PeekError, PeekResponse, Response
from tests.clusterd.driver.fake import fake_replica

SCRIPT = """\
# A script

create-instance
----
ok

initialization-complete
----
ok

peek id=1 ts=0
----
{answer}

# the end
"""


def _react(command: Command) -> list[Response]:
    if isinstance(command, Peek):
        return [PeekResponse(command.uuid, PeekError("unknown-id", "u1 is not known"))]
    return []


def _write(path: Path, answer: str) -> Path:
    path.write_text(SCRIPT.format(answer=answer))
    return path


def test_a_file_passes_if_every_output_is_as_expected(tmp_path: Path) -> None:
    file = _write(tmp_path / "a.spec", "error: unknown-id: u1 is not known")
    with fake_replica(tmp_path / "socket", _react) as replica:
        assert run_file(file, Target(replica.address)).status == "pass"


def test_a_difference_is_shown_with_its_line_and_a_rewrite_mends_it(tmp_path: Path) -> None:
    file = _write(tmp_path / "a.spec", "1 2")
    with fake_replica(tmp_path / "socket", _react) as replica:
        outcome = run_file(file, Target(replica.address))
        assert outcome.status == "fail"
        assert f"{file}:11: peek id=1 ts=0" in outcome.details
        assert "-1 2\n+error: unknown-id: u1 is not known" in outcome.details
        assert run_file(file, Target(replica.address), rewrite=True).status == "pass"
        assert file.read_text() == SCRIPT.format(answer="error: unknown-id: u1 is not known")
        assert run_file(file, Target(replica.address)).status == "pass"


def test_a_file_that_requires_another_mode_is_skipped(tmp_path: Path) -> None:
    file = tmp_path / "a.spec"
    file.write_text("require mode=two-runtime\n----\nok\n")
    outcome = run_file(file, Target("unix:/none", mode="solo"))
    assert (outcome.status, outcome.details) == ("skip", "requires mode=two-runtime")


def test_a_file_that_is_no_script_fails_by_line(tmp_path: Path) -> None:
    file = tmp_path / "a.spec"
    file.write_text("peek\n")
    outcome = run_file(file, Target("unix:/none"))
    assert outcome.status == "fail"
    assert "line 2" in outcome.details


def test_the_command_line_runs_files_and_writes_junit(tmp_path: Path) -> None:
    good = _write(tmp_path / "good.spec", "error: unknown-id: u1 is not known")
    bad = _write(tmp_path / "bad.spec", "1 2")
    with fake_replica(tmp_path / "socket", _react) as replica:
        junit = tmp_path / "junit.xml"
        arguments = ["run", str(good), str(bad), "--connect", replica.address, "--junit", str(junit)]
        result = CliRunner().invoke(main, arguments)
        assert result.exit_code == 1
        assert result.output.startswith("pass")
        suite = ElementTree.parse(junit).getroot()
        assert (suite.get("tests"), suite.get("failures")) == ("2", "1")
        assert (
            CliRunner()
            .invoke(main, ["run", str(bad), "--connect", replica.address], env={"REWRITE": "1"})
            .exit_code
            == 0
        )
        assert bad.read_text() == good.read_text()


def test_of_a_file_the_first_difference_is_shown_and_the_later_ones_are_counted(tmp_path: Path) -> None:
    file = tmp_path / "a.spec"
    file.write_text("".join(f"peek id={n} ts=0\n----\n{n}\n\n" for n in range(3)))
    with fake_replica(tmp_path / "socket", _react) as replica:
        arguments = ["run", str(file), "--connect", replica.address]
        short = CliRunner().invoke(main, arguments).output
        assert short.count("+++ actual") == 1
        assert "and 2 more stanzas differ" in short
        long = CliRunner().invoke(main, [*arguments, "--verbose"]).output
        assert long.count("+++ actual") == 3
        assert "more stanza" not in long


def test_a_command_of_controllers_said_by_a_reader_hints_at_the_flag(tmp_path: Path) -> None:
    with fake_replica(tmp_path / "socket", _react) as replica:
        for command, hinted in (("allow-writes id=1", True), ("peek id=1 ts=0", False)):
            result = CliRunner().invoke(main, ["exec", command, "--connect", replica.address])
            assert result.exit_code == 1
            assert ("--as controller" in result.output) == hinted


@pytest.mark.parametrize(("command", "status"), [("peek id=1 ts=0", 1), ("quiet ms=0", 0)])
def test_exec_prints_the_output_and_fails_on_an_error(command: str, status: int, tmp_path: Path) -> None:
    with fake_replica(tmp_path / "socket", _react) as replica:
        result = CliRunner().invoke(main, ["exec", command, "--connect", replica.address])
        assert result.exit_code == status
        assert result.output in ("error: unknown-id: u1 is not known\n", "ok\n")


def test_junit_tells_failures_from_skips(tmp_path: Path) -> None:
    path = tmp_path / "junit.xml"
    outcomes = [
        Outcome(tmp_path / f"{status}.spec", "solo", status, 1.5) for status in ("pass", "fail", "skip")
    ]
    write_junit(path, outcomes)
    cases = ElementTree.parse(path).getroot().findall("testcase")
    assert [[child.tag for child in case] for case in cases] == [[], ["failure"], ["skipped"]]
