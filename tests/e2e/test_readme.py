"""The programs that the README shows are run, and print what the page says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.postgres import DEADLINE_S, PostgresServer, servers

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

README = Path(__file__).parents[2] / "README.md"
PROGRAMS = {"clusterd": "clusterd", "clusterd-ingest": "clusterd.ingest.cli"}


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    yield from servers()


def test_the_first_session_prints_what_the_readme_says(tmp_path: Path) -> None:
    run_as_one(section_of("Five minutes"), tmp_path, dict(os.environ))


def test_tables_of_postgresql_become_views_as_the_readme_says(server: PostgresServer, tmp_path: Path) -> None:
    section = section_of("From PostgreSQL")
    (statements,) = re.findall(r"```sql\n(.*?)```\n", section, re.DOTALL)
    server.execute("postgres", "CREATE DATABASE shop")
    server.execute("shop", *statements.strip().split("\n"))
    env = {**os.environ, "PGHOST": str(server.directory), "PGDATABASE": "shop", "PGUSER": "postgres"}
    lines = re.findall(r"^    (clusterd[^#\n]*)", section, re.MULTILINE)
    commands = [line.split() for line in lines]
    assert [command[0] for command in commands] == ["clusterd-ingest", "clusterd"]
    with ExitStack() as stack:
        for command, ready in zip(commands, ['"Streaming"', "READY"], strict=True):
            stack.enter_context(running(command, ready, tmp_path, env))
        run_as_one(section, tmp_path, env)


def section_of(title: str) -> str:
    return README.read_text().split(f"\n## {title}\n")[1].split("\n## ")[0]


def run_as_one(section: str, directory: Path, env: dict[str, str]) -> None:
    shown = re.findall(r"```python\n(.*?)```\n\n```\n(.*?)```\n", section, re.DOTALL)
    assert len(shown) == section.count("```python\n"), "each program is followed by what it prints"
    program = "".join(code for code, _ in shown)
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, cwd=directory, env=env
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "".join(printed for _, printed in shown)


@contextmanager
def running(command: list[str], ready: str, directory: Path, env: dict[str, str]) -> Iterator[None]:
    """A command of the page, from when it has said that it is `ready`."""
    process = subprocess.Popen(
        [sys.executable, "-m", PROGRAMS[command[0]], *command[1:]],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        cwd=directory, env=env,
    )  # fmt: skip
    assert process.stdout is not None
    try:
        said = ""
        for line in process.stdout:
            said += line
            if ready in line:
                break
        assert ready in said, said
        yield
    finally:
        process.terminate()
        process.stdout.read()
        process.stdout.close()
        assert process.wait(DEADLINE_S) == 0
