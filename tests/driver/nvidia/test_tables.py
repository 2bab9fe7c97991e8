"""The tables of the driver fill the fields that DeviceReading declares and that metrics read, and no others."""

from __future__ import annotations

from typing import Any

from gpugauge import catalog
from gpugauge.collectors.device.readings import ReadingsCollector
from gpugauge.driver.api import DEVICE_FIELDS, Device, DeviceReading
from gpugauge.driver.nvidia.calls import CALLS
from gpugauge.driver.nvidia.fieldvalues import field_values
from gpugauge.driver.nvidia.gpm import FIELDS as PROFILING_FIELDS

TABLES = {
    "driver/nvidia/calls.py": {field for row in CALLS if row.group != "processes" for field in row.fields},
    "driver/nvidia/fieldvalues.py": {row.field for row in field_values("580.95.05")},
    "driver/nvidia/links.py": {"nvlink_active"},
    "driver/nvidia/gpm.py": set(PROFILING_FIELDS),
    "driver/amd/device.py": {"gfx_target", "compute_partition", "memory_partition"},
}


def fields_read_by_metrics() -> dict[str, str]:
    """Return the fields that metrics read with `DeviceReading.value`, each with the file that reads it."""
    found: dict[str, str] = {}
    assert catalog.metrics()  # imports all collectors
    for collector in ReadingsCollector.__subclasses__():
        file = collector.__module__.removeprefix("gpugauge.").replace(".", "/") + ".py"

        class Recorder(DeviceReading):
            def value(self, field: str) -> Any:
                found[field] = file  # noqa: B023  (called in this turn of the loop)
                return None

        collector().section((Device("GPU-a", up=True, reason="ok", reading=Recorder(), generations={}),))
    return found


def test_a_table_fills_each_field_that_a_metric_reads() -> None:
    filled = set().union(*TABLES.values())
    missing = [
        f"{file} reads the field {field!r}" for field, file in fields_read_by_metrics().items() if field not in filled
    ]

    assert not missing, f"{'; '.join(missing)}, which no row of driver/nvidia/fieldvalues.py or calls.py fills"


def test_a_metric_reads_each_field_that_is_not_declared() -> None:
    used = DEVICE_FIELDS | fields_read_by_metrics().keys()
    unused = [f"{table} fills the field {field!r}" for table, fields in TABLES.items() for field in fields - used]

    assert not unused, f"{'; '.join(unused)}, which DeviceReading does not declare and no metric in collectors/ reads"
