"""Directives that read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from clusterd.driver.directive import Directive
from clusterd.driver.reads import answer_count, answer_lines, columns_of, peek_from_words
from clusterd.driver.state import OK, Run, Started
from controller_proto import command as c
from controller_proto.dataflow import Export
from controller_proto.errors import LocalProtocolError
from controller_proto.ids import parse_id
from controller_proto.response import PeekResponse, PeekRows
from controller_proto.script import Words
from controller_proto.suggest import not_called

__all__ = ["DIRECTIVES"]


def _start(run: Run, words: Words, name: str | None, *, counted: bool = False) -> Started:
    id = parse_id(words.one("id"))
    index, schema = run.index(id), words.get("schema")
    if schema is not None:
        chosen = run.schema(schema, "")
        key = tuple(range(chosen.arity)) if index is None else index.key
        index = Export(id, "index", id, chosen, key)
    uuid = words.get("uuid") or f"p{next(run.uuids)}"
    if counted:
        words.arguments["project"] = "()"
    peek = peek_from_words(words, uuid, id, index)
    started = Started(peek, index, run.session)
    run.last = started
    if name is not None:
        run.started[name] = started
    return started


def _answer(started: Started, timeout_s: float) -> PeekResponse:
    session, uuid = started.session, started.peek.uuid
    session.wait(lambda: uuid in session.answers, timeout_s)
    started.awaited = True
    return session.answers[uuid]


def _read(started: Started, timeout_s: float) -> PeekResponse:
    """Send it and wait; who does not wait any longer for it does not want it."""
    try:
        started.session.do(started.peek, timeout_s)
        return _answer(started, timeout_s)
    except KeyboardInterrupt:
        started.awaited = True
        started.session.send(c.CancelPeek(0, uuid=started.peek.uuid))
        raise


def peek(run: Run, words: Words, body: Sequence[str]) -> list[str]:
    timeout_s = run.wait_s(words)
    started = _start(run, words, words.get("name"))
    return answer_lines(_read(started, timeout_s), columns_of(started.peek, started.index))


def count(run: Run, words: Words, body: Sequence[str]) -> list[str]:
    timeout_s = run.wait_s(words)
    started = _start(run, words, words.get("name"), counted=True)
    return answer_count(_read(started, timeout_s))


def start_peek(run: Run, words: Words, body: Sequence[str]) -> list[str]:
    sync = not words.flag("no-sync")
    started = _start(run, words, words.one("name"))
    started.session.do(started.peek, run.timeout_s, sync=sync)
    return OK


def _named(run: Run, name: str) -> Started:
    if name not in run.started:
        raise LocalProtocolError("bad-message", not_called("peek", name, run.started))
    return run.started[name]


def await_peek(run: Run, words: Words, body: Sequence[str]) -> list[str]:
    started = _named(run, words.one("name"))
    answer = _answer(started, run.wait_s(words))
    return answer_lines(answer, columns_of(started.peek, started.index))


def cancel_peek(run: Run, words: Words, body: Sequence[str]) -> list[str]:
    uuid = words.get("uuid")
    if uuid is None:
        started = _named(run, words.one("name"))
        uuid = started.peek.uuid
    return run.command(words, c.CancelPeek(0, uuid=uuid))


def served_by(run: Run, words: Words, body: Sequence[str]) -> list[str]:
    name = words.get("name")
    started = run.last if name is None else _named(run, name)
    answer = None if started is None else started.session.answers.get(started.peek.uuid)
    if answer is None:
        raise LocalProtocolError("bad-message", "no such peek has an answer")
    return [answer.served_by or "?"]


def answered(run: Run, words: Words, body: Sequence[str]) -> list[str]:
    """The time read at, and in how many parts the rows came before the last; the rows are not printed."""
    name = words.get("name")
    started = run.last if name is None else _named(run, name)
    if started is None:
        raise LocalProtocolError("bad-message", "no peek was sent")
    answer = _answer(started, run.wait_s(words))
    parts = answer.result.parts if isinstance(answer.result, PeekRows) else 0
    return [f"time={'?' if answer.time is None else answer.time} parts={parts}"]


_READ = (
    "id= ts= [keys=] [map=] [filter=] [order-by=] [offset=] [limit=] [project=] [schema=] [name=] [uuid=]"
    " [wait-secs=] [runtime=any|interactive|maintenance]"
    " [rows-read=] [result-rows=] [result-bytes=] [run-secs=] [timeout-secs=]"
)
_COUNT = _READ.replace(" [project=]", "")
_START = (
    _READ.replace(" [timeout-secs=]", " [no-sync]").replace("[name=] ", "").replace("id=", "name= id=", 1)
)

DIRECTIVES: Mapping[str, Directive] = {
    "peek": Directive(peek, _READ, "Reads; a row a line."),
    "count": Directive(count, _COUNT, "Reads; how many rows."),
    "start-peek": Directive(start_peek, _START, "Sends a peek and does not wait for its answer."),
    "await-peek": Directive(await_peek, "name= [timeout-secs=]", "Waits for that answer; a row a line."),
    "cancel-peek": Directive(cancel_peek, "[name=] [uuid=] [no-sync]", "Cancels a peek."),
    "answered": Directive(
        answered,
        "[name=] [timeout-secs=]",
        "Waits for that answer, or the last; its time and parts, no rows.",
    ),
    "served-by": Directive(served_by, "[name=]", "Which runtime answered that peek, or the last one."),
}
