"""The samples that the driver keeps of a card: a ring for each engine, and one for processes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gpugauge.driver.api import ENGINES, UNSUPPORTED, DriverError
from gpugauge.driver.caller import Caller, member
from gpugauge.driver.fieldvalues import decoded

_SUCCESS = 0  # pynvml raises it when the sizing call of an empty list succeeds
_INVALID_ARGUMENT = 2  # what an older driver says to an engine that it does not know
_NOT_FOUND = 6

_PROCESS = "process"
_ROW = ("timeStamp", "pid", "smUtil", "memUtil", "encUtil", "decUtil")
_TYPES = dict(zip(ENGINES, (1, 2, 3, 4, 8, 9), strict=True))  # nvmlSamplingType_t
# Rings have about 100 entries. A broken driver once returned garbage without end.
_MOST = 512
# A ring may rest for minutes on an idle card; it also looks dry while the driver's clock is behind the cursor.
_DRY_SECONDS = 15.0


class Samples:
    """The rings of one card, each drained from where it was left: the driver's own time of the last sample, since
    nothing says which clock the driver uses.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._cursors = dict.fromkeys((*ENGINES, _PROCESS), 0)
        self._fresh: dict[str, float] = {}

    def drain(self, call: Caller, handle: Any) -> tuple[dict[str, list[list[int]]], list[tuple[str, DriverError]]]:
        """Return what is new by engine, and under "process", as it came; and the failures by the same names."""
        found: dict[str, list[list[int]]] = {}
        failures: list[tuple[str, DriverError]] = []
        for name in tuple(self._cursors):
            drain = self._drain_processes if name == _PROCESS else self._drain_engine
            try:
                found[name] = drain(call, handle, name)
            except DriverError as error:
                failures.append((name, error))
                if error.code == _INVALID_ARGUMENT or error.code in UNSUPPORTED:
                    del self._cursors[name]
        return found, failures

    def _drain_engine(self, call: Caller, handle: Any, engine: str) -> list[list[int]]:
        cursor, now = self._cursors[engine], self._clock()
        samples = _read(call, handle, engine, cursor)
        if not samples and now - self._fresh.setdefault(engine, now) > _DRY_SECONDS:
            # Only a whole reading tells a card that rests from a clock that was set back.
            self._fresh[engine] = now
            samples = _read(call, handle, engine, 0)
            if max((time for time, _ in samples), default=cursor) == cursor:
                return []
        if samples:
            # Samples without a time, 0, leave the cursor where it is.
            self._cursors[engine], self._fresh[engine] = max(time for time, _ in samples) or cursor, now
        return samples

    def _drain_processes(self, call: Caller, handle: Any, name: str) -> list[list[int]]:
        cursor = self._cursors[name]
        try:
            rows = call("nvmlDeviceGetProcessUtilization", handle, cursor)[-_MOST:]
        except DriverError as error:
            if error.code in {_SUCCESS, _NOT_FOUND}:
                return []
            raise
        self._cursors[name] = max((row.timeStamp for row in rows), default=cursor)
        # The first reading is a mean over the whole ring, processes that ended long ago included.
        if cursor == 0:
            return []
        return [[member(row, name) for name in _ROW] for row in rows]


def _read(call: Caller, handle: Any, engine: str, cursor: int) -> list[list[int]]:
    try:
        value_type, samples = call("nvmlDeviceGetSamples", handle, _TYPES[engine], cursor)
    except DriverError as error:
        if error.code == _NOT_FOUND:
            return []
        raise
    return [[member(s, "timeStamp"), int(decoded(value_type, member(s, "sampleValue")))] for s in samples[-_MOST:]]
