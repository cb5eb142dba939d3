"""Directives that look: at frontiers, at pages, at silence."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from clusterd.driver import pages
from clusterd.driver.directive import Directive
from clusterd.driver.reads import frontier_of, parse_u64
from clusterd.driver.session import FRONTIER_KINDS
from clusterd.driver.state import OK, Run, frontier_text
from controller_proto.dataflow import WireFrontier
from controller_proto.errors import LocalProtocolError
from controller_proto.ids import parse_id
from controller_proto.response import STATES, CopyError, Frontiers, SubscribeResponse
from controller_proto.script import Words

__all__ = ["DIRECTIVES"]

_EVERY_S = 0.005  # between looks at what only the file system shows


def await_frontier(run: Run, words: Words, body: Sequence[str]) -> list[str]:
    id, ts = parse_id(words.one("id")), parse_u64(words.one("ts"), "ts")
    timeout_s, allowed = run.wait_s(words), words.flag("allow-timeout")
    session = run.session

    def reached() -> bool:
        frontier = session.write_frontier(id)
        return frontier is not None and (not frontier or frontier[0] >= ts)

    try:
        session.wait(reached, timeout_s)
    except TimeoutError:
        if not allowed:
            raise
        return ["timeout"]
    return OK


def status(run: Run, words: Words, body: Sequence[str]) -> list[str]:
    """`hydrated rows=3/3`; behind it why, of what is stalled or errored."""
    id, session = parse_id(words.one("id")), run.session
    session.listen(0)
    said = session.statuses.get(id)
    if said is None:
        return ["?"]
    why = f" {said.code}: {said.message}" if said.code else ""
    return [f"{said.status} rows={said.rows_done}/{said.rows_expected}{why}"]


def await_status(run: Run, words: Words, body: Sequence[str]) -> list[str]:
    id, wanted, statuses = parse_id(words.one("id")), words.one("status"), run.session.statuses
    run.session.wait(lambda: id in statuses and statuses[id].status == wanted, run.wait_s(words))
    return OK


def await_subscribe(run: Run, words: Words, body: Sequence[str]) -> list[str]:
    """All that was told of times before up-to, `<time> <diff> <values..>` a line, consolidated, sorted."""
    id, up_to = parse_id(words.one("id")), frontier_of(words, "up-to")
    stream, export = run.session.streams.get(id), run.indexes.get(id)
    if stream is None or export is None:
        raise LocalProtocolError("unknown-id", f"{id} is no subscription of this connection")
    run.session.wait(lambda: stream.is_over or _reached(stream.upper, up_to), run.wait_s(words))
    return stream.lines(up_to, export.schema.columns)


def await_copy(run: Run, words: Words, body: Sequence[str]) -> list[str]:
    """How many rows were written, or why there is no file."""
    id, copies = parse_id(words.one("id")), run.session.copies
    run.session.wait(lambda: id in copies, run.wait_s(words))
    result = copies[id]
    if isinstance(result, CopyError):
        return [f"error: {result.code}: {result.message}"]
    return [f"copied {result.rows}"]


def frontiers(run: Run, words: Words, body: Sequence[str]) -> list[str]:
    run.session.listen(0)
    known = run.session.frontiers.get(parse_id(words.one("id")), {})
    return [" ".join(f"{kind}={frontier_text(known.get(kind))}" for kind in FRONTIER_KINDS)]


def published(run: Run, words: Words, body: Sequence[str]) -> list[str]:
    """What the page says; `fields=since,upper` leaves out what depends on how far merges have come."""
    id, fields = parse_id(words.one("id")), words.get("fields")
    found = pages.published(run.launched().instance, id)
    if found is None:
        raise LocalProtocolError("unknown-id", f"{id} is not published")
    said = {
        "since": frontier_text(found.since),
        "upper": frontier_text(found.upper),
        "batches": str(found.batches),
    }
    wanted = list(said) if fields is None else fields.split(",")
    if not said.keys() >= set(wanted):
        raise LocalProtocolError("bad-message", f"fields={fields}: there are {', '.join(said)}")
    return [" ".join(f"{field}={said[field]}" for field in wanted)]


def await_published(run: Run, words: Words, body: Sequence[str]) -> list[str]:
    """Until its page exists and, with `since=` or `upper=`, has come that far."""
    id, token = parse_id(words.one("id")), run.launched().instance
    since, upper = frontier_of(words, "since", "0"), frontier_of(words, "upper", "0")

    def there() -> bool:
        found = pages.published(token, id)
        return found is not None and _reached(found.since, since) and _reached(found.upper, upper)

    _look_until(run, there, run.wait_s(words))
    return OK


def _reached(frontier: WireFrontier, wanted: WireFrontier) -> bool:
    """Whether `frontier` is at or beyond `wanted`; the empty one is beyond all."""
    return not frontier or (bool(wanted) and frontier[0] >= wanted[0])


def await_gone(run: Run, words: Words, body: Sequence[str]) -> list[str]:
    id, token, session = parse_id(words.one("id")), run.launched().instance, run.session

    def gone() -> bool:
        stream, known = session.streams.get(id), session.frontiers.get(id, {})
        told = stream.is_over if stream else all(known.get(kind) == () for kind in FRONTIER_KINDS)
        return told and not pages.page_names(token, id)

    _look_until(run, gone, run.wait_s(words))
    return OK


def _look_until(run: Run, condition: Callable[[], bool], timeout_s: float) -> None:
    """Wait for a state of the file system, which nothing announces to us; answers are taken in meanwhile,
    if there is a connection.
    """
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError
        if run.on in run.sessions:
            run.session.take_one(_EVERY_S)
        else:
            with run.interrupts.may_strike():
                time.sleep(_EVERY_S)


def quiet(run: Run, words: Words, body: Sequence[str]) -> list[str]:
    """An answer that came before, and that nobody awaited, counts as arriving meanwhile."""
    duration_s, kind = parse_u64(words.one("ms"), "ms") / 1000, words.get("kind")
    session = run.session
    start = len(session.arrived)
    session.listen(duration_s)
    output = []
    for response in session.arrived[start:]:
        if isinstance(response, Frontiers) and kind in (None, "frontiers"):
            said = (f"{k}={frontier_text(getattr(response, k))}" for k in FRONTIER_KINDS)
            output.append(f"frontiers {response.id} {' '.join(said)}")
        if isinstance(response, SubscribeResponse) and kind in (None, "subscribe"):
            output.append(f"subscribe {response.id}: {type(response.said).__name__}")
    if kind in (None, "peek"):
        for name, started in run.started.items():
            answer = session.answers.get(started.peek.uuid)
            if answer is not None and not started.awaited and started.session is session:
                output.append(f"peek {name}: {type(answer.result).__name__}")
    return output or OK


DIRECTIVES: Mapping[str, Directive] = {
    "await-frontier": Directive(
        await_frontier,
        "id= ts= [timeout-secs=] [allow-timeout]",
        "Waits until all before ts is reported sealed.",
    ),
    "await-subscribe": Directive(
        await_subscribe,
        "id= up-to= [timeout-secs=]",
        "Waits until all before up-to was told; TIME DIFF VALUES.. a line.",
    ),
    "await-copy": Directive(
        await_copy, "id= [timeout-secs=]", "Waits until a copy is answered; how many rows it wrote."
    ),
    "await-status": Directive(
        await_status,
        f"id= status={'|'.join(STATES)} [timeout-secs=]",
        "Waits until that is the status last reported.",
    ),
    "status": Directive(status, "id=", "The status as last reported, and rows read; ? if there is none."),
    "frontiers": Directive(frontiers, "id=", "The frontiers as last reported; ? if one was not yet."),
    "published": Directive(published, "id= [fields=]", "What its page in shared memory says."),
    "await-published": Directive(
        await_published,
        "id= [since=] [upper=] [timeout-secs=]",
        "Waits until it has a page, one that has come so far.",
    ),
    "await-gone": Directive(
        await_gone,
        "id= [timeout-secs=]",
        "Waits until it is reported closed, and its shared memory is away.",
    ),
    "quiet": Directive(quiet, "ms= [kind=frontiers|peek|subscribe]", "Listens so long; what came."),
}
