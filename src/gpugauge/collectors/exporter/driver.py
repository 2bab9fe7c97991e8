"""What asking the driver costs, and what it refuses."""

from __future__ import annotations

from collections import defaultdict

from gpugauge.collectors.base import Tick
from gpugauge.driver.api import UNSUPPORTED, Reply, code_name
from gpugauge.metric import NONE, SECONDS, Metric, Table, families
from gpugauge.snapshot import Section

_driver = Table()
# Seconds. The figures change with every tick; told every few seconds they cost nothing. A little less than five: ticks
# are up to so far apart, and never exactly.
_INTERVAL = 4.5

METRICS: tuple[Metric, ...] = (
    _driver.counter(
        "gpugauge_driver_calls_total",
        "Calls of the driver by function.",
        NONE,
        lambda a: a.calls,
        "call",
    ),
    _driver.counter(
        "gpugauge_driver_call_seconds_total",
        "Time spent in calls of the driver by function.",
        SECONDS,
        lambda a: a.seconds,
        "call",
    ),
    _driver.gauge(
        "gpugauge_driver_call_longest_seconds",
        "Longest call of the driver by function, since the daemon started.",
        SECONDS,
        lambda a: a.longest,
        "call",
    ),
    _driver.counter(
        "gpugauge_driver_errors_total",
        "Readings that failed, by reading and the driver's code; not what a GPU does not support.",
        NONE,
        lambda a: a.errors,
        *("reading", "code"),
    ),
    _driver.gauge(
        "gpugauge_driver_unsupported",
        "Readings that a GPU does not support, by uuid: asked once by each worker, then left out.",
        NONE,
        lambda a: {uuid: len(names) for uuid, names in a.unsupported.items()},
        "uuid",
    ),
)


class _Account:
    """Sums over all workers since the daemon started."""

    def __init__(self) -> None:
        self.calls: defaultdict[str, int] = defaultdict(int)
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.longest: defaultdict[str, float] = defaultdict(float)
        self.errors: defaultdict[tuple[str, ...], int] = defaultdict(int)
        self.unsupported: defaultdict[str, set[str]] = defaultdict(set)

    def add(self, reply: Reply) -> None:
        for call, (number, seconds, longest) in reply.calls.items():
            self.calls[call] += int(number)
            self.seconds[call] += seconds
            self.longest[call] = max(self.longest[call], longest)
        for reading, code in reply.errors.items():
            if code in UNSUPPORTED:
                self.unsupported[reply.uuid].add(reading)
            else:
                self.errors[reading, code_name(code)] += 1
        if reply.failed is not None:
            self.errors["all", code_name(reply.failed)] += 1


class DriverCollector:
    """Accounts for every answer; tells every few seconds."""

    name = "driver"
    metrics = METRICS

    def __init__(self) -> None:
        self._account = _Account()
        self._due = 0.0
        self._section = Section(self.name, ())

    def collect(self, tick: Tick) -> Section:
        """Return the sums of all answers so far."""
        for reply in tick.replies:
            self._account.add(reply)
        if tick.replies and tick.monotonic >= self._due:
            self._due = tick.monotonic + _INTERVAL
            self._section = Section(self.name, families(METRICS, [((), self._account)]))
        return self._section
