"""Driver events of a GPU, polled. Events before the registration of the GPU are not reported."""

from __future__ import annotations

from contextlib import suppress
from ctypes import byref, c_void_p, cast
from typing import Any

from gpugauge.driver.codes import (
    ECC_DOUBLE_BIT_EVENT,
    GPU_UNAVAILABLE_EVENT,
    MIG_EVENT,
    RECOVERY_ACTION_EVENT,
    TIMEOUT,
    XID_EVENT,
    DriverError,
)
from gpugauge.driver.nvidia.caller import Caller
from gpugauge.driver.nvidia.plausible import NOT_AVAILABLE

# https://docs.nvidia.com/deploy/nvml-api/group__nvmlEventType.html
_NAMES = {
    ECC_DOUBLE_BIT_EVENT: "ecc_double_bit",
    XID_EVENT: "xid",
    MIG_EVENT: "mig",
    GPU_UNAVAILABLE_EVENT: "gpu_unavailable",
    RECOVERY_ACTION_EVENT: "recovery_action",
}
_REGISTERED_TYPES = sum(_NAMES)
_MAX_EVENTS_PER_POLL = 64  # a GPU that reports without end must not delay the others


def address(handle: Any) -> int:
    """Return the address that a handle points to, by which handles are compared; 0 for a null handle."""
    return cast(handle, c_void_p).value or 0


class Events:
    """The event set of one GPU. Each GPU has its own, so that a lost GPU does not block the events of the others. Call
    `free` before the library is shut down.
    """

    def __init__(self, call: Caller) -> None:
        self._call = call
        self._set: Any = None
        self._data: Any = None

    def register(self, handle: Any) -> int:
        """Register the events that the GPU supports; return them as a bit mask. Raises DriverError."""
        types: int = self._call("nvmlDeviceGetSupportedEventTypes", handle) & _REGISTERED_TYPES
        if types:
            self._data = self._call.bound("c_nvmlEventData_t", "nvmlEventSetWait_v2")()
            self._set = self._call("nvmlEventSetCreate")
            try:
                self._call("nvmlDeviceRegisterEvents", handle, types, self._set)
            except DriverError:
                self.free()
                raise
        return types

    def poll(self, errors: dict[str, int]) -> list[dict[str, Any]]:
        """Return the events since the last poll, oldest first, without waiting; the code of a failure is added to
        `errors`. The `handle` of an event is that of its GPU, which is not always the registered one.
        """
        found: list[dict[str, Any]] = []
        for _ in range(_MAX_EVENTS_PER_POLL if self._set is not None else 0):
            try:
                code = self._call.code("nvmlEventSetWait_v2", self._set, byref(self._data), 0)
            except DriverError as error:
                code = error.code
            if code:
                if code != TIMEOUT:  # there are no more
                    errors["events"] = code
                break
            if self._data.eventType in _NAMES:
                found.append(_plain(self._data))
            self._data = type(self._data)()
        return found

    def free(self) -> None:
        """Free the event set; failures are ignored."""
        events, self._set = self._set, None
        if events is not None:
            with suppress(DriverError):
                self._call("nvmlEventSetFree", events)


def _plain(event: Any) -> dict[str, Any]:
    plain = {"type": _NAMES[event.eventType], "handle": event.device}
    if event.eventType == XID_EVENT:  # eventData has another meaning, or none, for the other types
        plain["xid"] = event.eventData
    instance = {"gpu_instance_id": event.gpuInstanceId, "compute_instance_id": event.computeInstanceId}
    return plain | {key: value for key, value in instance.items() if value != NOT_AVAILABLE}
