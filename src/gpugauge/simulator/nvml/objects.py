"""Objects that the simulated library creates for its caller: GPM samples and event sets. Pointers are numbers."""
# ruff: noqa: SLF001  (`_obj` is the interface of ctypes)

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gpugauge.driver.codes import INVALID_ARGUMENT, NOT_FOUND, NOT_SUPPORTED, SUCCESS, TIMEOUT
from gpugauge.simulator.device.device import NVLINK_BYTES, Device
from gpugauge.simulator.device.instance import Instance
from gpugauge.simulator.nvml.answers import NOT_AVAILABLE_32, plain, point, pointed

_MIN_GAP_SECONDS = 0.1  # between two samples
_MIB = 2**20
_NVLINK_MIB = NVLINK_BYTES / _MIB


@dataclass(slots=True)
class _Sample:
    source: Device | Instance | None = None
    t: float = 0.0


@dataclass(slots=True)
class _EventSet:
    devices: list[tuple[Device, int, float]] = field(
        default_factory=list
    )  # with event types and the time of registration
    reported: set[tuple[int, float, int, int]] = field(default_factory=set)


class Objects:
    """Numbers start at 1, so that no pointer is null. With `frozen` time, samples and event sets start in the past."""

    def __init__(self, *, frozen: bool) -> None:
        self._frozen = frozen
        self._samples: dict[int, _Sample] = {}
        self._sets: dict[int, _EventSet] = {}
        self._made = 0

    @property
    def alive(self) -> int:
        """The number of objects that have not been freed."""
        return len(self._samples) + len(self._sets)

    def sample_alloc(self, _t: float, out: Any) -> int:
        """Create an empty sample."""
        self._made += 1
        self._samples[self._made] = _Sample()
        point(out._obj, self._made)
        return SUCCESS

    def sample_free(self, _t: float, sample: Any) -> int:
        """Free a sample."""
        return SUCCESS if self._samples.pop(pointed(sample), None) else INVALID_ARGUMENT

    def sample_get(self, device: Device, t: float, sample: Any) -> int:
        """Fill a sample from a GPU."""
        return self._take(device, t, sample)

    def mig_sample_get(self, device: Device, t: float, gpu_instance: Any, sample: Any) -> int:
        """Fill a sample from a GPU instance."""
        for instance in device.instances or ():
            if instance.gpu_instance_id == plain(gpu_instance) and instance.alive(t):
                return self._take(instance, t, sample)
        return NOT_FOUND

    def metrics_get(self, _t: float, out: Any) -> int:
        """Write the metrics between two samples; each has its own return code."""
        request = out._obj
        first, second = self._samples.get(pointed(request.sample1)), self._samples.get(pointed(request.sample2))
        if first is None or second is None or first.source is None or first.source is not second.source:
            return INVALID_ARGUMENT
        begin = second.t - 1.0 if self._frozen else first.t
        values = _metrics(first.source, begin, second.t)
        for metric in request.metrics[: request.numMetrics]:
            value = values.get(metric.metricId)
            metric.nvmlReturn = NOT_SUPPORTED if value is None else SUCCESS
            metric.value = value or 0.0
        return SUCCESS

    def event_set_create(self, _t: float, out: Any) -> int:
        """Create an empty event set."""
        self._made += 1
        self._sets[self._made] = _EventSet()
        point(out._obj, self._made)
        return SUCCESS

    def event_set_free(self, _t: float, events: Any) -> int:
        """Free an event set."""
        return SUCCESS if self._sets.pop(pointed(events), None) else INVALID_ARGUMENT

    def register_events(self, device: Device, t: float, types: Any, events: Any) -> int:
        """Add a GPU to an event set; earlier events are not reported."""
        found = self._sets.get(pointed(events))
        if found is None:
            return INVALID_ARGUMENT
        found.devices.append((device, plain(types), -float("inf") if self._frozen else t))
        return SUCCESS

    def event_set_wait(self, handles: Mapping[Device, int], t: float, events: Any, out: Any, *, foreign: bool) -> int:
        """Write the next event of a registered GPU, or with `foreign` of any GPU, without waiting for it. `handles` has
        the enumerated GPUs.
        """
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
                if since < at <= t and kind & types and mark not in found.reported:
                    found.reported.add(mark)
                    point(out._obj.device, handles[device])
                    out._obj.eventType, out._obj.eventData = kind, data
                    out._obj.gpuInstanceId = out._obj.computeInstanceId = NOT_AVAILABLE_32
                    return SUCCESS
        return TIMEOUT

    def _take(self, source: Device | Instance, t: float, sample: Any) -> int:
        found = self._samples.get(pointed(sample))
        if found is None:
            return INVALID_ARGUMENT
        found.source, found.t = source, t
        return SUCCESS


def _metrics(source: Device | Instance, begin: float, end: float) -> dict[int, float]:
    """Return the means between two seconds by metric id; NaN if they are too close."""
    seconds = end - begin
    if seconds < _MIN_GAP_SECONDS:
        return dict.fromkeys((1, 2, 3, 5, 10, 11, 12, 13), float("nan"))
    busy, work, moved = ((count(end) - count(begin)) / seconds for count in (source.busy, source.work, source.moved))
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
        for number, count, unit in ((2, source.sm_active, 0.01), (5, source.tensor_active, 0.01)):
            found[number] = (count(end) - count(begin)) / seconds / unit
        for number, count, unit in ((20, source.sent, _MIB), (21, source.received, _MIB)):
            found[number] = (count(end) - count(begin)) / seconds / unit
        if "nvlink" not in source.figures["lacks"]:
            found |= {60: moved * _NVLINK_MIB, 61: moved * _NVLINK_MIB}
    return found
