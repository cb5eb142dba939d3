"""What the multiplexer says of itself.

Does not: decide when (progress.py).
"""

from __future__ import annotations

import os
import time

import msgspec

from clusterd.introspection.sample import MuxSample
from clusterd.multiplexer import Multiplexer

__all__ = ["collect_mux"]

_encode = msgspec.msgpack.Encoder().encode


def collect_mux(mux: Multiplexer) -> bytes:
    """An encoded MuxSample."""
    told = mux.statistics()
    settings = tuple((name, msgspec.json.encode(value).decode()) for name, value in mux.settings.items())
    notices = told.notices.values()
    counters = (
        ("clusterd_wakes_sent_total", sum(each.sent for each in notices)),
        ("clusterd_wakes_coalesced_total", sum(each.coalesced + each.put_off for each in notices)),
    )
    now_ms = time.time_ns() // 1_000_000
    return _encode(MuxSample("mux", "mux", os.getpid(), now_ms, told.sessions, settings, counters))
