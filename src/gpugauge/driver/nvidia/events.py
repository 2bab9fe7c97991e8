"""Events that the driver reports of a GPU, polled. What happened before the GPU was registered is never reported."""

from __future__ import annotations

from contextlib import suppress
from ctypes import byref
from typing import Any

from gpugauge.driver.codes import DriverError
from gpugauge.driver.nvidia.caller import Caller

_NOT_AVAILABLE = 0xFFFFFFFF

XID = 0x8
MIG_CHANGE = 0x100
# https://docs.nvidia.com/deploy/nvml-api/group__nvmlEventType.html
_NAMES = {
    0x2: "ecc_double_bit",
    XID: "xid",
    MIG_CHANGE: "mig",
    0x4000: "gpu_unavailable",
    0x8000: "recovery_action",
}
_WANTED = sum(_NAMES)
_MOST = 64  # in one poll: a GPU that reports without end must not hold up the others


class Events:
    """The event set of one GPU: a set of its own, so that a lost GPU does not silence its neighbours. Call `free`
    before the library is shut down.
    """

    def __init__(self, call: Caller) -> None:
        self._call = call
        self._set: Any = None
        self._data: Any = None

    def register(self, handle: Any) -> int:
        """Ask for what the GPU supports and we want; returns it as NVML's bits. Raises DriverError."""
        types: int = self._call("nvmlDeviceGetSupportedEventTypes", handle) & _WANTED
        if types:
            self._set, self._data = self._call("nvmlEventSetCreate"), self._call.binding.c_nvmlEventData_t()
            try:
                self._call("nvmlDeviceRegisterEvents", handle, types, self._set)
            except DriverError:
                self.free()
                raise
        return types

    def poll(self) -> list[dict[str, Any]]:
        """Return what has happened since the last poll, oldest first, without waiting."""
        found: list[dict[str, Any]] = []
        for _ in range(_MOST if self._set is not None else 0):
            # Another code than success is as a rule the time-out; what else is wrong with the GPU, its readings tell.
            try:
                code = self._call.code("nvmlEventSetWait_v2", self._set, byref(self._data), 0)
            except DriverError:
                break
            if code:
                break
            if self._data.eventType in _NAMES:
                found.append(_plain(self._data))
            self._data = self._call.binding.c_nvmlEventData_t()
        return found

    def free(self) -> None:
        """Give the set back; what the driver says to it no longer matters."""
        events, self._set = self._set, None
        if events is not None:
            with suppress(DriverError):
                self._call("nvmlEventSetFree", events)


def _plain(event: Any) -> dict[str, Any]:
    plain = {"type": _NAMES[event.eventType]}
    if event.eventType == XID:  # eventData means something else, or nothing, with the other types
        plain["xid"] = event.eventData
    instance = {"gpu_instance_id": event.gpuInstanceId, "compute_instance_id": event.computeInstanceId}
    return plain | {key: value for key, value in instance.items() if value != _NOT_AVAILABLE}
