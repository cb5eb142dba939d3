"""`clusterd load` and `merge`: read the flags, show progress, say what was done or what to do instead.

Does not: decide anything (load.py and merging.py do).
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import NoReturn

import click

from clusterd import exit_codes
from clusterd.errors import DaemonError
from controller_proto.errors import LocalProtocolError, Refusal
from controller_proto.literals import parse_type
from controller_proto.schema import Schema, counted

__all__ = ["DEFAULT_DATA_DIR", "load", "merge"]

DEFAULT_DATA_DIR = "clusterd-data"
_FAILED = 1
_INTERRUPTED = 130  # as a shell says of SIGINT


_data_dir = click.option(
    "--data-dir", default=DEFAULT_DATA_DIR, show_default=True, type=click.Path(file_okay=False),
    help="Directory of the shards, or postgres://HOST/DB?parts=URI.",
)  # fmt: skip


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("path", type=click.Path(exists=True, path_type=Path))
@click.option("--shard", required=True, help="Shard to append to; made if it is not there.")
@click.option(
    "--time-column",
    help="Column with each row's time: an integer, or a timestamp (counted in microseconds since 1970). "
    "Without it rows are appended at the shard's next time.",
)
@click.option(
    "--columns",
    help="The file's columns as the shard shall have them: `id integer, price numeric(38,2)?`. "
    "Else they are as in a shard that is there, or bigint, double precision, text, ... as the file has them.",
)
@click.option(
    "--upsert", default="", metavar="KEY",
    help="Columns that tell rows apart, by commas: a row replaces the one of its key before it, and one "
    "whose other columns are all null deletes it.",
)  # fmt: skip
@click.option("--follow", is_flag=True, help="Go on, with what is written to the file or into the folder.")
@click.option(
    "--file-column", metavar="NAME",
    help="Column to add, with the file's name: the rows of a file that is replaced or, of a folder, removed "
    "are then retracted.",
)  # fmt: skip
@_data_dir
def load(
    path: Path,
    shard: str,
    time_column: str | None,
    columns: str | None,
    upsert: str,
    follow: bool,
    file_column: str | None,
    data_dir: str,
) -> None:
    """Append the rows of files to a shard, each once.

    PATH is a Parquet or Arrow IPC file, .csv, .tsv or .jsonl (JSON, an object a line), or a folder of such
    files. A load that was interrupted, or is run again, goes on where the last one ended. A replica that
    maintains views of the shard follows by itself.

    \b
    Examples:
      clusterd load flights.parquet --shard flights --time-column hour_of_year --data-dir data
      clusterd load prices.csv --shard prices --columns "id bigint, price numeric(38,2)?" --upsert id
      clusterd load log.jsonl --shard log --follow
    """
    # Imported here, so that `clusterd --help` and the daemon's parent do not pay for Arrow.
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

    from clusterd.storage.follow import Follower
    from clusterd.storage.load import Loaded, Loader, Target
    from clusterd.storage.store import Store
    from clusterd.storage.tables import SUFFIXES

    started = time.monotonic()
    bar = Progress(
        TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(),
        TextColumn("{task.fields[rows]:,} rows"), TimeElapsedColumn(),
        console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty(),
    )  # fmt: skip

    failed: tuple[str, ...] = ()

    def report(file: Path, loaded: Loaded) -> None:
        nonlocal failed
        if follow and not loaded.rows:
            return
        upper = f"{{{loaded.upper[0]}}}" if loaded.upper else "{}"
        times = f"times {loaded.min_time} to {loaded.max_time}, " if loaded.rows else ""
        before = f" ({loaded.before:,} were there before)" if loaded.before else ""
        source = "" if file == path else f" of {file.name}"
        took = "" if follow else f", in {time.monotonic() - started:.1f} s"
        click.echo(
            f"loaded {loaded.rows:,} rows{source} into shard {shard!r}{before}, {times}upper {upper}{took}"
        )
        known, failed = failed, loaded.failed
        if failed and failed != known:
            keys = "1 key is an error" if len(failed) == 1 else f"{len(failed):,} keys are errors"
            click.echo(f"{keys} in data until a later row takes the place: {failed[0]}", err=True)

    try:
        with Store.open(data_dir) as store, bar:
            click.echo(f"data directory {store.place.location}" + (" (made now)" if store.created else ""))
            task = bar.add_task(f"{path.name} to {shard}", total=1.0, rows=0)

            def progress(rows: int, done: float) -> None:
                bar.update(task, completed=done, rows=rows)

            asked = None if columns is None else Schema(parse_type(f"record({columns})").fields)
            key = tuple(name.strip() for name in upsert.split(",") if name.strip())
            target = Target(shard, time_column, asked, key, file_column)
            loader = Loader(store, target, follows=follow, progress=progress)
            with Follower(path.absolute(), loader, report) as follower:
                if not follower.take_all():
                    click.echo(f"no file in {path} has a name that ends in {', '.join(SUFFIXES)}", err=True)
                if follow:
                    bar.stop()
                    follower.follow()
    except KeyboardInterrupt:
        click.echo("stopped; to go on, run the same again", err=True)
        sys.exit(0 if follow else _INTERRUPTED)
    except (DaemonError, Refusal, LocalProtocolError, OSError) as error:
        _fail(error)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("shards", nargs=-1)
@_data_dir
def merge(shards: tuple[str, ...], data_dir: str) -> None:
    """Merge small parts of shards; sweep what was left.

    Of all shards, or those named. Loads do it themselves; a replica that writes views does it for
    small parts alone. Nobody who reads or writes is in the way, or waits.

    \b
    Example:
      clusterd merge --data-dir data
    """
    from clusterd.storage.store import Store

    try:
        with Store.open(data_dir, create=False) as store:
            for name in shards or store.list():
                shard = store.shard(name)
                before = shard.statistics()
                shard.merge()
                after = shard.statistics()
                click.echo(
                    f"shard {name!r}: {counted(before.parts, 'part')}, {before.updates:,} updates; "
                    f"now {counted(after.parts, 'part')}, {after.updates:,} updates"
                )
            removed = store.sweep()
            click.echo(f"removed {counted(len(removed), 'file')} that no catalog lists")
    except (DaemonError, Refusal, LocalProtocolError, OSError) as error:
        _fail(error)


def _fail(error: Exception) -> NoReturn:
    if isinstance(error, DaemonError):
        code, message, hint = error.exit_code, error.message, error.hint
    elif isinstance(error, Refusal | LocalProtocolError):
        code = exit_codes.DATA_FORMAT if error.code == "format-mismatch" else _FAILED
        message, hint = f"{error.code}: {error.message}", error.hint
    else:
        code, message, hint = _FAILED, str(error), ""
    click.echo(f"error: {message}" + (f"\nhint: {hint}" if hint else ""), err=True)
    sys.exit(code)
