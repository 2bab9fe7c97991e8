"""The golden files, as the official parsers of Prometheus read them."""

from __future__ import annotations

import math
import re
import subprocess
import tempfile
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

import pytest
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from gpugauge import catalog
from gpugauge.simulator.scenario.load import load_scenario
from tests.drawn import cases
from tests.golden_metrics import FOLDER, GOLDENS, SHIPPED, metrics
from tests.needs import need

ROWS = {row.name: row for row in catalog.metrics()}
FILES = sorted(path.name for path in FOLDER.glob("*.text"))
# The counters that the driver or the GPU resets, which are exported as they are.
RESET = {
    *("gpu_clocks_event_seconds_total", "gpu_ecc_errors_total", "gpu_energy_joules_total", "gpu_pcie_replays_total"),
    *("gpu_nvlink_errors_total", "gpu_nvlink_received_bytes_total", "gpu_nvlink_transmitted_bytes_total"),
}
Series = Mapping[tuple[str, tuple[tuple[str, str], ...]], float]


@cache
def rendered(name: str) -> Mapping[str, str]:
    """Return the bodies of a golden file's scenario by format."""
    with tempfile.TemporaryDirectory() as folder:
        return GOLDENS[name](Path(folder))


def series(families: Iterable[Metric]) -> Series:
    """Return the samples by name and labels; none may occur twice."""
    found: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
    for family in families:
        for sample in family.samples:
            key = sample.name, tuple(sorted(sample.labels.items()))
            assert key not in found, key
            found[key] = sample.value
    return found


def check(families: list[Metric]) -> None:
    """Compare what a parser read with the catalogue: type, help, labels, and values that are possible for the type."""
    assert families
    for family in families:
        row = ROWS.get(family.name) or ROWS[f"{family.name}_total"]
        assert (family.type, family.documentation) == (row.kind, row.help), family.name
        for sample in family.samples:
            assert set(sample.labels) - {"le"} <= set(row.labels), sample
            assert math.isfinite(sample.value), sample
            assert sample.value >= 0 or row.kind == "gauge", sample
            if row.unit == "ratio":
                assert 0 <= sample.value <= 1 or row.kind == "histogram", sample
        if row.kind == "histogram":
            check_histogram(family)


def check_histogram(family: Metric) -> None:
    buckets: dict[tuple[tuple[str, str], ...], list[tuple[float, float]]] = {}
    counts = {}
    for sample in family.samples:
        labels = tuple(sorted((k, v) for k, v in sample.labels.items() if k != "le"))
        if sample.name.endswith("_bucket"):
            buckets.setdefault(labels, []).append((float(sample.labels["le"]), sample.value))
        elif sample.name.endswith("_count"):
            counts[labels] = sample.value
    assert buckets.keys() == counts.keys()
    for labels, found in buckets.items():
        assert found == sorted(found)
        assert [n for _, n in found] == sorted(n for _, n in found)
        assert found[-1] == (math.inf, counts[labels])


def test_every_row_of_the_catalogue_is_in_a_golden_file() -> None:
    golden = "".join(path.read_text() for path in FOLDER.glob("*.text"))
    named = set(re.findall(r"^# TYPE (\S+)", golden, re.MULTILINE))

    # The time stands still in the golden files, so that no cause has a gain (qa/worlds/test_gain.py), no memory
    # grows, and the GPUs of the ranks have no readings (qa/worlds/test_memory.py). No rank stands still
    # (qa/worlds/test_standstill.py), and NCCL is not asked (qa/worlds/test_nccl.py).
    elsewhere = re.compile(
        "expected_speedup|memory_(step_)?growth|memory_full|headroom|rank_ratio|torch_collective|rank_position|_nccl_"
    )
    missing = {row.name for row in catalog.metrics() if not elsewhere.search(row.name)} - named
    assert not missing, f"no golden file has {sorted(missing)}: run `make generate`, or let a scenario show it"


@cases("file", FILES)
def test_golden_file_is_text_format_to_the_official_parser(file: str) -> None:
    check(list(parse_text((FOLDER / file).read_text())))


@cases("path", sorted(FOLDER.glob("*.openmetrics")))
def test_golden_file_is_openmetrics_to_the_official_parser(path: Path) -> None:
    families = list(parse_openmetrics(path.read_text()))  # type: ignore[no-untyped-call]  # it has no types

    check(families)
    assert series(families) == series(parse_text(path.with_suffix(".text").read_text()))


@pytest.mark.everything
@pytest.mark.timeout(600)  # each scenario runs for some seconds
@cases("name", GOLDENS)
def test_both_formats_have_the_same_series_and_units(name: str) -> None:
    body = rendered(name)
    families = list(parse_openmetrics(body["openmetrics"]))  # type: ignore[no-untyped-call]  # it has no types

    check(families)
    assert series(families) == series(parse_text(body["text"]))
    for family in families:
        row = ROWS.get(family.name) or ROWS[f"{family.name}_total"]
        # OpenMetrics has no unit for the moments of time: they are seconds.
        assert family.unit == {"timestamp_seconds": "seconds"}.get(row.unit, row.unit), family.name


@cases("file", FILES)
def test_promtool_has_no_complaint(file: str) -> None:
    """promtool parses a body with Prometheus' own parser, and checks names, help, types and units."""
    text = (FOLDER / file).read_bytes()

    done = subprocess.run([need("promtool"), "check", "metrics"], input=text, capture_output=True, check=False)

    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


@pytest.mark.everything
@pytest.mark.timeout(600)  # each scenario runs for some seconds
@cases("name", SHIPPED)
def test_no_counter_falls_between_two_moments_of_a_scenario(name: str, tmp_path: Path) -> None:
    """A counter of the hardware starts again at 0 where the scenario says so; a counter of our own never falls."""
    (tmp_path / "before").mkdir()
    before = list(parse_text(metrics(load_scenario(name), tmp_path / "before", SHIPPED[name] // 2)["text"]))
    later = series(parse_text(rendered(name)["text"]))

    counters = [family for family in before if family.type in {"counter", "histogram"}]
    compared = {key: (value, later[key]) for key, value in series(counters).items() if key in later}

    assert len(compared) > 10
    fallen = {key[0] for key, (value, now) in compared.items() if now < value}
    assert fallen == (RESET if name == "counters-reset" else set())


@cases(
    "body",
    [
        '# TYPE gpu_up gauge\ngpu_up{uuid="GPU-0"} 1\n',  # no help
        '# HELP gpu_up GPU answers.\n# TYPE gpu_up counter\ngpu_up{uuid="GPU-0"} 1\n',  # another type
        '# HELP gpu_up no\n# TYPE gpu_up gauge\ngpu_up{uuid="GPU-0"} NaN\n',
    ],
)
def test_check_finds_faults(body: str) -> None:
    with pytest.raises(AssertionError):
        check(list(parse_text(body)))
