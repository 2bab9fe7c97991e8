"""The trainings that the daemon of a machine keeps, as the series of a server."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from gpugauge.exposition.trainings import BUILD, COUNTERS, GAUGES, MAX_BYTES, RUN, RUN_LABEL, members
from gpugauge.report import build, jobs
from gpugauge.report.model import Report
from gpugauge.report.source import Prometheus, Range, Series
from gpugauge.web.client import RequestError, request

_TIMEOUT_SECONDS = 10.0


@dataclass
class Kept(Prometheus):
    """A daemon; `series` are what it keeps, those of `run` alone if that is set, `live` the processes that it has now.
    Its creation raises RequestError.
    """

    run: str = ""
    series: list[Series] = field(default_factory=list)
    live: set[str] = field(default_factory=set)
    has_curves: ClassVar[bool] = False

    def __post_init__(self) -> None:
        """Read what it keeps."""
        url = f"{self.url.rstrip('/')}/api/v1/trainings"
        body = request(url, timeout_seconds=_TIMEOUT_SECONDS, max_bytes=2 * MAX_BYTES)
        known: defaultdict[tuple[tuple[str, str], ...], list[tuple[float, float]]] = defaultdict(list)
        try:
            for _, document in members(body):
                self.live |= {str(document["process"])} if document.get("live") is True else set()
                for labels, points in _of(document, self.run):
                    known[labels] += points
        except (ValueError, TypeError, KeyError, AttributeError):
            raise RequestError(f"{url} does not answer as gpugauge does") from None
        self.series = [Series(dict(labels), sorted(set(points))) for labels, points in known.items()]

    def present(self, name: str, processes: Sequence[str], at: float) -> set[str]:  # noqa: ARG002  (of the last tick)
        """Return which processes the daemon has now."""
        return self.live.intersection(processes)

    def counts(self, name: str, matcher: str, span: Range) -> list[Series]:  # noqa: ARG002  (the jobs are chosen by name)
        """Return the number of samples of each series of a metric that has a job, or is of a simulated node."""
        found = [each for each in self._found([name], span) if each.labels.get("workload_job") or name == BUILD]
        return [Series(series.labels, [(span.end, float(len(series.points)))]) for series in found]

    def counters(self, names: Sequence[str], label: str, values: Sequence[str], span: Range) -> list[Series]:
        """Return the samples of series with one of these values of a label."""
        wanted = set(values)
        return [series for series in self._found(names, span) if series.labels.get(label) in wanted]

    gauges = counters

    def _found(self, names: Sequence[str], span: Range) -> list[Series]:
        of = [series for series in self.series if series.name in names]
        cut = [Series(each.labels, [p for p in each.points if 0 <= span.end - p[0] < span.seconds]) for each in of]
        return [series for series in cut if series.points]

    def step(self, span: Range, windows: int = 0) -> int:  # noqa: ARG002  (as of the server)
        """Return the seconds between two looks of the daemon."""
        return 5


def of(source: Kept, processes: Collection[str] | None = None) -> Report | None:
    """Return the report on some processes of one job, or on all, None if there are none."""
    now = time.time()
    span = Range(0.0, now)
    owners = {p: owner for p, owner in jobs.owners(source, span).items() if processes is None or p in processes}
    found = jobs.read(source, owners, span, COUNTERS, GAUGES)
    job = Counter(owners[process].job for process in found.facts).most_common(1)
    return build.report(job[0][0], found, now, source=source) if job else None


def _of(document: dict[str, Any], run: str) -> Iterator[tuple[tuple[tuple[str, str], ...], list[tuple[float, float]]]]:
    rows, own = document["series"], {"process": document["process"], "instance": document["node"]}
    if run and not any(name == RUN and labels.get(RUN_LABEL) == run for name, labels, *_ in rows):
        return
    rows += [[BUILD, {}, first, 1, last, 1] for _, _, first, _, last, _ in rows[: document.get("simulated") is True]]
    for name, labels, first, before, last, value in rows:
        of = labels if "uuid" in labels and not name.startswith(("gpu_process", "torch")) else labels | own
        pairs = {"__name__": name, "instance": document["node"], **of}
        yield tuple(sorted(pairs.items())), [(float(first), float(before)), (float(last), float(value))]
