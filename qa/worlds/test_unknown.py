"""What is not given is not known: the default of a field is nothing, so that no figure, name or flag is made up."""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
from collections.abc import Iterator
from typing import Any

import pytest

PACKAGES = ("collectors", "driver", "faults", "node", "sessions", "status", "terminal", "verdict", "wire", "workload")
# Fields with another default: what holds for most, a limit, a place that is none.
OTHERS = frozenset(
    (
        "GpuHealth.number",
        *("Account.earlier", "Account.live", "Ailment.kind", "DeviceEvidence.measured", "DeviceEvidence.part"),
        *("DeviceReading.index", "Down.index", "DriverStatus.needed", "DriverStatus.reason", "FieldValue.factor"),
        *("Frame.own", "GpuHealth.recovery_action", "GpuStatus.level", "GpuStatus.up", "HostProcess.read_slowly"),
        *("JobFacts.host_network", "Known.index", "Kubelet.timeout", "Load.known", "Pod.source", "PodSource.max_bytes"),
        *("PodSource.timeout", "ProcessStatus.level", "ReadingIntervals.deadline", "ReadingIntervals.open_deadline"),
        *("RecyclingLimits.check_interval_seconds", "RecyclingLimits.memory_min_age_seconds"),
        *("RecyclingLimits.resident_bytes", "Remembered.index", "Site.check", "Site.node", "Site.port"),
        *("StateFacts.inside", "Status.level", "Step.pinned", "Step.why_it_waits", "Subject.complete"),
    )
)


def classes(package: str) -> Iterator[type]:
    found = importlib.import_module(f"gpugauge.{package}")
    for each in pkgutil.walk_packages(found.__path__, f"{found.__name__}."):
        if "bootstrap" not in each.name:
            module = importlib.import_module(each.name)
            yield from (c for c in vars(module).values() if isinstance(c, type) and c.__module__ == each.name)


def defaults(kind: Any) -> Iterator[tuple[str, Any]]:
    if dataclasses.is_dataclass(kind):
        for field in dataclasses.fields(kind):
            made = field.default_factory
            if made is not dataclasses.MISSING or field.default is not dataclasses.MISSING:
                yield field.name, made() if made is not dataclasses.MISSING else field.default
    elif issubclass(kind, tuple):
        yield from getattr(kind, "_field_defaults", {}).items()


def plain(value: object) -> bool:
    """Return whether this is a figure, a name or a flag: the fields of others are looked at themselves."""
    return isinstance(value, (str, int, float))


@pytest.mark.parametrize("package", PACKAGES)
def test_a_field_that_is_not_given_has_nothing(package: str) -> None:
    found = {f"{c.__name__}.{name}": value for c in classes(package) for name, value in defaults(c)}
    assert found
    assert {name for name, value in found.items() if plain(value) and value} == OTHERS & found.keys()
