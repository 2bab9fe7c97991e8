"""The metrics of the running daemon, read over HTTP."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from prometheus_client.parser import text_string_to_metric_families

from gpugauge import catalog
from gpugauge.base.text import printable
from gpugauge.web.client import RequestError, request

_TIMEOUT_SECONDS = 5.0
_MAX_BODY_BYTES = 64 << 20
_INFO = ("torch_process_info", "gpu_process_host_info", "gpu_process_info")

Labels = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Daemon:
    """The samples by metric name, or the problem because of which there are none."""

    samples: Mapping[str, list[tuple[Labels, float]]] = field(default_factory=dict)
    problem: str = ""

    def rows(self, name: str, **labels: str) -> Iterator[tuple[Labels, float]]:
        """Yield the samples of a metric that carry these labels."""
        for found, value in self.samples.get(name, ()):
            if all(found.get(key) == wanted for key, wanted in labels.items()):
                yield found, value

    def value(self, name: str, **labels: str) -> float | None:
        """Return the value of the first of rows(), or None."""
        return next((value for _, value in self.rows(name, **labels)), None)

    def process_of(self, pid: int) -> str | None:
        """Return the `process` label of the living process with this pid, of several the one that started last."""
        names = (found["process"] for info in _INFO for found, _ in self.rows(info, pid=str(pid)))
        alive = [name for name in names if self.value("training_end_timestamp_seconds", process=name) is None]
        return alive[0] if alive else None

    def has_process(self, process: str) -> bool:
        """Return whether an info metric has this `process` label."""
        return any(True for info in _INFO for _ in self.rows(info, process=process))

    def current(self, name: str, label: str, process: str) -> str | None:
        """Return the label of the row that is 1, for families with exactly one such row."""
        return next((found[label] for found, value in self.rows(name, process=process) if value == 1), None)


def ask_daemon(url: str) -> Daemon:
    """Return the metrics at `url`, or the problem. Never raises."""
    try:
        text = request(url, timeout_seconds=_TIMEOUT_SECONDS, max_bytes=_MAX_BODY_BYTES).decode()
        samples: dict[str, list[tuple[Labels, float]]] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                samples.setdefault(sample.name, []).append((sample.labels, sample.value))
    except RequestError as error:
        return Daemon(problem=str(error))
    except (ValueError, KeyError) as error:  # no UTF-8, or no metrics
        return Daemon(problem=printable(f"{url} does not answer as gpugauge does: {error}"))
    # Not gpugauge_build_info alone, which metrics.include may leave out.
    if not any(row.name in samples for row in catalog.metrics()):
        return Daemon(problem=f"{url} is not gpugauge")
    return Daemon(samples)
