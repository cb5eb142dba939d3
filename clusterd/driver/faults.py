"""Directives that do harm: hooks, kills, bytes that are no message."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import msgpack

from clusterd.driver.directive import Directive
from clusterd.driver.reads import answer_lines, parse_u64
from clusterd.driver.state import OK, Run
from controller_proto import command as c
from controller_proto.errors import Disconnected, LocalProtocolError, Refusal
from controller_proto.framing import encode_frame
from controller_proto.response import Closing, Frontiers, PeekResponse, Refused, Response, Status, Synced
from controller_proto.script import Words
from controller_proto.suggest import not_called

__all__ = ["DIRECTIVES"]


def _process(run: Run, words: Words) -> str:
    """The name of the process; in Solo the one worker goes by the name of maintenance as well."""
    process = words.one("process")
    return "solo/0" if run.mode == "solo" and process == "maintenance/0" else process


def stall(run: Run, words: Words, body: Sequence[str]) -> list[str]:
    return run.command(words, c.TestHook(0, process=_process(run, words), action=words.name))


def failpoint(run: Run, words: Words, body: Sequence[str]) -> list[str]:
    action, name = f"failpoint:{words.one('action')}", words.one("name")
    return run.command(words, c.TestHook(0, process=_process(run, words), action=action, name=name))


def kill(run: Run, words: Words, body: Sequence[str]) -> list[str]:
    process, name = _process(run, words), (words.get("signal") or "KILL").removeprefix("SIG")
    numbers = {each.name.removeprefix("SIG"): each for each in signal.Signals}
    if name not in numbers:
        raise LocalProtocolError("bad-message", not_called("signal", name, numbers))
    try:
        run.launched().kill(process, numbers[name])
    except KeyError as error:
        raise LocalProtocolError("bad-message", str(error.args[0])) from error
    return OK


def await_exit(run: Run, words: Words, body: Sequence[str]) -> list[str]:
    try:
        with run.interrupts.may_strike():
            run.ended = run.launched().wait(run.wait_s(words))
    except subprocess.TimeoutExpired:
        raise TimeoutError from None
    return [f"exit {run.ended}"]


def send_raw(run: Run, words: Words, body: Sequence[str]) -> list[str]:
    """hex: bytes as they are; else a message in JSON, with the next `seq` if it names none."""
    session, text = run.session, words.get("hex")
    wait_s = parse_u64(words.get("ms") or "1000", "ms") / 1000
    start = len(session.arrived)
    seq = session.wire.last_seq + 1
    if text is None:
        data, seq = _frame(body, seq)
    else:
        with _placed("hex="):
            data = bytes.fromhex(text)
    try:
        session.wire.send_bytes(data)
        if text is not None:
            # After a Closing the end of the connection is awaited too.
            session.wait(
                lambda: len(session.arrived) > start and not isinstance(session.arrived[-1], Closing), wait_s
            )
        else:
            session.do(c.Sync(seq + 1), wait_s)
    except (Disconnected, TimeoutError, Refusal):
        pass
    output = [_raw(r) for r in session.arrived[start:] if not isinstance(r, Frontiers | Status | Synced)]
    session.take_violations()
    if session.over is not None:
        output.append("closed")
    return output or ["nothing"]


def _frame(body: Sequence[str], seq: int) -> tuple[bytes, int]:
    """The message of `body` as a frame, and the greatest `seq` that it leaves used."""
    with _placed("the body"):
        message = json.loads("\n".join(body))
        if not isinstance(message, dict):
            raise TypeError("a message is a JSON object")
        message = {"seq": seq, **message}
        frame = encode_frame(msgpack.packb(message))
    return frame, max(seq, message["seq"]) if type(message["seq"]) is int else seq


@contextmanager
def _placed(place: str) -> Iterator[None]:
    """What cannot be read or packed is a mistake at `place`."""
    try:
        yield
    except (ValueError, TypeError, OverflowError) as error:
        raise LocalProtocolError("bad-message", f"{place}: {error}") from error


def sleep(run: Run, words: Words, body: Sequence[str]) -> list[str]:
    duration_s = parse_u64(words.one("ms"), "ms") / 1000
    with run.interrupts.may_strike():
        time.sleep(duration_s)
    return OK


def _raw(response: Response) -> str:
    if isinstance(response, Refused):
        return f"refused {response.seq}: {response.code}: {response.message}"
    if isinstance(response, PeekResponse):
        return f"peek {response.uuid}: {' '.join(answer_lines(response, None))}"
    if isinstance(response, Closing):
        return f"closing: {response.code}: {response.message}"
    return type(response).__name__


DIRECTIVES: Mapping[str, Directive] = {
    "stall": Directive(stall, "process=", "That process stops to take commands."),
    "release": Directive(stall, "process=", "That process takes commands again."),
    "failpoint": Directive(
        failpoint, "process= name= action=off|error|exit|pause", "Sets what happens at a point in the code."
    ),
    "kill": Directive(kill, "process= [signal=]", "Sends a signal, KILL unless another is named."),
    "await-exit": Directive(await_exit, "[timeout-secs=]", "Waits until the daemon has ended; its status."),
    "send-raw": Directive(
        send_raw,
        "[hex=] [ms=]",
        "Sends bytes, or a message, past every check; what comes back.",
        "one message as JSON",
        instead="hex",
    ),
    "sleep": Directive(sleep, "ms=", "Waits, for races in time only."),
}
