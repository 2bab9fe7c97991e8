"""One GPU: its handle, the calls and field values that it supports, and their readings."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable
from typing import Any

from gpugauge.driver import codes
from gpugauge.driver.codes import DriverError
from gpugauge.driver.nvidia.caller import Caller
from gpugauge.driver.nvidia.calls import CALLS, Call
from gpugauge.driver.nvidia.events import Events
from gpugauge.driver.nvidia.fieldvalues import LINK_ERRORS, RARE, FieldValue, FieldValueRequest, keep
from gpugauge.driver.nvidia.gpm import FIELDS as PROFILING_FIELDS
from gpugauge.driver.nvidia.gpm import Gpm
from gpugauge.driver.nvidia.links import PREFIX, Links
from gpugauge.driver.nvidia.mig import Mig
from gpugauge.driver.nvidia.plausible import COUNTER, Check, Rising
from gpugauge.driver.nvidia.samples import AGAIN_SECONDS, Samples

_CALLS_BY_GROUP: dict[str, tuple[Call, ...]] = {
    group: tuple(row for row in CALLS if row.group == group) for group in {row.group for row in CALLS}
}


class Device:
    """A GPU. The methods add values to `found` by field, and codes to `errors`; no failed call keeps another back."""

    def __init__(self, handle: Any, call: Caller, rows: Iterable[FieldValue], clock: Callable[[], float]) -> None:
        self.handle = handle
        self.uuid = ""
        self.events = Events(call)
        self.event_types: list[str] | None = []
        """The registered events; empty while the registration fails, None for a GPU that supports none."""
        self._events_settled = self._events_tried = False
        self.layout_changed = False  # MIG; until the next reading
        self.mode_changed = False  # MIG was enabled or disabled since the last reading
        self._call, self._clock = call, clock
        self._rows = dict(_CALLS_BY_GROUP)  # in the order in which they are read
        self._sources = {row: row.sources for row in CALLS}
        self._proven: set[object] = set()  # rows of both tables that have worked
        self._again: dict[object, float] = {}  # rows, and groups, that are not supported: when they are tried again
        self.lacks: set[str] = set()
        """The fields that are not supported, as far as that is known."""
        self._field_values = list(rows)
        self._requests: dict[tuple[str, ...], FieldValueRequest] = {}  # by groups
        self._links = Links(call, handle)
        self._samples = Samples(clock)
        self._counters: dict[Hashable, Rising] = {}
        self._memory_bytes = math.inf  # in all, as far as that is known
        self._gpm = Gpm(call, handle)
        self._gpm_supported: bool | None = None
        self._mig = Mig(call, handle)

    def free(self) -> None:
        """Free what the library holds for this GPU."""
        for holder in (self._gpm, self._mig, self.events):
            holder.free()

    def replacement(self, rows: Iterable[FieldValue]) -> Device:
        """Return this GPU after a change of its MIG layout, which changes what it supports; free the old one."""
        device = Device(self.handle, self._call, rows, self._clock)
        device.uuid, device.layout_changed = self.uuid, True
        device.event_types, device._events_settled = self.event_types, self._events_settled
        # The event set stays: a new one could miss a second change soon after the first.
        device.events, self.events = self.events, device.events
        self.free()
        return device

    def register_events(self, errors: dict[str, str]) -> None:
        """Register the events of the GPU, unless that is done; after a failure, call it again."""
        if self._events_settled or self._is_waiting(Events):
            return
        before = self.event_types
        try:
            self.event_types = self.events.register(self.handle) or None
            self._events_settled = True
        except DriverError as error:
            if error.code in codes.UNSUPPORTED:
                self.event_types = None
                self._wait(Events, ())
            else:
                errors["events"] = error.code
        if self._events_tried and before != self.event_types:
            self.layout_changed = True  # so that they are reported
        self._events_tried = True

    def read_calls(self, group: str, found: dict[str, Any], errors: dict[str, str]) -> None:
        """Read the values of a group that have a call of their own."""
        rows = self._rows.get(group, ())
        for place, row in enumerate(rows):
            if self._read_row(row, found, errors) == codes.TOO_SLOW and rows is self._rows[group]:
                self._rows[group] = rows[place:] + rows[:place]  # the next reading begins with those that are left
        if group == "processes":
            proven = {kind for row in _CALLS_BY_GROUP[group] if row in self._proven for kind in row.fields}
            _merge_processes(found, errors, proven)
            for process in found.get("processes", ()):
                if (process["used_memory_bytes"] or 0) > self._memory_bytes:
                    process["used_memory_bytes"], errors["processes_memory"] = None, codes.IMPLAUSIBLE
        self._memory_bytes = found.get("memory_total_bytes", self._memory_bytes)

    def _read_row(self, row: Call, found: dict[str, Any], errors: dict[str, str]) -> str:
        if self._is_waiting(row):
            return codes.NOT_SUPPORTED
        code, exported = codes.NOT_SUPPORTED, False
        for source in self._sources[row]:
            try:
                raw = source(self._call, self.handle)
            except DriverError as error:  # noqa: PERF203  (few rows have a second source)
                code, exported = error.code, exported or self._call.exports(error.call)
                _record(error, row.fields, errors)
                if code not in codes.UNSUPPORTED or row in self._proven:
                    return code
            else:
                self._proven.add(row)
                self._sources[row] = (source,)
                values = raw if len(row.fields) > 1 else (raw,)
                for (field, check), value in zip(row.fields.items(), values, strict=True):
                    errors.pop(field, None)  # of an unsupported source of the same row
                    if value is not None and self._plausible(field, field, value, check):
                        found[field] = value
                    elif value is not None:
                        errors[field] = codes.IMPLAUSIBLE
                self.lacks -= row.fields.keys()
                return codes.SUCCESS
        if "uuid" not in row.fields:  # each GPU has one
            self._wait(row, row.fields, exported=exported)
        return code

    def _is_waiting(self, row: object) -> bool:
        return row in self._again and self._clock() < self._again[row]

    def _wait(self, row: object, fields: Iterable[str], *, exported: bool = True) -> None:
        """Do not read what is not supported for a while; never again if the library lacks the function."""
        self._again[row] = self._clock() + AGAIN_SECONDS if exported else math.inf
        self.lacks.update(fields)

    def _plausible(self, name: Hashable, field: str, value: Any, check: Check) -> bool:
        if check is not COUNTER or not check(value):
            return check(value)
        if name not in self._counters:
            self._counters[name] = Rising(field)
        return self._counters[name].plausible(value, self._clock())

    def read_links(self, found: dict[str, Any], errors: dict[str, str]) -> None:
        """Read the states of the NVLinks. Called before `read_field_values`, which reads the values of these links."""
        if self._links.none and self._is_waiting(Links):
            return
        count = self._links.count
        try:
            found["nvlink_active"] = self._links.read()
            self.lacks.discard("nvlink_active")
        except DriverError as error:
            _record(error, ["nvlink_active"], errors)
            if error.code in codes.UNSUPPORTED:
                self._wait(Links, ["nvlink_active"])
        if self._links.count != count:
            self._requests.clear()

    def read_field_values(self, values: dict[str, dict[str, Any]], errors: dict[str, str]) -> None:
        """Read the field values of all groups in `values` with one call."""
        try:
            request = self._request(tuple(values))
            if not request.rows or self._is_waiting(FieldValue):
                return
            answers = request.read(self._call, self.handle)
        except DriverError as error:
            fields = {row.field for row in self._field_values if row.group != "links"}  # also those that are not due
            _record(error, fields, errors)
            if error.code in codes.UNSUPPORTED and self._proven.isdisjoint(self._field_values):
                self._wait(FieldValue, fields, exported=self._call.exports(error.call))
            return
        answered: set[tuple[str, str | None, int | None]] = set()
        partial: set[FieldValue] = set()  # of sums over the links
        failures: dict[str, str] = {}
        for row, code, value in answers:
            name = (row.field, row.key, row.link)
            total = name in answered or (row.field, row.key, None) in answered
            unsupported = (code in codes.UNSUPPORTED or code == codes.INVALID_ARGUMENT) and row not in self._proven
            if total or (unsupported and self._links.settles(row)):
                self._field_values.remove(row)  # a row above has the value, or unsupported for good
                self._requests.clear()
            if total:
                continue
            if code != codes.SUCCESS:
                _record(DriverError(code, "nvmlDeviceGetFieldValues"), [row.field], failures)
                partial.add(row)
                continue
            answered.add(name)
            self._proven.add(row)
            if self._plausible(name, row.field, value, row.check):
                keep(row, value, values[row.group])
            else:
                errors[row.field] = codes.IMPLAUSIBLE
        # A failed row is not a failure of its field if another row of the field has a value.
        fields = {field for field, *_ in answered}
        # A sum over the links to which the value of a link is missing would fall.
        for row in (r for r in partial if r.link is not None and (r.field, r.key, r.link) not in answered):
            values[row.group].get(row.field, {}).pop(row.key, None)
        errors |= {field: code for field, code in failures.items() if field not in fields}

    def read_link_errors(self, found: dict[str, Any]) -> None:
        """Read on which NVLinks errors in `found` are, if there are any, and the other ends. What fails is absent."""
        totals = found.get("nvlink_errors", {})
        if any(totals.get(kind) for kind in RARE):
            answers: dict[str, Any] = {}
            self.read_field_values({"links": answers}, {})
            self._links.add_errors(answers.get(LINK_ERRORS, {}), totals)
        elif totals:
            self._links.errors.clear()
        if self._links.errors:
            found |= {LINK_ERRORS: dict(self._links.errors), "nvlink_ends": self._links.ends()}

    def _request(self, groups: tuple[str, ...]) -> FieldValueRequest:
        """Return the request for the field values of these groups. Raises DriverError."""
        request = self._requests.get(groups)
        if request is None:
            rows = [row for row in self._field_values if row.group in groups and self._links.has(row)]
            request = self._requests[groups] = FieldValueRequest(self._call, rows)
        return request

    def read_profiling(self, found: dict[str, Any], errors: dict[str, str]) -> bool:
        """Read the GPM means since the last reading; return False if there are none yet."""
        if self._is_waiting(Gpm):
            return True
        try:
            if self._gpm_supported is None:
                self._gpm_supported = bool(self._call("nvmlGpmQueryDeviceSupport", self.handle).isSupportedDevice)
                if not self._gpm_supported:
                    raise DriverError(codes.NOT_SUPPORTED, "nvmlGpmQueryDeviceSupport")  # noqa: TRY301  (handled like a failed call)
            means = self._gpm.read(self._clock())
        except DriverError as error:
            _record(error, PROFILING_FIELDS, errors)
            if error.code in codes.UNSUPPORTED and not self._gpm.proven:
                self._wait(Gpm, PROFILING_FIELDS, exported=self._gpm_supported is not False)
                self._gpm.free()
            return True
        errors |= self._gpm.failures
        lacks_links = self._links.none
        found.update(
            {name: mean for name, mean in (means or {}).items() if not (lacks_links and name.startswith(PREFIX))}
        )
        return means is not None

    def read_mig(self, found: dict[str, Any], errors: dict[str, str]) -> None:
        """Read the MIG devices."""
        if self._is_waiting(Mig):
            return
        before = self._mig.enabled
        try:
            found["mig_instances"] = self._mig.read(self._clock())
            errors |= self._mig.failures
        except DriverError as error:
            _record(error, ["mig_instances"], errors)
            if error.code in codes.UNSUPPORTED and before is None:
                self._wait(Mig, ["mig_instances"])
        self.mode_changed = before is not None and self._mig.enabled is not before

    def read_samples(self, errors: dict[str, str]) -> dict[str, Any]:
        """Return the new samples of all rings; failures are recorded as `samples_ENGINE`."""
        found, failures = self._samples.drain(self._call, self.handle)
        for name, error in failures:
            _record(error, [f"samples_{name}"], errors)
            if name in self._samples.lacks:
                self.lacks.add(f"samples_{name}")
        return found


def _record(error: DriverError, fields: Iterable[str], errors: dict[str, str]) -> None:
    errors.update(dict.fromkeys(fields, error.code))


def _merge_processes(found: dict[str, Any], errors: dict[str, str], proven: set[str]) -> None:
    """Replace the lists by kind by one list; none if a kind failed: a partial one would mean that processes ended."""
    lists = dict(found)
    found.clear()
    failed = {kind: errors.pop(kind) for kind in ("compute", "graphics", "mps") if kind in errors}
    failures = [code for kind, code in failed.items() if code not in codes.UNSUPPORTED or kind in proven]
    if failures or (failed and not lists):
        errors["processes"] = (failures or list(failed.values()))[0]
    elif lists:
        found["processes"] = [process for listed in lists.values() for process in listed]
