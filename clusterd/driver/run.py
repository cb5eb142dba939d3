"""Running files: each script against a fresh replica and fresh storage, its outputs held against it.

A stanza that differs does not stop the file, since what follows tells more. At the end the replica is
stopped, and must go as it should: with status 0, unless the script itself has ended it. A rewrite puts in
what came, but for violations: a broken promise of the protocol is nothing that a file may expect.

Does not: print (driver_cli.py does), know any directive, write JUnit's XML (junit.py).
"""

from __future__ import annotations

import dataclasses
import difflib
import re
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from clusterd.driver.driver import VIOLATION, carry_out
from clusterd.driver.state import Run, Skip
from clusterd.exit_codes import STOPPED
from clusterd.functions import FunctionsError, load_functions
from clusterd.launcher import LaunchError, launch
from clusterd.storage.store import Store
from controller_proto.script import Script, ScriptError, Stanza, parse_script, render_script

__all__ = ["MODES", "Outcome", "ReplicaFailed", "Target", "launched", "run_file"]

MODES = ("solo", "two-runtime")
_STDERR_SHOWN = 4_000
_HUNK = re.compile(r"([-+])(\d+)(?=[, ])")  # where a hunk begins, on either side


@dataclasses.dataclass(frozen=True, slots=True)
class Target:
    """Where scripts run. address: of a standing replica; "" for a fresh one a script.

    mode: for a standing replica what it is, or "" if that is not known. data_dir: of a standing replica.
    functions: the module of the user's functions, for what is launched, and for us, who type plans.
    introspection: whether what is launched has it; a script can ask for all it needs without.
    """

    address: str = ""
    mode: str = "solo"
    workers: int = 1
    interactive_workers: int = 1
    timeout_s: float = 60.0
    data_dir: Path | str | None = None
    functions: str = ""
    introspection: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """status: `pass`, `fail`, `skip`. details: the diffs one after the other, or the reason.

    diffs: a unified diff of each stanza that differs. served: answers of peeks by the role that gave them.
    """

    file: Path
    mode: str
    status: str
    seconds: float
    details: str = ""
    diffs: tuple[str, ...] = ()
    served: Mapping[str, int] = dataclasses.field(default_factory=dict)


def run_file(path: Path, target: Target, *, rewrite: bool = False) -> Outcome:
    """Run one script. rewrite: put the outputs that came into the file, in place of those it expected."""
    start = time.monotonic()
    text = path.read_text()
    try:
        script = parse_script(text)
        outputs, hints, served = _run(script, target)
    except Skip as reason:
        return Outcome(path, target.mode, "skip", time.monotonic() - start, str(reason))
    except (ScriptError, LaunchError, FunctionsError, ReplicaFailed) as error:
        return Outcome(path, target.mode, "fail", time.monotonic() - start, f"{path}: {error}")
    seconds = time.monotonic() - start
    rewritten = ""
    if rewrite:
        new = render_script(script, {number: _expectable(output) for number, output in outputs.items()})
        script = parse_script(new)
        outputs = dict(zip((s.line_number for s in script.stanzas), outputs.values(), strict=True))
        if new != text:
            path.write_text(new)
            rewritten = f"{path}: rewritten"
    diffs = tuple(
        _diff(path, stanza, outputs[stanza.line_number], hints.get(stanza.line_number, ""))
        for stanza in script.stanzas
        if outputs[stanza.line_number] != list(stanza.expected)
    )
    status = "fail" if diffs else "pass"
    return Outcome(path, target.mode, status, seconds, "".join(diffs) or rewritten, diffs, served)


def _expectable(output: list[str]) -> list[str]:
    return [line for line in output if not line.startswith(VIOLATION)]


def _run(script: Script, target: Target) -> tuple[dict[int, list[str]], dict[int, str], dict[str, int]]:
    """The output of each stanza, and the hints of errors, by its line number; who answered how many peeks."""
    outputs: dict[int, list[str]] = {}
    hints: dict[int, str] = {}
    with launched(target) as run:
        for stanza in script.stanzas:
            outputs[stanza.line_number] = carry_out(run, stanza.directive, stanza.body)
            hints[stanza.line_number] = run.hint
    return outputs, hints, dict(run.served)


class ReplicaFailed(Exception):
    """The replica did not end as it should."""


@contextmanager
def launched(target: Target, *, detach: bool = False) -> Iterator[Run]:
    """What a script needs: a connection's address, a store, and, unless `target` names one, a fresh replica.

    detach: a ^C meant for us does not reach the replica.
    Raises LaunchError; ReplicaFailed if the replica, told to stop, ends otherwise.
    """
    if target.functions:
        load_functions(target.functions)
    if target.address:
        store = None if target.data_dir is None else Store.open(target.data_dir)
        epoch = time.time_ns() // 1000  # beyond those of whoever was here before
        run = Run(
            target.address,
            store=store,
            mode=target.mode or None,
            workers=target.workers,
            timeout_s=target.timeout_s,
            first_epoch=epoch,
        )
        try:
            yield run
        finally:
            run.close()
        return
    config = {"enable_two_runtime_compute": target.mode == "two-runtime"}
    with tempfile.TemporaryDirectory(prefix="clusterd-driver-") as directory:
        replica = launch(
            config,
            directory,
            interactive_workers=target.interactive_workers,
            functions=target.functions,
            introspection=target.introspection,
            test_hooks=True,
            detach=detach,
        )
        run = Run(
            replica.address,
            replica=replica,
            store=Store.open(directory),
            mode=target.mode,
            workers=target.workers,
            timeout_s=target.timeout_s,
        )
        try:
            yield run
        finally:
            run.close()
            status = replica.stop() if run.ended is None else None
        if status not in (None, STOPPED):
            raise ReplicaFailed(
                f"the replica ended with status {status}\n{replica.stderr()[-_STDERR_SHOWN:]}"
            )


def _diff(path: Path, stanza: Stanza, actual: list[str], hint: str) -> str:
    """A unified diff whose line numbers are those of the file."""
    before = stanza.expected_line_number - 1
    lines = [f"{path}:{stanza.line_number}: {stanza.directive}"]
    for line in difflib.unified_diff(stanza.expected, actual, "expected", "actual", lineterm=""):
        in_file = line.startswith("@@")
        lines.append(_HUNK.sub(lambda at: f"{at[1]}{int(at[2]) + before}", line) if in_file else line)
    return "\n".join([*lines, *([f"hint: {hint}"] if hint else []), ""])
