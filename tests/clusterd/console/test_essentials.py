"""The page of `clusterd top`, from made-up rows."""

from __future__ import annotations

import time

import pytest
from rich.console import Console

from clusterd.console.essentials import READ, page
from clusterd.introspection.relations import RELATIONS
from tests.clusterd.console.busy import busy, row


def shown(width: int, rows: int = 40, **changed: list[tuple[object, ...]]) -> str:
    told = {**busy(), **changed}
    names = {each.name: [field.name for field in each.fields] for each in RELATIONS}
    named = {
        name: [dict(zip(names[name], each, strict=True)) for each in told.get(name, [])] for name in READ
    }
    console = Console(width=width, record=True, file=None, force_terminal=False, quiet=False)
    with console.capture() as captured:
        console.print(page(named, time.time_ns() // 1_000_000, rows))
    return captured.get()


@pytest.mark.parametrize("width", [80, 160])
def test_a_page_says_what_hydrates_what_waits_and_for_what(width: int) -> None:
    text = shown(width)
    assert "collections: 3, not hydrated: 2" in text
    assert "behind: 4.0 s" in text
    lines = {line.split()[0]: line for line in text.splitlines() if line.strip()}
    assert "hydrating" in lines["u7"]
    assert "42%" in lines["u7"]
    assert "parts" in lines["u7"]
    assert "310.0 MiB" in lines["maintenance/0"]
    assert text.index("u7") < text.index("u2  ")  # what is not done comes first
    assert max(map(len, text.splitlines())) <= width


def test_what_has_no_room_is_counted() -> None:
    peeks = [row("peeks_active", uuid=str(n), id="u2", state="queued", began_ms=n) for n in range(90)]
    assert "and 80 more" in shown(100, rows=40, peeks_active=peeks)


def test_nothing_at_all_is_a_page_too() -> None:
    text = shown(80, **{name: [] for name in READ})
    assert "collections: 0" in text
