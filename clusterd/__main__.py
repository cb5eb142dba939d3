"""The command line `clusterd`: reads flags, builds what the layers below are given, calls them.

A command is imported when it is called for, so that the daemon's parent process loads nothing that it does
not use.

Does not: anything else.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import click

__all__ = ["main"]

_DEFAULT_SOCKET = "unix:clusterd.sock"
_DEFAULT_DATA_DIR = "clusterd-data"
_ELSEWHERE: Mapping[str, str] = MappingProxyType(
    {
        "explain": "clusterd.explain_cli:explain",
        "introspection": "clusterd.explain_cli:introspection",
        "load": "clusterd.storage.cli:load",
        "merge": "clusterd.storage.cli:merge",
        "profile": "clusterd.profile_cli:profile",
        "sql": "clusterd.sql_cli:sql",
        "top": "clusterd.top_cli:top",
    }
)


class _Commands(click.Group):
    """A group some of whose commands live in other modules, not imported for a help page of the rest."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*super().list_commands(ctx), *_ELSEWHERE})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _ELSEWHERE:
            return super().get_command(ctx, cmd_name)
        module, _, name = _ELSEWHERE[cmd_name].partition(":")
        command = getattr(importlib.import_module(module), name)
        assert isinstance(command, click.Command)
        return command


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="clusterd", message="%(prog)s %(version)s")
def main() -> None:
    """One replica of a live-view system: keeps dataflow results current, and answers exact reads of them.

    \b
    Examples:
      clusterd serve --data-dir data --interactive-workers 1    until ^C
      clusterd load FILE.parquet --shard flights --time-column hour --data-dir data
      clusterd config                                           the settings there are

    Programs connect with clusterd.client, scripts with clusterd-test-driver; shm-arrangements shows what is
    in shared memory. README.md in the source has a first session.
    """


def _socket_path(ctx: click.Context, param: click.Parameter, value: str) -> Path:
    kind, _, path = value.partition(":")
    if kind != "unix" or not path:
        raise click.BadParameter(f"{value!r} is no address; write unix:PATH")
    return Path(path).absolute()


def _module(ctx: click.Context, param: click.Parameter, value: str) -> str:
    return str(Path(value).absolute()) if value.endswith(".py") else value


def _cores(ctx: click.Context, param: click.Parameter, value: str) -> tuple[int, ...]:
    if not value:
        return ()
    from clusterd.cores import parse_cores

    try:
        return parse_cores(value, frozenset(os.sched_getaffinity(0)))
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


def _http(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[str, int] | None:
    if value is None:
        return None
    host, _, port = value.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not (host and port.isascii() and port.isdigit() and int(port) < 1 << 16):
        raise click.BadParameter(f"{value!r} is no address; write HOST:PORT, such as 127.0.0.1:6875")
    return host, int(port)


@main.command()
@click.option(
    "--listen", "socket_path", default=_DEFAULT_SOCKET, show_default=True, callback=_socket_path,
    metavar="unix:PATH", help="Where clients connect.",
)  # fmt: skip
@click.option(
    "--interactive-workers", default=0, show_default=True, type=click.IntRange(0, 64), metavar="M",
    help="Processes that answer reads beside maintenance; 0: one process does both (solo).",
)  # fmt: skip
@click.option(
    "--read-cores", default="", metavar="LIST", callback=_cores,
    help="Keep these cores, such as 1 or 2,3 or 4-7, for the processes that serve reads, and maintenance off"
    " them; without it the kernel places all.",
)  # fmt: skip
@click.option(
    "--data-dir", default=_DEFAULT_DATA_DIR, show_default=True, type=click.Path(file_okay=False),
    help="Directory of the shards, made if it is not there; or postgres://HOST/DB?parts=URI.",
)  # fmt: skip
@click.option(
    "--functions", default="", metavar="MODULE", callback=_module,
    help="A Python module of functions that plans may call: PATH.py, or the name of one.",
)  # fmt: skip
@click.option(
    "--introspection/--no-introspection", default=True, show_default=True,
    help="Whether a process shows what the others do: `clusterd introspection` lists the relations.",
)  # fmt: skip
@click.option(
    "--http", callback=_http, metavar="HOST:PORT",
    help="Serve metrics, health and the console there; whoever reaches it sees it. Port 0: any that is free.",
)  # fmt: skip
@click.option("--test-hooks", is_flag=True, help="Honour commands that stall or break the daemon, for tests.")
def serve(
    socket_path: Path,
    interactive_workers: int,
    read_cores: tuple[int, ...],
    data_dir: str,
    functions: str,
    introspection: bool,
    http: tuple[str, int] | None,
    test_hooks: bool,
) -> None:
    """Run a replica until SIGTERM or ^C.

    Prints a line READY {json} on stdout once it takes commands: instance, listen, data_dir, http, pids,
    version.
    What happens later is told on stderr, a JSON object a line.

    \b
    Examples:
      clusterd serve --data-dir data
      clusterd serve --data-dir data --http 127.0.0.1:6875
      clusterd serve --listen unix:/tmp/clusterd.sock --interactive-workers 1 --functions mine.py
      clusterd serve --data-dir data --interactive-workers 1 --read-cores 1

    \b
    Exit status:
       0  stopped by a signal            12  no room in shared memory
       2  wrong usage                    13  one of its processes died, so all ended
      10  another daemon listens there   14  could not start
      11  data directory of another format
    """
    from clusterd.config import Config
    from clusterd.storage.data_dir import absolute_location
    from clusterd.supervisor import ServeOptions
    from clusterd.supervisor import serve as run
    from controller_proto.errors import Refusal

    try:
        location = absolute_location(data_dir)
    except Refusal as refusal:
        raise click.BadParameter(f"{refusal.message}; {refusal.hint}", param_hint="--data-dir") from refusal
    if read_cores and not interactive_workers:
        raise click.UsageError("--read-cores are for the workers of --interactive-workers: there are none")
    if http is not None and not introspection:
        raise click.UsageError("--http shows what --introspection finds out: give neither or both")
    options = ServeOptions(
        socket_path=socket_path,
        interactive_workers=interactive_workers,
        introspection=introspection,
        http=http,
        data_dir=location,
        config=Config(functions=functions, read_cores=read_cores, test_hooks=test_hooks),
    )
    sys.exit(run(options))


@main.command()
def warm() -> None:
    """Compile and cache every kernel, before a start has to.

    \b
    Example:
      clusterd warm
    """
    importlib.import_module("clusterd.runtime.loop")  # with it, all that a worker runs
    count = importlib.import_module("shm_arrangements.kernels.warm").warm()
    click.echo(f"{count} kernels are warm")


@main.command()
def sweep() -> None:
    """Remove what dead replicas left in shared memory.

    Every start does so too. An instance is judged by the lock on its control file: a living one is not
    touched, whoever it belongs to.

    \b
    Example:
      clusterd sweep
    """
    from shm_arrangements.instance import sweep as run

    tokens = run()
    click.echo(f"swept {len(tokens)} instance(s)" + (": " + ", ".join(sorted(tokens)) if tokens else ""))


@main.command()
@click.option("--json", "as_json", is_flag=True, help="A JSON object a line instead of a table.")
def config(as_json: bool) -> None:
    """List the settings: name, type, default, unit, meaning.

    A controller gives them with CreateInstance: `Client.connect(.., config={"max_result_bytes": 1_000})`.

    `dynamic` ones may be changed at any time (UpdateConfiguration), `fixed` ones are those of the first
    controller's CreateInstance, `launch` ones are read by the launcher alone.

    \b
    Examples:
      clusterd config
      clusterd config --json | grep max_result_bytes
    """
    import msgspec

    from clusterd.config import SETTINGS

    for setting in SETTINGS.values():
        if as_json:
            click.echo(msgspec.json.encode(setting))
            continue
        default = str(setting.default).lower() if isinstance(setting.default, bool) else str(setting.default)
        unit = f" {setting.unit}" if setting.unit else ""
        choices = f", one of {', '.join(setting.choices)}" if setting.choices else ""
        click.echo(f"{setting.name} {setting.type} = {default}{unit} ({setting.when}{choices})")
        click.echo(f"    {setting.meaning}")


if __name__ == "__main__":
    main()
