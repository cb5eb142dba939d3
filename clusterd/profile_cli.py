"""`clusterd profile`: read the flags, have py-spy sample every process of a daemon, say what went wrong.

py-spy reads another process's memory from outside: the daemon runs on, stopped for a moment at each sample,
and needs nothing for it. All processes are children of the supervisor, so that one flame graph has them all,
each under its title.

Does not: sample by itself.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import NoReturn

import click

from controller_proto.address import cannot_connect, parse_address, peer_pid
from controller_proto.errors import LocalProtocolError

__all__ = ["profile"]

_CONNECT_S = 5.0
_MAY_NOT = (
    "py-spy may not look into processes here: run this as root, as the user of the daemon with "
    "/proc/sys/kernel/yama/ptrace_scope at 0, or in a container with --cap-add SYS_PTRACE"
)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--seconds", default=10, show_default=True, type=click.IntRange(1, 3600), metavar="N",
    help="How long to sample.",
)  # fmt: skip
@click.option(
    "-o", "--output", default="profile.svg", show_default=True, metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The flame graph, for a browser.",
)  # fmt: skip
@click.option(
    "--connect", "address", default="unix:clusterd.sock", show_default=True, metavar="unix:PATH",
    help="Of the daemon, as its READY line says under `listen`.",
)  # fmt: skip
def profile(seconds: int, output: Path, address: str) -> None:
    """Sample all processes into one flame graph.

    Each a hundred times a second. It needs the right to look into other processes (ptrace). What compiled
    kernels do shows as the function that called them.

    \b
    Examples:
      clusterd profile
      clusterd profile --seconds 30 -o slow.svg --connect unix:/tmp/clusterd.sock

    \b
    Exit status:
      0  done      1  the daemon is not there, or may not be looked into      2  wrong usage
    """
    try:
        pid = _supervisor(address)
    except (OSError, LocalProtocolError) as error:
        _fail(str(error))
    command = [
        _py_spy(), "record", "--pid", str(pid), "--subprocesses", "--duration", str(seconds), "--rate", "100",
        "--format", "flamegraph", "--output", str(output),
    ]  # fmt: skip
    click.echo(f"sampling for {seconds} s", err=True)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    said = done.stdout + done.stderr
    if "Permission denied" in said or "Operation not permitted" in said:
        _fail(_MAY_NOT)
    if done.returncode or not output.exists():
        _fail(f"py-spy failed: {said.strip() or f'status {done.returncode}'}")
    click.echo(f"wrote {output}")


def _supervisor(address: str) -> int:
    """The process that listens at `address`. Raises OSError, LocalProtocolError."""
    family, where = parse_address(address)
    if family != socket.AF_UNIX:
        raise LocalProtocolError("bad-message", f"{address!r} is not of this machine", "write unix:PATH")
    with socket.socket(family, socket.SOCK_STREAM) as connected:
        connected.settimeout(_CONNECT_S)
        try:
            connected.connect(where)
        except OSError as error:
            raise cannot_connect(address, error) from error
        pid = peer_pid(connected)
    if pid is None:
        raise LocalProtocolError("bad-message", f"the process at {address} is in another container", "")
    return pid


def _py_spy() -> str:
    """The program that was installed with us."""
    beside = Path(sysconfig.get_path("scripts")) / "py-spy"
    found = str(beside) if os.access(beside, os.X_OK) else shutil.which("py-spy")
    if found is None:
        _fail("py-spy is not installed: pip install py-spy")
    return found


def _fail(message: str) -> NoReturn:
    click.echo(f"clusterd: {message}", err=True)
    sys.exit(1)
