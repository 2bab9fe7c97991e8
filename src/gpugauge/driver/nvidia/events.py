"""Driver events of a GPU, polled. Events before the registration of the GPU are not reported."""

from __future__ import annotations

from contextlib import suppress
from ctypes import byref, c_void_p, cast
from typing import Any

from gpugauge.driver.codes import IMPLAUSIBLE, TIMEOUT, DriverError
from gpugauge.driver.nvidia.caller import EVENT_TYPES, Caller, named
from gpugauge.driver.nvidia.plausible import XID

_NAMES = {bit: name for name, bit in EVENT_TYPES.items() if name != "ecc_single_bit"}  # corrected, and frequent
_UNKNOWN_XID = 999  # NVML's own for what it does not know
_REGISTERED_TYPES = sum(_NAMES)
_MAX_EVENTS_PER_POLL = 64  # a GPU that reports without end must not delay the others


def address(handle: Any) -> int:
    """Return the address that a handle points to, by which handles are compared; 0 for a null handle."""
    return cast(handle, c_void_p).value or 0


class Events:
    """The event set of one GPU: a lost GPU must not block the events of others. To be freed before the shutdown."""

    def __init__(self, call: Caller) -> None:
        self._call = call
        self._set: Any = None
        self._data: Any = None

    def register(self, handle: Any) -> list[str]:
        """Register the events that the GPU supports; return their names. Raises DriverError."""
        types: int = self._call("nvmlDeviceGetSupportedEventTypes", handle) & _REGISTERED_TYPES
        if types:
            self._data = self._call.bound("c_nvmlEventData_t", "nvmlEventSetWait_v2")()
            self._set = self._call("nvmlEventSetCreate")
            try:
                self._call("nvmlDeviceRegisterEvents", handle, types, self._set)
            except DriverError:
                self.free()
                raise
        return named(types, EVENT_TYPES)

    def poll(self, errors: dict[str, str]) -> list[dict[str, Any]]:
        """Return the events since the last poll, oldest first, without waiting. A `handle` may be of another GPU."""
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
            if (kind := self._data.eventType) in _NAMES:
                # eventData has another meaning, or none, for the other types.
                xid = {"xid": self._data.eventData} if _NAMES[kind] == "xid" else {}
                if xid and not XID(xid["xid"]):
                    errors["events"], xid = IMPLAUSIBLE, {"xid": _UNKNOWN_XID}
                found.append({"type": _NAMES[kind], "handle": self._data.device, **xid})
            self._data = type(self._data)()
        return found

    def free(self) -> None:
        """Free the event set; failures are ignored."""
        events, self._set = self._set, None
        if events is not None:
            with suppress(DriverError):
                self._call("nvmlEventSetFree", events)
