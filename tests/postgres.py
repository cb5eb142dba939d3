"""A real PostgreSQL for tests: a cluster of its own in a temporary directory, reached by a socket there.

The server refuses to run as root: then it runs as the user `postgres` that Debian's package makes. It has no
network, trusts every local user, and forgets to sync: nothing of it outlives the tests.
"""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import psycopg
import pytest

DEADLINE_S = 60.0
SETTINGS = {
    "listen_addresses": "''", "unix_socket_permissions": "0777", "max_connections": "40",
    "fsync": "off", "full_page_writes": "off", "shared_buffers": "'16MB'",
    "wal_level": "logical", "max_wal_senders": "12", "max_replication_slots": "12",
    "autovacuum": "off", "log_min_messages": "warning",
}  # fmt: skip


def binaries() -> Path | None:
    """Where initdb is: of Debian's newest, or of the PATH; None if it is nowhere."""
    debian = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: float(path.parent.name))
    for directory in reversed(debian):
        if (directory / "initdb").exists():
            return directory
    found = shutil.which("initdb")
    return None if found is None else Path(found).resolve().parent


def _user() -> str | None:
    """Whom to run as; None: as we are."""
    if os.getuid():
        return None
    try:
        return pwd.getpwnam("postgres").pw_name
    except KeyError:
        pytest.skip("PostgreSQL does not run as root, and there is no user postgres")


class PostgresServer:
    """A cluster. `start`, `stop` and `kill` may come in any order."""

    def __init__(self, bin_dir: Path) -> None:
        self._bin = bin_dir
        self._user = _user()
        self.directory = Path(tempfile.mkdtemp(prefix="clusterd-pg-"))
        self._data = self.directory / "data"
        if self._user is not None:
            entry = pwd.getpwnam(self._user)
            os.chown(self.directory, entry.pw_uid, entry.pw_gid)
        self._run("initdb", "-D", str(self._data), "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-sync",
                  "--locale=C", "--no-instructions")  # fmt: skip
        settings = "".join(f"{name} = {value}\n" for name, value in SETTINGS.items())
        with (self._data / "postgresql.auto.conf").open("a") as file:
            file.write(f"{settings}unix_socket_directories = '{self.directory}'\n")

    def _run(self, program: str, *arguments: str) -> None:
        log = self.directory / "run.log"
        with log.open("ab") as out:
            done = subprocess.run(
                [str(self._bin / program), *arguments], stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                user=self._user, group=self._user, extra_groups=() if self._user else None,
                cwd=self.directory, timeout=DEADLINE_S, check=False,
            )  # fmt: skip
        assert done.returncode == 0, f"{program} failed:\n{log.read_text(errors='replace')[-4000:]}"

    def _control(self, *arguments: str) -> None:
        log = str(self.directory / "server.log")
        self._run("pg_ctl", "-D", str(self._data), "-l", log, "-w", "-t", str(int(DEADLINE_S)), *arguments)

    def start(self) -> None:
        self._control("start")

    def stop(self, mode: str = "fast") -> None:
        """mode: smart, fast, or immediate, which is as a crash is."""
        self._control("stop", "-m", mode)

    @property
    def running(self) -> bool:
        return (self._data / "postmaster.pid").exists()

    def dsn(self, database: str) -> str:
        return f"postgresql:///{database}?host={self.directory}&user=postgres"

    def connect(self, database: str) -> psycopg.Connection[tuple[object, ...]]:
        """An autocommit connection; to be closed by the caller."""
        return psycopg.connect(self.dsn(database), autocommit=True, connect_timeout=20)

    def execute(self, database: str, *statements: str) -> Sequence[tuple[object, ...]]:
        """Run each by itself; the rows of the last one."""
        with self.connect(database) as connection:
            for statement in statements:
                cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def remove(self) -> None:
        if self.running:
            self.stop("immediate")
        shutil.rmtree(self.directory)


def servers() -> Iterator[PostgresServer]:
    """The body of a fixture: one server that is up."""
    bin_dir = binaries()
    if bin_dir is None:
        pytest.skip("PostgreSQL is not installed: apt-get install postgresql")
    server = PostgresServer(bin_dir)
    try:
        server.start()
        yield server
    finally:
        server.remove()
