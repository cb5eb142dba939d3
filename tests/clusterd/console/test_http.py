"""The console over HTTP: what each path answers, and what peers that mean no good get."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.clusterd.console.made_up import MadeUp, Served, serving

WITHIN_S = 10.0


def made_up() -> MadeUp:
    return MadeUp(
        {
            "metrics": [
                ("peeks_total", "peeks_total", "counter", 'path="point",result="rows"', 7.0),
                ("peek_s_bucket", "peek_s", "histogram", 'le="+Inf",phase="read"', 2.0),
                ("peek_s_bucket", "peek_s", "histogram", 'le="0.5",phase="read"', 1.0),
                ("peek_s_sum", "peek_s", "histogram", 'phase="read"', 0.75),
                ("peek_s_count", "peek_s", "histogram", 'phase="read"', 2.0),
                ("frontier_lag", "frontier_lag", "gauge", 'id="u\\\\1\\"\\n"', 3.0),
            ],
            "config": [("wait_limit", "5.5", "setting")],
        }
    )


Answer = tuple[int, dict[str, str], bytes]


async def exchange(served: Served, sent: bytes, *, half_close: bool = True) -> list[Answer]:
    """All answers to raw bytes, until the other end closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
    try:
        writer.write(sent)
        if half_close:
            writer.write_eof()
        return answers(await reader.read())
    finally:
        writer.close()
        await writer.wait_closed()


def answers(data: bytes) -> list[Answer]:
    found = []
    while data:
        head, _, data = data.partition(b"\r\n\r\n")
        status, *lines = head.decode().split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        size = int(headers.get("content-length", 0))
        found.append((int(status.split()[1]), headers, data[:size]))
        data = data[size:]
    return found


async def ask(served: Served, line: str, headers: dict[str, str] | None = None) -> Answer:
    every = {"Host": served.host, **(headers or {})}
    text = "".join(f"{name}: {value}\r\n" for name, value in every.items())
    (answer,) = await exchange(served, f"{line} HTTP/1.1\r\n{text}\r\n".encode())
    return answer


def run(test: Callable[[Served], Awaitable[None]], source: MadeUp | None = None, **limits: Any) -> None:
    async def inside() -> None:
        async with asyncio.timeout(WITHIN_S), serving(source or made_up(), **limits) as served:
            await test(served)

    asyncio.run(inside())


def test_metrics_are_what_the_relation_holds_in_a_scrapers_words() -> None:
    async def test(served: Served) -> None:
        status, headers, body = await ask(served, "GET /metrics")
        assert status == 200
        assert headers["content-type"].startswith("text/plain; version=0.0.4")
        text = body.decode()
        assert "# HELP peeks_total answered peeks\n# TYPE peeks_total counter\n" in text
        assert 'peeks_total{path="point",result="rows"} 7.0\n' in text
        assert "# TYPE peek_s histogram\n" in text
        assert text.index('le="0.5"') < text.index('le="+Inf"')
        assert 'frontier_lag{id="u\\\\1\\"\\n"} 3.0' in text
        served.source.change("metrics", [(served.source.held["metrics"][-1], -1)])
        assert b"frontier_lag" not in (await ask(served, "GET /metrics"))[2]
        accept = {"Accept": "application/openmetrics-text;version=1.0.0"}
        _, headers, body = await ask(served, "GET /metrics", accept)
        assert headers["content-type"].startswith("application/openmetrics-text")
        assert body.endswith(b"# EOF\n")

    run(test)


def test_it_is_live_and_not_ready_while_the_daemon_does_not_answer() -> None:
    async def test(served: Served) -> None:
        assert (await ask(served, "GET /ready"))[0] == 200
        served.source.go("no socket there")
        status, _, body = await ask(served, "GET /ready")
        assert (status, body) == (503, b"disconnected: no socket there\n")
        assert (await ask(served, "GET /metrics"))[0] == 503
        assert (await ask(served, "GET /live"))[0] == 200

    run(test)


def test_the_page_and_its_files_are_there_and_nothing_else_is() -> None:
    async def test(served: Served) -> None:
        status, headers, body = await ask(served, "GET /")
        assert (status, headers["content-type"]) == (200, "text/html; charset=utf-8")
        assert "default-src 'none'" in headers["content-security-policy"]
        assert b"http://" not in body.replace(b"http://www.w3.org/", b"")
        assert b"https://" not in body
        assert (await ask(served, "GET /", {"If-None-Match": headers["etag"]}))[0] == 304
        status, head, nothing = await ask(served, "HEAD /")
        assert (status, nothing, head["content-length"]) == (200, b"", str(len(body)))
        for path in (
            "/static/../app.py", "/static/%2e%2e/app.py", "//etc/passwd", "/static/", "/static/index.html/..",
            "/../../etc/passwd", "/static/..%2f..%2fapp.py", "/peeks/1/cancel", "/peeks/x/y/cancel",
        ):  # fmt: skip
            assert (await ask(served, f"GET {path}"))[0] == 404, path

    run(test)


def test_a_method_that_means_nothing_is_told_so() -> None:
    async def test(served: Served) -> None:
        for method in ("POST", "DELETE", "TRACE", "BREW"):
            status, headers, _ = await ask(served, f"{method} /")
            assert (status, headers["allow"]) == (405, "GET, HEAD")
        status, headers, _ = await ask(served, "GET /peeks/1/a/cancel")
        assert (status, headers["allow"]) == (405, "POST")

    run(test)


def test_only_the_page_itself_cancels_a_peek() -> None:
    async def test(served: Served) -> None:
        line = "POST /peeks/3/a%2Fb%20%C3%A9/cancel"
        for origin in ("http://evil.example", "null", "http://127.0.0.1:1"):
            assert (await ask(served, line, {"Origin": origin}))[0] == 403, origin
        assert (await ask(served, line))[0] == 403
        assert served.source.canceled == []
        assert (await ask(served, line, {"Origin": f"http://{served.host}"}))[0] == 202
        assert served.source.canceled == [(3, "a/b é")]

    run(test)


def test_a_site_that_has_its_own_name_point_here_sees_no_page() -> None:
    async def test(served: Served) -> None:
        for path in ("/", "/events", "/static/style.css"):
            assert (await ask(served, f"GET {path}", {"Host": "evil.example"}))[0] == 421
        evil = {"Host": "evil.example", "Origin": "http://evil.example"}
        assert (await ask(served, "POST /peeks/3/a/cancel", evil))[0] == 421
        assert (await ask(served, "GET /metrics", {"Host": "replica.example"}))[0] == 200
        assert (await ask(served, "GET /", {"Host": "[::1]:80"}))[0] == 200
        assert (await ask(served, "GET /", {"Host": "[bad"}))[0] == 421

    run(test)


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 100_000 + b"\r\n\r\n", 431),
        (b"GET /" + b"a" * 100_000, 431),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: x\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 999999\r\n\r\n" + b"x" * 20_000, 413),
        (b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", 400),
    ],
)
def test_what_is_no_request_is_refused_and_the_connection_ends(sent: bytes, status: int) -> None:
    async def test(served: Served) -> None:
        ((found, headers, _),) = await exchange(served, sent)
        assert (found, headers["connection"]) == (status, "close")
        assert (await ask(served, "GET /live"))[0] == 200

    run(test)


def test_requests_in_one_packet_are_answered_in_turn() -> None:
    async def test(served: Served) -> None:
        one = f"GET /live HTTP/1.1\r\nHost: {served.host}\r\n\r\n".encode()
        found = await exchange(served, one * 5 + one.replace(b"/live", b"/nothing"))
        assert [status for status, _, _ in found] == [200] * 5 + [404]

    run(test)


def test_a_peer_that_sends_one_byte_now_and_then_is_left_and_holds_up_nobody() -> None:
    async def test(served: Served) -> None:
        slow = [await asyncio.open_connection("127.0.0.1", served.port) for _ in range(7)]
        for _, writer in slow:
            writer.write(b"GET / HTTP/1.1\r\nHost: a\r\nX: ")
            await writer.drain()
        assert (await ask(served, "GET /live"))[0] == 200
        for reader, writer in slow:  # told, and closed, though none of them ends its request
            ((status, _, _),) = answers(await reader.read())
            assert status == 408
            writer.close()

    run(test, request_s=0.2, max_connections=8)


def test_more_connections_than_are_served_are_told_so() -> None:
    async def test(served: Served) -> None:
        held = [await asyncio.open_connection("127.0.0.1", served.port) for _ in range(2)]
        for reader, writer in held:  # both are being served: they were answered
            writer.write(f"GET /live HTTP/1.1\r\nHost: {served.host}\r\n\r\n".encode())
            assert b"200" in await reader.readline()
        assert (await ask(served, "GET /live"))[0] == 503
        for _, writer in held:
            writer.close()

    run(test, max_connections=2)


async def events(reader: asyncio.StreamReader) -> Any:
    """The next event, as (name, data)."""
    name = ""
    while True:
        line = (await reader.readline()).decode().strip()
        if line.startswith("event: "):
            name = line.removeprefix("event: ")
        elif line.startswith("data: "):
            return name, json.loads(line.removeprefix("data: "))


@pytest.mark.slow
def test_a_page_is_told_what_there_is_what_changes_and_when_the_daemon_goes_and_comes() -> None:
    async def test(served: Served) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(f"GET /events HTTP/1.1\r\nHost: {served.host}\r\n\r\n".encode())
        name, state = await events(reader)
        while not state["there"]:
            name, state = await events(reader)
        assert (name, state["columns"]["config"]) == ("state", ["name", "value", "kind"])
        name, change = await events(reader)
        assert (name, change["config"]) == (
            "change",
            {"came": [["wait_limit", "5.5", "setting"]], "went": []},
        )
        old, new = ("wait_limit", "5.5", "setting"), ("wait_limit", (1 << 64) - 1, "setting")
        served.source.change("config", [(old, -1), (new, 1)])
        _, change = await events(reader)
        exact = str((1 << 64) - 1)
        assert change == {"config": {"came": [["wait_limit", exact, "setting"]], "went": [list(old)]}}
        served.source.go("the replica is stopping")
        name, state = await events(reader)
        assert (name, state["there"], state["why"]) == ("state", False, "the replica is stopping")
        served.source.come()
        while not (told := await events(reader))[1].get("there"):
            pass
        assert told[0] == "state"
        assert (await events(reader))[1]["config"]["came"] == [["wait_limit", exact, "setting"]]
        writer.close()
        await writer.wait_closed()
        while served.source.is_watched:  # with the last page the subscriptions go
            await asyncio.sleep(0.01)

    run(test)
