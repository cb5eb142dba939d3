"""`clusterd sql`: read the flags, print rows or say what to do instead.

Does not: decide anything (client/sql.py does).
"""

from __future__ import annotations

import csv
import sys
from typing import NoReturn

import click
import msgspec

from clusterd.client.sql import SqlFailed, SqlResult, run_sql
from shm_arrangements.errors import ArrangementError

__all__ = ["sql"]


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("query")
@click.option(
    "--at", type=click.IntRange(0, (1 << 64) - 1), metavar="TIME",
    help="The time to read at; by default the newest that all tables of the query have sealed.",
)  # fmt: skip
@click.option(
    "--instance",
    metavar="TOKEN",
    help="The replica, by the token of its READY line; by default the only one.",
)
@click.option(
    "--format", "form", default="table", show_default=True, type=click.Choice(["table", "csv", "json"]),
    help="How to print rows: a table, CSV with a header, or a JSON object a line.",
)  # fmt: skip
def sql(query: str, at: int | None, instance: str | None, form: str) -> None:
    """Run a SELECT over the indexes of a replica, all at one time.

    Tables are indexes: their ids, as `shm-arrangements ls` lists them. Rows come from shared memory, with no
    word to the replica. It needs duckdb, whose SQL it is: pip install duckdb.

    \b
    Examples:
      clusterd sql 'SELECT name, sum(kilos) FROM u1001 GROUP BY name'
      clusterd sql 'SELECT count(*) FROM u1001 JOIN u1002 USING (name)' --at 7
      clusterd sql 'FROM u1001' --format csv > rows.csv

    \b
    Exit status:
      0  done      1  the query, or what it reads, is an error      2  wrong usage
    """
    try:
        result = run_sql(query, instance, at)
    except (SqlFailed, ArrangementError) as error:
        _fail(str(error))
    _print(result, form)


def _print(result: SqlResult, form: str) -> None:
    if form == "csv":
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(result.names)
        writer.writerows(result.rows())
    elif form == "json":
        for one in result.dicts():
            click.echo(msgspec.json.encode(one, enc_hook=str))
    else:
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        table = Table()
        for name in result.names:
            table.add_column(Text(name))
        for row in result.rows():
            table.add_row(*(Text("NULL" if value is None else str(value)) for value in row))
        Console().print(table)


def _fail(message: str) -> NoReturn:
    click.echo(f"clusterd: {message}", err=True)
    sys.exit(1)
