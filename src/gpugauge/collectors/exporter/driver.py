"""Calls of the driver: number, duration, errors."""

from __future__ import annotations

from collections import defaultdict

from gpugauge.collectors.base import RegisteredCollector, Tick
from gpugauge.driver.api import Reply
from gpugauge.driver.codes import UNSUPPORTED
from gpugauge.metric import Metric, Table, families
from gpugauge.snapshot import Section

_driver, _device = Table["_Account"](), Table["_Account"]("uuid")
_call = Table["_Account"]("call")
# The figures change with every tick; exporting them every few seconds saves CPU time. A little less than 5 s: ticks are
# up to 5 s apart, and not exactly periodic.
_INTERVAL_SECONDS = 4.5

METRICS: tuple[Metric, ...] = (
    _call.counter("gpugauge_driver_calls_total", "Calls of the driver by function.", lambda a: a.calls),
    _call.counter(
        "gpugauge_driver_call_seconds_total",
        "Time spent in calls of the driver by function.",
        lambda a: a.seconds,
    ),
    _call.gauge(
        "gpugauge_driver_call_longest_seconds",
        "Duration of the longest call of the driver by function since the daemon started.",
        lambda a: a.longest,
    ),
    _driver.counter(
        "gpugauge_driver_errors_total",
        "Failed readings, by GPU, by reading and by error code of the driver. Readings that a GPU does not support are "
        "not counted.",
        lambda a: a.errors,
        *("uuid", "reading", "code"),
    ),
    _device.gauge(
        "gpu_reading_seconds",
        "Mean duration of a call of the driver about the GPU, in the last seconds.",
        lambda a: {uuid: seconds / calls for uuid, (seconds, calls) in a.last().items()},
    ),
    _device.gauge(
        "gpugauge_driver_unsupported",
        "Number of readings that the GPU does not support. They are tried again from time to time.",
        lambda a: {uuid: len(names) for uuid, names in a.unsupported.items()},
    ),
)


class _Account:
    """Sums over all workers since the daemon started."""

    def __init__(self) -> None:
        self.calls: defaultdict[str, int] = defaultdict(int)
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.longest: defaultdict[str, float] = defaultdict(float)
        self.errors: defaultdict[tuple[str, ...], int] = defaultdict(int)
        self.spent: dict[str, tuple[float, int]] = {}  # seconds and calls since the last export
        self.before: dict[str, tuple[float, int]] = {}  # the last ones before
        self.unsupported: defaultdict[str, set[str]] = defaultdict(set)

    def last(self) -> dict[str, tuple[float, int]]:
        """Return the seconds and the calls of the last readings by GPU."""
        return self.before | {uuid: spent for uuid, spent in self.spent.items() if spent[1]}

    def add(self, reply: Reply) -> None:
        for call, (number, seconds, longest) in reply.calls.items():
            self.calls[call] += int(number)
            self.seconds[call] += seconds
            self.longest[call] = max(self.longest[call], longest)
        if reply.uuid:
            seconds, number = self.spent.get(reply.uuid, (0.0, 0))
            self.spent[reply.uuid] = seconds + reply.spent[0], number + reply.spent[1]
        unsupported = self.unsupported.get(reply.uuid)
        if unsupported:  # some were not supported only for a while
            unsupported.difference_update(*reply.values.values(), [f"samples_{engine}" for engine in reply.samples])
        for reading, code in reply.errors.items():
            if code in UNSUPPORTED:
                self.unsupported[reply.uuid].add(reading)
            else:
                self.errors[reply.uuid, reading, code] += 1
        if reply.failed is not None:
            self.errors[reply.uuid, "all", reply.failed] += 1


class DriverCollector(RegisteredCollector):
    """Adds up all replies; exports the sums every few seconds."""

    name = "driver"
    metrics = METRICS

    def __init__(self) -> None:
        self._account = _Account()
        self._due = 0.0
        self._section = Section(self.name, ())

    def collect(self, tick: Tick) -> Section:
        """Return the sums of all replies; the same section until the next export."""
        for reply in tick.replies:
            self._account.add(reply)
        if tick.replies and tick.monotonic >= self._due:
            self._due = tick.monotonic + _INTERVAL_SECONDS
            self._section = Section(self.name, families(METRICS, [((), self._account)]))
            up = {device.uuid for device in tick.driver.devices if device.up}
            # A slow GPU is read less often than that: its last duration holds.
            self._account.before = {uuid: spent for uuid, spent in self._account.last().items() if uuid in up}
            self._account.spent = {}
        return self._section
