"""Why something did not come, as far as what this driver has said and heard tells.

Does not: ask the replica, which may know better.
"""

from __future__ import annotations

from clusterd.driver.session import Session
from clusterd.driver.state import Run, frontier_text
from controller_proto.errors import ProtocolError
from controller_proto.ids import GlobalId, parse_id
from controller_proto.script import split_words

__all__ = ["not_an_export", "reasons"]

_WAITS = (
    "await-frontier", "await-published", "await-subscribe", "await-copy", "peek", "count", "await-peek",
)  # fmt: skip


def reasons(run: Run, line: str) -> list[str]:
    """Why the directive `line` waited in vain: one text, or none if nothing is known."""
    try:
        words = split_words(line)
        started = run.started.get(words.get("name") or "") if words.name == "await-peek" else None
        id = started.peek.id if started is not None else parse_id(words.one("id"))
    except ProtocolError:
        return []
    session = run.sessions.get(run.on) if started is None else started.session
    if words.name not in _WAITS or session is None:
        return []
    if session.kind != "controller":
        return ["a reader hears of no frontiers"] if words.name == "await-frontier" else []
    return ["; ".join(_of_controller(run, session, id))]


def _of_controller(run: Run, session: Session, id: GlobalId) -> list[str]:
    why = []
    if id not in session.as_of:
        why.append(not_an_export(run, id) or f"{id} was not created on this connection")
    elif id not in session.scheduled:
        why.append(f"{id} was never scheduled")
    if not session.initialized:
        why.append("initialization-complete was not sent")
    if not why:
        frontier = session.write_frontier(id)
        come = "nothing was" if frontier is None else f"write={frontier_text(frontier)} was last"
        why.append(f"{come} reported of {id}")
    return why


def not_an_export(run: Run, id: GlobalId) -> str:
    """What `id` is in a dataflow of this script if it is no export of one, and which exports are; else ""."""
    for text in run.dataflows.values():
        builds = {build.id for build in text.builds}
        imports = {source.id for source in text.sources}
        if id in builds | imports and text.exports:
            what = "a build" if id in builds else "an import"
            exports = ", ".join(export.id for export in text.exports)
            return f"{id} is {what}, the id of an export is wanted: {exports}"
    return ""
