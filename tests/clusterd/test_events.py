"""Events: one JSON line each, never more than a pipe takes at once, never waited for."""

from __future__ import annotations

import json
import os
import select

from clusterd import events
from clusterd.events import ClientClosed, InstanceSwept, ProcessDied, emit


def lines(fd: int) -> list[dict[str, object]]:
    return [json.loads(line) for line in os.read(fd, 1 << 20).splitlines()]


def test_an_event_is_one_line_with_its_name_and_facts() -> None:
    reader, writer = os.pipe()
    try:
        assert emit(ClientClosed(session=3, code="limit", message="a\nb"), fd=writer)
        (line,) = lines(reader)
        assert (line["event"], line["session"], line["code"], line["message"]) == (
            "ClientClosed",
            3,
            "limit",
            "a\nb",
        )
        assert line["pid"] == os.getpid()
    finally:
        os.close(reader)
        os.close(writer)


def test_a_long_traceback_keeps_its_end_and_the_line_stays_whole() -> None:
    reader, writer = os.pipe()
    try:
        trace = "\n".join(f"frame {i}" for i in range(5000))
        event = ProcessDied(process="mux", pid=1, reason="r", status=13, exception="E: x", traceback=trace)
        assert emit(event, fd=writer)
        raw = os.read(reader, 1 << 20)
        assert len(raw) <= select.PIPE_BUF
        line = json.loads(raw)
        assert line["traceback"].endswith("frame 4999")
        assert line["exception"] == "E: x"
    finally:
        os.close(reader)
        os.close(writer)


def test_a_fact_too_long_for_a_line_leaves_the_name_of_the_event() -> None:
    reader, writer = os.pipe()
    try:
        assert emit(InstanceSwept(tokens=("0123456789ab",) * 1000), fd=writer)
        (line,) = lines(reader)
        assert line["event"] == "InstanceSwept"
    finally:
        os.close(reader)
        os.close(writer)


def test_a_full_pipe_drops_events_and_the_next_one_counts_them() -> None:
    reader, writer = os.pipe()
    try:
        event = ClientClosed(session=1, code="limit", message="x" * 3000)
        while emit(event, fd=writer):
            pass
        assert not emit(event, fd=writer)
        os.read(reader, 1 << 20)
        assert emit(event, fd=writer)
        assert lines(reader)[-1]["dropped_events"] == 2
    finally:
        os.close(reader)
        os.close(writer)
    assert events._dropped == 0


def test_a_reader_that_is_gone_is_no_error() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        assert not emit(ClientClosed(session=1, code="limit", message=""), fd=writer)
    finally:
        os.close(writer)
        events._dropped = 0
