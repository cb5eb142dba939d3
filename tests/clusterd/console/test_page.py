"""The page, in a real browser: what it shows, what keys do, what it says when the daemon goes."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from playwright.async_api import Browser, Page, async_playwright, expect

from clusterd.console import events
from clusterd.console.app import COMMON_HEADERS, App
from clusterd.console.http import HttpServer
from clusterd.introspection.relations import RELATIONS
from clusterd.listening import listen_tcp
from tests.clusterd.console.busy import busy, row
from tests.clusterd.console.made_up import MadeUp, Served, serving

WITHIN_S = 60.0
SOON_MS = 10_000.0
STATIC = Path(events.__file__).parent / "static"


@pytest.fixture
def chromium() -> str:
    """Where it is. CI has to have it: .ci/run installs it."""
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if found is None:
        missing = "there is no chromium: apt-get install chromium"
        (pytest.fail if os.environ.get("CI") else pytest.skip)(missing)
    return found


@asynccontextmanager
async def browsing(executable: str) -> AsyncIterator[Browser]:
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        try:
            yield browser
        finally:
            await browser.close()


class Opened:
    """A page that is open, and whatever went wrong on it. `lost`: whether losing the console is expected."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.wrong: list[str] = []
        self.requested: set[str] = set()
        page.on("console", lambda said: self._note(said.type, said.text))
        page.on("pageerror", lambda error: self.wrong.append(str(error)))
        page.on("request", lambda request: self.requested.add(request.url))

    def _note(self, kind: str, text: str) -> None:
        if kind in ("error", "warning"):
            self.wrong.append(text)


async def opened(browser: Browser, served: Served, width: int = 1280, scheme: str = "light") -> Opened:
    size = {"width": width, "height": 900}
    page = await browser.new_page(viewport=size, color_scheme=scheme)  # type: ignore[arg-type]
    page.set_default_timeout(SOON_MS)
    found = Opened(page)
    await page.goto(f"http://{served.host}/")
    await expect(page.locator("#state")).to_have_text("live", timeout=SOON_MS)
    return found


def run(executable: str, test: Callable[[Browser, Served], Awaitable[None]]) -> None:
    expect.set_options(timeout=SOON_MS)

    async def inside() -> None:
        async with (
            asyncio.timeout(WITHIN_S),
            serving(MadeUp(busy())) as served,
            browsing(executable) as browser,
        ):
            await test(browser, served)

    asyncio.run(inside())


async def turn_to(page: Page, name: str) -> None:
    await page.get_by_role("link", name=name).click()
    await expect(page.get_by_role("heading", level=2)).to_have_text(name)


@pytest.mark.slow
@pytest.mark.e2e
def test_the_page_shows_what_the_relations_say_wide_and_narrow_light_and_dark(chromium: str) -> None:
    grounds: set[str] = set()

    async def test(browser: Browser, served: Served) -> None:
        for width, scheme in ((1280, "light"), (390, "dark")):
            found = await opened(browser, served, width, scheme)
            page = found.page
            hydrating = page.locator("#hydration tr", has_text="u7")
            await expect(hydrating).to_contain_text("hydrating")
            await expect(hydrating).to_contain_text("147\u202f000 of 350\u202f000")
            bar = hydrating.get_by_role("progressbar", name="u7 is hydrated to 42")
            assert await bar.get_attribute("value") == "0.42"
            await expect(page.locator("#hydration tbody tr").nth(2)).to_contain_text("u2")  # done: comes last
            await expect(page.locator("#processes tbody tr")).to_have_count(5)
            await expect(page.locator("#errors")).to_contain_text("division by zero")
            await expect(page.locator("#chart-lag .legend")).to_contain_text("4.00\u00a0s")
            await expect(page.locator("#chart-memory .legend")).to_contain_text("indexes 6.90\u00a0MiB")
            await turn_to(page, "Dataflows")
            await page.get_by_label("Dataflow", exact=True).select_option("maintenance/0 7")
            await expect(page.locator("#graph .node")).to_have_count(10)
            await expect(page.locator("#graph .edge")).to_have_count(10)
            await expect(page.locator("#graph .edge.back")).to_have_count(1)
            at_work = page.locator("#graph .node.working")
            await expect(at_work).to_contain_text("join")
            await expect(at_work).to_contain_text("1.90\u00a0s · 60\u00a0% · at work")
            await expect(page.locator("#graph .node", has_text="arrange")).to_contain_text("9.16\u00a0MiB")
            await expect(page.locator("#imports tr", has_text="parts")).to_contain_text("it is waited for")
            await turn_to(page, "Publications")
            await expect(page.locator("#published tr", has_text="u2")).to_contain_text("peek 5f3c")
            await expect(page.locator("#readers tr", has_text="python[5120]")).to_contain_text(
                "2.00\u00a0MiB"
            )
            await turn_to(page, "Peeks")
            await expect(page.locator("#active tbody tr")).to_have_count(2)
            await turn_to(page, "Configuration")
            await expect(page.locator("#settings tr", has_text="wait_limit")).to_contain_text("controller")
            assert await page.evaluate("document.documentElement.scrollWidth") <= width
            grounds.add(await page.evaluate("getComputedStyle(document.body).backgroundColor"))
            assert found.wrong == []
            assert all(url.startswith(f"http://{served.host}/") for url in found.requested)
            await page.close()

    run(chromium, test)
    assert len(grounds) == 2


@pytest.mark.slow
@pytest.mark.e2e
def test_peeks_are_canceled_by_keys_alone_and_keep_the_focus_while_rows_change(chromium: str) -> None:
    async def test(browser: Browser, served: Served) -> None:
        found = await opened(browser, served)
        page = found.page
        focused = "document.activeElement.textContent + (document.activeElement.ariaLabel ?? '')"
        await page.keyboard.press("Tab")
        assert await page.evaluate(focused) == "Skip to content"
        while await page.evaluate(focused) != "Peeks":
            await page.keyboard.press("Tab")
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("heading", level=2)).to_have_text("Peeks")
        while not (await page.evaluate(focused)).startswith("CancelCancel peek a/b"):
            await page.keyboard.press("Tab")
        peeks = {uuid: each for each in served.source.held["peeks_active"] if (uuid := each[3])}
        fresh = row("peeks_active", worker="interactive/0", session=4, uuid="0new", id="u7", began_ms=1)
        served.source.change("peeks_active", [(peeks["5f3c"], -1), (fresh, 1)])
        await expect(page.locator("#active tr", has_text="0new")).to_have_count(1)
        await expect(page.locator("#active tr", has_text="5f3c")).to_have_count(0)
        assert await page.evaluate(focused) == "CancelCancel peek a/b of u2"
        await page.keyboard.press("Enter")
        await expect(page.locator("#canceled")).to_contain_text("Peek a/b: asked for")
        assert served.source.canceled == [(3, "a/b")]
        served.source.change("peeks_active", [(peeks["a/b"], -1)])
        await expect(page.locator("#active tr", has_text="a/b")).to_have_count(0)
        await turn_to(page, "Overview")
        done = row("hydration", worker="maintenance/0", id="u9", dataflow=9, status="hydrated", progress=1.0)
        before = next(each for each in served.source.held["hydration"] if each[1] == "u9")
        served.source.change("hydration", [(before, -1), (done, 1)])
        await expect(page.locator("#hydration tr", has_text="u9")).to_contain_text("100\u00a0%")
        assert found.wrong == []

    run(chromium, test)


@pytest.mark.slow
@pytest.mark.e2e
def test_the_page_says_plainly_that_the_daemon_is_gone_and_recovers(chromium: str) -> None:
    async def test(browser: Browser, served: Served) -> None:
        found = await opened(browser, served)
        page = found.page
        await turn_to(page, "Peeks")
        cancel = page.get_by_role("button", name="Cancel peek 5f3c")
        await expect(cancel).to_be_enabled()
        served.source.go("the replica is stopping")
        gone = page.get_by_role("alert")
        await expect(gone).to_contain_text("The daemon does not answer: the replica is stopping.")
        await expect(gone).to_contain_text("What is below is of ")
        await expect(page.locator("#state")).to_have_text("gone")
        await expect(cancel).to_be_disabled()
        served.source.come()
        await expect(page.locator("#state")).to_have_text("live")
        await expect(gone).to_be_hidden()
        await expect(cancel).to_be_enabled()
        assert found.wrong == []
        # The console itself goes, and another comes in its place.
        listener = listen_tcp("127.0.0.1", 0)
        again = HttpServer(App(served.source, "127.0.0.1").handle, common=COMMON_HEADERS)
        port = listener.getsockname()[1]
        await again.start(listener)
        await page.goto(f"http://127.0.0.1:{port}/#peeks")
        await expect(page.locator("#state")).to_have_text("live")
        await again.close()
        await expect(gone).to_contain_text("The daemon is gone, or cannot be reached from here.")
        another = HttpServer(App(served.source, "127.0.0.1").handle, common=COMMON_HEADERS)
        await another.start(listen_tcp("127.0.0.1", port))
        await expect(page.locator("#state")).to_have_text("live")
        await expect(cancel).to_be_enabled()
        await another.close()

    run(chromium, test)


def test_the_page_reads_what_there_is_to_read() -> None:
    text = (STATIC / "model.js").read_text()
    table = re.search(r"NEEDS = \{(.*?)\n\};", text, re.DOTALL)
    assert table is not None
    there = {each.name: {field.name for field in each.fields} for each in RELATIONS}
    needed = {
        name: json.loads(columns) for name, columns in re.findall(r"(\w+): (\[.*?\]),", table[1], re.DOTALL)
    }
    assert set(needed) == set(events.SHOWN)
    for name, columns in needed.items():
        assert set(columns) <= there[name], name


def test_the_page_fetches_nothing_from_elsewhere() -> None:
    for path in STATIC.iterdir():
        for url in re.findall(r"https?://[^\"' )]+", path.read_text()):
            assert url == "http://www.w3.org/2000/svg", f"{path.name} names {url}"
