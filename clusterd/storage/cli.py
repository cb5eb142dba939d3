"""`clusterd load`: reads the flags, shows progress, says what was done or what to do instead.

Does not: decide anything (load.py does).
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import click

from clusterd import exit_codes
from clusterd.errors import DaemonError
from controller_proto.errors import LocalProtocolError, Refusal
from controller_proto.literals import parse_type
from controller_proto.schema import Schema

__all__ = ["DEFAULT_DATA_DIR", "load"]

DEFAULT_DATA_DIR = "clusterd-data"
_FAILED = 1


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--shard", required=True, help="Shard to append to; made if it is not there.")
@click.option(
    "--time-column", required=True,
    help="Column with each row's time: an integer, or a timestamp (counted in microseconds since 1970).",
)  # fmt: skip
@click.option(
    "--columns",
    help="The file's columns as the shard shall have them: `id integer, price numeric(38,2)?`. "
    "Else they are as in a shard that is there, or bigint, double precision, text, ... as the file has them.",
)
@click.option(
    "--data-dir", default=DEFAULT_DATA_DIR, show_default=True,
    type=click.Path(file_okay=False, path_type=Path), help="Directory of the shards.",
)  # fmt: skip
def load(file: Path, shard: str, time_column: str, columns: str | None, data_dir: Path) -> None:
    """Append the rows of a file to a shard, all of them or none.

    FILE is Parquet, Arrow IPC, .csv or .tsv; its columns are in memory at once. A replica that maintains
    views of the shard follows by itself.

    \b
    Examples:
      clusterd load flights.parquet --shard flights --time-column hour_of_year --data-dir data
      clusterd load prices.csv --shard prices --time-column t --columns "t bigint, price numeric(38,2)?"
    """
    # Imported here, so that `clusterd --help` and the daemon's parent do not pay for Arrow.
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from clusterd.storage.load import load_file
    from clusterd.storage.store import Store

    started = time.monotonic()
    bar = Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
        console=Console(stderr=True), transient=True,
    )  # fmt: skip
    try:
        with Store.open(data_dir) as store, bar:
            click.echo(f"data directory {store.data_dir}" + (" (made now)" if store.created else ""))
            task = bar.add_task(f"{file.name} to {shard}", total=None)

            def progress(done: int, total: int | None) -> None:
                bar.update(task, completed=done, total=total)

            asked = None if columns is None else Schema(parse_type(f"record({columns})").fields)
            loaded = load_file(store, file, shard, time_column, asked=asked, progress=progress)
    except DaemonError as error:
        click.echo(f"error: {error.message}\nhint: {error.hint}", err=True)
        sys.exit(error.exit_code)
    except (Refusal, LocalProtocolError) as refusal:
        click.echo(f"error: {refusal.code}: {refusal.message}", err=True)
        if refusal.hint:
            click.echo(f"hint: {refusal.hint}", err=True)
        sys.exit(exit_codes.DATA_FORMAT if refusal.code == "format-mismatch" else _FAILED)
    upper = f"{{{loaded.upper[0]}}}" if loaded.upper else "{}"
    times = f"times {loaded.min_time} to {loaded.max_time}, " if loaded.rows else ""
    click.echo(
        f"loaded {loaded.rows:,} rows into shard {shard!r}, {times}upper {upper}, "
        f"in {time.monotonic() - started:.1f} s"
    )
