"""The double of the C library for a simulated world, with the faults of the world in each function."""

# ruff: noqa: SLF001  (`_obj` is the interface of ctypes)

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import partial
from itertools import chain
from typing import Any

from gpugauge.simulator.device.device import Device
from gpugauge.simulator.device.faults import spoil
from gpugauge.simulator.device.world import Generation, World
from gpugauge.simulator.nvml import answers
from gpugauge.simulator.nvml.answers import UNSIGNED_INT, number, plain, point, pointed, text
from gpugauge.simulator.nvml.fieldvalues import field_values
from gpugauge.simulator.nvml.functions import DEVICE_FUNCTIONS, MIG_FUNCTIONS
from gpugauge.simulator.nvml.objects import Objects

_ENGINES = {1: "gpu", 2: "memory", 3: "encoder", 4: "decoder", 8: "jpeg", 9: "ofa"}
_NOT_WITH_MIG = {1, 2, 3, 4}
_SAMPLE = "QI4x"  # nvmlSample_t; access to the structures of the binding is slower
_MAX_PROCESSES = 100
_SWITCH, _SWITCH_BUS_ID = 2, "00000007:01:00.0"  # of nvmlIntNvLinkDeviceType_t


def samples(
    generation: Generation, device: Device, t: float, kind: Any, after: Any, value_type: Any, count: Any, array: Any
) -> int:
    """Implement nvmlDeviceGetSamples; without an array, write the capacity of the ring."""
    engine = _ENGINES.get(plain(kind))
    if engine is None or not generation.has_ring(engine):
        return answers.INVALID_ARGUMENT
    if (plain(kind) in _NOT_WITH_MIG and device.instances is not None) or engine in device.figures["lacks"]:
        return answers.NOT_SUPPORTED
    value_type._obj.value = UNSIGNED_INT
    if array is None:
        count._obj.value = device.ring.capacity
        return answers.SUCCESS
    found = device.ring.samples(plain(after), t, device.engines.get(engine), device.occupied)
    if not found:
        return answers.NOT_FOUND
    count._obj.value = len(found)
    struct.pack_into("=" + _SAMPLE * len(found), array, 0, *chain.from_iterable(found))
    return answers.SUCCESS


def process_utilization(device: Device, t: float, array: Any, count: Any, after: Any) -> int:
    """Implement nvmlDeviceGetProcessUtilization: the means since a time, of each process that used the GPU."""
    if array is None:
        count._obj.value = _MAX_PROCESSES
        return answers.INSUFFICIENT_SIZE
    since = plain(after)
    begin = max(t - device.ring.span, t - (device.ring.stamp(t) - since) / 1e6 if since else 0.0)
    if t <= begin:
        return answers.NOT_FOUND
    stamp, found = device.ring.stamp(t), 0
    for process in device.processes:
        activity = process.on(device.index)
        busy = (activity.busy(t) - activity.busy(begin)) / (t - begin)
        if busy <= 0 or found == _MAX_PROCESSES:
            continue
        entry = array[found]
        entry.pid, entry.timeStamp = process.pid, stamp
        entry.smUtil, entry.memUtil, entry.encUtil, entry.decUtil = (
            min(100, round(100 * busy * activity.engines.get(engine, 0.0)))
            for engine in ("gpu", "memory", "encoder", "decoder")
        )
        found += 1
    count._obj.value = found
    return answers.SUCCESS if found else answers.NOT_FOUND


_MIG_SHIFT = 16  # a handle is the number of a GPU, from 1, and in the higher bits that of a MIG device


class Library:
    """Replaces `ctypes.CDLL("libnvidia-ml.so.1")`: an attribute is a C function."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._devices: list[Device] | None = None  # as enumerated at init; None before
        self._opened = 0.0
        self.objects = Objects()

    def __getattr__(self, function: str) -> Callable[..., int]:
        """Return a function with its faults. Raises AttributeError if the driver does not export it."""
        if function not in FUNCTIONS or self.world.lacks(function):
            raise AttributeError(function)
        if function in SYSTEM_FUNCTIONS:
            return self._system_function(function)
        return self._device_function(function)

    def _system_function(self, function: str) -> Callable[..., int]:
        answer = partial(SYSTEM_FUNCTIONS[function], self)

        def call(*arguments: Any) -> int:
            if self._devices is None and function != "nvmlInitWithFlags":
                return answers.UNINITIALIZED
            device = None
            if function == "nvmlDeviceGetHandleByIndex_v2":  # concerns a GPU, but has no handle yet
                device = self._device(plain(arguments[0]) + 1)
            return self._faulty(function, device, lambda t: answer(t, *arguments), arguments)

        return call

    def _device_function(self, function: str) -> Callable[..., int]:
        bound = _BOUND_FUNCTIONS.get(function)
        answer = bound(self) if bound else DEVICE_FUNCTIONS.get(function)
        of_instance = MIG_FUNCTIONS.get(function)
        supported = {device.index for device in self.world.devices if device.supports(function)}
        faulty = any(fault.concerns(function) for fault in self.world.faults)

        def normal(device: Device, position: int, t: float, arguments: tuple[Any, ...]) -> int:
            if self._opened < device.lost_at <= t:
                return answers.GPU_IS_LOST
            if position:
                instance = (device.instances or ())[position - 1]
                return of_instance(instance, t, *arguments) if of_instance else answers.NOT_SUPPORTED
            if answer is None:
                return answers.INVALID_ARGUMENT  # for MIG devices only
            return answer(device, t, *arguments) if device.index in supported else answers.NOT_SUPPORTED

        def call(handle: Any, *arguments: Any) -> int:
            if self._devices is None:
                return answers.UNINITIALIZED
            place = pointed(handle)
            device, position = self._device(place & (1 << _MIG_SHIFT) - 1), place >> _MIG_SHIFT
            if device is None:
                return answers.INVALID_ARGUMENT
            if not faulty:
                return normal(device, position, self.world.now(), arguments)
            return self._faulty(function, device, lambda t: normal(device, position, t, arguments), arguments)

        return call

    def _device(self, number: int) -> Device | None:
        devices = self._devices or ()
        return devices[number - 1] if 0 < number <= len(devices) else None

    def _faulty(
        self, function: str, device: Device | None, normal: Callable[[float], int], arguments: tuple[Any, ...]
    ) -> int:
        t = self.world.now()
        index, uuid = (device.index, device.uuid) if device else (None, None)
        due = [f for f in self.world.faults if f.concerns(function) and f.due(t, index, uuid)]
        for fault in due:
            code = fault.apply()
            if code is not None:
                return code
        result = normal(self.world.now())
        for fault in due:
            if fault.value is not None and result == answers.SUCCESS:
                spoil(arguments, fault.value, fault.member)
        return result

    def init(self, t: float, _flags: Any) -> int:
        """Initialise and enumerate the GPUs that are on the bus now; also without GPUs."""
        self._devices = [device for device in self.world.devices if device.present(t) and not device.is_amd]
        self._opened = t
        return answers.SUCCESS

    def shutdown(self, _t: float) -> int:
        """Undo `init`."""
        self._devices = None
        return answers.SUCCESS

    def handle(self, _t: float, index: Any, out: Any) -> int:
        """Write the handle of a GPU."""
        if self._device(plain(index) + 1) is None:
            return answers.INVALID_ARGUMENT
        point(out._obj, plain(index) + 1)
        return answers.SUCCESS

    def mig_handle(self, device: Device, t: float, index: Any, out: Any) -> int:
        """Write the handle of a MIG device; their numbers have gaps."""
        position = plain(index)
        instances = device.instances or ()
        if position >= len(instances) or not instances[position].alive(t):
            return answers.NOT_FOUND
        assert self._devices is not None
        point(out._obj, self._devices.index(device) + 1 | position + 1 << _MIG_SHIFT)
        return answers.SUCCESS

    def other_end(self, device: Device, t: float, link: Any, out: Any) -> int:
        """Write the kind of the device at the other end of an NVLink, or its bus id into a structure."""
        if device.nvlink_up(plain(link), t) is None:
            return answers.INVALID_ARGUMENT
        peer = device.figures.get("nvlink_peer")
        if hasattr(out._obj, "busId"):
            out._obj.busId = (_SWITCH_BUS_ID if peer is None else self.world.devices[peer].bus_id).encode()
        else:
            out._obj.value = _SWITCH if peer is None else 0
        return answers.SUCCESS

    def event_set_wait(self, t: float, events: Any, out: Any, _timeout: Any) -> int:
        """Write the next event of an event set."""
        handles = {device: number for number, device in enumerate(self._devices or (), 1)}
        return self.objects.event_set_wait(handles, t, events, out, foreign=self.world.foreign_events)


# Functions of the driver, of samples and of event sets: (library, second, arguments).
SYSTEM_FUNCTIONS: dict[str, Callable[..., int]] = {
    "nvmlInitWithFlags": Library.init,
    "nvmlShutdown": Library.shutdown,
    "nvmlDeviceGetCount_v2": number(lambda library, _t: len(library._devices or ())),
    "nvmlDeviceGetHandleByIndex_v2": Library.handle,
    "nvmlSystemGetDriverVersion": text(lambda library: library.world.driver_version),
    "nvmlSystemGetCudaDriverVersion_v2": number(lambda library, _t: library.world.cuda_version),
    "nvmlGpmSampleAlloc": lambda library, *arguments: library.objects.sample_alloc(*arguments),
    "nvmlGpmSampleFree": lambda library, *arguments: library.objects.sample_free(*arguments),
    "nvmlGpmMetricsGet": lambda library, *arguments: library.objects.metrics_get(*arguments),
    "nvmlEventSetCreate": lambda library, *arguments: library.objects.event_set_create(*arguments),
    "nvmlEventSetFree": lambda library, *arguments: library.objects.event_set_free(*arguments),
    "nvmlEventSetWait_v2": Library.event_set_wait,
}
# Functions of a GPU that use the library. Bound to it they are (GPU, second, other arguments).
_BOUND_FUNCTIONS: dict[str, Callable[[Library], Callable[..., int]]] = {
    "nvmlDeviceGetMigDeviceHandleByIndex": lambda library: library.mig_handle,
    "nvmlDeviceGetFieldValues": lambda library: partial(field_values, library.world),
    "nvmlDeviceGetNvLinkRemoteDeviceType": lambda library: library.other_end,
    "nvmlDeviceGetNvLinkRemotePciInfo_v2": lambda library: library.other_end,
    "nvmlDeviceGetSamples": lambda library: partial(samples, library.world.generation),
    "nvmlDeviceGetProcessUtilization": lambda _library: process_utilization,
    "nvmlDeviceRegisterEvents": lambda library: library.objects.register_events,
    "nvmlGpmSampleGet": lambda library: library.objects.sample_get,
    "nvmlGpmMigSampleGet": lambda library: library.objects.mig_sample_get,
}
FUNCTIONS = frozenset((*DEVICE_FUNCTIONS, *MIG_FUNCTIONS, *SYSTEM_FUNCTIONS, *_BOUND_FUNCTIONS))
