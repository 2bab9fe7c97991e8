"""The table of collectors, and what follows from it."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import gpugauge.collectors
from gpugauge import catalog
from gpugauge.base import registry
from gpugauge.collectors.base import RegisteredCollector, Sources
from gpugauge.collectors.device.utilization import UtilizationCollector
from gpugauge.settings.model import Settings, Verdict
from gpugauge.settings.options import walk
from gpugauge.workload.procfs import Procfs
from gpugauge.workload.workloads import Workloads

NAMES = [entry.name for entry in registry.COLLECTORS]


def subclasses(kind: type[object]) -> Iterator[type[object]]:
    for subclass in kind.__subclasses__():
        yield subclass
        yield from subclasses(subclass)


def test_every_collector_is_registered() -> None:
    for module in pkgutil.walk_packages(gpugauge.collectors.__path__, "gpugauge.collectors."):
        importlib.import_module(module.name)
    written = {
        f"{kind.__module__.removeprefix('gpugauge.collectors.')}:{kind.__name__}"
        for kind in subclasses(RegisteredCollector)
        if kind.__module__.startswith("gpugauge.") and "name" in vars(kind)
    }

    missing = written - {entry.implementation for entry in registry.COLLECTORS}
    assert not missing, f"src/gpugauge/base/registry.py: add a line to COLLECTORS for {', '.join(sorted(missing))}"


def test_catalogue_and_settings_follow_from_the_table() -> None:
    switches = [setting.key for setting in walk() if setting.key.startswith("collector.")]

    assert [*catalog.CATALOG] == [*NAMES, "exporter"]
    assert switches == ["collector.disable_defaults", *(f"collector.{name}" for name in NAMES)]
    assert Settings().collectors() == set(NAMES)


def test_registered_name_is_the_name_of_the_class() -> None:
    with pytest.raises(ValueError, match="is registered as 'links', not 'mig'"):
        catalog._load(registry.Entry("links", "device.mig:MigCollector", "MIG devices."))


def test_collectors_are_created_in_order_and_configured(tmp_path: Path) -> None:
    procfs = Procfs(str(tmp_path))
    node = Sources(procfs, Workloads(procfs))

    with pytest.raises(LookupError, match="UtilizationCollector must be registered before"):
        node.collector(UtilizationCollector)
    created = catalog.create_collectors(node, Settings(verdict=Verdict(stalled_seconds=7)))

    # A node without a source of sessions has no training collector.
    assert [collector.name for collector in created] == [name for name in NAMES if name != "training"]
    assert isinstance(node.collector(UtilizationCollector), UtilizationCollector)
    assert created[-1].name == "verdict", "registry.py: `verdict` must be last, it reads the sections of all others"
    assert vars(created[-1])["stalled_seconds"] == 7
