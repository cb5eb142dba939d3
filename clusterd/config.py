"""Every knob, in two kinds: `Config`, fixed at start by whoever launches, and the dynamic settings registry.

A dynamic setting is named on the wire (CreateInstance, UpdateConfiguration); `merge_settings` is the one
judge of names, types and ranges, so that all processes hold the same values and none needs to check again.

Does not: read the environment or argv (`__main__` does), apply anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from controller_proto.errors import Refusal

__all__ = [
    "DEFAULTS",
    "SETTINGS",
    "Config",
    "MuxConfig",
    "Setting",
    "SupervisorConfig",
    "WorkerConfig",
    "merge_settings",
]

Value = bool | int | float | str


class MuxConfig(msgspec.Struct, frozen=True):
    """The multiplexer's knobs."""

    max_frame_bytes: int = 64 << 20  # a message; a large answer is several, of 256 KiB or a row
    frames_per_turn: int = 64  # of one connection before the next has its turn: fairness between sessions
    client_pause_bytes: int = 4 << 20  # unread answers beyond which a connection's commands are not read
    client_limit_bytes: int = 256 << 20  # unread answers beyond which the connection is closed: `limit`
    subscription_limit_bytes: int = 128 << 20  # unread answers beyond which a subscription ends: `limit`
    worker_backlog_bytes: int = (
        64 << 20
    )  # commands a worker has not taken beyond which more are refused: `limit`
    max_connections: int = 1024  # well below the descriptor limit the supervisor raises to
    flush_s: float = 0.5  # when stopping: how long clients may take to read their last message


class SupervisorConfig(msgspec.Struct, frozen=True):
    """The supervisor's knobs."""

    stop_deadline_s: float = 5.0  # ordered stop; a chunk is 50 ms, so this is a hundred times what is needed
    kill_deadline_s: float = 1.0  # from SIGKILL to the last child reaped; R1 gives 2 s in all
    lock_deadline_s: float = 2.0  # waiting for another daemon that is binding in the same directory


class WorkerConfig(msgspec.Struct, frozen=True):
    """Knobs of maintenance, interactive and solo workers."""

    chunk_s: float = 0.05  # R11: the longest a worker goes without reading its pipe


class Config(msgspec.Struct, frozen=True):
    """Everything fixed at start. `validate` turns on whole-structure checks, as tests do."""

    mux: MuxConfig = MuxConfig()
    supervisor: SupervisorConfig = SupervisorConfig()
    worker: WorkerConfig = WorkerConfig()
    functions: str = ""  # the module of the user's functions: PATH.py, or a name; none if empty
    read_cores: tuple[int, ...] = ()  # kept for what serves reads (cores.py); none: the kernel places all
    validate: bool = False
    test_hooks: bool = False


class Setting(msgspec.Struct, frozen=True):
    """A named setting. when: `dynamic`, `fixed` (by the first CreateInstance) or `launch` (launcher only)."""

    name: str
    type: Literal["bool", "u64", "f64", "duration", "string"]
    default: Value
    unit: str
    meaning: str
    when: Literal["dynamic", "fixed", "launch"] = "dynamic"
    choices: tuple[str, ...] = ()


_ALL = (
    Setting(
        "enable_two_runtime_compute", "bool", False, "",
        "start interactive workers; read by the launcher, a running replica ignores it", when="launch",
    ),
    Setting(
        "read_routing", "string", "interactive", "",
        "which runtime answers peeks of maintained indexes; hinted: the one a peek asks for, else maintenance"
        " if its time is not known to be sealed",
        choices=("interactive", "hinted", "maintenance"),
    ),
    Setting(
        "expires_at", "u64", 0, "time",
        "from then on what a temporal filter gives is not kept, and an error; 0 is never",
        when="fixed",
    ),
    # A worker holds the answer in columns while it is put in order and stashed.
    Setting("max_result_bytes", "u64", 256 << 20, "bytes", "largest answer of a peek"),
    Setting("max_result_rows", "u64", 0, "rows", "most rows of an answer, with multiplicity; 0 is no limit"),
    Setting("max_rows_read", "u64", 0, "rows", "most rows that a peek may go through; 0 is no limit"),
    Setting("run_limit", "duration", 0.0, "seconds", "longest that a peek is evaluated; 0 is no limit"),
    # To make a message of 256 KiB takes some 4 ms, in which nobody else has a turn.
    Setting("stash_result_bytes", "u64", 256 << 10, "bytes", "an answer beyond it is told in parts"),
    Setting("wait_limit", "duration", 0.0, "seconds", "longest that a peek is parked; 0 is no limit"),
    Setting("max_peeks_in_flight", "u64", 10_000, "peeks", "unanswered peeks of a session, parked ones too"),
    # A worker plans and looks up in one go, while others wait: 20,000 terms took it 2.7 s.
    Setting("max_peek_keys", "u64", 10_000, "keys", "keys of one peek: a search each, in one go"),
    Setting("max_peek_nodes", "u64", 1_000, "nodes", "expression nodes and columns in a peek's finishing"),
)  # fmt: skip

SETTINGS: Mapping[str, Setting] = {setting.name: setting for setting in _ALL}
DEFAULTS: Mapping[str, Value] = {setting.name: setting.default for setting in _ALL}

_TYPES: Mapping[str, tuple[type, ...]] = {
    "bool": (bool,),
    "u64": (int,),
    "f64": (int, float),
    "duration": (int, float),  # seconds
    "string": (str,),
}


def merge_settings(
    current: Mapping[str, Value], given: Mapping[str, Value], *, settings: Mapping[str, Setting] = SETTINGS
) -> dict[str, Value]:
    """Return `current` overlaid by `given`.

    All or nothing. Raises Refusal: `unknown-setting`, or `bad-message` for a wrong type or range.
    """
    for name, value in given.items():
        setting = settings.get(name)
        if setting is None:
            raise Refusal(
                "unknown-setting", f"{name!r} is not a setting", "known: " + ", ".join(sorted(settings))
            )
        bad_type = not isinstance(value, _TYPES[setting.type]) or (
            isinstance(value, bool) and setting.type != "bool"
        )
        if bad_type:
            raise Refusal("bad-message", f"{name} = {value!r}: expected {setting.type}")
        if setting.type in ("u64", "duration") and not 0 <= float(value) < 2.0**64:
            raise Refusal("bad-message", f"{name} = {value!r}: expected {setting.type}, not negative")
        if setting.choices and value not in setting.choices:
            raise Refusal("bad-message", f"{name} = {value!r}: expected one of {', '.join(setting.choices)}")
    return {**current, **given}
