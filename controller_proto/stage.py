"""Which message may be said in which stage, and which stage it leads to: tables, and nothing else.

Both ends run the same tables, so neither needs to know its role here. A command moves the stage; a `Refused`
that names a command takes back the move which that command made, and all later ones, at both ends alike: a
refused command has no effect.

The stage is moved by commands as they are *sent* at one end and as they are *received* at the other. Each
stage lets the replica say at least what the one before let it say, so what is still under way stays legal.
"""

from __future__ import annotations

import enum

from controller_proto.command import (
    AllowCompaction,
    AllowWrites,
    CancelPeek,
    Command,
    CreateDataflow,
    CreateInstance,
    Hello,
    InitializationComplete,
    Peek,
    Schedule,
    Sync,
    TestHook,
    UpdateConfiguration,
)
from controller_proto.response import (
    Closing,
    CopyToResponse,
    Frontiers,
    PeekPart,
    PeekResponse,
    Refused,
    Response,
    Status,
    SubscribeResponse,
    Synced,
)

__all__ = ["COMMANDS", "RESPONSES", "Stage", "StageMachine"]


class Stage(enum.Enum):
    """How far a conversation is."""

    CONNECTED = "connected"  # nothing said yet
    CREATION = "creation"
    INITIALISATION = "initialisation"
    COMPUTATION = "computation"
    READER = "reader"  # a connection beside the controller's
    CLOSED = "closed"


_SAME = None  # the stage stays

_WORK: dict[type, Stage | None] = dict.fromkeys(
    (
        UpdateConfiguration,
        CreateDataflow,
        Schedule,
        AllowWrites,
        AllowCompaction,
        Peek,
        CancelPeek,
        Sync,
        TestHook,
    ),
    _SAME,
)

# stage -> command -> next stage. A command that is missing is illegal there; Hello has its own table.
COMMANDS: dict[Stage, dict[type, Stage | None]] = {
    Stage.CONNECTED: {},
    Stage.CREATION: {CreateInstance: Stage.INITIALISATION},
    Stage.INITIALISATION: {**_WORK, InitializationComplete: Stage.COMPUTATION},
    Stage.COMPUTATION: _WORK,
    # A reader's dataflows are its subscriptions, and no others' (clusterd.multiplexer).
    Stage.READER: dict.fromkeys((CreateDataflow, Schedule, AllowCompaction, Peek, CancelPeek, Sync), _SAME),
    Stage.CLOSED: {},
}

# The first Hello of a connection says which kind of connection it is.
HELLO: dict[str, Stage] = {"controller": Stage.CREATION, "reader": Stage.READER}

_ALWAYS = frozenset({Refused, Closing})
_NEWS = frozenset({Synced, PeekPart, PeekResponse, SubscribeResponse})

RESPONSES: dict[Stage, frozenset[type]] = {
    Stage.CONNECTED: _ALWAYS,
    Stage.CREATION: _ALWAYS,
    Stage.INITIALISATION: _ALWAYS | _NEWS | {Frontiers, Status, CopyToResponse},
    Stage.COMPUTATION: _ALWAYS | _NEWS | {Frontiers, Status, CopyToResponse},
    Stage.READER: _ALWAYS | _NEWS,
    Stage.CLOSED: frozenset(),
}


class StageMachine:
    """The stage of one connection.

    >>> machine = StageMachine()
    >>> machine.command(Hello(1, nonce="a")), machine.command(CreateInstance(2)), machine.stage
    (None, None, <Stage.INITIALISATION: 'initialisation'>)
    >>> machine.response(Refused(2, "unknown-setting", "no setting is called x")), machine.stage
    (None, <Stage.CREATION: 'creation'>)
    """

    __slots__ = ("_moves", "last_seq", "stage")

    def __init__(self) -> None:
        self.stage = Stage.CONNECTED
        self.last_seq = 0
        self._moves: list[tuple[int, Stage]] = []  # at most three: (seq of the command, stage before it)

    def command(self, command: Command) -> tuple[str, str] | None:
        """Take `command`: (code, message) if it is illegal here and changed nothing, else None."""
        if command.seq <= self.last_seq:
            return "bad-message", f"seq {command.seq} does not rise: the last was {self.last_seq}"
        self.last_seq = command.seq
        if isinstance(command, Hello) and self.stage is Stage.CONNECTED:
            if command.kind not in HELLO:
                return "bad-message", f"hello of kind {command.kind!r}: it is controller or reader"
            self._move(command.seq, HELLO[command.kind])
            return None
        table = COMMANDS[self.stage]
        if type(command) not in table:
            name = command.__struct_config__.tag
            return "invalid-stage", f"{name} is not legal in stage {self.stage.value}"
        target = table[type(command)]
        if target is not _SAME:
            self._move(command.seq, target)
        return None

    def response(self, response: Response) -> tuple[str, str] | None:
        """Take `response`: (code, message) if it is illegal here and changed nothing, else None."""
        if type(response) not in RESPONSES[self.stage]:
            name = response.__struct_config__.tag
            return "invalid-stage", f"{name} is not legal in stage {self.stage.value}"
        if isinstance(response, Closing):
            self.close()
        elif isinstance(response, Refused):
            for position, (seq, before) in enumerate(self._moves):
                if seq == response.seq:
                    self.stage = before
                    del self._moves[position:]
                    break
        return None

    def close(self) -> None:
        self.stage = Stage.CLOSED
        self._moves.clear()

    def _move(self, seq: int, stage: Stage) -> None:
        self._moves.append((seq, self.stage))
        self.stage = stage
