"""The sample rings of a GPU: one for each engine, and one for processes."""

from __future__ import annotations

import struct
from collections.abc import Callable
from ctypes import byref, c_uint, c_ulonglong
from functools import partial
from typing import Any

from gpugauge.driver import codes
from gpugauge.driver.codes import ENGINES, DriverError
from gpugauge.driver.frames import PERCENT_UNKNOWN, SAMPLE, packed
from gpugauge.driver.nvidia.caller import Caller
from gpugauge.driver.nvidia.fieldvalues import UNSIGNED_INT, decoded

_PROCESS = "process"
_TYPES = dict(zip(ENGINES, (1, 2, 3, 4, 8, 9), strict=True))  # nvmlSamplingType_t
_ANY_SAMPLE = struct.Struct("Q8s")  # nvmlSample_t with its union
_PROCESS_SAMPLE = struct.Struct("I4xQ4I")  # nvmlProcessUtilizationSample_t: pid, time, SM, memory, encoder, decoder
# Entries of a ring that are used, and read at once. Rings have about 100; a broken driver had garbage without end.
_MAX_SAMPLES = 512
_MAX_CAPACITY = 1 << 16
# A ring without new entries for this long is read whole: the driver's clock may have been set back behind the cursor.
# On an idle GPU, minutes without entries are normal.
_DRY_SECONDS = 15.0
_MAX_PERCENT = 100
# A call that a GPU has never answered but with "not supported" is made again after this time: a failure looks the same.
AGAIN_SECONDS = 20.0


class Samples:
    """The rings of a GPU. The cursor is the driver's own time of the last sample: its clock is not documented."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._cursors = dict.fromkeys((*ENGINES, _PROCESS), 0)
        self._capacities: dict[str, int] = {}  # entries of a ring
        self._fresh: dict[str, float] = {}  # time of the last new entry
        self._proven: set[str] = set()  # rings that have been read
        self.lacks: dict[str, float] = {}
        """The rings that the GPU does not have, and when they are tried again: a failure looks the same."""
        self._refused = False  # whether no sample of the last reading can be true
        # Arguments of the calls, allocated once: each ring is read several times a second.
        self._since, self._type, self._count = c_ulonglong(), c_uint(), c_uint()
        self._type_out, self._count_out = byref(self._type), byref(self._count)

    def drain(self, call: Caller, handle: Any) -> tuple[dict[str, Any], list[tuple[str, DriverError]]]:
        """Return the new samples, packed by engine and as rows under "process", and the failures by the same names."""
        found: dict[str, Any] = {}
        failures: list[tuple[str, DriverError]] = []
        now = self._clock()
        for name in self._cursors:
            if self.lacks and now < self.lacks.get(name, now):
                continue
            self._refused = False
            drain = self._drain_processes if name == _PROCESS else self._drain_engine
            try:
                found[name] = drain(call, handle, name, now)
                self._proven.add(name)
                self.lacks.pop(name, None)
                if self._refused:
                    failures.append((name, DriverError(codes.IMPLAUSIBLE, "nvmlDeviceGetSamples")))
            except DriverError as error:
                failures.append((name, error))
                if error.code in {codes.INVALID_ARGUMENT, *codes.UNSUPPORTED} and name not in self._proven:
                    self.lacks[name] = now + AGAIN_SECONDS
        return found, failures

    def _drain_engine(self, call: Caller, handle: Any, engine: str, now: float) -> str:
        cursor = self._cursors[engine]
        samples = self._read(call, handle, engine, cursor)
        if not samples and now - self._fresh.setdefault(engine, now) > _DRY_SECONDS:
            # Only a reading of the whole ring distinguishes an idle GPU from a clock that was set back.
            self._fresh[engine] = now
            samples = self._read(call, handle, engine, 0)
            if _newest(samples, cursor) == cursor:
                return ""
        if samples:
            # Samples without a time (0) do not move the cursor.
            self._cursors[engine], self._fresh[engine] = _newest(samples, cursor) or cursor, now
            self._refused = min(struct.unpack("8xI4x" * (len(samples) // SAMPLE.size), samples)) > _MAX_PERCENT
        return samples.hex()

    def _read(self, call: Caller, handle: Any, engine: str, cursor: int) -> bytes:
        """Return the samples after `cursor`, packed; the whole ring for 0. Its capacity is read as it may grow."""
        function, count, self._since.value = "nvmlDeviceGetSamples", self._count, cursor
        ask = partial(call.code, function, handle, _TYPES[engine], self._since, self._type_out, self._count_out)
        code, taken, capacity = codes.INSUFFICIENT_SIZE, b"", self._capacities.pop(engine, 0)
        for _ in range(2):
            if not capacity:
                count.value = 0
                code = ask(None)
                # Like other functions of NVML, it may say in this way that there are samples.
                sized = code in {codes.SUCCESS, codes.INSUFFICIENT_SIZE}
                capacity = min(count.value, _MAX_CAPACITY) if sized else 0
            if capacity:
                buffer, count.value = call.buffer("c_nvmlSample_t", capacity, function), capacity
                code = ask(buffer.array)
                taken = buffer.take(0 if code else count.value, _MAX_SAMPLES)
            if code != codes.INSUFFICIENT_SIZE:
                break
            capacity = 0
        if capacity and (code or count.value < capacity or not cursor):
            self._capacities[engine] = capacity
        if code == codes.NOT_FOUND:
            return b""
        _check(code, function)
        return taken if self._type.value == UNSIGNED_INT else _as_percents(self._type.value, taken)

    def _drain_processes(self, call: Caller, handle: Any, name: str, now: float) -> list[list[int]]:
        cursor = self._cursors[name]
        rows = self._read_processes(call, handle, name, cursor)
        newest = _newest_row(rows)
        if newest <= cursor and now - self._fresh.setdefault(name, now) > _DRY_SECONDS:
            # As with an engine, either there is no load, or the clock was set back.
            self._fresh[name] = now
            newest = _newest_row(self._read_processes(call, handle, name, 0))
            self._cursors[name] = newest or cursor
        elif newest > cursor:
            self._cursors[name], self._fresh[name] = newest, now
        # The first reading is a mean over the whole ring, which includes processes that have ended.
        return rows if cursor else []

    def _read_processes(self, call: Caller, handle: Any, name: str, cursor: int) -> list[list[int]]:
        """Return the rows of the processes: means over the samples after `cursor`, over the whole ring for 0."""
        count, function, self._since.value = self._count, "nvmlDeviceGetProcessUtilization", cursor
        code, taken, capacity = codes.INSUFFICIENT_SIZE, b"", self._capacities.get(name, 0)
        for _ in range(2):
            count.value = capacity
            buffer = call.buffer("c_nvmlProcessUtilizationSample_t", capacity, function)
            code = call.code(function, handle, buffer.array if capacity else None, self._count_out, self._since)
            taken = buffer.take(0 if code or not capacity else count.value, _MAX_SAMPLES)
            if code != codes.INSUFFICIENT_SIZE:
                break
            capacity = self._capacities[name] = min(count.value, _MAX_CAPACITY)
        if code == codes.NOT_FOUND:
            return []
        _check(code, function)
        return [[time, pid, *percents] for pid, time, *percents in _PROCESS_SAMPLE.iter_unpack(taken)]


def _check(code: str, function: str) -> None:
    if code != codes.SUCCESS:
        raise DriverError(code, function)


def _newest(samples: bytes, otherwise: int) -> int:
    return max(struct.unpack("Q8x" * (len(samples) // SAMPLE.size), samples), default=otherwise)


def _newest_row(rows: list[list[int]]) -> int:
    """Return the latest time of rows of processes, 0 without any. Some drivers add rows of garbage (nvtop#110)."""
    return max((time for time, pid, percent, *_ in rows if pid and percent <= _MAX_PERCENT), default=0)


def _as_percents(value_type: int, samples: bytes) -> bytes:
    """Return samples with values of another type, packed as percentages."""
    values = [(stamp, decoded(value_type, value)) for stamp, value in _ANY_SAMPLE.iter_unpack(samples)]
    return packed([(stamp, int(v) if 0 <= v <= 100 else PERCENT_UNKNOWN) for stamp, v in values])
