"""Drawn families over several ticks, byte for byte as the official encoders write them."""

from __future__ import annotations

import gzip
import math
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import exposition as reference_text
from prometheus_client.openmetrics import exposition as reference_openmetrics

from gpugauge.exposition.render import Exposition, negotiate
from gpugauge.metric import BYTES, NONE, SECONDS, Family, HistogramValue, Metric, Table
from gpugauge.snapshot import Section, Snapshot
from tests.exposition.test_render import OPENMETRICS_ACCEPT, Registry

USED = Table("uuid").gauge("gpu_memory_used_bytes", "Memory in use.", BYTES, id)
BUSY = Table("uuid").counter("gpu_busy_seconds_total", "Time with a kernel.", SECONDS, id, "engine")
STEPS = Table("process").histogram("torch_step_duration_seconds", "Step.", SECONDS, id, (0.001, 1.0, 2_500_000.0))
COUNT = Table().gauge("gpugauge_processes", "Processes.", NONE, id)

near_the_limits = st.sampled_from([0, 1, -1, 999_999, 1_000_000, 1_000_001, 1_500_000, 2_500_000, 10**15, 10**16])
integers = st.one_of(near_the_limits, st.integers(-(2**63), 2**64))
floats = st.one_of(st.floats(), near_the_limits.map(float), near_the_limits.map(lambda number: -float(number)))
numbers = st.one_of(integers, integers.map(lambda number: -number), floats, st.booleans())
names = st.sampled_from(["a", "b", "GPU-1", 'a"b', "a\\b", "a\nb", "é", ""])
counts = st.lists(st.one_of(st.integers(0, 9), near_the_limits.map(abs)), min_size=4, max_size=4).map(
    lambda each: tuple(accumulate(each))
)
totals = st.one_of(st.floats(), st.floats(0, 1e7), st.integers(0, 10**8))
histograms = st.builds(HistogramValue, counts, totals)


@st.composite
def families(draw: st.DrawFn) -> tuple[Family, ...]:
    def family(metric: Metric, label_sets: st.SearchStrategy[tuple[str, ...]], values: object) -> Family:
        keys = draw(st.lists(label_sets, unique=True, max_size=4))
        return Family(metric, tuple((key, draw(values)) for key in keys))  # type: ignore[arg-type] # a strategy

    return (
        family(USED, st.tuples(names), numbers),
        family(BUSY, st.tuples(names, names), numbers),
        family(STEPS, st.tuples(names), histograms),
        family(COUNT, st.just(()), numbers),
    )


def exported(family: Family) -> Family:
    """Return the family without the samples that are not numbers, which have no series."""
    plain = [value.total if isinstance(value, HistogramValue) else value for _, value in family.samples]
    kept = [sample for sample, number in zip(family.samples, plain, strict=True) if not math.isnan(number)]
    return Family(family.metric, tuple(kept))


@given(st.lists(families(), min_size=1, max_size=4))
def test_bodies_are_those_of_the_official_encoders(ticks: list[tuple[Family, ...]]) -> None:
    exposition = Exposition(stale_after=10)
    for tick, drawn in enumerate(ticks):
        exposition.publish(Snapshot(1.7e9, float(tick), (Section("drawn", drawn),)))
        shown = [family for family in map(exported, drawn) if family.samples]
        registry = Registry([Section("drawn", tuple(shown))])
        text = reference_text.generate_latest(registry)
        openmetrics = reference_openmetrics.generate_latest(registry)  # type: ignore[no-untyped-call]  # prometheus_client

        assert exposition.respond(None, None, float(tick)).body == text
        assert exposition.respond(OPENMETRICS_ACCEPT, None, float(tick)).body == openmetrics
        zipped = exposition.respond(OPENMETRICS_ACCEPT, "gzip", float(tick))
        assert (zipped.content_encoding, gzip.decompress(zipped.body)) == ("gzip", openmetrics)


def test_a_histogram_without_a_sum_hides_no_other() -> None:
    exposition, each = Exposition(stale_after=10), (1, 2, 3, 4)
    family = Family(
        STEPS, tuple(((name,), HistogramValue(each, total)) for name, total in (("a", math.nan), ("b", 5.0)))
    )
    exposition.publish(Snapshot(1.7e9, 0.0, (Section("drawn", (family,)),)))
    body = exposition.respond(None, None, 0.0).body

    assert (b'process="a"' in body, b'torch_step_duration_seconds_sum{process="b"} 5.0' in body) == (False, True)


@pytest.mark.parametrize(
    ("accept", "openmetrics"),
    [
        ("text/plain, application/openmetrics-text", True),  # equal: the richer one
        ("text/plain;q=0.5, application/openmetrics-text;q=0.5", True),
        ("text/plain;q=0.6, application/openmetrics-text;q=0.5", False),
        ('application/openmetrics-text; version="1.0.0"', True),
        ("application/openmetrics-text; version=x1.0.0", False),
        ("application/openmetrics-text; version=1.0.0; q=0.2, text/plain; q=0.1", True),
        ("application/openmetrics-text; q=0.1, application/openmetrics-text; q=0.9, text/plain; q=0.5", True),
        ("text/plain; q=0.9, text/plain; q=0.1, application/openmetrics-text; q=0.5", False),
        ("text/html, application/json", False),
    ],
)
def test_the_format_with_the_higher_quality_is_sent(accept: str, openmetrics: bool) -> None:
    assert (negotiate(accept, "").format == "openmetrics") is openmetrics


@pytest.mark.parametrize(
    ("encoding", "zipped"),
    [
        ("gzip, identity", True),
        ("gzip;q=0.5, identity;q=0.5", True),
        ("gzip;q=0.5, identity;q=0.6", False),
        ("x-gzip", True),
        ("x-gzip;q=0, *", False),
        ("*;q=0.5, identity", False),
        ("gzip;q=x", False),
    ],
)
def test_gzip_is_sent_unless_plain_bytes_are_preferred(encoding: str, zipped: bool) -> None:
    assert negotiate("", encoding).gzip is zipped
