"""Memory errors, worn-out rows and pages, and what the driver wants done about them."""

from __future__ import annotations

from gpugauge.collectors.device.bydevice import ByDevice
from gpugauge.driver.api import DeviceReading
from gpugauge.metric import NONE, Metric, Table, by, flag, states

_device = Table("uuid")

# nvmlDeviceGpuRecoveryAction_t, in the order of its values.
RECOVERY_ACTIONS = (
    *("none", "gpu_reset", "node_reboot", "drain_p2p", "drain_and_reset"),
    *("recover_imex_domain", "bus_reset", "system_reboot"),
)


def _ecc(d: DeviceReading) -> dict[tuple[str, ...], int] | None:
    if d.ecc_errors is None:
        return None
    return {tuple(kind.split("_", 1)): count for kind, count in d.ecc_errors.items()}


METRICS: tuple[Metric, ...] = (
    _device.counter(
        "gpu_ecc_errors_total",
        "Memory errors by type (corrected, uncorrected) and scope: volatile since the driver was loaded, aggregate "
        "over the GPU's life.",
        NONE,
        _ecc,
        *("type", "scope"),
        source="fields 3-6",
        devices="with ECC",
    ),
    _device.gauge(
        "gpu_ecc_mode",
        "1 when ECC is on (current), or will be after the next reboot (pending).",
        NONE,
        lambda d: by(current=flag(d.ecc_mode), pending=flag(d.ecc_mode_pending)),
        "when",
        source="nvmlDeviceGetEccMode",
        devices="with ECC",
    ),
    _device.gauge(
        "gpu_remapped_rows",
        "Rows of memory that were replaced by spare ones, by the kind of error that caused it.",
        NONE,
        lambda d: d.remapped_rows,
        "cause",
        source="fields 142, 143",
        devices="Ampere and newer",
    ),
    _device.gauge(
        "gpu_remapped_rows_pending",
        "1 when a row will be replaced at the next reset of the GPU.",
        NONE,
        lambda d: flag(d.remapped_rows_pending),
        source="field 144",
        devices="Ampere and newer",
    ),
    _device.gauge(
        "gpu_remapped_rows_failure",
        "1 when replacing a row has failed: the GPU should be exchanged.",
        NONE,
        lambda d: flag(d.remapped_rows_failure),
        source="field 145",
        devices="Ampere and newer",
    ),
    _device.gauge(
        "gpu_row_remapper_banks",
        "Banks of memory by how many spare rows they have left (max, high, partial, low, none).",
        NONE,
        lambda d: d.row_remapper_banks,
        "available",
        source="nvmlDeviceGetRowRemapperHistogram",
        devices="Ampere and newer",
    ),
    _device.gauge(
        "gpu_retired_pages",
        "Pages of memory taken out of use, by the kind of error that caused it.",
        NONE,
        lambda d: d.retired_pages,
        "cause",
        source="fields 29, 30",
        devices="before Ampere",
    ),
    _device.gauge(
        "gpu_retired_pages_pending",
        "1 when pages will be taken out of use at the next reboot.",
        NONE,
        lambda d: flag(d.retired_pages_pending),
        source="field 31",
        devices="before Ampere",
    ),
    _device.gauge(
        "gpu_recovery_action",
        "What the driver wants done to recover from an error: 1 for that action, 0 for the others.",
        NONE,
        lambda d: states(RECOVERY_ACTIONS, d.recovery_action),
        "action",
        source="field 230",
        devices="driver 565 and newer",
    ),
)


class HealthCollector(ByDevice):
    """Rows by uuid."""

    name = "health"
    metrics = METRICS
    groups = ("slow",)
