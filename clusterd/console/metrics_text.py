"""Metrics: the relation `metrics` in a scraper's words, by prometheus-client.

A text has what the relation holds and nothing else, so the series of an object that was dropped are not in
the next one.

Does not: count anything.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence

from prometheus_client import Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector, CollectorRegistry

from clusterd.console.tables import Row

__all__ = ["metrics_text"]

_SUFFIXES = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}


class _Families(Collector):
    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        yield from self._families


def metrics_text(columns: Sequence[str], rows: Iterable[Row], accept: str) -> tuple[str, bytes]:
    """The content type and the text for who accepts `accept`.

    columns: of the rows; `name`, `kind`, `labels` (JSON), `value` and `meaning` among them.
    """
    name, kind, labels, value, meaning = (
        columns.index(each) for each in ("name", "kind", "labels", "value", "meaning")
    )
    families: dict[str, Metric] = {}
    samples = [(row, json.loads(row[labels])) for row in rows]
    for row, labelled in sorted(samples, key=lambda sample: _order(sample[0][name], sample[1])):
        family = _family(row[name], row[kind])
        if family not in families:
            families[family] = Metric(family, row[meaning], row[kind])
        families[family].add_sample(row[name], labelled, float(row[value]))
    registry = CollectorRegistry()
    registry.register(_Families(families.values()))
    encode, content_type = choose_encoder(accept)
    return content_type, encode(registry)


def _order(name: str, labels: dict[str, str]) -> tuple[str, str, float]:
    """A histogram's buckets go up."""
    rest = {key: value for key, value in labels.items() if key != "le"}
    return name, json.dumps(rest, sort_keys=True), float(labels.get("le", 0))


def _family(name: str, kind: str) -> str:
    for suffix in _SUFFIXES.get(kind, ()):
        if name.endswith(suffix):
            return name.removesuffix(suffix)
    return name
