"""Files: what passes, what is rewritten, what is skipped; without a replica where none is needed."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner

from clusterd.driver.junit import write_junit
from clusterd.driver.run import Outcome, Target, run_file
from clusterd.driver_cli import main
from controller_proto.command import Command, Peek
from controller_proto.response import PeekError, PeekResponse, Response
from controller_proto.script import parse_script, render_script
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
        assert outcome.details.splitlines() == [
            f"{file}:11: peek id=1 ts=0",
            "--- expected",
            "+++ actual",
            "@@ -13 +13 @@",
            "-1 2",
            "+error: unknown-id: u1 is not known",
        ]
        assert run_file(file, Target(replica.address), rewrite=True).details == f"{file}: rewritten"
        assert file.read_text() == SCRIPT.format(answer="error: unknown-id: u1 is not known")
        assert run_file(file, Target(replica.address)).status == "pass"


def test_a_rewrite_keeps_comments_and_blank_lines_and_a_second_one_changes_nothing(tmp_path: Path) -> None:
    text = (
        "\n# before\n\n\n"
        "create-instance\n# in the body\n  max_result_bytes u64 1000\n----\n{0}\n"
        "# not a comment: it is output{1}\n\n# between\n\n"
        "initialization-complete\n----\n----\n{0}\n----\n----\n\n \n"
        "peek id=1 ts=0\n----\n{2}\n"
        "quiet ms=0\n----\n{0}\n# the end"
    )
    file = tmp_path / "a.spec"
    file.write_text(text.format("no", "", ""))
    with fake_replica(tmp_path / "socket", _react) as replica:
        assert run_file(file, Target(replica.address), rewrite=True).status == "pass"
        rewritten = file.read_text()
        expected = text.replace("\n# not a comment: it is output{1}", "").replace("{0}\n# the end", "{0}")
        expected = expected.replace("----\n----\n{0}\n----\n----", "----\n{0}")
        assert rewritten == expected.format("ok", "", "error: unknown-id: u1 is not known\n")
        file.chmod(0o400)
        outcome = run_file(file, Target(replica.address), rewrite=True)
        assert (outcome.status, outcome.details) == ("pass", "")
        assert file.read_text() == rewritten


def test_a_rewrite_does_not_touch_a_passing_file_however_it_is_laid_out(tmp_path: Path) -> None:
    file = tmp_path / "a.spec"
    text = "#\n\ncreate-instance\n----\n----\nok\n----\n----\n# right behind\nquiet ms=0\n----\nok\n\n\n#"
    file.write_text(text)
    before = file.stat().st_mtime_ns
    with fake_replica(tmp_path / "socket", _react) as replica:
        outcome = run_file(file, Target(replica.address), rewrite=True)
    assert (outcome.status, outcome.details) == ("pass", "")
    assert (file.read_text(), file.stat().st_mtime_ns) == (text, before)


def test_a_rewrite_of_a_scenario_that_passes_changes_nothing() -> None:
    for script in sorted((Path(__file__).parents[2] / "e2e" / "scripts").glob("*.spec")):
        text = script.read_text()
        parsed = parse_script(text)
        outputs = {stanza.line_number: stanza.expected for stanza in parsed.stanzas}
        assert render_script(parsed, outputs) == text, script


def test_a_rewrite_leaves_violations_out_and_fails(tmp_path: Path) -> None:
    def react(command: Command) -> list[Response]:
        return [*_react(command), *_react(command)]

    file = _write(tmp_path / "a.spec", "1 2")
    with fake_replica(tmp_path / "socket", react) as replica:
        outcome = run_file(file, Target(replica.address), rewrite=True)
    assert outcome.status == "fail"
    assert "+violation: a second answer to peek p1" in outcome.details
    assert "violation" not in file.read_text()
    assert "error: unknown-id: u1 is not known" in file.read_text()


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
        (suite,) = ElementTree.parse(junit).getroot()
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


def test_exec_shows_the_hint_of_an_error_apart_from_the_output() -> None:
    result = CliRunner().invoke(main, ["exec", "peek id=x1 ts=0", "--connect", "unix:/none"])
    assert (result.exit_code, result.stdout) == (1, "error: unknown-id: 'x1' is not an id\n")
    assert result.stderr == "hint: write u1001, s1 or t7\n"


@pytest.mark.parametrize(("command", "status"), [("peek id=1 ts=0", 1), ("quiet ms=0", 0)])
def test_exec_prints_the_output_and_fails_on_an_error(command: str, status: int, tmp_path: Path) -> None:
    with fake_replica(tmp_path / "socket", _react) as replica:
        result = CliRunner().invoke(main, ["exec", command, "--connect", replica.address])
        assert result.exit_code == status
        assert result.output in ("error: unknown-id: u1 is not known\n", "ok\n")


def test_junit_tells_failures_from_skips(tmp_path: Path) -> None:
    path = tmp_path / "junit.xml"
    outcomes = [
        Outcome(tmp_path / f"{status}.spec", "solo", status, 1.5, 'a: <b> & "c"\n\x1b[1m\udc80\u00e9')
        for status in ("pass", "fail", "skip")
    ]
    write_junit(path, [*outcomes, Outcome(tmp_path / "x.spec", "", "pass", 0.25)])
    root = ElementTree.parse(path).getroot()
    (suite,) = root
    assert (root.tag, suite.tag) == ("testsuites", "testsuite")
    counts = {"tests": "4", "failures": "1", "errors": "0", "skipped": "1", "time": "4.750"}
    assert {name: suite.get(name) for name in counts} == counts
    assert [case.get("name") for case in suite] == ["pass[solo]", "fail[solo]", "skip[solo]", "x"]
    assert all(case.get("classname") == str(tmp_path) for case in suite)
    assert [[child.tag for child in case] for case in suite] == [[], ["failure"], ["skipped"], []]
    failure = suite[1][0]
    assert (failure.get("message"), failure.text) == ('a: <b> & "c"', 'a: <b> & "c"\n\\x1b[1m\\udc80\u00e9')
