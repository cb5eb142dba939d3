"""`clusterd-test-driver`: scripts against a replica, from the command line.

Does not: hold any logic of its own beyond flags and printing (driver/ does).
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from clusterd.driver.driver import carry_out
from clusterd.driver.junit import write_junit
from clusterd.driver.run import MODES, Outcome, ReplicaFailed, Target, launched, run_file
from clusterd.driver.shell import shell
from clusterd.driver.state import Skip
from clusterd.functions import FunctionsError
from clusterd.launcher import LaunchError
from controller_proto.errors import ProtocolError

__all__ = ["main"]

_ONLY_PEEKS = """\
hint: a reader only peeks and subscribes. --as controller says it as a controller; that fences the one which
is there, and its first command is create-instance. More than one command goes into a file, for `run`."""


@click.group(
    epilog="The language of scripts: docs/script.md in the source; an example: README.md, The test driver.",
    context_settings={"help_option_names": ["-h", "--help"]},
)
def main() -> None:
    """A headless controller: sends a replica exactly what a script says, and checks the answers.

    \b
    Examples:
      clusterd-test-driver run first.spec --mode two-runtime
      clusterd-test-driver shell
      clusterd-test-driver exec "peek id=u2 ts=latest" --connect unix:clusterd.sock
    """


@main.command()
@click.argument(
    "files", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path)
)
@click.option("--launch", "launch_", is_flag=True, help="A fresh replica and storage a file (the default).")
@click.option("--connect", metavar="ADDR", default="", help="A standing replica: unix:PATH or tcp:HOST:PORT.")
@click.option("--data-dir", help="Of the standing replica, to write shards; or postgres://HOST/DB.")
@click.option("--mode", type=click.Choice(MODES), help="What to launch; solo if not said.")
@click.option("--workers", type=click.IntRange(1, 1), default=1, help="Maintenance workers: one.")
@click.option(
    "--interactive-workers", type=click.IntRange(1), default=1, show_default=True, help="In two-runtime mode."
)
@click.option("--functions", default="", metavar="MODULE", help="The user's functions: PATH.py, or a name.")
@click.option("--rewrite", is_flag=True, help="Replace what the files expect by what came. Also REWRITE=1.")
@click.option("--junit", type=click.Path(path_type=Path), help="Write the outcomes there, as XML.")
@click.option(
    "--timeout", type=float, default=60.0, show_default=True, help="Seconds that a stanza may wait."
)
@click.option("--verbose", is_flag=True, help="Show every stanza that differs, not a file's first.")
def run(
    files: tuple[Path, ...],
    launch_: bool,
    connect: str,
    data_dir: str | None,
    mode: str | None,
    workers: int,
    interactive_workers: int,
    functions: str,
    rewrite: bool,
    junit: Path | None,
    timeout: float,
    verbose: bool,
) -> None:
    """Run scripts; exit 1 if any stanza differs.

    A standing replica gets the commands of a controller, which fences the one that is there.

    \b
    Examples:
      clusterd-test-driver run tests/e2e/scripts/readme_flights.spec
      clusterd-test-driver run *.spec --mode two-runtime --interactive-workers 2 --junit out.xml
      clusterd-test-driver run first.spec --connect unix:clusterd.sock --data-dir data
      clusterd-test-driver run first.spec --rewrite
    """
    if connect and launch_:
        raise click.UsageError("--launch and --connect exclude each other")
    if connect and mode is None:
        mode = ""
    target = Target(
        connect, mode if mode is not None else "solo", workers, interactive_workers, timeout, data_dir,
        functions,
    )  # fmt: skip
    rewrite = rewrite or os.environ.get("REWRITE") == "1"
    outcomes = []
    for file in files:
        outcome = run_file(file, target, rewrite=rewrite)
        outcomes.append(outcome)
        _print(outcome, verbose=verbose)
    if junit is not None:
        write_junit(junit, outcomes)
    sys.exit(any(outcome.status == "fail" for outcome in outcomes))


def _print(outcome: Outcome, *, verbose: bool) -> None:
    """A line, and for a failure the first diff: what differs later mostly follows from it."""
    mode = f" [{outcome.mode}]" if outcome.mode else ""
    reason = f": {outcome.details}" if outcome.status == "skip" else ""
    click.echo(f"{outcome.status}  {outcome.seconds:6.2f} s  {outcome.file}{mode}{reason}")
    more = len(outcome.diffs) - 1
    if more > 0 and not verbose:
        click.echo(outcome.diffs[0])
        differ = "1 more stanza differs" if more == 1 else f"{more} more stanzas differ"
        click.echo(f"and {differ} (--verbose shows all)\n")
    elif outcome.status != "skip" and outcome.details:
        click.echo(outcome.details)


@main.command("exec")
@click.argument("command")
@click.option("--connect", metavar="ADDR", default="", help="A standing replica; else a fresh one.")
@click.option("--data-dir", help="Of the standing replica, to write shards; or postgres://HOST/DB.")
@click.option(
    "--as",
    "kind",
    type=click.Choice(["reader", "controller"]),
    default="reader",
    help="Who says it. A controller fences the one that is there.",
)
@click.option("--timeout", type=float, default=60.0, show_default=True, help="Seconds that it may wait.")
def exec_(command: str, connect: str, data_dir: str | None, kind: str, timeout: float) -> None:
    """Run one stanza; exit 1 on `error:`.

    A stanza is a line, and below it an indented body if the directive has one.

    \b
    Examples:
      clusterd-test-driver exec create-instance
      clusterd-test-driver exec "peek id=u2 ts=latest limit=3" --connect unix:clusterd.sock
    """
    line, *body = command.strip("\n").split("\n")
    target = Target(connect, mode="" if connect else "solo", timeout_s=timeout, data_dir=data_dir)
    hint = ""
    try:
        with launched(target) as run_:
            run_.kind = kind if connect else "controller"
            output, hint = carry_out(run_, line, body), run_.hint
    except Skip as reason:
        output = [f"error: {reason}"]
    except LaunchError as error:
        output = [f"error: {error}"]
    for each in output:
        click.echo(each)
    if connect and kind == "reader" and any(each.startswith("error: invalid-stage:") for each in output):
        click.echo(_ONLY_PEEKS, err=True)
    elif hint:
        click.echo(f"hint: {hint}", err=True)
    sys.exit(any(each.startswith(("error:", "violation:")) for each in output))


@main.command("shell")
@click.option("--connect", metavar="ADDR", default="", help="A standing replica; else a fresh one.")
@click.option("--data-dir", help="Of the standing replica, to write shards; or postgres://HOST/DB.")
@click.option("--mode", type=click.Choice(MODES), help="What to launch; solo if not said.")
@click.option(
    "--interactive-workers", type=click.IntRange(1), default=1, show_default=True, help="In two-runtime mode."
)
@click.option("--functions", default="", metavar="MODULE", help="The user's functions: PATH.py, or a name.")
@click.option(
    "--as",
    "kind",
    type=click.Choice(["reader", "controller"]),
    default="reader",
    help="Who speaks to a standing replica. A controller fences the one that is there.",
)
@click.option(
    "--timeout", type=float, default=60.0, show_default=True, help="Seconds that a stanza may wait."
)
@click.option(
    "--history",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("~/.local/state/clusterd/test-driver-history"),
    show_default=True,
    help="Where typed lines are kept.",
)
def shell_(
    connect: str,
    data_dir: str | None,
    mode: str | None,
    interactive_workers: int,
    functions: str,
    kind: str,
    timeout: float,
    history: Path,
) -> None:
    """Run stanzas as they are typed.

    The language of scripts, against a standing replica, or one that ends with the shell. help lists the
    directives, TAB completes, ^C cancels a stanza, ^D ends. Without a terminal stanzas are read from stdin.

    \b
    Examples:
      clusterd-test-driver shell --mode two-runtime
      clusterd-test-driver shell --connect unix:clusterd.sock --as controller --data-dir data
    """
    target = Target(
        connect, mode or ("" if connect else "solo"), 1, interactive_workers, timeout, data_dir, functions,
        introspection=True,
    )  # fmt: skip
    try:
        with launched(target, detach=True) as run_:
            run_.kind = kind if connect else "controller"
            if sys.stdin.isatty():
                click.echo(_greeting(target, run_.kind))
            shell(run_, history.expanduser())
    except (FunctionsError, LaunchError, ReplicaFailed, ProtocolError) as error:
        raise click.ClickException(str(error)) from error


def _greeting(target: Target, kind: str) -> str:
    where = f"{target.address}, as a {kind}" if target.address else f"a {target.mode} replica of its own"
    first = "" if kind == "reader" else " A session begins with create-instance, initialization-complete."
    return f"clusterd-test-driver: {where}. help tells what there is, ^D ends.{first}"


if __name__ == "__main__":
    main()
