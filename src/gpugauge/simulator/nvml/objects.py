"""Objects that the simulated library creates for its caller: GPM samples and event sets. Pointers are numbers."""
# ruff: noqa: SLF001  (`_obj` is the interface of ctypes)

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from gpugauge.driver.nvidia.caller import EVENT_TYPES
from gpugauge.simulator.device.device import NVLINK_BYTES, Device
from gpugauge.simulator.device.instance import Instance
from gpugauge.simulator.nvml.answers import (
    INVALID_ARGUMENT,
    NOT_AVAILABLE_32,
    NOT_FOUND,
    NOT_SUPPORTED,
    SUCCESS,
    TIMEOUT,
    plain,
    point,
    pointed,
)

_T = TypeVar("_T")
_MIN_GAP_SECONDS = 0.1  # between two samples
_MIB = 2**20
_NVLINK_MIB = NVLINK_BYTES / _MIB


@dataclass(slots=True)
class _Sample:
    source: Device | Instance | None = None
    t: float = 0.0


@dataclass(slots=True)
class _EventSet:
    # With event types and the time of registration.
    devices: list[tuple[Device, int, float]] = field(default_factory=list)
    reported: set[tuple[int, float, str, int]] = field(default_factory=set)


class Objects:
    """Numbers start at 1, so that no pointer is null."""

    def __init__(self) -> None:
        self._samples: dict[int, _Sample] = {}
        self._sets: dict[int, _EventSet] = {}
        self._made = 0

    def _add(self, made: dict[int, _T], one: _T, out: Any) -> int:
        self._made += 1
        made[self._made] = one
        point(out._obj, self._made)
        return SUCCESS

    def sample_alloc(self, _t: float, out: Any) -> int:
        """Create an empty sample."""
        return self._add(self._samples, _Sample(), out)

    def sample_free(self, _t: float, sample: Any) -> int:
        """Free a sample."""
        return SUCCESS if self._samples.pop(pointed(sample), None) else INVALID_ARGUMENT

    def sample_get(self, source: Device | Instance, t: float, sample: Any) -> int:
        """Fill a sample from a GPU or GPU instance."""
        found = self._samples.get(pointed(sample))
        if found is None:
            return INVALID_ARGUMENT
        found.source, found.t = source, t
        return SUCCESS

    def mig_sample_get(self, device: Device, t: float, gpu_instance: Any, sample: Any) -> int:
        """Fill a sample from a GPU instance."""
        for instance in device.instances or ():
            if instance.gpu_instance_id == plain(gpu_instance) and instance.alive(t):
                return self.sample_get(instance, t, sample)
        return NOT_FOUND

    def metrics_get(self, _t: float, out: Any) -> int:
        """Write the metrics between two samples; each has its own return code."""
        request = out._obj
        first, second = self._samples.get(pointed(request.sample1)), self._samples.get(pointed(request.sample2))
        if first is None or second is None or first.source is None or first.source is not second.source:
            return INVALID_ARGUMENT
        values = _metrics(first.source, first.t, second.t)
        for metric in request.metrics[: request.numMetrics]:
            value = values.get(metric.metricId)
            metric.nvmlReturn = NOT_SUPPORTED if value is None else SUCCESS
            metric.value = value or 0.0
        return SUCCESS

    def event_set_create(self, _t: float, out: Any) -> int:
        """Create an empty event set."""
        return self._add(self._sets, _EventSet(), out)

    def event_set_free(self, _t: float, events: Any) -> int:
        """Free an event set."""
        return SUCCESS if self._sets.pop(pointed(events), None) else INVALID_ARGUMENT

    def register_events(self, device: Device, t: float, types: Any, events: Any) -> int:
        """Add a GPU to an event set; earlier events are not reported."""
        found = self._sets.get(pointed(events))
        if found is None:
            return INVALID_ARGUMENT
        found.devices.append((device, plain(types), t))
        return SUCCESS

    def event_set_wait(self, handles: Mapping[Device, int], t: float, events: Any, out: Any, *, foreign: bool) -> int:
        """Write the next event of a registered GPU, or with `foreign` of any, without waiting; `handles`: the GPUs."""
        found = self._sets.get(pointed(events))
        if found is None:
            return INVALID_ARGUMENT
        registered = found.devices
        if foreign and registered:
            _, types, since = registered[0]
            registered = [(device, types, since) for device in handles]
        for device, types, since in registered:
            for at, kind, data in device.events:
                mark = (device.index, at, kind, data)
                if since < at <= t and EVENT_TYPES[kind] & types and mark not in found.reported:
                    found.reported.add(mark)
                    point(out._obj.device, handles[device])
                    out._obj.eventType, out._obj.eventData = EVENT_TYPES[kind], data
                    out._obj.gpuInstanceId = out._obj.computeInstanceId = NOT_AVAILABLE_32
                    return SUCCESS
        return TIMEOUT


def _metrics(source: Device | Instance, begin: float, end: float) -> dict[int, float]:
    """Return the means between two seconds by metric id; NaN if they are too close."""
    seconds = end - begin
    if seconds < _MIN_GAP_SECONDS:
        return dict.fromkeys((1, 2, 3, 5, 10, 11, 12, 13), float("nan"))

    def mean(count: Callable[[float], float]) -> float:
        return (count(end) - count(begin)) / seconds

    busy, work, moved = mean(source.busy), mean(source.work), mean(source.moved)
    found = {
        1: 100 * busy,
        2: 20 * busy + 80 * work,
        3: 55 * work,
        5: 60 * work,
        10: 100 * moved,
        11: 0.0,
        12: 15 * work,
        13: 5 * work,
    }
    if isinstance(source, Device):
        found |= {2: mean(source.sm_active) / 0.01, 5: mean(source.tensor_active) / 0.01}
        found |= {20: mean(source.sent) / _MIB, 21: mean(source.received) / _MIB}
        if "nvlink" not in source.figures["lacks"]:
            found |= {60: moved * _NVLINK_MIB, 61: moved * _NVLINK_MIB}
    return found
