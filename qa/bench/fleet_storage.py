"""Series and bytes that Prometheus stores of the simulated nodes: as text, and in protobuf without the zeros of causes.

`python -m qa.bench.fleet_storage` runs the daemons of qa.bench.fleet and three servers of Prometheus 3.5 or newer for
about 6 minutes. docs/http.md has the configuration.
"""

from __future__ import annotations

import argparse
import contextlib
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qa.bench import figures
from qa.bench.fleet_bodies import DEVICES, nodes
from qa.bench.prometheus import Prometheus, prometheus
from qa.bench.report import report

_FETCHED = Path(__file__).parents[2] / ".cache" / "prometheus3" / "usr" / "bin" / "prometheus"
_INTERVAL, _SECONDS, _WARM_UP = 5, 240.0, 70.0  # a verdict needs a minute of evidence
_PARTS = ("chunks", "index")  # of a block


@dataclass(frozen=True)
class _Form:
    """A way to scrape: keys of the scrape job, and feature flags."""

    name: str
    scrape: Mapping[str, Any]
    features: str = ""


_PROTOBUF = {
    "scrape_protocols": ["PrometheusProto"],
    "params": {"zeros": ["omit"]},
    "always_scrape_classic_histograms": True,
}
_FORMS = (
    _Form("text", {"scrape_protocols": ["PrometheusText0.0.4"]}),
    _Form("protobuf, zeros=omit", _PROTOBUF, "created-timestamp-zero-ingestion"),
    _Form("the same with native histograms", _PROTOBUF, "created-timestamp-zero-ingestion,native-histograms"),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prometheus", default=str(_FETCHED), help="path of Prometheus 3.5 or newer")
    program = parser.parse_known_args()[0].prometheus
    if not Path(program).exists():
        fetch = "tests/e2e/fetch-debian $PWD/.cache/prometheus3 usr/bin/promtool sid prometheus promtool"
        raise SystemExit(f"{program} is not there: set its path with --prometheus, or run {fetch}")
    with contextlib.ExitStack() as stack:
        daemons = stack.enter_context(nodes())
        time.sleep(_WARM_UP)
        addresses = [f"127.0.0.1:{daemon.port}" for daemon in daemons.values()]
        servers = [(form, *stack.enter_context(_server(program, form, addresses))) for form in _FORMS]
        time.sleep(_SECONDS)
        version = servers[0][1].ask("/api/v1/status/buildinfo")["version"]
        rows = [_row(*server, len(addresses)) for server in servers]
    before, after, _ = rows
    saved = {key: f"{100 * (1 - after[key] / before[key]):.0f}" for key in ("series", "bytes")}
    scraped = f"{_SECONDS / 60:g} minutes, scraped each {_INTERVAL} s"
    title = f"Stored of a node with {DEVICES} GPUs: {scraped}, in Prometheus {version}"
    note = (
        f"Means of {len(addresses)} simulated nodes. Bytes are those of a block that Prometheus writes of all samples."
    )
    report(
        title,
        rows,
        "python -m qa.bench.fleet_storage",
        [note],
        figures=saved,
    )


@contextlib.contextmanager
def _server(program: str, form: _Form, addresses: list[str]) -> Iterator[tuple[Prometheus, Path]]:
    with tempfile.TemporaryDirectory(prefix="fleet-storage-") as name:
        job = {"job_name": "gpugauge", "static_configs": [{"targets": addresses}], **form.scrape}
        every = f"{_INTERVAL}s"
        config = {"global": {"scrape_interval": every, "scrape_timeout": every}, "scrape_configs": [job]}
        flags = ["--web.enable-admin-api", *([f"--enable-feature={form.features}"] if form.features else [])]
        with prometheus(program, Path(name), config, *flags) as running:
            yield running, Path(name)


def _row(form: _Form, running: Prometheus, folder: Path, count: int) -> dict[str, Any]:
    own = running.own()
    request = urllib.request.Request(f"http://127.0.0.1:{running.port}/api/v1/admin/tsdb/snapshot", method="POST")
    with urllib.request.urlopen(request, timeout=120):
        pass
    files = [path for path in (folder / "tsdb" / "snapshots").rglob("*") if path.is_file()]
    sizes = {part: sum(p.stat().st_size for p in files if part in {p.name, p.parent.name}) for part in _PARTS}
    return {
        "scraped as": form.name,
        "failed scrapes": running.value("sum(count_over_time(up[1h]) - sum_over_time(up[1h]))"),
        "series": own["prometheus_tsdb_head_series"] / count,
        "samples": own["prometheus_tsdb_head_samples_appended_total"] / count,
        **{f"bytes of {part}": size / count for part, size in sizes.items()},
        "bytes": sum(sizes.values()) / count,
    }


if __name__ == "__main__":
    figures.run("fleet-storage", main)
