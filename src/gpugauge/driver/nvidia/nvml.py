"""NVML as the backend of a worker: the values in the tables of `calls` and `fieldvalues`, by NVIDIA's binding."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from typing import Any

from gpugauge.driver.codes import IMPLAUSIBLE, INVALID_ARGUMENT, UNSUPPORTED, DriverError, DriverFacts, Group
from gpugauge.driver.nvidia.binding import pynvml
from gpugauge.driver.nvidia.caller import Caller
from gpugauge.driver.nvidia.calls import multiprocessors
from gpugauge.driver.nvidia.device import Device
from gpugauge.driver.nvidia.events import address
from gpugauge.driver.nvidia.fieldvalues import FieldValue, field_values
from gpugauge.driver.nvidia.plausible import GPUS

# The longest time for the calls of a GPU in one reading, from its first values on: the other GPUs wait for it.
_SHARE_SECONDS = 1.0


def use_library(library: object) -> None:
    """Replace the shared library by an object whose attributes are called like the C functions."""
    pynvml.nvmlLib = library
    pynvml._nvmlGetFunctionPointer_cache.clear()  # noqa: SLF001  (the binding has no public function)


def used_library() -> object:
    """Return the shared library or its replacement; None before it is loaded."""
    return pynvml.nvmlLib


class Nvml:
    """The NVML backend. GPUs are addressed by index: NVML finds none by uuid once any GPU is lost."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.calls = Caller(pynvml, clock)
        self._devices: dict[int, Device] = {}
        self._rows: tuple[FieldValue, ...] = ()
        self._events: list[dict[str, Any]] = []

    def open(self) -> None:
        """Load and initialise the library, also on a machine without GPUs. Raises DriverError."""
        self._devices.clear()
        try:
            self.calls("nvmlInitWithFlags", pynvml.NVML_INIT_FLAG_NO_GPUS)
        except DriverError as error:
            if error.code not in {INVALID_ARGUMENT, *UNSUPPORTED}:  # an old library rejects the flag
                raise
            self.calls("nvmlInitWithFlags", 0)
        self._rows = field_values(self._optional("nvmlSystemGetDriverVersion"))

    def close(self) -> None:
        """Close the driver; later reads fail as uninitialized. Raises DriverError."""
        for device in self._devices.values():
            device.free()
        self._devices.clear()
        self.calls.until = math.inf
        self.calls("nvmlShutdown")

    def facts(self) -> DriverFacts:
        """Return the facts of the library and the driver. Raises DriverError if it cannot count the GPUs."""
        count = self.calls("nvmlDeviceGetCount_v2")
        if not GPUS(count):
            raise DriverError(IMPLAUSIBLE, "nvmlDeviceGetCount_v2")
        return DriverFacts(
            device_count=count,
            driver_version=self._optional("nvmlSystemGetDriverVersion"),
            cuda_driver_version=self._optional("nvmlSystemGetCudaDriverVersion_v2"),
        )

    def read(self, index: int, groups: Iterable[Group]) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
        """Return values by group and field, and codes of failed fields; "static" and "mig", too, after a MIG change."""
        errors: dict[str, str] = {}
        self.calls.until = math.inf
        device = self._device(index)
        device.register_events(errors)
        device = self._poll_events(index, device, errors)
        self.calls.begin(_SHARE_SECONDS)
        wanted = dict.fromkeys((*groups, "static", "mig") if device.layout_changed else groups)
        values: dict[str, dict[str, Any]] = {group: {} for group in wanted}
        # In the order of worth per call: a slow GPU has time for the first ones only.
        first: list[Group] = [group for group in wanted if group in {"static", "fast"}]
        for group in first:
            device.read_calls(group, values[group], errors)
        if "slow" in values:
            device.read_links(values["slow"], errors)
        device.read_field_values(values, errors)
        if "slow" in values:
            device.read_link_errors(values["slow"])
        for group in wanted:
            if group not in first:
                device.read_calls(group, values[group], errors)
        if values.get("static"):
            device.uuid = values["static"].get("uuid", device.uuid)
            values["static"] |= {"index": index, "event_types": device.event_types, **multiprocessors(values["static"])}
        if "profiling" in values and not device.read_profiling(values["profiling"], errors):
            del values["profiling"]
        if "mig" in values:
            device.read_mig(values["mig"], errors)
        device.layout_changed = False
        if device.mode_changed:  # not every driver reports it as an event
            self._devices[index] = device.replacement(self._rows)
        return values, errors

    def samples(self, index: int) -> tuple[dict[str, Any], dict[str, str]]:
        """Return the new samples of a GPU, packed by engine, and the codes of failed rings. Raises DriverError."""
        errors: dict[str, str] = {}
        return self._device(index).read_samples(errors), errors

    def lacks(self, index: int) -> Collection[str]:
        """Return the fields that a GPU does not support, as far as that is known."""
        return self._devices[index].lacks

    def take_events(self) -> list[dict[str, Any]]:
        """Return and remove the events of the last reads, including reads that failed."""
        events, self._events = self._events, []
        return events

    def _device(self, index: int) -> Device:
        device = self._devices.get(index)
        if device is None:
            handle = self.calls("nvmlDeviceGetHandleByIndex_v2", index)
            device = self._devices[index] = Device(handle, self.calls, self._rows, self._clock)
        return device

    def _poll_events(self, index: int, device: Device, errors: dict[str, str]) -> Device:
        """Collect the events of the event set of a GPU; return the device, a new one after a change of its layout."""
        for event in device.events.poll(errors):
            owner = self._owner(event.pop("handle"))
            uuid = owner if isinstance(owner, str) else self._uuid(owner)
            # Without a uuid, an event belongs to the GPU of the reply; with an empty one, to none that is known.
            self._events.append({**event, "uuid": uuid} if uuid or owner != index else event)
            if event["type"] == "mig" and isinstance(owner, int):
                self._devices[owner] = self._devices[owner].replacement(self._rows)
        return self._devices[index]

    def _owner(self, handle: Any) -> int | str:
        """Return the index of the GPU that a handle means, or the uuid of one not read yet, "" without one."""
        wanted = address(handle)
        for index, device in self._devices.items():
            if address(device.handle) == wanted:
                return index
        uuid = self._handle_uuid(handle) if wanted else ""
        if uuid.startswith("MIG-"):
            with suppress(DriverError):
                uuid = self._handle_uuid(self.calls("nvmlDeviceGetDeviceHandleFromMigDeviceHandle", handle))
        return next((index for index, device in self._devices.items() if uuid and device.uuid == uuid), uuid)

    def _uuid(self, index: int) -> str:
        """Return the uuid of a GPU, also before its first reading; empty if the library does not name it."""
        device = self._devices[index]
        device.uuid = device.uuid or self._handle_uuid(device.handle)
        return device.uuid

    def _handle_uuid(self, handle: Any) -> str:
        return str(self._optional("nvmlDeviceGetUUID", handle) or "")

    def _optional(self, function: str, *arguments: Any) -> Any:
        try:
            return self.calls(function, *arguments) or None
        except DriverError:
            return None
