"""What the supervisor says of itself, once: which processes there are, and what was fixed at start.

Does not: change while the replica lives.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from clusterd.config import Config
from clusterd.introspection.sample import SupervisorSample

__all__ = ["collect_supervisor"]


def collect_supervisor(pids: Mapping[str, int], config: Config) -> bytes:
    """An encoded SupervisorSample. pids: of every process, by name."""
    settings = tuple(_flat("", msgspec.to_builtins(config)))
    now_ms = time.time_ns() // 1_000_000
    sample = SupervisorSample("supervisor", "supervisor", os.getpid(), now_ms, tuple(pids.items()), settings)
    return msgspec.msgpack.encode(sample)


def _flat(prefix: str, values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Knobs by name: `mux.flush_s`."""
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _flat(f"{prefix}{name}.", value)
        else:
            yield prefix + name, msgspec.json.encode(value).decode()
