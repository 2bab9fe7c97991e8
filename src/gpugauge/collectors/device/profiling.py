"""How well a GPU is used while it is busy: the GPU's own performance counters (GPM), Hopper and newer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeGuard

from gpugauge.collectors.base import Tick
from gpugauge.driver.api import DeviceReading, Reply
from gpugauge.metric import BYTES, NONE, RATIO, SECONDS, LabelValues, Metric, Table, families, scaled
from gpugauge.snapshot import Section

_SOURCE = "nvmlGpmMetricsGet"
_DEVICES = "Hopper and newer"
_MIB = 1 << 20

# By the middle of the metrics' names: the field of the reading, GPM's number, and what the ratio is.
_SHARES = {
    "graphics_active": (1, "Share of time in which any compute or graphics engine was active."),
    "sm_active": (2, "Share of multiprocessors, over time, with at least one warp resident: how full the GPU is."),
    "sm_occupancy": (3, "Resident warps, over time, as a share of what the multiprocessors can hold."),
    "tensor_active": (5, "Share of cycles in which the tensor cores were active."),
    "dram_active": (10, "Share of the memory's bandwidth that was used."),
    "fp64_active": (11, "Share of cycles in which the FP64 pipe was active."),
    "fp32_active": (12, "Share of cycles in which the FP32 pipe was active."),
    "fp16_active": (13, "Share of cycles in which the FP16 pipe was active, tensor cores left out."),
}
_RATES = {
    "gpu_pcie_transmitted_bytes_total": ("pcie_transmit_mib_per_second", 20, "Bytes that the GPU sent over PCIe"),
    "gpu_pcie_received_bytes_total": ("pcie_receive_mib_per_second", 21, "Bytes that the GPU received over PCIe"),
    "gpu_nvlink_profiled_transmitted_bytes_total": (
        "nvlink_transmit_mib_per_second",
        61,
        "Bytes sent over all NVLinks",
    ),
    "gpu_nvlink_profiled_received_bytes_total": (
        "nvlink_receive_mib_per_second",
        60,
        "Bytes received over all NVLinks",
    ),
}
# A kernel without a single active cycle is impossible; one window may straddle the beginning of the work.
_BUSY_PERCENT = 50
_ZERO_WINDOWS = 3
# Windows in a row that may lack a measure before it counts as gone.
_PATIENCE = 10


class _State:
    """Sums over the windows of one GPU."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.active: dict[str, float] = {}
        self.bytes: dict[str, float] = {}
        self.reading = DeviceReading()
        self._measures: frozenset[str] = frozenset()
        self._lacking = self._zero = 0

    @property
    def valid(self) -> bool:
        """Whether the counters agree with the utilization."""
        return self._zero < _ZERO_WINDOWS

    def take(self, window: Mapping[str, Any], utilization: int | None) -> None:
        """Add one window: means over its `profiling_seconds`."""
        seconds = window.get("profiling_seconds")
        if not seconds or not 0 < seconds < 3600:
            return
        told = {name: window.get(f"{name}_percent") for name in _SHARES}
        shares: dict[str, float] = {name: value for name, value in told.items() if _is_share(value)}
        if (utilization or 0) >= _BUSY_PERCENT and shares and not any(shares.values()):
            self._zero += 1
            return
        self._zero = 0
        for name, (key, _, _) in _RATES.items():
            if (rate := window.get(key)) is not None and 0 <= rate < float("inf"):
                self.bytes[name] = self.bytes.get(name, 0.0) + rate * _MIB * seconds
        if self._whole(shares):
            self.seconds += seconds
            for name, percent in shares.items():
                self.active[name] = self.active.get(name, 0.0) + percent / 100 * seconds

    def _whole(self, shares: Mapping[str, float]) -> bool:
        """Whether a window has every measure that the GPU has: all sums must be over the same time."""
        if not self._measures <= shares.keys():
            self._lacking += 1
            if self._lacking < _PATIENCE:
                return False
        self._lacking, self._measures = 0, frozenset(shares)
        return bool(shares)

    def active_seconds(self, name: str) -> float | None:
        """Return the integral of a share; nothing for one that the GPU has no more."""
        return self.active.get(name) if name in self._measures else None


def _is_share(value: Any) -> TypeGuard[float]:
    return value is not None and 0 <= value <= 100  # false for NaN


def _ratio(name: str) -> Callable[[_State], float | None]:
    def read(state: _State) -> float | None:
        value = getattr(state.reading, f"{name}_percent")
        return scaled(value, 0.01) if _is_share(value) and state.valid else None

    return read


def _active_seconds(name: str) -> Callable[[_State], float | None]:
    return lambda state: state.active_seconds(name)


def _bytes(name: str) -> Callable[[_State], float | None]:
    return lambda state: state.bytes.get(name)


_device = Table("uuid")

METRICS: tuple[Metric, ...] = (
    *(
        _device.gauge(f"gpu_{name}_ratio", text, RATIO, _ratio(name), source=f"{_SOURCE} {number}", devices=_DEVICES)
        for name, (number, text) in _SHARES.items()
    ),
    *(
        _device.counter(
            f"gpu_{name}_seconds_total",
            f"Integral of gpu_{name}_ratio. Divide its rate by that of gpu_profiled_seconds_total.",
            SECONDS,
            _active_seconds(name),
            source=f"{_SOURCE} {number}",
            devices=_DEVICES,
        )
        for name, (number, _) in _SHARES.items()
    ),
    _device.counter(
        "gpu_profiled_seconds_total",
        "Time that the integrals of the performance counters cover.",
        SECONDS,
        lambda c: c.seconds if c.active else None,
        source=_SOURCE,
        devices=_DEVICES,
    ),
    *(
        _device.counter(
            name,
            f"{text}, integrated from the rates of the performance counters; what no window covers is missing.",
            BYTES,
            _bytes(name),
            source=f"{_SOURCE} {number}",
            devices=_DEVICES,
        )
        for name, (_, number, text) in _RATES.items()
    ),
    _device.gauge(
        "gpu_profiling_valid",
        "0 while the performance counters see nothing run although the driver says that the GPU is busy, 1 otherwise; "
        "the ratios are withheld meanwhile. Another profiler on the GPU can be the reason.",
        NONE,
        lambda c: int(c.valid) if c.active or not c.valid else None,
        source=f"{_SOURCE}, nvmlDeviceGetUtilizationRates",
        devices=_DEVICES,
    ),
)


class ProfilingCollector:
    """Rows by uuid, new with every window of a GPU. Counters stay when a GPU is lost and comes back."""

    name = "profiling"
    metrics = METRICS

    def __init__(self) -> None:
        self._states: dict[str, _State] = {}
        self._seen: list[tuple[str, bool, int]] | None = None
        self._section = Section(self.name, ())

    def collect(self, tick: Tick) -> Section:
        """Add the windows since the tick before; the same section when there is none."""
        devices = {d.uuid: d for d in tick.driver.devices}
        for reply in tick.replies:
            window = reply.values.get("profiling")
            if window and reply.uuid:
                device = devices.get(reply.uuid)
                reading = device.reading if device else DeviceReading()
                self._states.setdefault(reply.uuid, _State()).take(window, _utilization(reply, reading))
        seen = [(d.uuid, d.up, d.generations.get("profiling", 0)) for d in tick.driver.devices]
        if seen != self._seen:
            subjects: list[tuple[LabelValues, _State]] = []
            for device in tick.driver.devices:
                state = self._states.get(device.uuid)
                if state and device.up:
                    state.reading = device.reading
                    subjects.append(((device.uuid,), state))
            self._section, self._seen = Section(self.name, families(METRICS, subjects)), seen
        return self._section


def _utilization(reply: Reply, reading: DeviceReading) -> int | None:
    value: int | None = reply.values.get("fast", {}).get("utilization_percent", reading.utilization_percent)
    return value
