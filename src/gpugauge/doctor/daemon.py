"""What the running daemon knows, read from its metrics."""

from __future__ import annotations

import http.client
import urllib.error
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from prometheus_client.parser import text_string_to_metric_families

from gpugauge.web.client import opener

_SECONDS = 5.0
_MOST_BYTES = 64 << 20
_INFO = ("torch_process_info", "gpu_process_host_info", "gpu_process_info")

Labels = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Daemon:
    """Its samples by name, or the problem with asking it."""

    samples: Mapping[str, list[tuple[Labels, float]]] = field(default_factory=dict)
    problem: str = ""

    def rows(self, name: str, **labels: str) -> Iterator[tuple[Labels, float]]:
        """The samples of one name that carry these labels."""
        for found, value in self.samples.get(name, ()):
            if all(found.get(key) == wanted for key, wanted in labels.items()):
                yield found, value

    def value(self, name: str, **labels: str) -> float | None:
        """The first of rows()."""
        return next((value for _, value in self.rows(name, **labels)), None)

    def process_of(self, pid: int) -> str | None:
        """The `process` label of the living process with this pid, the one that began last."""
        names = (found["process"] for info in _INFO for found, _ in self.rows(info, pid=str(pid)))
        alive = [name for name in names if self.value("training_end_timestamp_seconds", process=name) is None]
        return alive[0] if alive else None

    def knows(self, process: str) -> bool:
        """Whether it tells of a process."""
        return any(True for info in _INFO for _ in self.rows(info, process=process))

    def current(self, name: str, label: str, process: str) -> str | None:
        """The label of the row that is 1, for families of which exactly one is."""
        return next((found[label] for found, value in self.rows(name, process=process) if value == 1), None)


def ask_daemon(url: str) -> Daemon:
    """Read the metrics. Never raises: what goes wrong is the problem that it returns."""
    if not url.startswith(("http://", "https://")):
        return Daemon(problem=f"{url}: the address begins with http:// or https://")
    try:
        with opener().open(url, timeout=_SECONDS) as response:
            text = response.read(_MOST_BYTES).decode()
        samples: dict[str, list[tuple[Labels, float]]] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                samples.setdefault(sample.name, []).append((sample.labels, sample.value))
    except urllib.error.HTTPError as error:
        with error:
            return Daemon(problem=f"{url} answers {error.code} {error.reason}")
    except urllib.error.URLError as error:
        return Daemon(problem=f"{url} does not answer ({error.reason})")
    except (OSError, ValueError, KeyError, http.client.HTTPException) as error:
        return Daemon(problem=f"{url} does not answer as gpugauge does: {error}")
    if "gpugauge_build_info" not in samples:
        return Daemon(problem=f"{url} is not gpugauge")
    return Daemon(samples)
