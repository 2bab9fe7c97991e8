"""One scrape: its time, its error, and its series."""

from __future__ import annotations

import http.client
import re
import ssl
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_NO_LABELS: Mapping[str, str] = {}
TIMEOUT = 10.0  # Prometheus' default


@dataclass(frozen=True)
class Scrape:
    """A scrape. `began` is monotonic; `error` is "" if it succeeded. `series` maps name and labels, as in the text
    format, to values.
    """

    began: float
    seconds: float
    error: str = ""
    series: dict[str, float] = field(default_factory=dict)
    counters: frozenset[str] = frozenset()
    again: bool = False
    """Whether the kept connection was closed, and the scrape needed a new one."""

    def value(self, series: str) -> float | None:
        """Return the value of a series, written as in the text format; None if it is absent."""
        return self.series.get(series)

    def of(self, name: str) -> Iterator[tuple[dict[str, str], float]]:
        """Yield the labels and values of a metric."""
        for series, value in self.series.items():
            if series == name or series.startswith(name + "{"):
                yield dict(_LABEL.findall(series)), value

    def total(self, name: str, labels: Mapping[str, str] = _NO_LABELS) -> float:
        """Return the sum over the series of a metric that have these labels."""
        return sum(value for found, value in self.of(name) if labels.items() <= found.items())


class Scraper:
    """A scraper that behaves as Prometheus: it keeps its connection, and retries once if the connection was closed."""

    def __init__(
        self, port: int, headers: Mapping[str, str] = _NO_LABELS, *, tls: bool = False, source: str = ""
    ) -> None:
        self._address, self._headers, self._source = ("127.0.0.1", port), dict(headers), (source, 0) if source else None
        # The certificate is not what is tested.
        self._tls = ssl._create_unverified_context() if tls else None
        self._connection: http.client.HTTPConnection | None = None

    def scrape(self) -> Scrape:
        began, kept = time.monotonic(), self._connection is not None
        error = ""
        for attempt in range(2 if kept else 1):
            try:
                status, text = self._ask()
                took = time.monotonic() - began
                if status == 200:
                    return Scrape(began, took, "", *_parse(text), again=attempt > 0)
                error = f"status {status}"
                break
            except (OSError, http.client.HTTPException) as failure:
                error = f"{type(failure).__name__}: {failure}"
                self.close()
                if isinstance(failure, TimeoutError):
                    break
        return Scrape(began, time.monotonic() - began, error)

    def _ask(self) -> tuple[int, str]:
        if self._connection is None:
            more: dict[str, Any] = {"timeout": TIMEOUT, "source_address": self._source}
            self._connection = (
                http.client.HTTPSConnection(*self._address, context=self._tls, **more)
                if self._tls
                else http.client.HTTPConnection(*self._address, **more)
            )
        self._connection.request("GET", "/metrics", headers=self._headers)
        response = self._connection.getresponse()
        return response.status, response.read().decode()

    def close(self) -> None:
        """Close the connection."""
        if self._connection:
            self._connection.close()
        self._connection = None


def _parse(text: str) -> tuple[dict[str, float], frozenset[str]]:
    """Return all series, and the names of those that must not fall."""
    series: dict[str, float] = {}
    counters, rising = set(), False
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            rising = line.endswith((" counter", " histogram"))
        elif line and line[0] != "#":
            name, _, value = line.rpartition(" ")
            name = sys.intern(name)  # the same in all scrapes: with hostile clients there may be 100,000
            series[name] = float(value)
            if rising:
                counters.add(name)
    return series, frozenset(counters)
