"""Connection: one connection to PostgreSQL, over libpq, whose every wait a signal ends.

Simple queries with answers as text, COPY out, and the stream of replication, which is a COPY both ways: of
that psycopg has no class, but its libpq wrapper has all that it takes.

Whatever breaks the connection is `ConnectionLost`, and so is what a server says that is starting, stopping or
full: trying again is right. Any other error of the server is `ServerError`.

Does not: know messages (pgoutput.py), try again (feed.py), say what is in the connection string: that may be
a password.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any

import psycopg
from psycopg import conninfo, pq

from clusterd.ingest.errors import IngestError
from clusterd.ingest.stopping import Stop

__all__ = [
    "ANSWER_TIMEOUT_S",
    "Connection",
    "ConnectionLost",
    "Row",
    "ServerError",
    "quote_literal",
    "quote_name",
]

Row = tuple[str | None, ...]

ANSWER_TIMEOUT_S = 60.0  # as wal_receiver_timeout
_CONNECT_TIMEOUT_S = 20.0
# Values are printed in one form, nothing is timed, and rows that a policy hides are an error rather than left
# out, whatever the server or the role is set to.
_OPTIONS = (
    "-c datestyle=ISO -c timezone=UTC -c intervalstyle=postgres -c bytea_output=hex -c extra_float_digits=3"
    " -c statement_timeout=0 -c lock_timeout=0 -c idle_in_transaction_session_timeout=0"
    " -c idle_session_timeout=0 -c row_security=off"
)
# A server whose machine is gone is noticed within a minute, by the kernel; the connection string may differ.
_ALIVE = {
    "keepalives_idle": "20", "keepalives_interval": "10", "keepalives_count": "4",
    "tcp_user_timeout": "60000",
}  # fmt: skip
_PASSING = (
    "08",  # connection exception
    "53",  # insufficient resources: too many connections
    "57P01", "57P02", "57P03", "57P05",  # shut down, crashed, starting, idle for too long
)  # fmt: skip
_NOT_READY = (
    "starting up",
    "shutting down",
    "recovery mode",
    "not yet accepting",
    "too many clients",
    "slots are",
)
_ANSWERS = (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK, pq.ExecStatus.EMPTY_QUERY)


class ConnectionLost(Exception):
    """The connection is over, or could not be made for now. Its text says why."""


class ServerError(Exception):
    """The server refused a command. state: its SQLSTATE."""

    def __init__(self, state: str, message: str) -> None:
        super().__init__(message)
        self.state = state


def quote_name(name: str) -> str:
    """An identifier, as it stands in SQL."""
    return '"' + name.replace('"', '""') + '"'


def quote_literal(text: str) -> str:
    """A text, as it stands in SQL where strings conform to the standard, as by default."""
    return "'" + text.replace("'", "''") + "'"


class Connection:
    """Made by `open`. Methods raise ConnectionLost, ServerError, StopRequested.

    answer_timeout_s: a query that says nothing for so long has lost its connection, unless `is_working`,
    which is asked then, knows that the server is at it.
    """

    def __init__(self, connection: pq.abc.PGconn, stop: Stop) -> None:
        self._pq = connection
        self._stop = stop
        self._copying = False
        self.answer_timeout_s = ANSWER_TIMEOUT_S
        self.is_working: Callable[[], bool] | None = None

    @classmethod
    def open(cls, dsn: str, stop: Stop, *, replication: bool = False) -> Connection:
        """Connect. dsn: a URI or `name=value ..`; what it does not say, PGHOST and the like do.

        Raises IngestError: `bad-setup` if `dsn` cannot be read, `cannot-connect` if the server does not let
        us in; ConnectionLost if it may later.
        """
        facts: dict[str, Any] = {"replication": "database"} if replication else {}
        try:
            given = conninfo.conninfo_to_dict(dsn)
            options = f"{given.get('options') or ''} {_OPTIONS}".strip()
            facts |= {"application_name": "clusterd-ingest", "client_encoding": "UTF8", "options": options}
            text = conninfo.make_conninfo(**{**_ALIVE, **given, **facts})
        except psycopg.Error:  # its text may have a piece of a password
            hint = "as postgresql://user@host:5432/db, or host=.. dbname=.."
            raise IngestError("bad-setup", "the connection string cannot be read", hint) from None
        connection = pq.PGconn.connect_start(text.encode())
        try:
            cls._finish(connection, stop)
        except BaseException:
            connection.finish()
            raise
        connection.nonblocking = 1
        connection.notice_handler = None
        return cls(connection, stop)

    @staticmethod
    def _finish(connection: pq.abc.PGconn, stop: Stop) -> None:
        deadline = time.monotonic() + _CONNECT_TIMEOUT_S
        status = pq.PollingStatus.WRITING
        while status is not pq.PollingStatus.OK:
            if status is pq.PollingStatus.FAILED or connection.status == pq.ConnStatus.BAD:
                raise _cannot_connect(connection)
            fd = connection.socket
            left = deadline - time.monotonic()
            writing = status is pq.PollingStatus.WRITING
            if left <= 0 or not (stop.wait(left, write_fd=fd) if writing else stop.wait(left, read_fd=fd)):
                raise ConnectionLost(f"no answer within {_CONNECT_TIMEOUT_S:g} s")
            status = pq.PollingStatus(connection.connect_poll())

    @property
    def server_version(self) -> int:
        """150004 for 15.4."""
        return self._pq.server_version

    @property
    def server_pid(self) -> int:
        """Of the server's process at the other end."""
        return self._pq.backend_pid

    def query(self, sql: str) -> list[Row]:
        """The rows of the last of the statements."""
        self._send(sql)
        rows: list[Row] = []
        while (result := self._result()) is not None:
            if result.status not in _ANSWERS:
                raise self._error(result)
            rows = [
                tuple(_text(result.get_value(i, k)) for k in range(result.nfields))
                for i in range(result.ntuples)
            ]
        return rows

    def copy_out(self, sql: str) -> Iterator[bytes]:
        """The messages of a COPY .. TO STDOUT, each a row."""
        self._start_copy(sql, pq.ExecStatus.COPY_OUT)
        while self._copying:
            message = self.read()
            if message is not None:
                yield message
            elif self._copying:
                self._await_answer()

    def start_stream(self, sql: str) -> None:
        """START_REPLICATION; then `read` and `write`."""
        self._start_copy(sql, pq.ExecStatus.COPY_BOTH)

    def read(self) -> bytes | None:
        """The next message of a COPY; None if there is none yet, or a COPY out is over."""
        message = self._next()
        if message is None and self._copying:
            self._consume()
            message = self._next()  # or it would lie in libpq's buffer, and the socket have nothing to tell
        return message

    def _next(self) -> bytes | None:
        try:
            nbytes, data = self._pq.get_copy_data(1)
        except psycopg.Error as error:
            raise ConnectionLost(_line(str(error))) from error
        if nbytes < 0:
            self._copying = False
            self._end_copy()
        return bytes(data) if nbytes > 0 else None

    def write(self, message: bytes) -> None:
        """Send a message into the stream."""
        try:
            while self._pq.put_copy_data(message) == 0:
                self._flush()
        except psycopg.Error as error:
            raise ConnectionLost(_line(str(error))) from error
        self._flush()

    def wait_to_read(self, timeout_s: float | None) -> None:
        """Wait until there may be something to read; at most `timeout_s`."""
        self._stop.wait(timeout_s, read_fd=self._pq.socket)

    def close(self) -> None:
        self._pq.finish()

    def __enter__(self) -> Connection:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _start_copy(self, sql: str, wanted: pq.ExecStatus) -> None:
        self._send(sql)
        result = self._result()
        if result is None or result.status != wanted:
            raise self._error(result)
        self._copying = True

    def _end_copy(self) -> None:
        """Take what follows the last message: that all is well, or what is not."""
        while (result := self._result()) is not None:
            if result.status in (pq.ExecStatus.COPY_BOTH, pq.ExecStatus.COPY_IN):
                raise ConnectionLost("the server ended the stream")
            if result.status not in _ANSWERS:
                raise self._error(result)

    def _send(self, sql: str) -> None:
        try:
            self._pq.send_query(sql.encode())
        except psycopg.Error as error:
            raise ConnectionLost(_line(str(error))) from error
        self._flush()

    def _flush(self) -> None:
        """Write out what libpq holds; what comes meanwhile is taken in, or both ends might wait."""
        fd = self._pq.socket
        try:
            while self._pq.flush():
                self._stop.wait(None, read_fd=fd, write_fd=fd)
                self._pq.consume_input()
        except psycopg.Error as error:
            raise ConnectionLost(_line(str(error))) from error

    def _consume(self) -> None:
        try:
            self._pq.consume_input()
        except psycopg.Error as error:
            raise ConnectionLost(_line(str(error))) from error

    def _result(self) -> pq.abc.PGresult | None:
        while self._pq.is_busy():
            self._await_answer()
            self._consume()
        return self._pq.get_result()

    def _await_answer(self) -> None:
        while not self._stop.wait(self.answer_timeout_s, read_fd=self._pq.socket):
            if self.is_working is None or not self.is_working():
                raise ConnectionLost(f"the server did not answer within {self.answer_timeout_s:g} s")

    def _error(self, result: pq.abc.PGresult | None) -> Exception:
        """What to raise for a result that is an error; what comes behind it is dropped."""
        if result is None or self._pq.status == pq.ConnStatus.BAD:
            return ConnectionLost(_line(self._pq.get_error_message()))
        state = _text(result.error_field(pq.DiagnosticField.SQLSTATE)) or ""
        message = _text(result.error_field(pq.DiagnosticField.MESSAGE_PRIMARY)) or "no message"
        if not state or state.startswith(_PASSING):
            return ConnectionLost(message)
        while self._result() is not None:
            pass
        return ServerError(state, message)


def _cannot_connect(connection: pq.abc.PGconn) -> Exception:
    """libpq does not say the SQLSTATE; what a server says that is not ready yet is known by its text."""
    message = _line(connection.get_error_message())
    if "FATAL:" in message and not any(word in message for word in _NOT_READY):
        return IngestError("cannot-connect", message, "the connection string, or pg_hba.conf")
    return ConnectionLost(message)


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode(errors="replace")


def _line(message: str) -> str:
    return " ".join(message.split())
