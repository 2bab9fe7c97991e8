"""Bodies in protobuf: drawn families read by the official runtime, start timestamps, and what is left out."""

from __future__ import annotations

from typing import Any, TypeAlias

from gpugauge.exposition.accept import PROTOBUF
from gpugauge.exposition.render import Exposition
from gpugauge.metric import Family, HistogramValue, Metric, Table, Value
from gpugauge.snapshot import Section, Snapshot
from tests.drawn import cases
from tests.exposition.metrics_proto import families as read

ACCEPT = PROTOBUF.replace(" ", "")
LOST = Table("process").counter("training_lost_seconds_total", "Lost.", id, "cause", sparse=("throttled", "contention"))
STEPS = Table("process").counter("torch_steps_total", "Steps.", id)
BEGUN = Table("process").gauge("training_start_timestamp_seconds", "Begin.", id)
STARTED = Table("process").gauge("gpu_process_start_timestamp_seconds", "Start.", id)
DURATIONS = Table("process").histogram("torch_step_duration_seconds", "Step.", id, (0.5, 1.0, 2.0, 4.0))
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


def test_a_series_starts_when_it_was_0_last() -> None:
    scraped = Scraped()
    for lost in (0.0, 0, 3.0, 4.0, 4.0):
        scraped.tick((LOST, {("p", "throttled"): lost, ("p", "unknown"): 1.0}), (STARTED, {("p",): 900.5}))
    # 1005 is the second of the snapshots at 1000, 1005, 1010. `unknown` was not seen at 0.
    assert scraped.starts(LOST) == {("throttled", "p"): 1005.0, ("unknown", "p"): 900.5}


@cases("pause", [0, 60])  # snapshots; after five minutes without a scrape nothing is followed
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
