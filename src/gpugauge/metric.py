"""A metric row, and the function that reads its value from a subject. The tables of rows are in `collectors/`."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, NamedTuple, TypeAlias, TypeVar

Kind: TypeAlias = Literal["gauge", "counter", "histogram"]

# Base units of the Prometheus naming guide. Names of counts, states and info metrics end in none of them.
_UNIT = re.compile(r"_(bytes|celsius|hertz|joules|ratio|timestamp_seconds|seconds|watts)(?:_total)?$")
_NAME = re.compile(r"(gpu|torch|training|gpugauge)_[a-z0-9_]*[a-z0-9]")
_LABEL = re.compile(r"[a-z][a-z0-9_]*")


class HistogramValue(NamedTuple):
    """Cumulative bucket counts, one per bound of the row and one for +Inf, and the sum of the observations. `log2`, if
    known: bucket i counts those of at most 2^(i + log2_first), and more than half of that unless it is the first one.
    """

    counts: tuple[int, ...]
    total: float
    log2: tuple[int, ...] = ()
    log2_first: int = 0


Value: TypeAlias = "float | int | HistogramValue"
LabelValues: TypeAlias = "tuple[str, ...]"
# Result of a row's reader for one subject: None (no series), one value, or values by the row's own labels.
Reading: TypeAlias = (
    "Value | Mapping[str, Value] | Mapping[tuple[str, str], Value] | Mapping[tuple[str, ...], Value] | None"
)
Subject = TypeVar("Subject")


@dataclass(frozen=True, slots=True, eq=False)
class Metric:
    """One row of the catalogue. `labels` are those of the subject (`uuid`, `process`), followed by the row's own."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...]
    read: Callable[[Any], Reading]
    source: str = ""  # call or file that the value comes from
    devices: str = ""  # the GPUs that have it, if not all
    buckets: tuple[float, ...] = ()
    # Values of the last label whose series at 0 a scrape may leave out (exposition/messages.py).
    sparse: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        """Check the names against the rules of Prometheus, OpenMetrics and this project. Raises ValueError."""
        if not _NAME.fullmatch(self.name):
            raise ValueError(f"metric name {self.name!r} lacks one of the prefixes or has an invalid character")
        if (self.kind == "counter") != self.name.endswith("_total"):
            raise ValueError(f"{self.name}: counters, and only counters, end in _total")
        if self.name.endswith(("_bucket", "_count", "_sum", "_created")):
            raise ValueError(f"{self.name}: this suffix is reserved for histograms")
        if not all(_LABEL.fullmatch(label) for label in self.labels) or len(set(self.labels)) != len(self.labels):
            raise ValueError(f"{self.name}: invalid or repeated label in {self.labels}")
        if not self.help.endswith("."):
            raise ValueError(f"{self.name}: the help must end in a full stop")

    @property
    def unit(self) -> str:
        """The unit in the name, empty without one."""
        match = _UNIT.search(self.name)
        return match[1] if match else ""


class Family(NamedTuple):
    """All samples of one row in one snapshot, as (label values in the order of the row, value)."""

    metric: Metric
    samples: tuple[tuple[LabelValues, Value], ...]


class Table(Generic[Subject]):
    """Constructors for rows that share the labels, the source and the devices of one subject, whose type is checked."""

    def __init__(self, *labels: str, source: str = "", devices: str = "") -> None:
        self.labels, self.source, self.devices = labels, source, devices

    def gauge(
        self,
        name: str,
        help: str,
        read: Callable[[Subject], Reading],
        *labels: str,
        source: str = "",
        devices: str = "",
    ) -> Metric:
        """Return a row for a value that can rise and fall."""
        source, devices = source or self.source, devices or self.devices
        return Metric(name, "gauge", help, (*self.labels, *labels), read, source, devices)

    def counter(
        self,
        name: str,
        help: str,
        read: Callable[[Subject], Reading],
        *labels: str,
        source: str = "",
        devices: str = "",
        sparse: Iterable[str] = (),
    ) -> Metric:
        """Return a row for a value that only rises. The name ends in _total."""
        source, devices, own = source or self.source, devices or self.devices, frozenset(sparse)
        return Metric(name, "counter", help, (*self.labels, *labels), read, source, devices, sparse=own)

    def histogram(
        self,
        name: str,
        help: str,
        read: Callable[[Subject], Reading],
        buckets: Sequence[float],
    ) -> Metric:
        """Return a row for a distribution. The reader returns a HistogramValue with len(buckets) + 1 counts."""
        return Metric(name, "histogram", help, self.labels, read, self.source, self.devices, tuple(buckets))


def families(rows: Iterable[Metric], subjects: Sequence[tuple[LabelValues, Any]]) -> tuple[Family, ...]:
    """Return the families of all rows, without empty ones. A subject: label values, and the argument of the readers."""
    result = []
    for row in rows:
        read = row.read
        samples: list[tuple[LabelValues, Value]] = []
        for labels, subject in subjects:
            reading = read(subject)
            if reading is None:
                continue
            # Nearly all are numbers or dictionaries, and isinstance() with Mapping takes longer than all the rest.
            kind = type(reading)
            if kind is float or kind is int:
                samples.append((labels, reading))  # type: ignore[arg-type]  # mypy does not follow `kind`
            elif kind is dict or isinstance(reading, Mapping):
                found: Mapping[Any, Value] = reading  # type: ignore[assignment]  # nor here
                if isinstance(next(iter(found), ""), str):  # all keys are alike
                    samples += [((*labels, key), value) for key, value in found.items()]
                else:
                    samples += [((*labels, *key), value) for key, value in found.items()]
            else:
                samples.append((labels, reading))
        if samples:
            result.append(Family(row, tuple(samples)))
    return tuple(result)


def by(**readings: float | None) -> dict[str, float]:
    """Return readings by the value of a row's own label, without absent ones."""
    return {name: value for name, value in readings.items() if value is not None}


def each(readings: Mapping[str, float] | None, change: Callable[[float], float]) -> dict[str, float] | None:
    """Return `change` of every reading by the same label, None for None."""
    return None if readings is None else {name: change(value) for name, value in readings.items()}


def states(names: Collection[str], current: str | None) -> dict[str, int] | None:
    """Return 1 for the state `current` and 0 for the others; None if it is not among them."""
    return {name: int(name == current) for name in names} if current in names else None


def flag(value: bool | None) -> int | None:
    """Return 1 for True, 0 for False, None for None."""
    return None if value is None else int(value)


def scaled(value: float | None, factor: float) -> float | None:
    """Return a raw reading times `factor`, None for None."""
    if value is None:
        return None
    # 70 / 100 is 0.7, but 70 * 0.01 is 0.7000000000000001.
    return value * factor if factor >= 1 else value / round(1 / factor)
