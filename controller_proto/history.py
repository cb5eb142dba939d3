"""History: what a controller has said, kept as short as it can be and still make a replica the same.

A replica is a function of the commands since Hello, so a controller that comes back says them again; of
those, most have no effect any more. What is left is bounded by what stands: one CreateInstance with the
settings in force, each dataflow that something needs (a copy until it is answered) with its `as_of` moved up,
what was scheduled, the peeks
that are not answered, then the compactions, after the peeks so that these stay answerable, then
InitializationComplete and the permissions to write.

An `as_of` is moved to what all exports may be compacted to, but no further than a peek that is open, or a
dataflow that imports one of them, still reads; never that of a query, which reads one time. A dataflow that
was dropped stays as long as another one imports it. So whoever plays the reduced history gets the answers
that the whole one would give, at every time that may still be read.

Does not: send, number commands (`seq` is 0 in what it returns), know what a replica kept.
"""

from __future__ import annotations

from typing import Any

import msgspec

from controller_proto.command import (
    AllowCompaction,
    AllowWrites,
    CancelPeek,
    Command,
    CreateDataflow,
    CreateInstance,
    InitializationComplete,
    Peek,
    Schedule,
    UpdateConfiguration,
)
from controller_proto.dataflow import WireFrontier, is_one_shot
from controller_proto.ids import GlobalId
from controller_proto.response import CopyToResponse, PeekResponse, Refused, Response, Synced

__all__ = ["History"]


class _Made:
    """A dataflow, and what was said of its exports."""

    __slots__ = ("compaction", "create", "scheduled", "writes")

    def __init__(self, create: CreateDataflow) -> None:
        self.create = create
        self.compaction: dict[GlobalId, WireFrontier] = {}
        self.scheduled: dict[GlobalId, None] = {}
        self.writes: dict[GlobalId, None] = {}

    @property
    def ids(self) -> list[GlobalId]:
        return [export.id for export in self.create.header.exports]

    @property
    def is_dropped(self) -> bool:
        return all(self.compaction.get(id) == () for id in self.ids)


class History:
    """Commands of one controller. Give it what is sent and what is answered.

    >>> history = History()
    >>> history.sent(UpdateConfiguration(1, {"peek_fuel": 1}))
    >>> history.sent(UpdateConfiguration(2, {"peek_fuel": 2}))
    >>> history.commands()[0].config
    {'peek_fuel': 2}
    """

    def __init__(self) -> None:
        self._config: dict[str, dict[int, Any]] = {}  # by seq, the last counts; several while not accepted
        self._made: dict[int, _Made] = {}  # by seq, in order
        self._by_id: dict[GlobalId, _Made] = {}
        self._peeks: dict[str, Peek] = {}

    def sent(self, command: Command) -> None:
        """A command went out. Sync, Hello and test hooks leave no trace."""
        match command:
            case CreateInstance(config=config) | UpdateConfiguration(config=config):
                for name, value in config.items():
                    self._config.setdefault(name, {})[command.seq] = value
            case CreateDataflow():
                made = self._made[command.seq] = _Made(command)
                self._by_id.update(dict.fromkeys(made.ids, made))
            case Schedule(id=id) if id in self._by_id:
                self._by_id[id].scheduled[id] = None
            case AllowWrites(id=id) if id in self._by_id:
                self._by_id[id].writes[id] = None
            case AllowCompaction(id=id, frontier=frontier) if id in self._by_id:
                self._compact(self._by_id[id], id, frontier)
            case Peek():
                self._peeks.setdefault(command.uuid, command)
            case CancelPeek(uuid=uuid, session=0):
                self._forget_peek(uuid)
            case _:
                pass

    def heard(self, response: Response) -> None:
        """An answer came: a peek or a copy is over, a command was refused, or everything so far was judged
        (Synced).
        """
        if isinstance(response, PeekResponse):
            self._forget_peek(response.uuid)
        elif isinstance(response, CopyToResponse):
            made = self._by_id.get(response.id)
            if made is not None:
                self._compact(made, response.id, ())
        elif isinstance(response, Synced):
            for values in self._config.values():
                judged = [seq for seq in values if seq <= response.seq]
                for seq in judged[:-1]:
                    del values[seq]
        elif isinstance(response, Refused):
            for uuid in [uuid for uuid, peek in self._peeks.items() if peek.seq == response.seq]:
                self._forget_peek(uuid)
            for values in self._config.values():
                values.pop(response.seq, None)
            made = self._made.pop(response.seq, None)
            for id in () if made is None else made.ids:
                if self._by_id.get(id) is made:
                    del self._by_id[id]

    def __len__(self) -> int:
        """Dataflows and peeks that are kept."""
        return len(self._made) + len(self._peeks)

    @property
    def open_peeks(self) -> frozenset[str]:
        """Peeks neither answered nor canceled, by uuid."""
        return frozenset(self._peeks)

    def commands(self) -> list[Command]:
        """What to say after Hello, in order; all with `seq` 0."""
        as_ofs = self._as_ofs()
        config = {name: values[max(values)] for name, values in self._config.items() if values}
        out: list[Command] = [CreateInstance(0, config=config)]
        compactions: list[Command] = []
        writes: list[Command] = []
        for seq, made in self._made.items():
            as_of = as_ofs[seq]
            header = msgspec.structs.replace(made.create.header, as_of=as_of)
            out.append(CreateDataflow(0, header, made.create.body))
            out += [Schedule(0, id) for id in made.scheduled]
            for id, frontier in made.compaction.items():
                if not frontier or frontier[0] > as_of:
                    compactions.append(AllowCompaction(0, id, frontier))
            writes += [AllowWrites(0, id) for id in made.writes if made.compaction.get(id) != ()]
        peeks = [msgspec.structs.replace(peek, seq=0) for peek in self._peeks.values()]
        return [*out, *peeks, *compactions, InitializationComplete(0), *writes]

    def _compact(self, made: _Made, id: GlobalId, frontier: WireFrontier) -> None:
        before = made.compaction.get(id, (0,))
        if before and (not frontier or frontier > before):
            made.compaction[id] = frontier
        if made.is_dropped:
            self._forget_unneeded()

    def _forget_peek(self, uuid: str) -> None:
        peek = self._peeks.pop(uuid, None)
        if peek is not None and peek.id in self._by_id and self._by_id[peek.id].is_dropped:
            self._forget_unneeded()

    def _forget_unneeded(self) -> None:
        """Dropped dataflows that nothing imports and no open peek reads; the latest first."""
        read = {peek.id for peek in self._peeks.values()}
        for seq, made in reversed(list(self._made.items())):
            if made.is_dropped and read.isdisjoint(made.ids):
                del self._made[seq]
                for id in made.ids:
                    if self._by_id.get(id) is made:
                        del self._by_id[id]
            else:
                read.update(item.id for item in made.create.header.index_imports)

    def _as_ofs(self) -> dict[int, int]:
        """The `as_of` of each dataflow as it is to be said again."""
        least: dict[GlobalId, int] = {}  # what still reads an id, at which time at the least
        for peek in self._peeks.values():
            if peek.time is not None:
                least[peek.id] = min(peek.time, least.get(peek.id, peek.time))
        found: dict[int, int] = {}
        for seq, made in reversed(self._made.items()):
            header = made.create.header
            as_of = header.as_of
            if not is_one_shot(header):
                allowed = [made.compaction.get(id, (as_of,)) for id in made.ids]
                needed = [frontier[0] for frontier in allowed if frontier]
                needed += [least[id] for id in made.ids if id in least]
                needed += [] if header.until is None else [header.until - 1]
                as_of = max(as_of, min(needed, default=as_of))
            found[seq] = as_of
            for item in header.index_imports:
                least[item.id] = min(as_of, least.get(item.id, as_of))
        return found
