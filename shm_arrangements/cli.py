"""The command line `shm-arrangements`: what is in shared memory, for people and for scripts.

It reads as any other process does, beside a daemon or a program that writes, and holds nobody up. What a
command needs is imported when it is called for.

Does not: write to an instance; `sweep` alone removes, and only what the dead have left.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import IO, Any

import click

from shm_arrangements import instance as instances
from shm_arrangements import text
from shm_arrangements.errors import (
    AmbiguousName,
    ArrangementError,
    DataError,
    NoSuchInstance,
    NotReadable,
    NotSealed,
    PublicationClosed,
    WriterGone,
)
from shm_arrangements.instance import InstanceInfo

_EXIT_STATUS = """
\b
Exit status:
  0  done                              4  the instance has ended
  1  verify found damage               5  that time cannot be read
  2  wrong usage                       6  the index holds an error at that time
  3  no such instance or publication   7  it cannot be read, or there is no room
"""
_DAMAGED = 1
_STATUS: dict[type[ArrangementError], int] = {
    NoSuchInstance: 3, PublicationClosed: 3, AmbiguousName: 3, WriterGone: 4, NotReadable: 5, NotSealed: 5,
    DataError: 6, ArrangementError: 7,
}  # fmt: skip


class _Failure(click.ClickException):
    """An error of the library, told and turned into an exit status."""

    def __init__(self, error: ArrangementError) -> None:
        hint, error.hint = error.hint, ""
        super().__init__(str(error))
        self.hint = hint
        self._status = next(_STATUS[kind] for kind in type(error).__mro__ if kind in _STATUS)

    @property
    def exit_code(self) -> int:  # type: ignore[override]  # click has a class variable
        return self._status

    def show(self, file: IO[Any] | None = None) -> None:
        click.echo(f"error: {self.message}", err=True, file=file)
        if self.hint:
            click.echo(f"hint: {self.hint}", err=True, file=file)


class _Commands(click.Group):
    """Commands whose errors of the library become `_Failure`."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except ArrangementError as error:
            raise _Failure(error) from error


_instance = click.option(
    "--instance", "-i", "token", metavar="TOKEN",
    help="Instance, or the first digits of its token; needed if several live.",
)  # fmt: skip


@click.group(cls=_Commands, epilog=_EXIT_STATUS, context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Look at arrangements in shared memory: those of a replica (clusterd), and of any program.

    \b
    Examples:
      shm-arrangements ls                         what there is
      shm-arrangements inspect flights            one index: its schema and batches
      shm-arrangements dump u1001 --limit 10      its rows
      shm-arrangements verify                     checksums and order of everything
      shm-arrangements sweep                      remove what the dead have left

    ID is an id (u1001, or 1001) or the name that its writer gave an index.
    """


@main.command(name="ls", epilog=_EXIT_STATUS)
@click.option("--json", "as_json", is_flag=True, help="One JSON document, for scripts.")
@_instance
def list_all(as_json: bool, token: str | None) -> None:
    """List instances, what they publish, and who reads.

    Sizes are of memory: `bytes` of the batches that are published, of an instance all that has a name. A
    reader pins what it has mapped, published or superseded. An instance that is dead is one that was killed
    together with its reaper: sweep removes it.

    \b
    Examples:
      shm-arrangements ls
      shm-arrangements ls -i 3f
      shm-arrangements ls --json | jq '.instances[].publications[] | {id, updates, bytes}'
    """
    from shm_arrangements import listing
    from shm_arrangements.discover import list_publications
    from shm_arrangements.readers import list_readers

    found = instances.list_instances() if token is None else (_info(token),)
    told = [(one, list_publications(one.token), list_readers(one.token)) for one in found]
    if as_json:
        click.echo(json.dumps({"instances": [listing.instance_json(*one) for one in told]}, indent=2))
        return
    if not told:
        click.echo("no instance has a name in shared memory")
    for at, (one, publications, readers) in enumerate(told):
        click.echo(("\n" if at else "") + listing.instance_line(one))
        _show(listing.publication_rows(publications), right=range(3, 8))
        _show(listing.reader_rows(readers))


@main.command(epilog=_EXIT_STATUS, short_help="Show one index: schema, batches, readers.")
@click.argument("id")
@click.option("--json", "as_json", is_flag=True, help="One JSON document, for scripts.")
@_instance
def inspect(id: str, as_json: bool, token: str | None) -> None:
    """Show one index: its schema, its batches and where they are, and who reads.

    Each batch covers times from `lower` up to `upper`; the bar is its share of the bytes. `place` is its
    segment, and in an arena, which small batches share, where in it. `columns` says how each is encoded.

    \b
    Examples:
      shm-arrangements inspect u1001
      shm-arrangements inspect flights --json | jq '.batches | length'
    """
    from shm_arrangements import listing
    from shm_arrangements.inspection import inspect_index
    from shm_arrangements.readers import list_readers

    one = _living(token)
    info, batches = inspect_index(id, one.token)
    readers = list_readers(one.token)
    if as_json:
        document = listing.publication_json(info)
        document["chain"] = [batch.as_json() for batch in batches]
        document["readers"] = [listing.reader_json(reader) for reader in readers]
        click.echo(json.dumps(document, indent=2))
        return
    called = f" {info.name!r}" if info.name else ""
    alias = f", an alias of {info.alias_of}" if info.alias_of else ""
    click.echo(f"{info.id}{called} of instance {info.instance}, incarnation {info.incarnation}{alias}")
    times = f"since {text.frontier_text(info.since)}, upper {text.frontier_text(info.upper)}"
    click.echo(f"{info.status.name.lower()}, {times}, {text.plural(info.shards, 'shard')}")
    click.echo(f"{info.updates:,} updates in {text.size_text(info.nbytes)}, {info.errors:,} of them errors")
    click.echo()
    _show(listing.schema_rows(info.schema))
    largest = max((batch.nbytes for batch in batches), default=0)
    table: list[tuple[str, ...]] = [("half", "lower", "upper", "updates", "bytes", "", "place", "columns")]
    for batch in batches:
        bar = text.bar_text(batch.nbytes, largest)
        table.append((*batch.cells(), bar, batch.place, batch.encodings))
    click.echo()
    _show(table, right=range(1, 5))
    if readers:
        click.echo()
        _show(listing.reader_rows(readers))


@main.command(epilog=_EXIT_STATUS, short_help="Write the rows of an index at one time, or changes.")
@click.argument("id")
@click.option(
    "--at", type=click.IntRange(0), metavar="T", help="The time to read at; the newest if not given."
)
@click.option(
    "--changes", nargs=2, type=click.IntRange(0), metavar="T1 T2",
    help="What changed after T1 up to T2: rows with their time and diff.",
)  # fmt: skip
@click.option(
    "--format", "form", type=click.Choice(["table", "csv", "json", "parquet"]), default="table",
    show_default=True, help="json: an object a line. parquet: needs --output, or a pipe.",
)  # fmt: skip
@click.option("--limit", type=click.IntRange(0), metavar="N", help="At most N rows.")
@click.option(
    "--output", "-o", type=click.Path(dir_okay=False, path_type=Path),
    help="A file, replaced if it is there; standard output if not given.",
)  # fmt: skip
@_instance
def dump(
    id: str, at: int | None, changes: tuple[int, int] | None, form: str, limit: int | None,
    output: Path | None, token: str | None,
) -> None:  # fmt: skip
    """Write the rows of an index at one time, each as often as it occurs, in the order of the index.

    In a table NULL is NULL; in CSV it is nothing, and the empty text is "". JSON has numbers for integers and
    floats, and text for what it has no form for: decimals, times, bytes (\\x and hex digits).

    \b
    Examples:
      shm-arrangements dump flights --limit 10
      shm-arrangements dump u1001 --at 17 --format csv -o flights.csv
      shm-arrangements dump u1001 --changes 12 17 --format json | jq 'select(.diff < 0)'
    """
    from shm_arrangements.attach import attach
    from shm_arrangements.dump import Rows, require_place, write_rows

    if at is not None and changes:
        raise click.UsageError("--at and --changes exclude each other")
    if changes and changes[1] < changes[0]:
        raise click.UsageError(f"--changes {changes[0]} {changes[1]}: the first time is after the second")
    if form == "parquet" and output is None and sys.stdout.isatty():
        raise click.UsageError("--format parquet is not for a terminal: give --output FILE")
    one = _living(token)
    with attach(id, one.token) as index:
        view = index.snapshot(changes[1] if changes else at)
        found = view.scan()  # an error that stands then is the answer, of what changed too
        rows = Rows.of_changes(view.changes(changes[0])) if changes else Rows.of_result(found)
    rows = rows if limit is None else rows.first(limit)
    try:
        require_place(rows.specs, form)
    except ValueError as error:
        raise click.UsageError(f"{error}: csv and json have one for every type") from error
    if output is None:
        write_rows(rows, form, sys.stdout.buffer)
        return
    try:
        file = output.open("wb")
    except OSError as error:
        raise click.BadParameter(f"{output}: {error.strerror}", param_hint="--output") from error
    try:
        with file:
            write_rows(rows, form, file)
    except OSError as error:
        raise _Failure(ArrangementError(f"{output} is not complete: {error.strerror}")) from error


@main.command(epilog=_EXIT_STATUS, short_help="Check checksums, order, and that all times are covered.")
@click.argument("id", required=False)
@_instance
def verify(id: str | None, token: str | None) -> None:
    """Check what is published: pages, checksums of batches, their order, and that they cover all times.

    Reads everything, of one index or of an instance, and works beside the writer. Each damage is a line; the
    exit status is 1 if there is any. A dead instance can be verified too, as long as it is not swept.

    \b
    Examples:
      shm-arrangements verify
      shm-arrangements verify flights && echo whole
    """
    from shm_arrangements.discover import not_published, resolve
    from shm_arrangements.verify import verify_pages

    started = time.monotonic()
    pages = batches = updates = nbytes = damages = 0
    one = _living(token, or_dead=True)
    for verdict in verify_pages(one.token, None if id is None else resolve(one.token, id)):
        pages, batches = pages + 1, batches + verdict.batches
        updates, nbytes = updates + verdict.updates, nbytes + verdict.nbytes
        damages += len(verdict.damages)
        for damage in verdict.damages:
            click.echo(f"damaged: {verdict.page.name}: {damage}")
    if id is not None and not pages:
        raise not_published(one.token, id)
    read = f"{text.plural(pages, 'page')}, {text.plural(batches, 'batch')}, {updates:,} updates"
    state = text.plural(damages, "damage") if damages else "whole"
    took = f"({text.size_text(nbytes)} in {time.monotonic() - started:.1f} s)"
    click.echo(f"{one.token}: {read}: {state} {took}")
    if damages:
        sys.exit(_DAMAGED)


@main.command(epilog=_EXIT_STATUS, short_help="Remove what instances that have ended left.")
@click.option("--dry-run", is_flag=True, help="Say what would be removed, and leave it.")
def sweep(dry_run: bool) -> None:
    """Remove what instances that have ended left in shared memory, and the entries of readers that have.

    An instance is judged by the lock on its control file alone: a living one is not touched, whoever it
    belongs to. Every start of a writer sweeps as well.

    \b
    Examples:
      shm-arrangements sweep --dry-run
      shm-arrangements sweep
    """
    from shm_arrangements.readers import list_readers

    dead = {one.token: one for one in instances.list_instances() if not one.alive}
    swept = tuple(dead) if dry_run else instances.sweep()
    for token in swept:
        what = ""
        if token in dead:
            what = f": {text.plural(dead[token].names, 'name')}, {text.size_text(dead[token].nbytes)}"
        click.echo(f"{'would remove' if dry_run else 'removed'} {token}{what}")
    if not dry_run:
        for token in instances.live_tokens():
            list_readers(token)
    if not swept:
        click.echo("nothing to remove")


# -- which instance


def _info(token: str) -> InstanceInfo:
    """The one instance whose token begins so. Raises: NoSuchInstance."""
    found = [one for one in instances.list_instances() if one.token.startswith(token)]
    if not found:
        hint = "`shm-arrangements ls` lists those there are"
        raise NoSuchInstance("no such instance", instance=token, hint=hint)
    if len(found) > 1:
        tokens = ", ".join(one.token for one in found)
        hint = "give more digits"
        raise NoSuchInstance("several instances begin so", instance=token, instances=tokens, hint=hint)
    return found[0]


def _living(token: str | None, *, or_dead: bool = False) -> InstanceInfo:
    """The instance meant: the one given, or the only one that lives. Raises: NoSuchInstance, WriterGone."""
    if token is not None:
        one = _info(token)
        if not one.alive and not or_dead:
            hint = "`shm-arrangements sweep` removes what it left"
            raise WriterGone("the instance is dead", instance=one.token, hint=hint)
        return one
    found = instances.list_instances()
    living = [one for one in found if one.alive]
    if len(living) == 1:
        return living[0]
    if living:
        tokens = ", ".join(one.token for one in living)
        raise NoSuchInstance(
            "several instances live", instances=tokens, hint="choose one with --instance TOKEN"
        )
    hint = f"{text.plural(len(found), 'dead instance')} left names: see ls" if found else "start a writer"
    raise NoSuchInstance("no instance lives", hint=hint)


def _show(rows: list[tuple[str, ...]], right: range = range(0)) -> None:
    if len(rows) > 1:
        for line in text.table_lines(rows, right):
            click.echo("  " + line)


if __name__ == "__main__":
    main()
