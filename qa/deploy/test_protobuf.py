"""The exposition in protobuf, scraped by two versions of Prometheus beside the text of the same daemon."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from tests.e2e.programs import Daemon, Prometheus, daemon, listening, prometheus3, wait_for
from tests.needs import need

pytestmark = [pytest.mark.e2e, pytest.mark.deploy]

LOST = "training_lost_seconds_total"
STEP = "torch_step_duration_seconds"


class Scraped(NamedTuple):
    running: Daemon
    database: Prometheus
    is_old: bool


@pytest.fixture(scope="module", params=["2.42", "3.5"])
def scraped(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scraped]:
    """A daemon, scraped as text and, without the zeros, in protobuf; the old Prometheus asks all for protobuf."""
    folder: Path = tmp_path_factory.mktemp("protobuf")
    is_old = request.param == "2.42"
    program = need("prometheus") if is_old else prometheus3("prometheus")
    features = "native-histograms" if is_old else "native-histograms,created-timestamp-zero-ingestion"
    with daemon(folder, "--simulate=bottlenecks") as running:
        target = {"static_configs": [{"targets": [running.url.removeprefix("http://")]}]}
        protobuf: dict[str, Any] = {"job_name": "protobuf", "params": {"zeros": ["omit"]}, **target}
        jobs = [protobuf]
        if not is_old:
            protobuf |= {"scrape_protocols": ["PrometheusProto"], "always_scrape_classic_histograms": True}
            jobs.append({"job_name": "text", "scrape_protocols": ["PrometheusText0.0.4"], **target})
        config = {"global": {"scrape_interval": "2s", "scrape_timeout": "2s"}, "scrape_configs": jobs}
        (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
        flags = [f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/tsdb"]
        with listening(folder / "log", program, *flags, f"--enable-feature={features}") as url:
            database = Prometheus(url)
            caused = f'{LOST}{{cause!="unknown"}} > 0'
            wait_for(lambda: database.query(caused), 150, "a training loses time to a cause")
            time.sleep(6)
            yield Scraped(running, database, is_old)


def test_the_scrapes_succeed_and_have_native_histograms(scraped: Scraped) -> None:
    assert not scraped.database.query("up == 0")
    native = f'histogram_count({STEP}{{job="protobuf"}})'
    counted = {each["metric"]["process"]: float(each["value"][1]) for each in scraped.database.query(native)}
    assert counted
    assert max(counted.values()) > 0
    quantiles = scraped.database.query(f"histogram_quantile(0.5, rate({STEP}[30s]))")
    assert any(0 < float(each["value"][1]) < 100 for each in quantiles)


def test_only_the_zeros_of_causes_are_missing(scraped: Scraped) -> None:
    if scraped.is_old:  # it scrapes all jobs in one format
        assert not scraped.database.query(f'{LOST}{{cause!="unknown"}} == 0')
        return
    names = '{job="%s", __name__!~"up|scrape_.*|gpugauge_.*"}'
    kept = "group by (__name__, process, uuid, cause, state) (%s)"
    text, protobuf = (kept % (names % job) for job in ("text", "protobuf"))
    missing = scraped.database.query(f"{text} unless {protobuf}")
    assert {each["metric"]["__name__"] for each in missing} == {LOST}
    zeros = f'count({LOST}{{job="text",cause!="unknown"}} == 0)'
    assert len(missing) == scraped.database.value(zeros)
    assert [
        each["metric"] for each in scraped.database.query(f"{protobuf} unless {text}") if STEP not in str(each)
    ] == []


def test_the_first_increase_of_a_cause_is_seen(scraped: Scraped) -> None:
    """Without the zeros, `increase` sees the whole of what the text shows to rise from 0."""
    if scraped.is_old:  # Prometheus before 2.50 has no start timestamps, docs/http.md says so
        return
    rises = scraped.database.query(f'{LOST}{{job="text",cause!="unknown"}} > 0')
    assert rises
    seen = []
    for each in rises:
        labels = f'process="{each["metric"]["process"]}",cause="{each["metric"]["cause"]}"'
        samples = scraped.database.query(f'{LOST}{{job="protobuf",{labels}}}[10m]')[0]["values"]
        seen.append(float(samples[0][1]) == 0)
        assert float(samples[-1][1]) > 0
    # Those that had risen before the first scrape have no start that Prometheus accepts.
    assert any(seen)
