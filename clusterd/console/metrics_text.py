"""Metrics: the relation `metrics` in a scraper's words, by prometheus-client.

A text has what the relation holds and nothing else, so the series of an object that was dropped are not in
the next one.

Does not: count anything, name metrics (clusterd.introspection.rows_metrics does).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from prometheus_client import Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector, CollectorRegistry

from clusterd.console.tables import Row

__all__ = ["metrics_text"]

_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"')
_ESCAPED = re.compile(r"\\(.)")


class _Families(Collector):
    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        yield from self._families


def metrics_text(
    columns: Sequence[str], rows: Iterable[Row], meanings: Mapping[str, str], accept: str
) -> tuple[str, bytes]:
    """The content type and the text for who accepts `accept`.

    columns: of the rows; `name`, `family`, `kind`, `labels` (as Prometheus writes them) and `value` among
    them. meanings: of families.
    """
    name, family, kind, labels, value = (
        columns.index(each) for each in ("name", "family", "kind", "labels", "value")
    )
    families: dict[str, Metric] = {}
    samples = [(row, _labels(row[labels])) for row in rows]
    for row, labelled in sorted(samples, key=lambda sample: _order(sample[0][name], sample[1])):
        of = row[family]
        if of not in families:
            families[of] = Metric(of.removesuffix("_total"), meanings.get(of, ""), row[kind])
        families[of].add_sample(row[name], labelled, float(row[value]))
    registry = CollectorRegistry()
    registry.register(_Families(families.values()))
    encode, content_type = choose_encoder(accept)
    return content_type, encode(registry)


def _labels(text: str) -> dict[str, str]:
    return {name: _ESCAPED.sub(_unescaped, value) for name, value in _LABEL.findall(text)}


def _unescaped(found: re.Match[str]) -> str:
    return "\n" if found[1] == "n" else found[1]


def _order(name: str, labels: dict[str, str]) -> tuple[str, list[tuple[str, str]], float]:
    """A histogram's buckets go up."""
    rest = sorted(item for item in labels.items() if item[0] != "le")
    return name, rest, float(labels.get("le", 0))
