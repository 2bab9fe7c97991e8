"""The registered collectors and all their metrics, from the table in `gpugauge.base.registry`."""

from __future__ import annotations

from importlib import import_module

from gpugauge.base.registry import COLLECTORS, Entry
from gpugauge.collectors.base import RegisteredCollector, Sources
from gpugauge.collectors.exporter.exporter import ExporterCollector
from gpugauge.metric import Metric
from gpugauge.settings.model import Settings


def _load(entry: Entry) -> type[RegisteredCollector]:
    """Return the class of a collector. Raises ValueError with the mistake in the table or in the class."""
    module, _, name = entry.implementation.partition(":")
    path = f"gpugauge.collectors.{module}"
    try:
        collector: type[RegisteredCollector] | None = getattr(import_module(path), name, None)
    except ModuleNotFoundError as error:
        if error.name != path:
            raise
        collector = None
    if collector is None:
        raise ValueError(f"registry.py: {entry.implementation} does not exist in src/gpugauge/collectors")
    if not hasattr(collector, "name") or not hasattr(collector, "metrics"):
        raise ValueError(f"{entry.implementation} needs the class attributes `name` and `metrics`")
    if collector.name != entry.name:
        raise ValueError(f"registry.py: {entry.implementation} is registered as {entry.name!r}, not {collector.name!r}")
    return collector


_CLASSES = tuple(_load(entry) for entry in COLLECTORS)

# Rows by collector, in the order in which the collectors run. `exporter` always runs, and runs last.
CATALOG: dict[str, tuple[Metric, ...]] = {collector.name: collector.metrics for collector in _CLASSES} | {
    ExporterCollector.name: ExporterCollector.metrics
}


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
