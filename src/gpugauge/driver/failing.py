"""The readings of a GPU that fail: what is lost with them, how long the last values hold, and whether it is down."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from gpugauge.driver.api import Failure, Reply
from gpugauge.driver.codes import UNSUPPORTED

# What is lost with a field, by the first fitting begin of its name; a field without an entry is about the modes.
_PARTS = (
    ("utilization", ("utilization_", "memory_utilization_", "encoder_", "decoder_", "jpeg_", "ofa_")),
    ("samples", ("samples_",)),
    ("temperature", ("temperature_", "memory_temperature_")),
    ("memory", ("memory_", "bar1_")),
    ("power", ("power_", "energy_")),
    ("clocks", ("clock", "performance_state")),
    ("processes", ("processes",)),
    ("ecc", ("ecc_", "remapped_", "row_remapper_", "retired_", "recovery_action")),
    ("pcie", ("pcie_",)),
    ("nvlink", ("nvlink_",)),
    ("profiling", ("profiling_", "graphics_active", "sm_", "tensor_", "dram_", "fp64_", "fp32_", "fp16_")),
    ("mig", ("mig_",)),
    ("events", ("events",)),
    ("fans", ("fan_",)),
    ("identity", ("uuid", "name", "pci_bus_id", "minor_", "serial", "board_", "vbios_", "architecture")),
)
MODES = "modes"
# By part, in the words of people.
PARTS = {
    name: {"utilization": "load", "samples": "load samples", "ecc": "memory errors"}.get(name, name)
    for name, _ in _PARTS
}
PARTS |= {"pcie": "PCIe link", "nvlink": "NVLinks", "mig": "MIG devices", "profiling": "SM counters", MODES: MODES}
# A value is kept for so long without a new one, at most; a GPU is down after so many readings without any value, and up
# again after so many with one, in at least this time: no faster than alerts can follow.
_KEPT_SECONDS = 15.0
_DOWN_READINGS, _UP_READINGS = 2, 3
UP_SECONDS = 10.0
_APART = {"samples", "events", "profiling", "processes", "mig"}  # groups whose values are no fields of their own
_RETRY_SECONDS = 9.0  # between two attempts at what is known to fail


def part_of(name: str) -> str:
    """Return the part of a GPU's readings that a field belongs to."""
    return next((part for part, begins in _PARTS if name.startswith(begins)), MODES)


@dataclass(slots=True)
class _Field:
    """A field that fails. `good` is the time of its last value, in monotonic seconds."""

    groups: set[str]
    good: float
    limit: float
    since: float
    had: bool  # a value before
    codes: Counter[str] = field(default_factory=Counter)
    fails: int = 0
    succeeds: int = 0
    reported: bool = False


class Failing:
    """The failures of a GPU; times are monotonic seconds unless stated."""

    def __init__(self) -> None:
        self._fields: dict[str, _Field] = {}
        self._rings: set[str] = set()  # that have answered
        self._codes: Counter[str] = Counter()  # of the readings without a value
        self._nothing = self._something = 0  # readings in a row
        self._since = self._retry = 0.0

    def read(
        self, reply: Reply, held: Callable[[str], tuple[str, float, float] | None], now: float, unix: float
    ) -> None:
        """Record a reply with values. `held` returns the group, time and validity (seconds) of a field's last value."""
        if self._nothing or not self._something:
            self._since = now
        self._nothing, self._something = 0, self._something + 1
        self._rings |= reply.samples.keys()
        if not (reply.errors or self._fields):
            return
        asked = {*reply.values, "events", *(["samples"] if reply.samples else [])}
        asked |= {"samples" for name in reply.errors if name.startswith("samples_")}
        for name, code in reply.errors.items():
            self._fail(name, code, asked, held(name), now, unix)
        for name, known in list(self._fields.items()):
            # A new worker does not ask for what it takes for lacking: of what had a value, only one ends a failure.
            given = not known.had or any(name in values for values in reply.values.values())
            if name not in reply.errors and known.groups <= asked and given:
                known.fails, known.succeeds = 0, known.succeeds + 1
                if not known.reported or known.succeeds > 1:
                    del self._fields[name]

    def _fail(
        self, name: str, code: str, asked: set[str], held: tuple[str, float, float] | None, now: float, unix: float
    ) -> None:
        known = self._fields.get(name)
        if known is None:
            lacking = (
                code in UNSUPPORTED and held is None and name != "events"
            )  # of registered ones, the wait has failed
            if lacking and name.removeprefix("samples_") not in self._rings:
                return  # the GPU lacks it
            group, good, limit = held or (part_of(name), now, _KEPT_SECONDS)
            # Of a field that was never read, the group is not known: it is one of those that were read now.
            own = held or group in _APART
            groups = {group} if own else asked - {"samples", "events", "profiling"}
            known = self._fields[name] = _Field(
                groups, good, min(limit, _KEPT_SECONDS), unix, held is not None and group not in _APART
            )
        known.codes[code] += 1
        known.fails, known.succeeds = known.fails + 1, 0

    def read_nothing(self, code: str) -> str | None:
        """Record a reply without any value; return the reason once the GPU is down."""
        if not self._nothing:
            self._codes.clear()
        self._codes[code] += 1
        self._nothing, self._something = self._nothing + 1, 0
        return self._codes.most_common(1)[0][0] if self.is_down else None

    @property
    def is_down(self) -> bool:
        """Whether too many readings in a row had no value."""
        return self._nothing >= _DOWN_READINGS

    @property
    def is_doubted(self) -> bool:
        """Whether the last reading had no value, and the GPU is not down yet."""
        return 0 < self._nothing < _DOWN_READINGS

    def is_back(self, now: float, seconds: float) -> bool:
        """Return whether a GPU that was down has had values for long enough."""
        return self._something >= _UP_READINGS and now - self._since >= seconds

    def expire(self, now: float) -> list[str]:
        """Return the fields whose last value holds no longer."""
        if not self._fields:
            return []
        late = [n for n, f in self._fields.items() if not f.reported and f.fails > 1 and now - f.good > f.limit]
        for name in late:
            self._fields[name].reported = True
        return late

    def lost(self) -> set[str]:
        """Return the fields that have no values, also not those that are read now."""
        return {name for name, known in self._fields.items() if known.reported} if self._fields else set()

    def again(self, now: float) -> Iterable[str]:
        """Return the groups to be read in addition to those that are due: soon, until it is clear what has failed."""
        if not self._fields:
            return ()
        due = now >= self._retry
        if due:
            self._retry = now + _RETRY_SECONDS
        found = [f for f in self._fields.values() if due or not f.reported or f.succeeds]
        return {group for known in found for group in known.groups} - {"events"}

    def failures(self) -> tuple[Failure, ...]:
        """Return the parts that cannot be read."""
        parts: dict[str, list[_Field]] = {}
        for name, known in self._fields.items():
            if known.reported:
                parts.setdefault(part_of(name), []).append(known)
        return tuple(
            Failure(
                part, sum((f.codes for f in fields), Counter[str]()).most_common(1)[0][0], min(f.since for f in fields)
            )
            for part, fields in sorted(parts.items())
        )
