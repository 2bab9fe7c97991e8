"""NVML, read through NVIDIA's own binding. The only module that imports pynvml; used by the worker process alone.

What is read is in the tables of `calls`. What a card does not support is asked once and then left alone until a new
worker starts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

import pynvml

from gpugauge.driver.api import DEVICE_GONE, IMPLAUSIBLE, LIFECYCLE, UNSUPPORTED, DriverError, DriverFacts, Group
from gpugauge.driver.calls import CALLS, FIELD_VALUES, Call
from gpugauge.driver.plausible import Check

_FUNCTION_NOT_FOUND = 13

_FIELD_VALUES_FUNCTION = "nvmlDeviceGetFieldValues"
# The library's functions outside the table.
_INIT, _SHUTDOWN, _COUNT, _HANDLE, _DRIVER_VERSION, _NVML_VERSION, _CUDA_VERSION = _LIBRARY_FUNCTIONS = (
    "nvmlInitWithFlags",
    "nvmlShutdown",
    "nvmlDeviceGetCount_v2",
    "nvmlDeviceGetHandleByIndex_v2",
    "nvmlSystemGetDriverVersion",
    "nvmlSystemGetNVMLVersion",
    "nvmlSystemGetCudaDriverVersion_v2",
)
# Every symbol that this module may look up.
FUNCTIONS = frozenset(
    (*_LIBRARY_FUNCTIONS, _FIELD_VALUES_FUNCTION, *(source.function for call in CALLS for source in call.sources))
)

# Which member of the union holds the value, by NVML's value type.
_UNION_MEMBERS = {0: "dVal", 1: "uiVal", 2: "ulVal", 3: "ullVal", 4: "sllVal", 5: "siVal", 6: "usVal"}


def use_library(library: object) -> None:
    """Put an object in the place of the shared library; its attributes are called as the C functions would be."""
    pynvml.nvmlLib = library
    pynvml._nvmlGetFunctionPointer_cache.clear()  # noqa: SLF001  (the binding has no public way)


class _Device:
    """A handle, and what is still worth asking: the sources left for each row, and the field values."""

    def __init__(self, handle: Any) -> None:
        self.handle = handle
        self.sources = {call: list(call.sources) for call in CALLS}
        self.field_values = list(FIELD_VALUES)


class Nvml:
    """The driver. Handles are by index: by uuid NVML finds none as soon as any one card is lost."""

    def __init__(self) -> None:
        self._devices: dict[int, _Device] = {}
        self._calls: dict[str, list[float]] = {}

    def open(self) -> None:
        """Load the library and initialise it, a machine without cards included. Raises DriverError."""
        self._devices.clear()
        try:
            self._timed(_INIT, pynvml.nvmlInitWithFlags, pynvml.NVML_INIT_FLAG_NO_GPUS)
        except DriverError as error:
            if error.code not in {2, *UNSUPPORTED}:  # an old library does not know the flag
                raise
            self._timed(_INIT, pynvml.nvmlInitWithFlags, 0)

    def close(self) -> None:
        """Let go of the driver; a later read fails as uninitialized. Raises DriverError."""
        self._devices.clear()
        self._timed(_SHUTDOWN, pynvml.nvmlShutdown)

    def facts(self) -> DriverFacts:
        """What the library tells about itself and the driver. Raises DriverError when it cannot count the cards."""
        return DriverFacts(
            device_count=self._timed(_COUNT, pynvml.nvmlDeviceGetCount),
            driver_version=self._optional(_DRIVER_VERSION, pynvml.nvmlSystemGetDriverVersion),
            nvml_version=self._optional(_NVML_VERSION, pynvml.nvmlSystemGetNVMLVersion),
            cuda_driver_version=self._optional(_CUDA_VERSION, pynvml.nvmlSystemGetCudaDriverVersion_v2),
        )

    def read(self, index: int, groups: Iterable[Group]) -> tuple[dict[str, dict[str, Any]], dict[str, int]]:
        """Read one card: values by group and field, and the codes of the fields that were asked without success.
        Raises DriverError when the card or the driver as a whole is gone.
        """
        device = self._device(index)
        values: dict[str, dict[str, Any]] = {}
        errors: dict[str, int] = {}
        for group in groups:
            found = values[group] = {}
            for call in _CALLS_OF.get(group, ()):
                self._read_call(device, call, found, errors)
            self._read_field_values(device, group, found, errors)
        if "static" in values:
            values["static"]["index"] = index
        if "processes" in values:
            values["processes"] = _merged_processes(values["processes"], errors)
        return values, errors

    def take_calls(self) -> dict[str, list[float]]:
        """Return and reset the counters: number of calls, seconds, and longest seconds by function."""
        calls, self._calls = self._calls, {}
        return calls

    def _device(self, index: int) -> _Device:
        device = self._devices.get(index)
        if device is None:
            device = self._devices[index] = _Device(self._timed(_HANDLE, pynvml.nvmlDeviceGetHandleByIndex, index))
        return device

    def _read_call(self, device: _Device, call: Call, found: dict[str, Any], errors: dict[str, int]) -> None:
        sources = device.sources[call]
        while sources:
            source = sources[0]
            try:
                raw = self._timed(source.function, source.read, pynvml, device.handle)
            except DriverError as error:
                _note(error, call.fields, errors)
                if error.code not in UNSUPPORTED:
                    return
                del sources[0]
            else:
                for field, value in zip(call.fields, raw if len(call.fields) > 1 else (raw,), strict=True):
                    errors.pop(field, None)  # what an older source of the same row said
                    _keep(field, value, call.fields[field], found, errors)
                return

    def _read_field_values(self, device: _Device, group: Group, found: dict[str, Any], errors: dict[str, int]) -> None:
        rows = [row for row in device.field_values if row.group == group]
        if not rows:
            return
        try:
            answers = self._timed(
                _FIELD_VALUES_FUNCTION,
                pynvml.nvmlDeviceGetFieldValues,
                device.handle,
                [(row.id, row.scope) for row in rows],
            )
        except DriverError as error:
            _note(error, [row.field for row in rows], errors)
            if error.code in UNSUPPORTED:
                device.field_values.clear()
            return
        for row, answer in zip(rows, answers, strict=True):
            if answer.nvmlReturn != pynvml.NVML_SUCCESS:
                _note(DriverError(answer.nvmlReturn, _FIELD_VALUES_FUNCTION), [row.field], errors)
                if answer.nvmlReturn in UNSUPPORTED:
                    device.field_values.remove(row)
                continue
            value = getattr(answer.value, _UNION_MEMBERS.get(answer.valueType, "ullVal"))
            _keep(row.field, value, row.check, found, errors)

    def _optional(self, function: str, read: Callable[[], Any]) -> Any:
        """A fact that may be missing without harm."""
        try:
            return self._timed(function, read) or None
        except DriverError as error:
            if error.code in LIFECYCLE:
                raise
            return None

    def _timed(self, function: str, read: Callable[..., Any], *arguments: Any) -> Any:
        """Call, count, and turn the binding's exceptions into DriverError."""
        began = time.perf_counter()
        try:
            return read(*arguments)
        except pynvml.NVMLError as error:
            raise DriverError(error.value, function) from None
        except pynvml.NVMLLibraryMismatchError:  # no NVMLError: the library lacks a versioned symbol
            raise DriverError(_FUNCTION_NOT_FOUND, function) from None
        except UnicodeDecodeError:
            raise DriverError(IMPLAUSIBLE, function) from None
        finally:
            took = time.perf_counter() - began
            counter = self._calls.setdefault(function, [0, 0.0, 0.0])
            counter[0] += 1
            counter[1] += took
            counter[2] = max(counter[2], took)


_CALLS_OF: dict[str, tuple[Call, ...]] = {
    group: tuple(call for call in CALLS if call.group == group) for group in {call.group for call in CALLS}
}


def _note(error: DriverError, fields: Iterable[str], errors: dict[str, int]) -> None:
    """Charge a failure to the fields that asked; what means that the card or the driver is gone is raised again."""
    if error.code in LIFECYCLE or error.code in DEVICE_GONE:
        raise error
    errors.update(dict.fromkeys(fields, error.code))


def _keep(field: str, value: Any, check: Check, found: dict[str, Any], errors: dict[str, int]) -> None:
    """Keep what can be true; None is what a source cannot tell."""
    if value is None:
        return
    if check(value):
        found[field] = value
    else:
        errors[field] = IMPLAUSIBLE


def _merged_processes(lists: dict[str, Any], errors: dict[str, int]) -> dict[str, Any]:
    """One list out of the lists by kind. A kind that is not supported has no processes; one that failed leaves us
    without a list, since a part would read as if the others had ended.
    """
    codes = [errors.pop(kind) for kind in ("compute", "graphics", "mps") if kind in errors]
    failures = [code for code in codes if code not in UNSUPPORTED]
    if failures or (codes and not lists):
        errors["processes"] = failures[0] if failures else codes[0]
        return {}
    return {"processes": [process for listed in lists.values() for process in listed]} if lists else {}
