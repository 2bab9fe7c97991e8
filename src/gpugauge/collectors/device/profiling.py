"""Performance counters of GPUs (GPM), Hopper and newer: activity of multiprocessors, pipes, memory and links."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeGuard

from gpugauge.collectors.base import RegisteredCollector, Tick
from gpugauge.driver.api import DeviceReading
from gpugauge.metric import Metric, Table, families, scaled
from gpugauge.node.node import Profiled
from gpugauge.snapshot import Section

_SOURCE = "nvmlGpmMetricsGet"
_MIB = 1 << 20

# Number of the GPM metric and help text, by the middle part of the metric name, which is also the field's name.
_SHARES = {
    "graphics_active": (1, "Share of time in which any compute or graphics engine was active."),
    "sm_active": (2, "Share of time, averaged over the multiprocessors, in which at least one warp was resident."),
    "sm_occupancy": (3, "Resident warps as a share of the maximum that the multiprocessors can hold."),
    "tensor_active": (5, "Share of cycles in which the tensor cores were active."),
    "dram_active": (10, "Share of the memory bandwidth in use."),
    "fp64_active": (11, "Share of cycles in which the FP64 pipe was active."),
    "fp32_active": (12, "Share of cycles in which the FP32 pipe was active."),
    "fp16_active": (13, "Share of cycles in which the FP16 pipe was active, without tensor cores."),
}
# Field of the reading, number of the GPM metric and help text, by the middle part of the metric name.
_RATES = {
    "pcie_transmitted": ("pcie_transmit_mib_per_second", 20, "Bytes that the GPU sent over PCIe"),
    "pcie_received": ("pcie_receive_mib_per_second", 21, "Bytes that the GPU received over PCIe"),
    "nvlink_profiled_transmitted": ("nvlink_transmit_mib_per_second", 61, "Bytes sent over all NVLinks"),
    "nvlink_profiled_received": ("nvlink_receive_mib_per_second", 60, "Bytes received over all NVLinks"),
}
# A busy GPU has active cycles: after this many windows of zeros at this utilization the counters are invalid. One
# window alone can begin before the work.
_BUSY_UTILIZATION_PERCENT = 50
_MAX_ZERO_WINDOWS = 3
# Consecutive windows that may lack a counter before the GPU counts as not having it any more.
_MAX_INCOMPLETE_WINDOWS = 10


class _State:
    """Sums over the windows of one GPU."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.active: dict[str, float] = {}
        self.bytes: dict[str, float] = {}
        self.reading = DeviceReading()
        self._counters: frozenset[str] = frozenset()
        self._incomplete = self._zero = 0  # consecutive windows

    @property
    def valid(self) -> bool:
        """Whether the counters agree with the utilization."""
        return self._zero < _MAX_ZERO_WINDOWS

    def add(self, window: Mapping[str, Any], utilization: int | None) -> None:
        """Add one window of means over `profiling_seconds`."""
        seconds = window.get("profiling_seconds")
        if not seconds or not 0 < seconds < 3600:
            return
        percents = {name: window.get(f"{name}_percent") for name in _SHARES}
        shares: dict[str, float] = {name: value for name, value in percents.items() if _is_percentage(value)}
        if (utilization or 0) >= _BUSY_UTILIZATION_PERCENT and shares and not any(shares.values()):
            self._zero += 1
            return
        self._zero = 0
        for name, (key, _, _) in _RATES.items():
            if (rate := window.get(key)) is not None and 0 <= rate < float("inf"):
                self.bytes[name] = self.bytes.get(name, 0.0) + rate * _MIB * seconds
        if self._is_complete(shares):
            self.seconds += seconds
            for name, percent in shares.items():
                self.active[name] = self.active.get(name, 0.0) + percent / 100 * seconds

    def _is_complete(self, shares: Mapping[str, float]) -> bool:
        """Return whether a window has every counter of the GPU: all integrals must cover the same time."""
        if not self._counters <= shares.keys():
            self._incomplete += 1
            if self._incomplete < _MAX_INCOMPLETE_WINDOWS:
                return False
        self._incomplete, self._counters = 0, frozenset(shares)
        return bool(shares)

    def profiled(self) -> Profiled:
        """Return the integrals that the verdict reads."""
        sm_active, tensor_active = (self.active_seconds(f"{unit}_active") for unit in ("sm", "tensor"))
        sent, received = (self.bytes.get(f"pcie_{way}") for way in ("transmitted", "received"))
        return Profiled(self.covered, sm_active, tensor_active, sent, received)

    @property
    def covered(self) -> float | None:
        """Seconds covered by the integrals, None without any."""
        return self.seconds if self.active else None

    def active_seconds(self, name: str) -> float | None:
        """Return the integral of a ratio, None for one that the GPU does not have."""
        return self.active.get(name) if name in self._counters else None


def _is_percentage(value: Any) -> TypeGuard[float]:
    return value is not None and 0 <= value <= 100  # false for NaN


def _ratio(name: str) -> Callable[[_State], float | None]:
    def read(state: _State) -> float | None:
        value = getattr(state.reading, f"{name}_percent")
        return scaled(value, 0.01) if _is_percentage(value) and state.valid else None

    return read


def _bytes(name: str) -> Callable[[_State], float | None]:
    return lambda state: state.bytes.get(name)


_device = Table["_State"]("uuid", source=_SOURCE, devices="Hopper and newer")

METRICS: tuple[Metric, ...] = (
    *(
        _device.gauge(f"gpu_{name}_ratio", text, _ratio(name), source=f"{_SOURCE} {number}")
        for name, (number, text) in _SHARES.items()
    ),
    *(
        _device.counter(
            f"gpu_{name}_seconds_total",
            f"Integral of gpu_{name}_ratio. Divide its rate by that of gpu_profiled_seconds_total.",
            partial(_State.active_seconds, name=name),
            source=f"{_SOURCE} {number}",
        )
        for name, (number, _) in _SHARES.items()
    ),
    _device.counter(
        "gpu_profiled_seconds_total",
        "Time covered by the integrals of the performance counters.",
        lambda c: c.covered,
    ),
    *(
        _device.counter(
            f"gpu_{name}_bytes_total",
            f"{text}, integrated from the rates of the performance counters. Time without a window is not included.",
            _bytes(name),
            source=f"{_SOURCE} {number}",
        )
        for name, (_, number, text) in _RATES.items()
    ),
    _device.gauge(
        "gpu_profiling_valid",
        "0 while all performance counters are zero although the driver reports a busy GPU, 1 otherwise. The ratios are "
        "absent while it is 0. Another profiler on the GPU can be the reason.",
        lambda c: int(c.valid) if c.active or not c.valid else None,
        source=f"{_SOURCE}, nvmlDeviceGetUtilizationRates",
    ),
)


class ProfilingCollector(RegisteredCollector):
    """Rows by uuid, new with every window of a GPU. Counters continue when a lost GPU is back."""

    name = "profiling"
    metrics = METRICS

    def __init__(self) -> None:
        self._states: dict[str, _State] = {}
        self._seen: list[tuple[str, bool, int]] | None = None
        self._profiled: dict[str, Profiled] = {}
        self._section = Section(self.name, ())

    def collect(self, tick: Tick) -> Section:
        """Add the windows since the last tick; the same section if there are none."""
        devices = {d.uuid: d for d in tick.driver.devices}
        for reply in tick.replies:
            window = reply.values.get("profiling")
            if window and reply.uuid:
                device = devices.get(reply.uuid)
                reading = device.reading if device else DeviceReading()
                percent = reply.values.get("fast", {}).get("utilization_percent", reading.utilization_percent)
                self._states.setdefault(reply.uuid, _State()).add(window, percent)
        seen = [(d.uuid, d.up, d.generations.get("profiling", 0)) for d in tick.driver.devices]
        if seen != self._seen:
            subjects: list[tuple[tuple[str], _State]] = []
            for device in tick.driver.devices:
                state = self._states.get(device.uuid)
                if state and device.up:
                    state.reading = device.reading
                    subjects.append(((device.uuid,), state))
            self._section, self._seen = Section(self.name, families(METRICS, subjects)), seen
            self._profiled = {uuid: state.profiled() for (uuid,), state in subjects}
        tick.node.profiled = self._profiled
        return self._section
