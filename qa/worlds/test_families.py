"""Drawn families over several ticks, byte for byte as the official encoders write them and its runtime reads them."""

from __future__ import annotations

import gzip
import math
from itertools import accumulate
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import exposition as reference_text
from prometheus_client.exposition import choose_encoder
from prometheus_client.openmetrics import exposition as reference_openmetrics
from tests.drawn import EVERYTHING
from tests.exposition.metrics_proto import families as read
from tests.exposition.test_accept import OPENMETRICS_ACCEPT, content_type
from tests.exposition.test_messages import ACCEPT, DURATIONS, Scraped
from tests.exposition.test_render import Registry

from gpugauge.exposition.accept import PROTOBUF
from gpugauge.exposition.render import TEXT, Exposition
from gpugauge.exposition.text import Lines
from gpugauge.metric import Family, HistogramValue, Metric, Table
from gpugauge.snapshot import Section, Snapshot

USED = Table("uuid").gauge("gpu_memory_used_bytes", "Memory in use.", id)
BUSY = Table("uuid").counter("gpu_busy_seconds_total", "Time with a kernel.", id, "engine")
STEPS = Table("process").histogram("torch_step_duration_seconds", "Step.", id, (0.001, 1.0, 2_500_000.0))
COUNT = Table().gauge("gpugauge_processes", "Processes.", id)

near_the_limits = st.sampled_from([0, 1, -1, 999_999, 1_000_000, 1_000_001, 1_500_000, 2_500_000, 10**15, 10**16])
integers = st.one_of(near_the_limits, st.integers(-(2**63), 2**64))
# 0.0 and -0.0 are equal: a sample that changes between them is not written again.
floats = st.one_of(st.floats(), near_the_limits.map(float), near_the_limits.map(lambda number: -float(number)))
floats = floats.map(lambda number: number + 0.0)
numbers = st.one_of(integers, integers.map(lambda number: -number), floats, st.booleans())
names = st.sampled_from(["a", "b", "GPU-1", 'a"b', "a\\b", "a\nb", "é", ""])
counts = st.lists(st.one_of(st.integers(0, 9), near_the_limits.map(abs)), min_size=4, max_size=4).map(
    lambda each: tuple(accumulate(each))
)
totals = st.one_of(st.floats().map(lambda number: number + 0.0), st.floats(0, 1e7), st.integers(0, 10**8))
histograms = st.builds(HistogramValue, counts, totals, st.just(()), st.just(0))
LABELS = st.sampled_from(["p", "q", "two\nlines", "\x85\u2028", '"'])


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


@pytest.mark.timeout(600)
@settings(max_examples=100 if EVERYTHING else 30)
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


@pytest.mark.timeout(600)
@settings(max_examples=100 if EVERYTHING else 30)
@given(st.lists(families(), min_size=1, max_size=3))
def test_the_official_runtime_reads_the_drawn_values(ticks: list[tuple[Family, ...]]) -> None:
    exposition = Exposition(stale_after=10)
    for tick, drawn in enumerate(ticks):
        exposition.publish(Snapshot(1.7e9, float(tick), (Section("drawn", drawn),)))
        answer = exposition.respond(ACCEPT, None, float(tick))
        zipped = exposition.respond(ACCEPT, "gzip", float(tick))
        assert (answer.content_type, gzip.decompress(zipped.body)) == (PROTOBUF, answer.body)
        found = {family.name: family for family in read(answer.body)}
        shown = {family.metric.name: family for family in map(exported, drawn) if family.samples}
        assert list(found) == list(shown)
        for name, family in shown.items():
            _equal(found[name], family)


def _equal(message: Any, family: Family) -> None:
    metric = family.metric
    kinds = {"counter": 0, "gauge": 1, "histogram": 4}
    assert (message.help, message.type, message.unit) == (metric.help, kinds[metric.kind], metric.unit)
    for sample, (values, value) in zip(message.metric, family.samples, strict=True):
        assert [(pair.name, pair.value) for pair in sample.label] == sorted(zip(metric.labels, values, strict=True))
        if isinstance(value, HistogramValue):
            read_back = sample.histogram
            assert (read_back.sample_count, read_back.sample_sum) == (value.counts[-1], value.total)
            assert [bucket.cumulative_count for bucket in read_back.bucket] == list(value.counts)
            assert [bucket.upper_bound for bucket in read_back.bucket] == [*metric.buckets, math.inf]
        else:
            assert getattr(sample, metric.kind).value == float(value)


@given(st.lists(st.floats(1e-9, 20000), max_size=40), st.integers(2, 34))
def test_native_buckets_hold_the_drawn_durations(durations: list[float], length: int) -> None:
    first = -20
    log2 = [0] * length
    for duration in durations:
        log2[min(max(0, math.ceil(math.log2(duration)) - first), length - 1)] += 1
    scraped = Scraped()
    value = HistogramValue((*[0] * 4, len(durations)), sum(durations), tuple(log2), first)
    scraped.tick((DURATIONS, {("p",): value}))
    histogram = scraped.families()[DURATIONS.name].metric[0].histogram

    assert (histogram.schema, histogram.zero_threshold) == (0, 2.0**first)
    assert len(histogram.positive_span) <= 1
    counts = list(accumulate(histogram.positive_delta))
    offset = histogram.positive_span[0].offset if counts else 0
    assert len(counts) == (histogram.positive_span[0].length if counts else 0)
    assert not counts or (counts[0] and counts[-1])  # no empty bucket at an end
    # Bucket i of schema 0 holds (2^(i-1), 2^i]; the last bucket of the hook also counts longer durations.
    last = length - 1 + first
    expected = dict.fromkeys(range(offset, offset + len(counts)), 0)
    zeros = 0
    for duration in durations:
        if duration <= 2.0**first:
            zeros += 1
        else:
            bucket = next((i for i in range(first, last) if duration <= 2.0**i), last)
            expected[bucket] = expected.get(bucket, 0) + 1
    assert (histogram.zero_count, dict(enumerate(counts, offset))) == (zeros, expected)


def part(kind: str, version: str, escaping: str, quality: str) -> str:
    return f"{kind};version={version};escaping={escaping};q={quality}"


@given(
    st.lists(
        st.builds(
            part,
            st.sampled_from(["text/plain", "application/openmetrics-text", "application/json"]),
            st.just("1.0.0"),
            st.sampled_from(["allow-utf-8", "underscores", "dots", "values"]),
            st.sampled_from(["0.1", "0.5", "0.9"]),
        ),
        min_size=1,
        max_size=1,
    ).flatmap(lambda first: st.permutations([*first, "text/html;q=1.0", "*/*;q=0.1"]))
)
def test_drawn_escapings_agree_with_the_official_client(ranges: list[str]) -> None:
    accept = ",".join(ranges)
    _, expected = choose_encoder(accept)
    answered = content_type(accept)

    if "json" not in accept:
        assert set(answered.split("; ")) == set(expected.split("; "))
    else:
        assert answered == TEXT


@given(st.lists(st.dictionaries(LABELS, st.sampled_from([0, 1, 1.0, 0.5, 1e7, math.inf, math.nan])), max_size=6))
def test_lines_are_the_same_as_without_a_cache(ticks: list[dict[str, float]]) -> None:
    lines = Lines()
    for tick in ticks:
        family = Family(USED, tuple(((label,), value) for label, value in tick.items()))

        assert lines.of(family) == Lines().of(family)
