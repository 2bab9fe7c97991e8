"""The functions that read the sample rings of a simulated GPU."""
# ruff: noqa: SLF001  (`_obj` is the interface of ctypes)

from __future__ import annotations

import struct
from itertools import chain
from typing import Any

from gpugauge.driver.codes import INSUFFICIENT_SIZE, INVALID_ARGUMENT, NOT_FOUND, NOT_SUPPORTED, SUCCESS
from gpugauge.simulator.device.device import Device
from gpugauge.simulator.device.generation import Generation
from gpugauge.simulator.nvml.answers import UNSIGNED_INT, plain

_ENGINES = {1: "gpu", 2: "memory", 3: "encoder", 4: "decoder", 8: "jpeg", 9: "ofa"}
_NOT_WITH_MIG = {1, 2, 3, 4}
_SAMPLE = "QI4x"  # nvmlSample_t; access to the structures of the binding is slower
_MAX_PROCESSES = 100


def samples(
    generation: Generation,
    device: Device,
    t: float,
    kind: Any,
    after: Any,
    value_type: Any,
    count: Any,
    array: Any,
) -> int:
    """Implement nvmlDeviceGetSamples; without an array, write the capacity of the ring."""
    engine = _ENGINES.get(plain(kind))
    if engine is None or not generation.has_ring(engine):
        return INVALID_ARGUMENT
    if (plain(kind) in _NOT_WITH_MIG and device.instances is not None) or engine in device.figures["lacks"]:
        return NOT_SUPPORTED
    value_type._obj.value = UNSIGNED_INT
    if array is None:
        count._obj.value = device.ring.capacity
        return SUCCESS
    found = device.ring.samples(plain(after), t, device.engine(engine), device.occupied)
    if not found:
        return NOT_FOUND
    count._obj.value = len(found)
    struct.pack_into("=" + _SAMPLE * len(found), array, 0, *chain.from_iterable(found))
    return SUCCESS


def process_utilization(device: Device, t: float, array: Any, count: Any, after: Any) -> int:
    """Implement nvmlDeviceGetProcessUtilization: the means since a time, of each process that used the GPU."""
    if array is None:
        count._obj.value = _MAX_PROCESSES
        return INSUFFICIENT_SIZE
    since = plain(after)
    begin = max(t - device.ring.span, t - (device.ring.stamp(t) - since) / 1e6 if since else 0.0)
    if t <= begin:
        return NOT_FOUND
    stamp, number = device.ring.stamp(t), 0
    for process in device.processes:
        activity = process.on(device.index)
        busy = (activity.busy(t) - activity.busy(begin)) / (t - begin)
        if busy <= 0 or number == _MAX_PROCESSES:
            continue
        entry = array[number]
        entry.pid, entry.timeStamp = process.pid, stamp
        entry.smUtil, entry.memUtil, entry.encUtil, entry.decUtil = (
            min(100, round(100 * busy * activity.engines.get(engine, 0.0)))
            for engine in ("gpu", "memory", "encoder", "decoder")
        )
        number += 1
    count._obj.value = number
    return SUCCESS if number else NOT_FOUND
