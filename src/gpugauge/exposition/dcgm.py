"""Values of a snapshot under the names, labels and units of NVIDIA's dcgm-exporter (docs/migrating.md).

Source of names, units and labels: etc/default-counters.csv and the text template of dcgm-exporter.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from gpugauge.exposition.accept import negotiate
from gpugauge.exposition.render import TEXT, Response, gzipped
from gpugauge.exposition.text import go_float, label_set
from gpugauge.metric import Kind
from gpugauge.snapshot import Snapshot

# Rates are over the time between two scrapes of these metrics, but not over less.
_MIN_RATE_SECONDS = 1.0
_XID_SECONDS = 300.0  # without a lasting fault: the time for which dcgm-exporter counts one by default
_MIB = 1 << 20

Labels: TypeAlias = "dict[str, str]"


class _Values:
    """Numbers of a snapshot by metric, uuid and further label values, and the label sets of info metrics by metric."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.at, self.timestamp = snapshot.monotonic, snapshot.timestamp
        self._numbers: dict[str, dict[tuple[str, ...], float]] = {}
        self.infos: dict[str, list[Labels]] = defaultdict(list)
        for family in itertools.chain.from_iterable(section.families for section in snapshot.sections):
            metric = family.metric
            if metric.name.endswith("_info"):
                self.infos[metric.name] += [
                    dict(zip(metric.labels, values, strict=True)) for values, _ in family.samples
                ]
            elif metric.name.startswith("gpu_") and metric.labels[:1] == ("uuid",) and metric.kind != "histogram":
                self._numbers[metric.name] = {k: v for k, v in family.samples if isinstance(v, (int, float))}

    def get(self, name: str, key: tuple[str, ...]) -> float | None:
        return self._numbers.get(name, {}).get(key)

    def of(self, name: str, uuid: str) -> dict[tuple[str, ...], float]:
        return {key[1:]: value for key, value in self._numbers.get(name, {}).items() if key[0] == uuid}


@dataclass(frozen=True)
class _Device:
    """A GPU or MIG device in a snapshot and in an earlier one. `stem` begins the names of its metrics."""

    uuid: str
    now: _Values
    before: _Values | None
    stem: str = "gpu_"

    def value(self, name: str, *labels: str) -> float | None:
        return self.now.get(self.stem + name, (self.uuid, *labels))

    def increase(self, name: str, *labels: str) -> float | None:
        """Return by how much a counter has risen since the earlier snapshot, None if that is unknown."""
        key = (self.uuid, *labels)
        later = self.now.get(self.stem + name, key)
        earlier = self.before.get(self.stem + name, key) if self.before else None
        return None if later is None or earlier is None or later < earlier else later - earlier

    @property
    def seconds(self) -> float:
        return self.now.at - self.before.at if self.before else 0.0


_Read: TypeAlias = Callable[[_Device], "float | None"]


def _scaled(name: str, factor: float, *labels: str) -> _Read:
    def read(device: _Device) -> float | None:
        value = device.value(name, *labels)
        return None if value is None else value * factor

    return read


def _rate(name: str) -> _Read:
    def read(device: _Device) -> float | None:
        increase = device.increase(name)
        return None if increase is None else increase / device.seconds

    return read


def _busy_percent(engine: str) -> _Read:
    def read(device: _Device) -> float | None:
        busy = device.increase("busy_seconds_total", engine)
        observed = device.increase("observed_seconds_total", engine)
        return None if busy is None or not observed else 100 * busy / observed

    return read


def _last_xid(device: _Device) -> float | None:
    """Return the code of the last Xid error that is recent or whose fault is not repaired, 0 without one."""
    if not device.now.of("gpu_xid_errors_total", device.uuid):
        return None
    last = device.now.of("gpu_xid_last_timestamp_seconds", device.uuid)
    times = device.now.of("gpu_xid_unrepaired_timestamp_seconds", device.uuid)
    times |= {key: at for key, at in last.items() if key in times or at > device.now.timestamp - _XID_SECONDS}
    return float(max(times, key=lambda key: times[key])[0]) if times else 0.0


# Name, kind, help, reader. Fields whose unit differs between versions of DCGM are left out (docs/migrating.md).
ROWS: tuple[tuple[str, Kind, str, _Read], ...] = (
    ("DCGM_FI_DEV_SM_CLOCK", "gauge", "SM clock in MHz.", _scaled("clock_hertz", 1e-6, "sm")),
    ("DCGM_FI_DEV_MEM_CLOCK", "gauge", "Memory clock in MHz.", _scaled("clock_hertz", 1e-6, "memory")),
    ("DCGM_FI_DEV_GPU_TEMP", "gauge", "GPU temperature in C.", _scaled("temperature_celsius", 1, "gpu")),
    ("DCGM_FI_DEV_MEMORY_TEMP", "gauge", "Memory temperature in C.", _scaled("temperature_celsius", 1, "memory")),
    ("DCGM_FI_DEV_POWER_USAGE", "gauge", "Power draw in W.", _scaled("power_watts", 1)),
    (
        "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION",
        "counter",
        "Energy since the driver was loaded, in mJ.",
        _scaled("energy_joules_total", 1000),
    ),
    (
        "DCGM_FI_DEV_PCIE_REPLAY_COUNTER",
        "counter",
        "PCIe packets that were sent again.",
        _scaled("pcie_replays_total", 1),
    ),
    ("DCGM_FI_DEV_GPU_UTIL", "gauge", "Time with a kernel, in percent.", _scaled("utilization_ratio", 100)),
    (
        "DCGM_FI_DEV_MEM_COPY_UTIL",
        "gauge",
        "Time with memory traffic, in percent.",
        _scaled("memory_utilization_ratio", 100),
    ),
    ("DCGM_FI_DEV_ENC_UTIL", "gauge", "Load of the encoder in percent.", _busy_percent("encoder")),
    ("DCGM_FI_DEV_DEC_UTIL", "gauge", "Load of the decoder in percent.", _busy_percent("decoder")),
    ("DCGM_FI_DEV_XID_ERRORS", "gauge", "Code of the last Xid error in five minutes, or until its repair.", _last_xid),
    ("DCGM_FI_DEV_FB_TOTAL", "gauge", "Device memory in MiB.", _scaled("memory_total_bytes", 1 / _MIB)),
    ("DCGM_FI_DEV_FB_FREE", "gauge", "Free device memory in MiB.", _scaled("memory_free_bytes", 1 / _MIB)),
    ("DCGM_FI_DEV_FB_USED", "gauge", "Used device memory in MiB.", _scaled("memory_used_bytes", 1 / _MIB)),
    ("DCGM_FI_DEV_FB_RESERVED", "gauge", "Reserved device memory in MiB.", _scaled("memory_reserved_bytes", 1 / _MIB)),
    *(
        (f"DCGM_FI_DEV_ECC_{short}_{scope_name}_TOTAL", "counter", f"ECC errors: {kind}, {scope}.", read)
        for (short, kind), (scope_name, scope) in itertools.product(
            (("SBE", "corrected"), ("DBE", "uncorrected")), (("VOL", "volatile"), ("AGG", "aggregate"))
        )
        for read in [_scaled("ecc_errors_total", 1, kind, scope)]
    ),
    (
        "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS",
        "counter",
        "Rows remapped for uncorrectable errors.",
        _scaled("remapped_rows", 1, "uncorrectable"),
    ),
    (
        "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS",
        "counter",
        "Rows remapped for correctable errors.",
        _scaled("remapped_rows", 1, "correctable"),
    ),
    ("DCGM_FI_DEV_ROW_REMAP_FAILURE", "gauge", "1 if a remapping failed.", _scaled("remapped_rows_failure", 1)),
    ("DCGM_FI_PROF_GR_ENGINE_ACTIVE", "gauge", "Share of time with work.", _scaled("graphics_active_ratio", 1)),
    ("DCGM_FI_PROF_SM_ACTIVE", "gauge", "Share of time with a resident warp.", _scaled("sm_active_ratio", 1)),
    ("DCGM_FI_PROF_SM_OCCUPANCY", "gauge", "Share of the possible warps.", _scaled("sm_occupancy_ratio", 1)),
    ("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "gauge", "Load of the tensor cores.", _scaled("tensor_active_ratio", 1)),
    ("DCGM_FI_PROF_DRAM_ACTIVE", "gauge", "Load of the memory interface.", _scaled("dram_active_ratio", 1)),
    ("DCGM_FI_PROF_PIPE_FP64_ACTIVE", "gauge", "Load of the FP64 pipe.", _scaled("fp64_active_ratio", 1)),
    ("DCGM_FI_PROF_PIPE_FP32_ACTIVE", "gauge", "Load of the FP32 pipe.", _scaled("fp32_active_ratio", 1)),
    ("DCGM_FI_PROF_PIPE_FP16_ACTIVE", "gauge", "Load of the FP16 pipe.", _scaled("fp16_active_ratio", 1)),
    ("DCGM_FI_PROF_PCIE_TX_BYTES", "gauge", "Bytes a second sent over PCIe.", _rate("pcie_transmitted_bytes_total")),
    ("DCGM_FI_PROF_PCIE_RX_BYTES", "gauge", "Bytes a second received over PCIe.", _rate("pcie_received_bytes_total")),
    (
        "DCGM_FI_PROF_NVLINK_TX_BYTES",
        "gauge",
        "Bytes a second sent over NVLink.",
        _rate("nvlink_profiled_transmitted_bytes_total"),
    ),
    (
        "DCGM_FI_PROF_NVLINK_RX_BYTES",
        "gauge",
        "Bytes a second received over NVLink.",
        _rate("nvlink_profiled_received_bytes_total"),
    ),
)


class DcgmExposition:
    """Renders the current snapshot when it is scraped. One thread uses it."""

    def __init__(self, hostname: str) -> None:
        self._hostname = hostname
        self._last: _Values | None = None  # of the last scrape
        self._before: _Values | None = None  # from which rates begin

    def respond(self, snapshot: Snapshot, accept_encoding: str | None) -> Response:
        """Return the response to a scrape: the text format, without families that have no value."""
        if self._last is None or snapshot.monotonic != self._last.at:
            now = _Values(snapshot)
            if self._last and now.at - self._last.at >= _MIN_RATE_SECONDS:
                self._before = self._last
            self._last = now
        body = self._text(self._last).encode()
        if negotiate("", accept_encoding or "").gzip:
            return Response(gzipped(body), TEXT, "gzip")
        return Response(body, TEXT)

    def _text(self, now: _Values) -> str:
        devices = [(device, list(labels)) for device, labels in self._devices(now)]
        lines = []
        for name, kind, text, read in ROWS:
            found = [(read(device), labels) for device, labels in devices]
            samples = [f"{name}{label} {go_float(v)}\n" for v, labels in found if v is not None for label in labels]
            if samples:
                lines += [f"# HELP {name} {text}\n# TYPE {name} {kind}\n", *samples]
        return "".join(lines)

    def _devices(self, now: _Values) -> Iterator[tuple[_Device, Iterable[str]]]:
        """Yield each GPU and MIG device with its label sets: one for each container that it is allocated to."""
        version = next((info["driver_version"] for info in now.infos["gpugauge_build_info"]), "")
        holders = defaultdict[str, list[Mapping[str, str]]](list)
        for info in now.infos["gpu_allocation_info"]:
            holders[info["uuid"]].append(info)
        gpus = {}
        for info in now.infos["gpu_info"]:
            uuid = info["uuid"]
            gpus[uuid] = {
                "gpu": info["index"],
                "UUID": uuid,
                "pci_bus_id": info["pci_bus_id"],
                "device": f"nvidia{info['minor_number']}",
                "modelName": info["name"],
                "Hostname": self._hostname,
                "DCGM_FI_DRIVER_VERSION": version,
            }
            yield _Device(uuid, now, self._before), _label_sets(gpus[uuid], holders[uuid])
        for info in now.infos["gpu_mig_info"]:
            if parent := gpus.get(info["parent_uuid"]):
                labels = {**parent, "GPU_I_PROFILE": info["profile"], "GPU_I_ID": info["gpu_instance"]}
                device = _Device(info["uuid"], now, self._before, "gpu_mig_")
                yield device, _label_sets(labels, holders[info["uuid"]])


def _label_sets(labels: Labels, holders: Iterable[Mapping[str, str]]) -> Iterator[str]:
    """Yield the labels of a device as text, for each distinct container, or once without one."""
    names = ("container", "namespace", "pod")
    places = {tuple(holder[f"workload_{name}"] for name in names) for holder in holders} or {("", "", "")}
    for place in sorted(places):
        yield label_set((*labels, *names), (*labels.values(), *place))
