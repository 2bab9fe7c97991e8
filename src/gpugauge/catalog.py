"""The registered collectors and all their metrics, from the table in `gpugauge.base.registry`."""

from __future__ import annotations

from functools import cache
from importlib import import_module

from gpugauge.base.registry import COLLECTORS, Entry
from gpugauge.collectors.base import RegisteredCollector, Sources
from gpugauge.collectors.exporter.exporter import ExporterCollector
from gpugauge.metric import Metric
from gpugauge.settings.model import Settings


def _load(entry: Entry) -> type[RegisteredCollector]:
    """Return the class of a collector. Raises ValueError if its name is not that of the table."""
    module, _, name = entry.implementation.partition(":")
    collector: type[RegisteredCollector] = getattr(import_module(f"gpugauge.collectors.{module}"), name)
    if collector.name != entry.name:
        raise ValueError(f"registry.py: {entry.implementation} is registered as {entry.name!r}, not {collector.name!r}")
    return collector


_CLASSES = tuple(_load(entry) for entry in COLLECTORS)

# Rows by collector, in the order in which the collectors run. `exporter` always runs, and runs last.
CATALOG: dict[str, tuple[Metric, ...]] = {collector.name: collector.metrics for collector in _CLASSES} | {
    ExporterCollector.name: ExporterCollector.metrics
}


@cache
def metrics() -> tuple[Metric, ...]:
    """Return all rows in the order of their collectors. Raises ValueError if two rows have the same name."""
    rows = tuple(row for table in CATALOG.values() for row in table)
    names = [row.name for row in rows]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"two tables have a row with the same name: {', '.join(twice)}")
    return rows


def create_collectors(node: Sources, settings: Settings | None = None) -> list[RegisteredCollector]:
    """Return one collector of each kind that the node has something for, in the order in which they run."""
    for kind in _CLASSES:
        collector = kind.create(node)
        if collector is not None:
            collector.configure(settings or Settings())
            node.created.append(collector)
    return list(node.created)
