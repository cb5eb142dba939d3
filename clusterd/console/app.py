"""App: which path answers what. Everything of the daemon comes from a `Source`.

    GET /            the page, with its files under /static/
    GET /events      what changes in the relations, as server-sent events (events.py)
    GET /metrics     the relation `metrics` as Prometheus text, or OpenMetrics for who asks for it
    GET /live        200 as long as this process turns; it ends with any other of the daemon
    GET /ready       200 if the daemon takes questions, else 503 and why
    POST /peeks/SESSION/UUID/cancel

The page is for who was told its address. So its paths answer only under a name that cannot be another site's
(an IP address, localhost, this machine's name, or the one that was listened on), which keeps out pages that
have their own name point here; and a POST has to come from the page itself, by its `Origin`.

Does not: know who asks; the address is this machine's own unless `--http` says otherwise.
"""

from __future__ import annotations

import hashlib
import ipaddress
import re
import socket
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from urllib.parse import unquote, urlsplit

from clusterd.console.events import MAX_WATCHERS, Events
from clusterd.console.http import Request, Response, said
from clusterd.console.metrics_text import metrics_text
from clusterd.console.reader import Unanswered
from clusterd.console.source import Source

__all__ = ["COMMON_HEADERS", "App"]

# The page loads nothing but its own files, is in nobody's frame, and says nothing about itself elsewhere.
COMMON_HEADERS: Mapping[str, str] = MappingProxyType(
    {
        "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
        "cross-origin-resource-policy": "same-origin",
        "referrer-policy": "no-referrer",
        "x-content-type-options": "nosniff",
    }
)
_TYPES: Mapping[str, str] = MappingProxyType(
    {
        ".html": "text/html; charset=utf-8",
        ".css": "text/css; charset=utf-8",
        ".js": "text/javascript; charset=utf-8",
        ".svg": "image/svg+xml",
    }
)
_STATIC = Path(__file__).parent / "static"
_CANCEL = re.compile(r"/peeks/([0-9]{1,19})/([^/]{1,512})/cancel")


class App:
    """Answers requests. host: the name that was listened on."""

    def __init__(self, source: Source, host: str) -> None:
        self._source = source
        self._events = Events(source)
        self._names = {"localhost", host.lower(), socket.gethostname().lower()}
        self._files = {f"/static/{path.name}": _file(path) for path in sorted(_STATIC.iterdir())}
        self._files["/"] = self._files.pop("/static/index.html")
        self._pages: dict[str, Callable[[Request], Awaitable[Response]]] = {
            "/events": self._watch,
            "/metrics": self._metrics,
            "/live": self._live,
            "/ready": self._ready,
            **dict.fromkeys(self._files, self._static),
        }

    async def handle(self, request: Request) -> Response:
        if request.path in ("/metrics", "/live", "/ready"):
            pass  # tells no secret; scraped by whatever name a service has
        elif not self._is_ours(request.headers.get("host", "")):
            return said(421, "ask for this page by an address or by this machine's name")
        cancel = _CANCEL.fullmatch(request.path)
        if cancel is not None:
            if request.method != "POST":
                return said(405, "POST cancels a peek", {"allow": "POST"})
            return await self._cancel(request, int(cancel[1]), unquote(cancel[2]))
        page = self._pages.get(request.path)
        if page is None:
            return said(404, "there is nothing here; the page is at /")
        if request.method not in ("GET", "HEAD"):
            return said(405, f"{request.method} means nothing here", {"allow": "GET, HEAD"})
        return await page(request)

    def _is_ours(self, host: str) -> bool:
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            return False
        if name in self._names:
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True

    async def _static(self, request: Request) -> Response:
        kind, tag, body = self._files[request.path]
        headers = {"content-type": kind, "etag": tag, "cache-control": "no-cache"}
        if request.headers.get("if-none-match") == tag:
            return Response(304, headers)
        return Response(200, headers, body)

    async def _watch(self, request: Request) -> Response:
        if self._events.is_full:
            return said(503, f"{MAX_WATCHERS} pages are open, which is as many as are kept up to date")
        headers = {"content-type": "text/event-stream", "cache-control": "no-store"}
        return Response(200, headers, b"retry: 1000\n\n", self._events.stream())

    async def _metrics(self, request: Request) -> Response:
        try:
            rows = await self._source.rows("metrics")
        except Unanswered as error:
            return said(503, str(error))
        columns, meanings = self._source.columns["metrics"], self._source.metrics
        kind, body = metrics_text(columns, rows, meanings, request.headers.get("accept", ""))
        return Response(200, {"content-type": kind, "cache-control": "no-store"}, body)

    async def _live(self, request: Request) -> Response:
        return said(200, "live")

    async def _ready(self, request: Request) -> Response:
        try:
            await self._source.ready()
        except Unanswered as error:
            return said(503, str(error))
        return said(200, "ready")

    async def _cancel(self, request: Request, session: int, uuid: str) -> Response:
        origin = urlsplit(request.headers.get("origin", ""))
        if not origin.netloc or origin.netloc != request.headers.get("host"):
            return said(403, "only the page itself cancels peeks: the request has another origin, or none")
        try:
            await self._source.cancel(session, uuid)
        except Unanswered as error:
            return said(503, str(error))
        return said(202, "asked for; the peek goes from the list once it is answered")


def _file(path: Path) -> tuple[str, str, bytes]:
    body = path.read_bytes()
    return _TYPES[path.suffix], f'"{hashlib.sha256(body).hexdigest()[:16]}"', body
