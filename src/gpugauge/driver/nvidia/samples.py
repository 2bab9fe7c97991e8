"""The samples that the driver keeps of a GPU: a ring for each engine, and one for processes."""

from __future__ import annotations

import struct
from collections.abc import Callable
from ctypes import byref, c_uint, c_ulonglong
from functools import partial
from typing import Any

from gpugauge.driver.codes import ENGINES, INSUFFICIENT_SIZE, INVALID_ARGUMENT, NOT_FOUND, UNSUPPORTED, DriverError
from gpugauge.driver.messages import PERCENT_UNKNOWN, SAMPLE, packed
from gpugauge.driver.nvidia.caller import Caller
from gpugauge.driver.nvidia.fieldvalues import decoded

_SUCCESS = 0
_UNSIGNED_INT = 1  # nvmlValueType_t

_PROCESS = "process"
_TYPES = dict(zip(ENGINES, (1, 2, 3, 4, 8, 9), strict=True))  # nvmlSamplingType_t
_ANY_SAMPLE = struct.Struct("Q8s")  # nvmlSample_t with its union
_PROCESS_SAMPLE = struct.Struct("I4xQ4I")  # nvmlProcessUtilizationSample_t: pid, time, SM, memory, encoder, decoder
# Rings have about 100 entries. A broken driver once returned garbage without end.
_MOST = 512
_MOST_ROOM = 1 << 16
# A ring may rest for minutes on an idle GPU; it also looks dry while the driver's clock is behind the cursor.
_DRY_SECONDS = 15.0


class Samples:
    """The rings of one GPU, each drained from where it was left: the driver's own time of the last sample, since
    nothing says which clock the driver uses.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._cursors = dict.fromkeys((*ENGINES, _PROCESS), 0)
        self._rooms: dict[str, int] = {}  # how many entries a ring has
        self._fresh: dict[str, float] = {}
        # What calls take and fill: made once, since they are made for each ring, several times a second.
        self._since, self._type, self._count = c_ulonglong(), c_uint(), c_uint()
        self._type_out, self._count_out = byref(self._type), byref(self._count)

    def drain(self, call: Caller, handle: Any) -> tuple[dict[str, Any], list[tuple[str, DriverError]]]:
        """Return what is new by engine, packed, and under "process" in rows; and the failures by the same names."""
        found: dict[str, Any] = {}
        failures: list[tuple[str, DriverError]] = []
        now = self._clock()
        for name in tuple(self._cursors):
            drain = self._drain_processes if name == _PROCESS else self._drain_engine
            try:
                found[name] = drain(call, handle, name, now)
            except DriverError as error:
                failures.append((name, error))
                if error.code == INVALID_ARGUMENT or error.code in UNSUPPORTED:
                    del self._cursors[name]
        return found, failures

    def _drain_engine(self, call: Caller, handle: Any, engine: str, now: float) -> str:
        cursor = self._cursors[engine]
        samples = self._read(call, handle, engine, cursor)
        if not samples and now - self._fresh.setdefault(engine, now) > _DRY_SECONDS:
            # Only a whole reading tells a GPU that rests from a clock that was set back.
            self._fresh[engine] = now
            samples = self._read(call, handle, engine, 0)
            if _newest(samples, cursor) == cursor:
                return ""
        if samples:
            # Samples without a time, 0, leave the cursor where it is.
            self._cursors[engine], self._fresh[engine] = _newest(samples, cursor) or cursor, now
        return samples.hex()

    def _read(self, call: Caller, handle: Any, engine: str, cursor: int) -> bytes:
        """Return the samples after `cursor`, packed. How many there can be is asked the first time, and after a time in
        which there were as many. Without a cursor it is the whole ring.
        """
        function, count, self._since.value = "nvmlDeviceGetSamples", self._count, cursor
        ask = partial(call.code, function, handle, _TYPES[engine], self._since, self._type_out, self._count_out)
        code, taken, room = INSUFFICIENT_SIZE, b"", self._rooms.pop(engine, 0)
        for _ in range(2):
            if not room:
                code = ask(None)
                room = 0 if code else min(count.value, _MOST_ROOM)
            if room:
                buffer, count.value = call.buffer("c_nvmlSample_t", room), room
                code = ask(buffer.array)
                taken = buffer.take(0 if code else count.value, _MOST)
            if code != INSUFFICIENT_SIZE:
                break
            room = 0
        if room and (code or count.value < room or not cursor):
            self._rooms[engine] = room
        if code == NOT_FOUND:
            return b""
        _check(code, function)
        return taken if self._type.value == _UNSIGNED_INT else _as_percents(self._type.value, taken)

    def _drain_processes(self, call: Caller, handle: Any, name: str, _now: float) -> list[list[int]]:
        cursor, function = self._cursors[name], "nvmlDeviceGetProcessUtilization"
        count, self._since.value = self._count, cursor
        code, taken, room = INSUFFICIENT_SIZE, b"", self._rooms.get(name, 0)
        for _ in range(2):
            count.value = room
            buffer = call.buffer("c_nvmlProcessUtilizationSample_t", room)
            code = call.code(function, handle, buffer.array if room else None, self._count_out, self._since)
            taken = buffer.take(0 if code or not room else count.value, _MOST)
            if code != INSUFFICIENT_SIZE:
                break
            room = self._rooms[name] = min(count.value, _MOST_ROOM)
        if code == NOT_FOUND:
            return []
        _check(code, function)
        rows = [[time, pid, *percents] for pid, time, *percents in _PROCESS_SAMPLE.iter_unpack(taken)]
        self._cursors[name] = max((row[0] for row in rows), default=cursor)
        # The first reading is a mean over the whole ring, processes that ended long ago included.
        return rows if cursor else []


def _check(code: int, function: str) -> None:
    if code:
        raise DriverError(code, function)


def _newest(samples: bytes, otherwise: int) -> int:
    """The latest time of packed samples."""
    return max(struct.unpack("Q8x" * (len(samples) // SAMPLE.size), samples), default=otherwise)


def _as_percents(value_type: int, samples: bytes) -> bytes:
    """Pack samples whose values are of another type as those that all GPUs of today have."""
    values = [(stamp, decoded(value_type, value)) for stamp, value in _ANY_SAMPLE.iter_unpack(samples)]
    return packed([(stamp, int(v) if 0 <= v <= 100 else PERCENT_UNKNOWN) for stamp, v in values])
