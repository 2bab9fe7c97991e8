"""Values under dcgm-exporter's names, labels and units, of its etc/default-counters.csv (docs/migrating.md)."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from gpugauge.collectors.device import device as gpu
from gpugauge.collectors.device import events, mig
from gpugauge.collectors.exporter import exporter
from gpugauge.collectors.process import allocation
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
_Row: TypeAlias = tuple[str, Kind, str, _Read]  # name, kind, help, reader


def _scaled(kind: Kind, name: str, text: str, metric: str, factor: float = 1, *labels: str) -> _Row:
    """Return a row for the value of our metric times a factor."""

    def read(device: _Device) -> float | None:
        value = device.value(metric, *labels)
        return None if value is None else value * factor

    return name, kind, text, read


_gauge, _counter = partial(_scaled, "gauge"), partial(_scaled, "counter")


def _rate(name: str, text: str, metric: str) -> _Row:
    """Return a row for the increase of our counter a second."""

    def read(device: _Device) -> float | None:
        increase = device.increase(metric)
        return None if increase is None else increase / device.seconds

    return name, "gauge", text, read


def _load(name: str, text: str, engine: str) -> _Row:
    def read(device: _Device) -> float | None:
        busy = device.increase("busy_seconds_total", engine)
        observed = device.increase("observed_seconds_total", engine)
        return None if busy is None or not observed else 100 * busy / observed

    return name, "gauge", text, read


def _last_xid(device: _Device) -> float | None:
    """Return the code of the last Xid error that is recent or whose fault is not repaired, 0 without one."""
    if not device.now.of(events.ERRORS.name, device.uuid):
        return None
    last = device.now.of(events.LAST.name, device.uuid)
    times = device.now.of(events.UNREPAIRED.name, device.uuid)
    times |= {key: at for key, at in last.items() if key in times or at > device.now.timestamp - _XID_SECONDS}
    return float(max(times, key=lambda key: times[key])[0]) if times else 0.0


# Fields whose unit differs between versions of DCGM are left out (docs/migrating.md).
ROWS: tuple[_Row, ...] = (
    _gauge("DCGM_FI_DEV_SM_CLOCK", "SM clock in MHz.", "clock_hertz", 1e-6, "sm"),
    _gauge("DCGM_FI_DEV_MEM_CLOCK", "Memory clock in MHz.", "clock_hertz", 1e-6, "memory"),
    _gauge("DCGM_FI_DEV_GPU_TEMP", "GPU temperature in C.", "temperature_celsius", 1, "gpu"),
    _gauge("DCGM_FI_DEV_MEMORY_TEMP", "Memory temperature in C.", "temperature_celsius", 1, "memory"),
    _gauge("DCGM_FI_DEV_POWER_USAGE", "Power draw in W.", "power_watts"),
    _counter(
        "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION",
        "Energy since the driver was loaded, in mJ.",
        "energy_joules_total",
        1000,
    ),
    _counter("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", "PCIe packets that were sent again.", "pcie_replays_total"),
    _gauge("DCGM_FI_DEV_GPU_UTIL", "Time with a kernel, in percent.", "utilization_ratio", 100),
    _gauge("DCGM_FI_DEV_MEM_COPY_UTIL", "Time with memory traffic, in percent.", "memory_utilization_ratio", 100),
    _load("DCGM_FI_DEV_ENC_UTIL", "Load of the encoder in percent.", "encoder"),
    _load("DCGM_FI_DEV_DEC_UTIL", "Load of the decoder in percent.", "decoder"),
    ("DCGM_FI_DEV_XID_ERRORS", "gauge", "Code of the last Xid error in five minutes, or until its repair.", _last_xid),
    _gauge("DCGM_FI_DEV_FB_TOTAL", "Device memory in MiB.", "memory_total_bytes", 1 / _MIB),
    _gauge("DCGM_FI_DEV_FB_FREE", "Free device memory in MiB.", "memory_free_bytes", 1 / _MIB),
    _gauge("DCGM_FI_DEV_FB_USED", "Used device memory in MiB.", "memory_used_bytes", 1 / _MIB),
    _gauge("DCGM_FI_DEV_FB_RESERVED", "Reserved device memory in MiB.", "memory_reserved_bytes", 1 / _MIB),
    *(
        _counter(
            f"DCGM_FI_DEV_ECC_{short}_{scope_name}_TOTAL",
            f"ECC errors: {kind}, {scope}.",
            "ecc_errors_total",
            *(1, kind, scope),
        )
        for (short, kind), (scope_name, scope) in itertools.product(
            (("SBE", "corrected"), ("DBE", "uncorrected")), (("VOL", "volatile"), ("AGG", "aggregate"))
        )
    ),
    *(
        _counter(
            f"DCGM_FI_DEV_{kind.upper()}_REMAPPED_ROWS",
            f"Rows remapped for {kind} errors.",
            "remapped_rows",
            *(1, kind),
        )
        for kind in ("uncorrectable", "correctable")
    ),
    _gauge("DCGM_FI_DEV_ROW_REMAP_FAILURE", "1 if a remapping failed.", "remapped_rows_failure"),
    _gauge("DCGM_FI_PROF_GR_ENGINE_ACTIVE", "Share of time with work.", "graphics_active_ratio"),
    _gauge("DCGM_FI_PROF_SM_ACTIVE", "Share of time with a resident warp.", "sm_active_ratio"),
    _gauge("DCGM_FI_PROF_SM_OCCUPANCY", "Share of the possible warps.", "sm_occupancy_ratio"),
    _gauge("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "Load of the tensor cores.", "tensor_active_ratio"),
    _gauge("DCGM_FI_PROF_DRAM_ACTIVE", "Load of the memory interface.", "dram_active_ratio"),
    *(
        _gauge(f"DCGM_FI_PROF_PIPE_{pipe}_ACTIVE", f"Load of the {pipe} pipe.", f"{pipe.lower()}_active_ratio")
        for pipe in ("FP64", "FP32", "FP16")
    ),
    *(
        _rate(
            f"DCGM_FI_PROF_{link}_{short}_BYTES", f"Bytes a second {way} over {name}.", f"{ours}_{counted}_bytes_total"
        )
        for link, name, ours in (("PCIE", "PCIe", "pcie"), ("NVLINK", "NVLink", "nvlink_profiled"))
        for short, way, counted in (("TX", "sent", "transmitted"), ("RX", "received", "received"))
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
        version = next((info["driver_version"] for info in now.infos[exporter.BUILD.name]), "")
        holders = defaultdict[str, list[Mapping[str, str]]](list)
        for info in now.infos[allocation.INFO.name]:
            holders[info["uuid"]].append(info)
        gpus = {}
        for info in now.infos[gpu.INFO.name]:
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
        for info in now.infos[mig.INFO.name]:
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
