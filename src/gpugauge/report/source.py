"""The series of a server with the HTTP API of Prometheus."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from gpugauge.web.client import RequestError, request

_TIMEOUT_SECONDS = 60.0
_MAX_BODY_BYTES = 512 << 20
_MAX_SAMPLES = 1_000_000  # of one query; more are thinned
_LEAST_WINDOWS, _MOST_WINDOWS, _SHORTEST_SECONDS = 24, 300, 60
_MAX_VALUES = 100  # in a matcher
_BEFORE_SECONDS = 300.0  # in which a series has a sample, before the range, if it began before it
_REASON = re.compile(r'"error":\s*("(?:[^"\\]|\\.)*")')


@dataclass(frozen=True, slots=True)
class Series:
    """A series: its labels, and its samples as (Unix time, value) in the order of time."""

    labels: Mapping[str, str]
    points: list[tuple[float, float]]

    @property
    def name(self) -> str:
        """The name of the metric, "" in the result of most functions."""
        return self.labels.get("__name__", "")


@dataclass(frozen=True, slots=True)
class Range:
    """The time that a report is about, Unix seconds."""

    start: float
    end: float

    @property
    def seconds(self) -> int:
        """Its length, and the time before it in which the series that continue have a sample."""
        return math.ceil(self.end - self.start + _BEFORE_SECONDS)


def quoted(text: str) -> str:
    """Return text as a string of PromQL."""
    return json.dumps(text, ensure_ascii=False)


def one_of(values: Sequence[str]) -> str:
    """Return the right side of a matcher of these values."""
    return "=~" + quoted("|".join(map(re.escape, values)))


@dataclass
class Prometheus:
    """A server; `matchers` are in every selector. `warnings` are those of its answers. Methods raise RequestError."""

    url: str
    matchers: str = ""
    warnings: set[str] = field(default_factory=set)
    has_curves: ClassVar[bool] = True

    def selector(self, names: Sequence[str], *more: str) -> str:
        """Return the selector of these metrics, with further matchers such as `process="a"`."""
        matchers = filter(None, [f"__name__{one_of(names)}", *more, self.matchers])
        return f"{{{','.join(matchers)}}}"

    def instant(self, query: str, at: float) -> list[Series]:
        """Return the result of a query at a time: a vector, or all samples in a range."""
        return self._get("query", query=query, time=at)

    def over_time(self, query: str, span: Range, step: int) -> list[Series]:
        """Return the result of a query at the begin of a range, and `step` seconds apart up to its end."""
        first = span.end - step * math.ceil((span.end - span.start) / step)
        return self._get("query_range", query=query, start=first, end=span.end, step=step)

    def present(self, name: str, processes: Sequence[str], at: float) -> set[str]:
        """Return which processes have a metric in the last scrape of their exporter, however long ago it was."""
        found = (self.selector([name], f"process{one_of(part)}") for part in _parts(processes))
        return {series.labels.get("process", "") for query in found for series in self.instant(query, at)}

    def counts(self, name: str, matcher: str, span: Range) -> list[Series]:
        """Return the number of samples of each series of a metric."""
        return self.instant(f"count_over_time({self.selector([name], matcher)}[{span.seconds}s])", span.end)

    def counters(self, names: Sequence[str], label: str, values: Sequence[str], span: Range) -> list[Series]:
        """Return the counters with one of these values of a label: all samples, or of each of many windows the last one
        and before it, where there was a reset, the largest and the smallest one.
        """
        return [series for part in _parts(values) for series in self._counters(names, f"{label}{one_of(part)}", span)]

    def gauges(self, names: Sequence[str], label: str, values: Sequence[str], span: Range) -> list[Series]:
        """Return the last sample in each of many windows."""
        step = self.step(span)
        found = [self.selector(names, f"{label}{one_of(part)}") for part in _parts(values)]
        return [series for each in found for series in self.over_time(f"last_over_time({each}[{step}s])", span, step)]

    def _counters(self, names: Sequence[str], matcher: str, span: Range) -> list[Series]:
        ranges = [f"{self.selector([name], matcher)}[{span.seconds}s]" for name in names]
        counted = " + ".join(f"(sum(count_over_time({each})) or vector(0))" for each in ranges)
        every = self.selector(names, matcher)
        if sum(value for series in self.instant(counted, span.end) for _, value in series.points) <= _MAX_SAMPLES:
            return self.instant(f"{every}[{span.seconds}s]", span.end)
        number = self.instant(f"count(last_over_time({every}[{span.seconds}s]))", span.end)
        step = self.step(span, _MAX_SAMPLES // max(1, round(sum(v for each in number for _, v in each.points))))
        found = self.over_time(f"last_over_time({every}[{step}s])", span, step)
        times = [second for series in found for second, _ in series.points]
        if times and 2 * (max(times) - min(times) + step) < span.end - span.start:
            return self._counters(names, matcher, Range(min(times) - step, max(times)))
        for name in names:
            one = f"{self.selector([name], matcher)}[{step}s]"
            most, least = (_by_time(self.over_time(f"{of}_over_time({one})", span, step)) for of in ("max", "min"))
            for series in found:
                if series.name == name:
                    series.points[:] = _with_resets(series, most, least, step)
        return found

    def step(self, span: Range, windows: int = _MOST_WINDOWS) -> int:
        """Return the seconds of a window."""
        windows = min(_MOST_WINDOWS, max(_LEAST_WINDOWS, windows))
        return max(_SHORTEST_SECONDS, math.ceil((span.end - span.start) / windows))

    def _get(self, path: str, **parameters: object) -> list[Series]:
        url = f"{self.url.rstrip('/')}/api/v1/{path}"
        form = {name: str(value) for name, value in parameters.items()}
        limits = {"timeout_seconds": _TIMEOUT_SECONDS, "max_bytes": _MAX_BODY_BYTES}
        try:
            body = request(url, "POST", form=form, server="Prometheus", **limits)  # type: ignore[arg-type]  # see limits
            answer = json.loads(body)
            self.warnings.update(f"The server warns: {text}." for text in answer.get("warnings") or ())
            return list(_series(answer["data"]["result"]))
        except RequestError as error:
            reason = _REASON.search(str(error))
            raise RequestError(f"{url}: {json.loads(reason[1])}") if reason else error from None
        except (ValueError, KeyError, TypeError, AttributeError):
            raise RequestError(f"{url} does not answer as Prometheus does") from None


NO_SERVER = Prometheus("")


def _parts(values: Sequence[str]) -> Iterator[Sequence[str]]:
    return (values[at : at + _MAX_VALUES] for at in range(0, len(values), _MAX_VALUES))


def _by_time(found: Sequence[Series]) -> dict[tuple[object, float], float]:
    return {(_key(series.labels), second): value for series in found for second, value in series.points}


def _with_resets(
    series: Series, most: Mapping[tuple[object, float], float], least: Mapping[tuple[object, float], float], step: int
) -> Iterator[tuple[float, float]]:
    before = math.inf
    for second, value in series.points:
        at = _key(series.labels), second
        if most.get(at, value) > value:
            yield second - step / 2, most[at]
        if least.get(at, value) < min(before, value):
            yield second, least[at]
        yield second, value
        before = value


def _key(labels: Mapping[str, str]) -> frozenset[tuple[str, str]]:
    return frozenset(pair for pair in labels.items() if pair[0] != "__name__")


def _series(result: Sequence[Mapping[str, Any]]) -> Iterator[Series]:
    for row in result:
        points = row["values"] if "values" in row else [row["value"]] if "value" in row else []
        numbers = [(float(second), float(text)) for second, text in points]
        yield Series(row["metric"], [point for point in numbers if math.isfinite(point[1])])
