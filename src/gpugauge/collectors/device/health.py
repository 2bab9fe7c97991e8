"""ECC errors, remapped rows, retired pages, and the recovery action of GPUs."""

from __future__ import annotations

from gpugauge.collectors.device.readings import ReadingsCollector
from gpugauge.driver.api import DeviceReading
from gpugauge.driver.codes import RECOVERY_ACTIONS
from gpugauge.metric import Metric, Table, by, flag, states

_device = Table[DeviceReading]("uuid")
_with_ecc = Table[DeviceReading]("uuid", devices="with ECC")
_ampere = Table[DeviceReading]("uuid", devices="Ampere and newer")
_older = Table[DeviceReading]("uuid", devices="before Ampere")


def _ecc(d: DeviceReading) -> dict[tuple[str, ...], int] | None:
    if d.ecc_errors is None:
        return None
    return {tuple(kind.split("_", 1)): count for kind, count in d.ecc_errors.items()}


METRICS: tuple[Metric, ...] = (
    _with_ecc.counter(
        "gpu_ecc_errors_total",
        "ECC memory errors by type (corrected, uncorrected) and scope. `volatile` counts since the driver was "
        "loaded, `aggregate` over the lifetime of the GPU.",
        _ecc,
        *("type", "scope"),
        source="fields 3-6",
    ),
    _with_ecc.gauge(
        "gpu_ecc_mode",
        "1 if ECC is enabled now (current), or after the next reboot (pending).",
        lambda d: by(current=flag(d.ecc_mode), pending=flag(d.ecc_mode_pending)),
        "when",
        source="nvmlDeviceGetEccMode",
    ),
    _ampere.gauge(
        "gpu_remapped_rows",
        "Memory rows replaced by spare rows, by type of the error.",
        lambda d: d.remapped_rows,
        "cause",
        source="fields 142, 143",
    ),
    _ampere.gauge(
        "gpu_remapped_rows_pending",
        "1 if a row will be remapped at the next reset of the GPU.",
        lambda d: flag(d.remapped_rows_pending),
        source="field 144",
    ),
    _ampere.gauge(
        "gpu_remapped_rows_failure",
        "1 if remapping a row has failed: the GPU should be replaced.",
        lambda d: flag(d.remapped_rows_failure),
        source="field 145",
    ),
    _ampere.gauge(
        "gpu_row_remapper_banks",
        "Memory banks by number of spare rows left (max, high, partial, low, none).",
        lambda d: d.row_remapper_banks,
        "available",
        source="nvmlDeviceGetRowRemapperHistogram",
    ),
    _older.gauge(
        "gpu_retired_pages",
        "Retired memory pages, by type of the error.",
        lambda d: d.retired_pages,
        "cause",
        source="fields 29, 30",
    ),
    _older.gauge(
        "gpu_retired_pages_pending",
        "1 if pages will be retired at the next reboot.",
        lambda d: flag(d.retired_pages_pending),
        source="field 31",
    ),
    _device.gauge(
        "gpu_recovery_action",
        "Action that the driver requires to recover from an error: 1 for that action, 0 for the others.",
        lambda d: states(RECOVERY_ACTIONS, d.recovery_action),
        "action",
        source="field 230",
        devices="driver 565 and newer",
    ),
)


class HealthCollector(ReadingsCollector):
    """Rows by uuid."""

    name = "health"
    metrics = METRICS
    groups = ("slow",)
