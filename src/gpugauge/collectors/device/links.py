"""PCIe, NVLink and XGMI: width, speed, errors."""

from __future__ import annotations

from gpugauge.collectors.device.readings import ReadingsCollector
from gpugauge.driver.api import DeviceReading
from gpugauge.metric import Metric, Table, by, each

_device = Table[DeviceReading]("uuid")
_pcie = Table[DeviceReading]("uuid", "when")
_nvlink = Table[DeviceReading]("uuid", devices="with NVLink")
_MEGABYTE = 1_000_000

METRICS: tuple[Metric, ...] = (
    _pcie.gauge(
        "gpu_pcie_generation",
        "PCIe generation of the link: current, and the maximum of GPU and slot. The current generation is lower "
        "while the GPU is idle.",
        lambda d: by(current=d.pcie_generation, max=d.pcie_generation_max),
        source="nvmlDeviceGetCurrPcieLinkGeneration, nvmlDeviceGetMaxPcieLinkGeneration",
    ),
    _pcie.gauge(
        "gpu_pcie_width",
        "PCIe lanes of the link: current, and the maximum of GPU and slot.",
        lambda d: by(current=d.pcie_width, max=d.pcie_width_max),
        source="nvmlDeviceGetCurrPcieLinkWidth, nvmlDeviceGetMaxPcieLinkWidth",
    ),
    _device.counter(
        "gpu_pcie_replays_total",
        "PCIe packets that were sent again.",
        lambda d: d.pcie_replays,
        source="nvmlDeviceGetPcieReplayCounter",
    ),
    _device.counter(
        "gpu_pcie_errors_total",
        "PCIe errors by kind.",
        lambda d: d.pcie_errors,
        "kind",
        source="fields 173-183",
        devices="driver 525 and newer",
    ),
    _nvlink.gauge(
        "gpu_nvlink_active",
        "1 if the NVLink is up.",
        lambda d: each(d.nvlink_active, int),
        "link",
        source="nvmlDeviceGetNvLinkState",
    ),
    _nvlink.gauge(
        "gpu_nvlink_speed_bytes",
        "Speed of the NVLink in bytes per second in one direction.",
        lambda d: each(d.nvlink_speed_megabytes_per_second, lambda speed: speed * _MEGABYTE),
        "link",
        source="field 164, fields 84-89 and 132-137 with old drivers",
    ),
    _nvlink.counter(
        "gpu_nvlink_errors_total",
        "NVLink errors of all links by kind.",
        lambda d: d.nvlink_errors,
        "kind",
        source="fields 38, 45, 52, 59, 160, 206-214; 161-163 by link",
    ),
    _nvlink.counter(
        "gpu_nvlink_link_errors_total",
        "NVLink errors that should not occur, by link and kind, of the links that have any.",
        lambda d: {
            (link, kind): n for link, kinds in (d.nvlink_link_errors or {}).items() for kind, n in kinds.items()
        },
        *("link", "kind"),
        source="fields 161, 162, 206, 207, 214 by link; 46-51, 53-58, 108-119, 148-159",
    ),
    _nvlink.counter(
        "gpu_nvlink_transmitted_bytes_total",
        "Bytes sent over all NVLinks since the driver was loaded.",
        lambda d: d.nvlink_transmitted_bytes,
        source="field 138 or 202",
    ),
    _nvlink.counter(
        "gpu_nvlink_received_bytes_total",
        "Bytes received over all NVLinks since the driver was loaded.",
        lambda d: d.nvlink_received_bytes,
        source="field 139 or 204",
    ),
    _device.counter(
        "gpu_xgmi_transmitted_bytes_total",
        "Bytes sent over all links of XGMI: kilobytes of the firmware, taken as 1000 bytes.",
        lambda d: d.xgmi_transmitted_bytes,
        source="xgmi_write_data_acc of gpu_metrics",
    ),
    _device.counter(
        "gpu_xgmi_received_bytes_total",
        "Bytes received over all links of XGMI: kilobytes of the firmware, taken as 1000 bytes.",
        lambda d: d.xgmi_received_bytes,
        source="xgmi_read_data_acc of gpu_metrics",
    ),
)


class LinksCollector(ReadingsCollector):
    """Rows by uuid."""

    name = "links"
    metrics = METRICS
    groups = ("static", "slow")
