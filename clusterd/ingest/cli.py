"""`clusterd-ingest`: reads the flags and the environment, feeds, says what is wrong.

Does not: decide anything (feed.py does).
"""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING

import click
import msgspec
import setproctitle

from clusterd import exit_codes
from clusterd.errors import DaemonError
from controller_proto.errors import Refusal

if TYPE_CHECKING:
    from clusterd.ingest.status import Status

__all__ = ["main"]

_FAILED = 1
_SLOT = re.compile("[a-z0-9_]{1,54}")  # PostgreSQL's 63, without the name of the temporary one
_DSN_HELP = (
    "Where the server is: postgresql://user@host:5432/db, or host=.. dbname=... What is not said is taken "
    "from PGHOST, PGUSER, PGPASSWORD, .. and ~/.pgpass, as by psql; a password belongs there."
)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Feed shards from elsewhere, as it changes.

    \b
    Examples:
      clusterd-ingest postgres --dsn postgresql://feed@db/shop --publication clusterd --data-dir data
      clusterd-ingest status --dsn postgresql://feed@db/shop --data-dir data
    """


def _shards(_context: click.Context, _option: click.Parameter, given: tuple[str, ...]) -> dict[str, str]:
    shards = {}
    for each in given:
        table, equals, shard = each.partition("=")
        if not (table and equals and shard):
            raise click.BadParameter(f"{each!r} is not TABLE=SHARD")
        shards[table if "." in table else f"public.{table}"] = shard
    return shards


def _slot(_context: click.Context, _option: click.Parameter, given: str) -> str:
    if not _SLOT.fullmatch(given):
        raise click.BadParameter("at most 54 of a-z, 0-9 and _")
    return given


_dsn = click.option("--dsn", envvar="CLUSTERD_POSTGRES_DSN", show_envvar=True, default="", help=_DSN_HELP)
_slot_option = click.option(
    "--slot", default="clusterd", show_default=True, callback=_slot,
    help="Replication slot; made at the first start, and by no other client used.",
)  # fmt: skip
_data_dir = click.option(
    "--data-dir", default="clusterd-data", show_default=True, type=click.Path(file_okay=False),
    help="Directory of the shards, or postgres://HOST/DB?parts=URI.",
)  # fmt: skip


@main.command()
@_dsn
@click.option("--publication", required=True, help="Whose tables to feed; CREATE PUBLICATION makes one.")
@_slot_option
@_data_dir
@click.option(
    "--shard", "shards", multiple=True, metavar="TABLE=SHARD", callback=_shards,
    help="A table's shard; else it has the table's name, with the schema's before it if that is not public.",
)  # fmt: skip
@click.option(
    "--numeric-scale", type=click.IntRange(0, 38),
    help="Digits behind the point of columns that are numeric without saying; without, they are refused.",
)  # fmt: skip
@click.option(
    "--resnapshot", is_flag=True,
    help="Where shards cannot go on (the slot is gone, a table was made anew), write the difference to a new "
    "snapshot into them. Changes in between then show as one.",
)  # fmt: skip
def postgres(
    dsn: str,
    publication: str,
    slot: str,
    data_dir: str,
    shards: dict[str, str],
    numeric_scale: int | None,
    resnapshot: bool,
) -> None:
    """Feed shards from PostgreSQL until SIGTERM or ^C.

    By logical replication: at first each published table is copied, all as of one moment; then changes are
    appended as they are committed. A time is a place in the WAL: rows at time pg_current_wal_lsn() - '0/0'
    are those of that moment, of all tables alike. It may be killed at any time: started again, it goes on
    where the shards end. Tables need REPLICA IDENTITY FULL. What happens is told on stderr, a JSON object a
    line.

    \b
    Before the first start:
      psql shop -c 'ALTER TABLE orders REPLICA IDENTITY FULL'
      psql shop -c 'CREATE PUBLICATION clusterd FOR TABLE orders'

    \b
    Examples:
      clusterd-ingest postgres --dsn postgresql://feed@db/shop --publication clusterd --data-dir data
      PGHOST=db PGDATABASE=shop clusterd-ingest postgres --publication clusterd --shard orders=shop_orders

    \b
    Exit status:
       0  stopped by SIGTERM or ^C       1  an error: the last line on stderr says its code and what to do
       2  wrong usage                   11  data directory of another format
    """
    # Imported here, so that `--help` does not pay for Arrow.
    from clusterd.events import emit
    from clusterd.ingest.errors import IngestError
    from clusterd.ingest.events import FeedFailed
    from clusterd.ingest.feed import Feed, FeedOptions
    from clusterd.ingest.stopping import Stop
    from clusterd.storage.store import Store

    setproctitle.setproctitle(f"clusterd-ingest: slot {slot}")  # the command line may have a password
    options = FeedOptions(dsn, publication, slot, shards, numeric_scale, resnapshot)
    stop = Stop()
    try:
        with Store.open(data_dir) as store, stop.on_signals():
            Feed(store, options, stop).run()
    except (IngestError, Refusal) as error:
        emit(FeedFailed(code=error.code, message=error.message, hint=error.hint))
        sys.exit(exit_codes.DATA_FORMAT if error.code == "format-mismatch" else _FAILED)
    except DaemonError as error:
        emit(FeedFailed(code="bad-setup", message=error.message, hint=error.hint))
        sys.exit(error.exit_code)
    except OSError as error:
        hint = "started again, the feed goes on where the shards end"
        emit(FeedFailed(code="storage-failed", message=str(error), hint=hint))
        sys.exit(_FAILED)
    finally:
        stop.close()


@main.command()
@_dsn
@_slot_option
@_data_dir
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of lines.")
def status(dsn: str, slot: str, data_dir: str, as_json: bool) -> None:
    """How far the shards of a slot are behind their server.

    \b
    Examples:
      clusterd-ingest status --dsn postgresql://feed@db/shop --data-dir data
      clusterd-ingest status --slot clusterd --json
    """
    from clusterd.ingest.errors import IngestError
    from clusterd.ingest.status import status_of
    from clusterd.storage.store import Store

    try:
        with Store.open(data_dir, create=False) as store:
            found = status_of(store, dsn, slot)
    except (IngestError, Refusal, DaemonError) as error:
        click.echo(f"error: {error.message}" + (f"\nhint: {error.hint}" if error.hint else ""), err=True)
        sys.exit(_FAILED)
    except OSError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(_FAILED)
    if as_json:
        click.echo(msgspec.json.encode(found).decode())
    else:
        _print(found)


def _print(found: Status) -> None:
    reader = "nobody reads it" if found.active_pid is None else f"read by server process {found.active_pid}"
    click.echo(f"slot {found.slot}: {found.wal_status}, {reader}")
    click.echo(f"  the WAL ends at {found.wal_end}, confirmed up to {found.confirmed}")
    click.echo(
        f"  behind {found.behind_bytes:,} bytes, the server keeps {found.retained_bytes:,} bytes for it"
    )
    for shard in found.shards:
        lag = f"upper {shard.upper}, {shard.behind_bytes:,} bytes behind"
        click.echo(f"shard {shard.name}: table {shard.table}, {lag}")


if __name__ == "__main__":
    main()
