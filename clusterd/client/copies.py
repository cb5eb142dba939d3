"""Copies: a collection at one time, written by the replica to a file.

The dataflow that writes it is dropped once it is answered, or nobody waits for it any more: then there is no
file.

Does not: wait; the operation here says for what.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from clusterd.client.arguments import require_list, time_of
from clusterd.client.core import Core
from clusterd.client.dataflows import Dataflows
from clusterd.client.handle import Handle
from clusterd.client.operation import Operation, Wait
from controller_proto import command
from controller_proto.dataflow import Export
from controller_proto.ids import GlobalId
from controller_proto.plan import Plan
from controller_proto.response import CopyError
from controller_proto.schema import Schema

__all__ = ["CopyFailed", "copy_to"]

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")  # else it is a path


class CopyFailed(Exception):
    """There is no file; `code` is stable. Its text is `CODE: MESSAGE; HINT`."""

    def __init__(self, code: str, message: str, hint: str = "") -> None:
        super().__init__(f"{code}: {message}; {hint}" if hint else f"{code}: {message}")
        self.code = code
        self.message = message
        self.hint = hint


def copy_to(
    core: Core,
    dataflows: Dataflows,
    on: str | Plan | Handle,
    to: str | Path,
    format: str,
    as_of: int | None,
    names: Sequence[str] | None,
    timeout_s: float | None,
) -> Operation[int]:
    """As `Client.copy_to`."""
    require_list("names", names)
    as_of = time_of(as_of, "as_of")
    uri = to if isinstance(to, str) and _SCHEME.match(to) else str(Path(to).absolute())
    plan = yield from dataflows.input(on)
    id = dataflows.fresh("t")

    def export(on_id: GlobalId, schema: Schema) -> Export:
        return Export(id, "copy-to", on_id, schema, uri=uri, format=format)

    header, body = yield from dataflows.dataflow(plan, names, as_of, None, export)
    core.expect_copy(id)
    try:
        yield from dataflows.create_dataflow(header, body, schedule=True)  # whoever gives up here drops it
        try:
            yield Wait(("copy", id), lambda: id in core.copied, timeout_s)
        except TimeoutError:
            raise TimeoutError(f"{uri} was not written after {timeout_s:g} s") from None
        finally:
            core.give_up(command.AllowCompaction(0, id, ()))
        result = core.copied[id]
    finally:
        core.forget_copy(id)
    if isinstance(result, CopyError):
        raise CopyFailed(result.code, result.message, result.hint)
    return result.rows
