"""NVML, read through NVIDIA's own binding; used by the worker process alone.

What is read is in the tables of `calls` and `fieldvalues`. What a GPU does not support is asked once and then left
alone until a new worker starts, or until its MIG layout changes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

from gpugauge.driver.codes import (
    DEVICE_GONE,
    IMPLAUSIBLE,
    INVALID_ARGUMENT,
    LIFECYCLE,
    NOT_SUPPORTED,
    UNSUPPORTED,
    DriverError,
    DriverFacts,
    Group,
)
from gpugauge.driver.nvidia.binding import pynvml
from gpugauge.driver.nvidia.caller import Caller
from gpugauge.driver.nvidia.calls import CALLS, Call
from gpugauge.driver.nvidia.events import Events
from gpugauge.driver.nvidia.fieldvalues import FieldValue, Question, field_values, keep
from gpugauge.driver.nvidia.gpm import FIELDS as PROFILING_FIELDS
from gpugauge.driver.nvidia.gpm import Gpm
from gpugauge.driver.nvidia.mig import Mig
from gpugauge.driver.nvidia.plausible import Check
from gpugauge.driver.nvidia.samples import Samples


def use_library(library: object) -> None:
    """Put an object in the place of the shared library; its attributes are called as the C functions would be."""
    pynvml.nvmlLib = library
    pynvml._nvmlGetFunctionPointer_cache.clear()  # noqa: SLF001  (the binding has no public way)


def used_library() -> object:
    """Return the shared library, or what is in its place; None before it is loaded."""
    return pynvml.nvmlLib


class _Device:
    """A handle, and what is still worth asking: the sources left for each row, and the field values."""

    def __init__(self, handle: Any, call: Caller, rows: Iterable[FieldValue], clock: Callable[[], float]) -> None:
        self.handle = handle
        self.uuid = ""
        self.sources = {row: list(row.sources) for row in CALLS}
        self.field_values = list(rows)
        self.questions: dict[tuple[str, ...], Question] = {}  # by groups
        self.samples = Samples(clock)
        self.gpm: Gpm | None = Gpm(call, handle)
        self.mig: Mig | None = Mig(call, handle)
        self.gpm_supported: bool | None = None
        self.events = Events(call)
        self.event_types = 0
        self.new = False

    def free(self) -> None:
        for holder in (self.gpm, self.mig, self.events):
            if holder:
                holder.free()


class Nvml:
    """The driver. Handles are by index: by uuid NVML finds none as soon as any one GPU is lost.
    `clock` is a steady one, in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._call = Caller(pynvml)
        self._devices: dict[int, _Device] = {}
        self._rows: tuple[FieldValue, ...] = ()
        self._events: list[dict[str, Any]] = []

    def open(self) -> None:
        """Load the library and initialise it, a machine without GPUs included. Raises DriverError."""
        self._devices.clear()
        try:
            self._call("nvmlInitWithFlags", pynvml.NVML_INIT_FLAG_NO_GPUS)
        except DriverError as error:
            if error.code not in {INVALID_ARGUMENT, *UNSUPPORTED}:  # an old library does not know the flag
                raise
            self._call("nvmlInitWithFlags", 0)
        self._rows = field_values(self._optional("nvmlSystemGetDriverVersion"))

    def close(self) -> None:
        """Let go of the driver; a later read fails as uninitialized. Raises DriverError."""
        for device in self._devices.values():
            device.free()
        self._devices.clear()
        self._call("nvmlShutdown")

    def facts(self) -> DriverFacts:
        """What the library tells about itself and the driver. Raises DriverError when it cannot count the GPUs."""
        return DriverFacts(
            device_count=self._call("nvmlDeviceGetCount_v2"),
            driver_version=self._optional("nvmlSystemGetDriverVersion"),
            nvml_version=self._optional("nvmlSystemGetNVMLVersion"),
            cuda_driver_version=self._optional("nvmlSystemGetCudaDriverVersion_v2"),
        )

    def read(self, index: int, groups: Iterable[Group]) -> tuple[dict[str, dict[str, Any]], dict[str, int]]:
        """Read one GPU: values by group and field, and the codes of the fields that were asked without success.
        After a change of the MIG layout "static" and "mig" are read unasked. A group without anything new is left out.
        Raises DriverError when the GPU or the driver as a whole is gone.
        """
        device = self._poll_events(index, self._device(index))
        wanted = dict.fromkeys((*groups, "static", "mig") if device.new else groups)
        values: dict[str, dict[str, Any]] = {group: {} for group in wanted}
        errors: dict[str, int] = {}
        for group in wanted:
            for row in _CALLS_OF.get(group, ()):
                _read_call(self._call, device, row, values[group], errors)
        self._read_field_values(device, values, errors)
        if "static" in values:
            device.uuid = values["static"].get("uuid", device.uuid)
            values["static"] |= {"index": index, "event_types": device.event_types}
        if "processes" in values:
            values["processes"] = _merged_processes(values["processes"], errors)
        if "profiling" in values and not self._read_profiling(device, values["profiling"], errors):
            del values["profiling"]
        if "mig" in values:
            self._read_mig(device, values["mig"], errors)
        device.new = False
        return values, errors

    def samples(self, index: int) -> tuple[dict[str, Any], dict[str, int]]:
        """Drain the rings of one GPU: see `Reply.samples`, engines packed; the codes are those of `samples_ENGINE`.
        Raises DriverError when the GPU or the driver as a whole is gone.
        """
        device = self._device(index)
        found, failures = device.samples.drain(self._call, device.handle)
        errors: dict[str, int] = {}
        for name, error in failures:
            _note(error, [f"samples_{name}"], errors)
        return found, errors

    def take_events(self) -> list[dict[str, Any]]:
        """Return and forget the events that came with the last reads, those of reads that failed included."""
        events, self._events = self._events, []
        return events

    def take_calls(self) -> dict[str, list[float]]:
        """Return and reset the counters: number of calls, seconds, and longest seconds by function."""
        return self._call.take_counts()

    def _device(self, index: int) -> _Device:
        device = self._devices.get(index)
        if device is None:
            handle = self._call("nvmlDeviceGetHandleByIndex_v2", index)
            device = self._devices[index] = _Device(handle, self._call, self._rows, self._clock)
            try:
                device.event_types = device.events.register(handle)
            except DriverError as error:
                _note(error, (), {})
        return device

    def _poll_events(self, index: int, device: _Device) -> _Device:
        """Take in what happened; a new MIG layout changes what the GPU supports, so that all is asked anew."""
        events = device.events.poll()
        if not events:
            return device
        self._events += [{**event, "uuid": device.uuid} for event in events]
        if any(event["type"] == "mig" for event in events):
            fresh = _Device(device.handle, self._call, self._rows, self._clock)
            fresh.uuid, fresh.new = device.uuid, True
            # The event set stays: with a new one a second change close behind could be missed.
            fresh.events, device.events = device.events, fresh.events
            fresh.event_types = device.event_types
            device.free()
            device = self._devices[index] = fresh
        return device

    def _read_field_values(self, device: _Device, values: dict[str, dict[str, Any]], errors: dict[str, int]) -> None:
        """One call for all groups that are due."""
        groups = tuple(values)
        question = device.questions.get(groups)
        if question is None:
            rows = [row for row in device.field_values if row.group in values]
            question = device.questions[groups] = Question(pynvml, rows)
        if not question.rows:
            return
        try:
            answers = question.ask(self._call, device.handle)
        except DriverError as error:
            _note(error, {row.field for row in question.rows}, errors)
            if error.code in UNSUPPORTED:
                device.field_values.clear()
                device.questions.clear()
            return
        answered: set[tuple[str, str | None]] = set()
        failures: dict[str, int] = {}
        for row, code, value in answers:
            name = (row.field, row.key)
            if code in UNSUPPORTED or code == INVALID_ARGUMENT or name in answered:
                device.field_values.remove(row)  # the GPU will not know it later either, or a row above is better
                device.questions.clear()
            if name in answered:
                continue
            if code:
                _note(DriverError(code, "nvmlDeviceGetFieldValues"), [row.field], failures)
                continue
            answered.add(name)
            keep(row, value, values[row.group], errors)
        # A row that failed is no failure of its field if another row of it answered.
        told = {field for field, _ in answered}
        errors |= {field: code for field, code in failures.items() if field not in told}

    def _read_profiling(self, device: _Device, found: dict[str, Any], errors: dict[str, int]) -> bool:
        """Fill in the means since the last reading; False if there is nothing new."""
        if device.gpm is None:
            return True
        try:
            if device.gpm_supported is None:
                device.gpm_supported = bool(self._call("nvmlGpmQueryDeviceSupport", device.handle).isSupportedDevice)
                if not device.gpm_supported:
                    raise DriverError(NOT_SUPPORTED, "nvmlGpmQueryDeviceSupport")  # noqa: TRY301  (one way to refuse)
            news = device.gpm.read(self._clock())
        except DriverError as error:
            _note(error, PROFILING_FIELDS, errors)
            if error.code in UNSUPPORTED:
                device.gpm.free()
                device.gpm = None
            return True
        found.update(news or {})
        return news is not None

    def _read_mig(self, device: _Device, found: dict[str, Any], errors: dict[str, int]) -> None:
        if device.mig is None:
            return
        try:
            found["mig_instances"] = device.mig.read(self._clock())
        except DriverError as error:
            _note(error, ["mig_instances"], errors)
            if error.code in UNSUPPORTED:
                device.mig = None

    def _optional(self, function: str) -> Any:
        """A fact of the driver that may be missing without harm."""
        try:
            return self._call(function) or None
        except DriverError as error:
            if error.code in LIFECYCLE:
                raise
            return None


_CALLS_OF: dict[str, tuple[Call, ...]] = {
    group: tuple(row for row in CALLS if row.group == group) for group in {row.group for row in CALLS}
}


def _read_call(call: Caller, device: _Device, row: Call, found: dict[str, Any], errors: dict[str, int]) -> None:
    sources = device.sources[row]
    while sources:
        source = sources[0]
        try:
            raw = source(call, device.handle)
        except DriverError as error:
            _note(error, row.fields, errors)
            if error.code not in UNSUPPORTED:
                return
            del sources[0]
        else:
            values = raw if len(row.fields) > 1 else (raw,)
            for (field, check), value in zip(row.fields.items(), values, strict=True):
                errors.pop(field, None)  # what an older source of the same row said
                _keep(field, value, check, found, errors)
            return


def _note(error: DriverError, fields: Iterable[str], errors: dict[str, int]) -> None:
    """Charge a failure to the fields that asked; what means that the GPU or the driver is gone is raised again."""
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
