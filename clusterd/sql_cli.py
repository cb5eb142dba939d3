"""`clusterd sql`: read the flags, print rows or say what to do instead.

Does not: decide anything (client/sql.py does).
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NoReturn

import click

from clusterd.client.place import instance_at
from clusterd.client.sql import SqlSession
from clusterd.client.sql_result import FORMATS, SqlFailed, require_place, write_result
from controller_proto.errors import Disconnected, LocalProtocolError, Refusal
from shm_arrangements.errors import ArrangementError

__all__ = ["sql"]


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("query")
@click.option(
    "--at", type=click.IntRange(0, (1 << 64) - 1), metavar="TIME",
    help="The time to read at; by default the newest that all tables of the query have sealed.",
)  # fmt: skip
@click.option(
    "--wait", "wait_s", type=click.FloatRange(0), default=0.0, metavar="SECONDS",
    help="How long to wait for TIME to be sealed; by default not at all.",
)  # fmt: skip
@click.option(
    "--instance", metavar="WHERE",
    help="The replica: the token of its READY line, or its socket (unix:PATH); by default the only one.",
)  # fmt: skip
@click.option(
    "--data-dir", metavar="DIR", help="The replica's, for tables that are shards or materialized views."
)
@click.option(
    "--format", "form", default="table", show_default=True, type=click.Choice(FORMATS),
    help="How to print rows: a table, CSV with a header, a JSON object a line, or Parquet.",
)  # fmt: skip
@click.option(
    "--output", "-o", type=click.Path(dir_okay=False, path_type=Path),
    help="A file, replaced if it is there; standard output if not given.",
)  # fmt: skip
def sql(
    query: str, at: int | None, wait_s: float, instance: str | None, data_dir: str | None, form: str,
    output: Path | None,
) -> None:  # fmt: skip
    """Run a SELECT over the indexes of a replica.

    Tables are indexes, by id or name as `shm-arrangements ls` lists them, and with --data-dir also shards and
    materialized views, by name. Each row is there as often as it occurs. Rows come from shared memory (of
    shards, from their files), with no word to the replica. SQL is that of DuckDB, which has to be installed:
    pip install duckdb.

    In a table NULL is NULL; in CSV it is nothing, and the empty text is "". JSON has numbers for integers and
    floats, and text for what it has no form for: decimals with a point, times, bytes (\\x and hex digits).

    \b
    Examples:
      clusterd sql 'SELECT name, sum(kilos) FROM u1001 GROUP BY name'
      clusterd sql 'SELECT count(*) FROM u1001 JOIN u1002 USING (name)' --at 7 --wait 10
      clusterd sql 'FROM u1001' --format parquet -o rows.parquet
      clusterd sql 'DESCRIBE totals' --data-dir data --instance unix:clusterd.sock

    \b
    Exit status:
      0  done      1  the query, or what it reads, is an error      2  wrong usage
    """
    if form == "parquet" and output is None and sys.stdout.isatty():
        raise click.UsageError("--format parquet is not for a terminal: give --output FILE")
    try:
        token = None if instance is None else instance_at(instance)
        session = SqlSession(token, data_dir)
        try:
            result = session.run(query, at, timeout_s=wait_s)
        finally:
            session.close()
        if output is None:
            write_result(result, form, sys.stdout.buffer)
        else:
            require_place(result, form)
            with output.open("wb") as file:
                write_result(result, form, file)
    except (SqlFailed, ArrangementError, Refusal, LocalProtocolError, Disconnected, ValueError) as error:
        _fail(str(error))
    except OSError as error:
        _fail(f"{error.filename or output or 'output'}: {error.strerror or error}")


def _fail(message: str) -> NoReturn:
    click.echo(f"clusterd: {message}", err=True)
    sys.exit(1)
