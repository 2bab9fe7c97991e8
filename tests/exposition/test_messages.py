"""Bodies in protobuf: drawn families read by the official runtime, start timestamps, and what is left out."""

from __future__ import annotations

import gzip
import math
from itertools import accumulate
from typing import Any, TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpugauge.exposition.accept import PROTOBUF
from gpugauge.exposition.render import OPENMETRICS, TEXT, Exposition
from gpugauge.metric import NONE, SECONDS, TIMESTAMP, Family, HistogramValue, Metric, Table, Value
from gpugauge.snapshot import Section, Snapshot
from tests.exposition.metrics_proto import families as read
from tests.exposition.test_drawn import exported
from tests.exposition.test_drawn import families as drawn_families

ACCEPT = PROTOBUF.replace(" ", "")
PROMETHEUS_2_42 = f"{ACCEPT},application/openmetrics-text;version=1.0.0;q=0.8,text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
PROMETHEUS_3_5 = f"{ACCEPT};escaping=allow-utf-8;q=0.6,text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
LOST = Table("process").counter(
    "training_lost_seconds_total", "Lost.", SECONDS, id, "cause", sparse=("throttled", "contention")
)
STEPS = Table("process").counter("torch_steps_total", "Steps.", NONE, id)
BEGUN = Table("process").gauge("training_start_timestamp_seconds", "Begin.", TIMESTAMP, id)
STARTED = Table("process").gauge("gpu_process_start_timestamp_seconds", "Start.", TIMESTAMP, id)
DURATIONS = Table("process").histogram("torch_step_duration_seconds", "Step.", SECONDS, id, (0.5, 1.0, 2.0, 4.0))
Samples: TypeAlias = "tuple[Metric, dict[tuple[str, ...], Value]]"


class Scraped:
    """An exposition that publishes a snapshot each 5 s from 1000 on, and its body as the official runtime reads it."""

    def __init__(self, *, earlier: bool = True) -> None:
        self.exposition = Exposition(stale_after=10)
        self.exposition.publish(Snapshot(995.0, 995.0, ()))
        self.now = 995.0
        if earlier:
            self.families()  # only the past since the first scrape in protobuf is known

    def tick(self, *samples: Samples) -> None:
        self.now += 5
        families = tuple(Family(metric, tuple(values.items())) for metric, values in samples)
        self.exposition.publish(Snapshot(self.now, self.now, (Section("x", families),)))

    def families(self, *, sparse: bool = False) -> dict[str, Any]:
        body = self.exposition.respond(ACCEPT, None, self.now, sparse=sparse).body
        return {family.name: family for family in read(body)}

    def starts(self, metric: Metric, *, sparse: bool = False) -> dict[tuple[str, ...], float | None]:
        """Return the start of each series of a counter, by its label values in the order of their names."""
        return {
            tuple(label.value for label in each.label): each.counter.created_timestamp.ToNanoseconds() / 1e9
            if each.counter.HasField("created_timestamp")
            else None
            for each in self.families(sparse=sparse)[metric.name].metric
        }


@given(st.lists(drawn_families(), min_size=1, max_size=3))
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


def test_a_series_starts_when_it_was_0_last() -> None:
    scraped = Scraped()
    for lost in (0.0, 0, 3.0, 4.0, 4.0):
        scraped.tick((LOST, {("p", "throttled"): lost, ("p", "unknown"): 1.0}), (STARTED, {("p",): 900.5}))
    # 1005 is the second of the snapshots at 1000, 1005, 1010. `unknown` was not seen at 0.
    assert scraped.starts(LOST) == {("throttled", "p"): 1005.0, ("unknown", "p"): 900.5}


@pytest.mark.parametrize("pause", [0, 60])  # snapshots; after five minutes without a scrape nothing is followed
def test_the_first_scrape_after_a_while_has_the_starts_of_processes(pause: int) -> None:
    scraped = Scraped(earlier=pause > 0)
    zero: Samples = (LOST, {("p", "throttled"): 0.0, ("p", "contention"): 1.0})
    for _ in range(pause + 1):
        scraped.tick(zero, (STARTED, {("p",): 900.5}))
    assert scraped.starts(LOST) == {("throttled", "p"): None, ("contention", "p"): 900.5}
    scraped.tick((LOST, {("p", "throttled"): 2.0, ("p", "contention"): 1.0}), (STARTED, {("p",): 900.5}))
    # That of the zero is the first scrape.
    assert scraped.starts(LOST) == {("throttled", "p"): scraped.now - 5, ("contention", "p"): 900.5}


def test_the_start_of_a_process_is_that_of_its_training_for_torch() -> None:
    scraped = Scraped()
    begun: tuple[Samples, ...] = ((BEGUN, {("p",): 950.25}), (STARTED, {("p",): 900.0}))
    scraped.tick((STEPS, {("p",): 7, ("q",): 8}), (LOST, {("p", "throttled"): 5}), *begun)
    assert scraped.starts(STEPS) == {("p",): 950.25, ("q",): None}
    assert scraped.starts(LOST) == {("throttled", "p"): 900.0}


def test_a_start_stays_when_a_later_one_becomes_known_and_ends_with_the_series() -> None:
    scraped = Scraped()
    scraped.tick((STEPS, {("p",): 7}), (STARTED, {("p",): 900.0}))
    scraped.tick((STEPS, {("p",): 9}), (STARTED, {("p",): 900.0}), (BEGUN, {("p",): 950.0}))
    assert scraped.starts(STEPS) == {("p",): 900.0}
    scraped.tick((STEPS, {("p",): 0}))
    assert scraped.starts(STEPS) == {("p",): None}
    scraped.tick((STEPS, {("p",): 2}))
    assert scraped.starts(STEPS) == {("p",): 1010.0}


def test_zeros_are_left_out_on_request_and_come_with_their_start() -> None:
    scraped = Scraped()
    zeros: dict[tuple[str, ...], Value] = {("p", "throttled"): 0.0, ("p", "contention"): 0, ("p", "unknown"): 0.0}
    scraped.tick((LOST, zeros))
    assert set(scraped.starts(LOST, sparse=True)) == {("unknown", "p")}
    assert len(scraped.starts(LOST)) == 3
    scraped.tick((LOST, {**zeros, ("p", "contention"): 2.5}))
    assert scraped.starts(LOST, sparse=True) == {("contention", "p"): 1000.0, ("unknown", "p"): None}


def test_the_text_formats_leave_nothing_out() -> None:
    scraped = Scraped()
    scraped.tick((LOST, {("p", "throttled"): 0.0}))
    for accept in ("", "application/openmetrics-text;version=1.0.0"):
        bodies = [scraped.exposition.respond(accept, None, scraped.now, sparse=sparse).body for sparse in (False, True)]
        assert bodies[0] == bodies[1]
        assert b'training_lost_seconds_total{cause="throttled",process="p"} 0.0' in bodies[0]


def test_counts_beyond_what_prometheus_can_add_have_no_sample() -> None:
    scraped = Scraped()
    large = HistogramValue((0, 0, 0, 0, 2**64), 1.0, (2**63, 2**63), -20)
    scraped.tick((DURATIONS, {("p",): large, ("q",): HistogramValue((0, 0, 0, 0, 1), 8.0)}))
    assert [each.label[0].value for each in scraped.families()[DURATIONS.name].metric] == ["q"]


@pytest.mark.parametrize(
    ("accept", "kind"),
    [
        (ACCEPT, PROTOBUF),
        (PROMETHEUS_2_42, PROTOBUF),
        (PROMETHEUS_3_5, f"{PROTOBUF}; escaping=allow-utf-8"),
        (f"{ACCEPT};q=0.3,text/plain;version=0.0.4;q=0.5", TEXT),
        (f"{ACCEPT};q=0.3,application/openmetrics-text;version=1.0.0;q=0.5", OPENMETRICS),
        (ACCEPT.replace("delimited", "text"), TEXT),
        (ACCEPT.replace("delimited", "compact-text"), TEXT),
        ("application/vnd.google.protobuf", TEXT),
        ("application/vnd.google.protobuf;proto=other.Message;encoding=delimited", TEXT),
        (f"{ACCEPT};q=0", TEXT),
        ("application/*", TEXT),
    ],
)
def test_protobuf_only_where_it_is_asked_for(accept: str, kind: str) -> None:
    exposition = Exposition(stale_after=10)
    exposition.publish(Snapshot(1.7e9, 0.0, ()))
    assert exposition.respond(accept, None, 0.0).content_type == kind
