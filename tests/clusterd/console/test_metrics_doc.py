"""docs/metrics.md lists every metric and every event that there is, and no other."""

from __future__ import annotations

import re
from pathlib import Path

from clusterd.events import Event
from clusterd.introspection.rows_metrics import METRICS

TEXT = (Path(__file__).parents[3] / "docs" / "metrics.md").read_text()


def test_the_page_lists_every_metric_as_it_is() -> None:
    found = re.findall(r"^\| `(clusterd_\w+)` \| (\w+) \| (.*?) ?\| (.*) \|$", TEXT, re.MULTILINE)
    told = {name: (kind, tuple(re.findall(r"`(\w+)`", labels)), what) for name, kind, labels, what in found}
    assert told == {name: (each.kind, each.labels, each.meaning) for name, each in METRICS.items()}


def test_the_page_lists_every_event_with_its_facts() -> None:
    found = re.findall(r"^- `(\w+)`(?: \((.*?)\))?: ", TEXT, re.MULTILINE)
    told = {name: tuple(re.findall(r"`(\w+)`", fields)) for name, fields in found}
    ours = [each for each in Event.__subclasses__() if each.__module__ == Event.__module__]  # not a feed's
    assert told == {each.__name__: each.__struct_fields__ for each in ours}
