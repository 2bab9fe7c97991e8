from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from unittest.mock import Mock, call, patch

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import exposition as reference_text
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric as ReferenceFamily
from prometheus_client.openmetrics import exposition as reference_openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from gpugauge.exposition import render as exposition_module
from gpugauge.exposition import text as exposition_text
from gpugauge.exposition.render import OPENMETRICS, TEXT, Exposition, Response, go_float
from gpugauge.exposition.text import Lines
from gpugauge.metric import Family, HistogramValue, Metric, Table, Value
from gpugauge.snapshot import Section, Snapshot
from tests.drawn import cases
from tests.exposition.test_accept import OPENMETRICS_ACCEPT

DEVICE = Table[object]("uuid")
USED = DEVICE.gauge("gpu_memory_used_bytes", "Memory in use.", id)
LOAD = DEVICE.gauge("gpu_utilization_ratio", 'Share, a "ratio" with \\ and\nmore.', id)
BUSY = DEVICE.counter("gpu_busy_seconds_total", "Time with a kernel.", id, "engine")
STEPS = Table[object]("process").histogram("torch_step_duration_seconds", "Step.", id, (0.001, 1.0, 2_500_000.0))
TAKEN = Table[object]().gauge("gpugauge_snapshot_timestamp_seconds", "When the snapshot was taken.", id)
FACTS = Table[object]("version").gauge("gpugauge_build_info", "Build.", id)

NASTY = 'a"b\\c\nd\u00e9\U0001f525,}{= '


def family(metric: Metric, *samples: tuple[tuple[str, ...], Value]) -> Family:
    return Family(metric, samples)


def sections(used: float = 1e9) -> tuple[Section, ...]:
    return (
        Section(
            "device",
            (
                family(USED, (("GPU-1",), used), (("GPU-2",), 85899345920)),
                family(LOAD, (("GPU-1",), 0.1 + 0.2), (("GPU-2",), 0)),
                family(BUSY, (("GPU-1", "compute"), 12.5), (("GPU-1", NASTY), 1234567.0)),
            ),
        ),
        Section("training", (family(STEPS, (("abc",), HistogramValue((1, 2, 3, 4), 17.25))),)),
        Section("exporter", (family(TAKEN, ((), 1.7e9 + 0.125)), family(FACTS, (("0.1.0",), 1)))),
    )


def family_section() -> Section:
    return Section("x", (family(FACTS, (("1",), 1)),))


def snapshot(*parts: Section, monotonic: float = 100.0) -> Snapshot:
    return Snapshot(1.7e9, monotonic, parts)


def published(*parts: Section) -> Exposition:
    exposition = Exposition(stale_after=10)
    exposition.publish(snapshot(*parts))
    return exposition


def body(exposition: Exposition, accept: str | None = None, encoding: str | None = None, now: float = 100.0) -> bytes:
    return exposition.respond(accept, encoding, now).body


@dataclass
class Registry(Collector):
    """The same families as families of the official client."""

    parts: Iterable[Section]

    def collect(self) -> Iterator[ReferenceFamily]:
        for section in self.parts:
            yield from map(self._convert, section.families)

    @staticmethod
    def _convert(family: Family) -> ReferenceFamily:
        metric = family.metric
        name, unit = metric.name.removesuffix("_total"), metric.unit.removeprefix("timestamp_")
        if metric.kind == "histogram":
            histogram = HistogramMetricFamily(name, metric.help, labels=metric.labels, unit=unit)
            for labels, value in family.samples:
                assert isinstance(value, HistogramValue)
                bounds = [*map(floatToGoString, metric.buckets), "+Inf"]
                histogram.add_metric(labels, list(zip(bounds, value.counts, strict=True)), value.total)
            return histogram
        kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
        converted = kind(name, metric.help, labels=metric.labels, unit=unit)
        for labels, value in family.samples:
            assert not isinstance(value, HistogramValue)
            converted.add_metric(labels, value)
        return converted


def test_text_is_byte_equal_to_the_official_encoder() -> None:
    assert reference_text.generate_latest(Registry(sections())) == body(published(*sections()))


def test_openmetrics_is_byte_equal_to_the_official_encoder() -> None:
    expected = reference_openmetrics.generate_latest(Registry(sections()))  # type: ignore[no-untyped-call]  # prometheus_client

    assert expected == body(published(*sections()), OPENMETRICS_ACCEPT)


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_label_values_survive_the_round_trip(value: str) -> None:
    exposition = published(Section("x", (family(FACTS, ((value,), 1)),)))

    for parse, accept in ((parse_text, None), (parse_openmetrics, OPENMETRICS_ACCEPT)):
        (parsed,) = parse(io.StringIO(body(exposition, accept).decode(), newline="\n").getvalue())
        assert value == parsed.samples[0].labels["version"]


def test_two_lone_surrogates_stay_two_series() -> None:
    values = (b"\xff".decode(errors="surrogateescape"), b"\xfe".decode(errors="surrogateescape"))
    exposition = published(Section("x", (family(FACTS, *(((value,), 1) for value in values)),)))

    (parsed,) = parse_text(body(exposition).decode())

    assert [sample.labels["version"] for sample in parsed.samples] == [r"\udcff", r"\udcfe"]


@given(st.one_of(st.floats(), st.integers(-(2**70), 2**70)))
def test_numbers_are_written_as_the_official_client_does(value: float) -> None:
    assert floatToGoString(value) == go_float(value)  # type: ignore[no-untyped-call]  # prometheus_client


def test_values_that_are_no_numbers_have_no_series() -> None:
    section = Section("x", (family(FACTS, (("a",), float("nan")), (("b",), 10**400), (("c",), 1)), family(LOAD)))
    expected = b"""\
# HELP gpugauge_build_info Build.
# TYPE gpugauge_build_info gauge
gpugauge_build_info{version="c"} 1.0
"""

    assert expected == body(published(section))


def test_a_histogram_without_a_sum_hides_no_other() -> None:
    values = ((name, HistogramValue((1, 2, 3, 4), total)) for name, total in (("a", float("nan")), ("b", 5.0)))
    found = body(published(Section("x", (family(STEPS, *(((name,), value) for name, value in values)),))))

    assert (b'process="a"' in found, b'torch_step_duration_seconds_sum{process="b"} 5.0' in found) == (False, True)


@cases("accept", [None, OPENMETRICS_ACCEPT])
def test_gzip_is_one_member_with_the_plain_bytes(accept: str | None) -> None:
    exposition = published(*sections())
    unzip = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)

    plain = unzip.decompress(body(exposition, accept, "gzip"))

    assert (body(exposition, accept), True, b"") == (plain, unzip.eof, unzip.unused_data)


def test_unchanged_sections_are_neither_rendered_nor_compressed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    first = sections()
    exposition = published(*first)
    for _ in range(2):
        body(exposition, None, "gzip")
    lines = Mock(wraps=exposition_text._lines)
    deflate = Mock(wraps=exposition_module._deflate)
    monkeypatch.setattr(exposition_text, "_lines", lines)
    monkeypatch.setattr(exposition_module, "_deflate", deflate)

    changed = sections(used=5)[0]
    exposition.publish(snapshot(changed, *first[1:], monotonic=101))

    rendered = [call.args[0] for call in lines.call_args_list]
    # The one family of the section that changed; the section, and the empty last block.
    assert ([changed.families[0]], 2) == (rendered, deflate.call_count)


def test_only_variants_with_recent_scrapes_are_rendered_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    heading = Mock(wraps=exposition_text.heading)
    monkeypatch.setattr(exposition_module, "heading", heading)
    exposition = published(family_section())
    before_any_scrape = heading.call_count

    for now in (99, 100):
        body(exposition, OPENMETRICS_ACCEPT, now=now)
    exposition.publish(snapshot(family_section(), monotonic=399))
    exposition.publish(snapshot(family_section(), monotonic=401))

    assert (0, [call(FACTS, True), call(FACTS, True)]) == (before_any_scrape, heading.call_args_list)


@pytest.mark.parametrize(
    ("scrapes", "rendered_ahead"),
    [
        pytest.param([1], (), id="one scrape: it may be a probe"),
        pytest.param([1, 16], range(29, 41), id="every 15 s, and then late"),
        pytest.param([1, 2], range(3, 41), id="every second"),
        pytest.param([1, 3, 16], range(17, 41), id="two scrapers, 2 and 13 s apart"),
    ],
)
def test_body_is_rendered_ahead_when_a_scrape_is_near(scrapes: list[int], rendered_ahead: Iterable[int]) -> None:
    exposition, rendered = published(family_section()), []
    for second in range(1, 41):
        exposition.publish(snapshot(family_section(), monotonic=100.0 + second))
        assert exposition._current
        if second > max(scrapes) and exposition._current.bodies._by_variant:
            rendered.append(second)
        if second in scrapes:
            body(exposition, now=100.0 + second)

    assert list(rendered_ahead) == rendered


def test_with_rare_ticks_only_the_one_before_an_expected_scrape_renders() -> None:
    exposition, rendered = published(family_section()), []
    for scrape in (115.0, 130.0):
        body(exposition, now=scrape)
    for at in (135.0, 140.0, 144.9):
        exposition.publish(snapshot(family_section(), monotonic=at))
        assert exposition._current
        if exposition._current.bodies._by_variant:
            rendered.append(at)

    assert rendered == [144.9]


def test_before_the_first_snapshot_the_response_is_503() -> None:
    expected = Response(b"no snapshot yet: the first one is being taken\n", "text/plain; charset=utf-8", None, 503)

    assert expected == Exposition(stale_after=10).respond(None, None, 1.0)


def test_a_stale_snapshot_gives_only_the_exporters_own_families() -> None:
    exposition = published(*sections())

    names = {family.name for family in parse_text(body(exposition, now=110.1).decode())}

    assert {"gpugauge_snapshot_timestamp_seconds", "gpugauge_build_info"} == names
    assert body(published(sections()[2])) == body(exposition, now=110.1)
    assert b"gpu_memory_used_bytes" in body(exposition, now=109.9)


def test_a_stale_snapshot_in_gzip_and_openmetrics_is_a_complete_document() -> None:
    late = gzip.decompress(body(published(*sections()), OPENMETRICS_ACCEPT, "gzip", now=200))

    assert body(published(sections()[2]), OPENMETRICS_ACCEPT) == late


def test_age() -> None:
    assert None is Exposition(stale_after=1).age(5.0)
    assert published().age(103.0) == 3.0


def test_content_types_are_the_official_ones() -> None:
    assert reference_text.CONTENT_TYPE_PLAIN_0_0_4 == TEXT
    assert reference_openmetrics.CONTENT_TYPE_LATEST == OPENMETRICS


def test_unused_label_sets_are_dropped() -> None:
    exposition = published()
    for batch in range(20):
        gone = tuple(((f"{batch}-{i}",), 1) for i in range(1000))
        exposition.publish(snapshot(Section("x", (family(FACTS, *gone),))))
        body(exposition)

    assert len(exposition._formats.lines._labels._texts["version",]) <= 4 * 1000 + 256 + 1000


def test_the_bound_of_label_sets_follows_a_family_that_shrinks() -> None:
    sets = exposition_text.LabelSets[str]()
    sets.texts(("version",), 1000)
    for batch in range(100):
        texts = sets.texts(("version",), 10)
        texts |= {(f"{batch}-{i}",): "" for i in range(100)}
    kept = len(sets.texts(("version",), 10))

    assert kept <= 4 * 10 + 256 + 100


def test_label_sets_of_the_largest_family_are_kept_beside_a_small_one(monkeypatch: pytest.MonkeyPatch) -> None:
    large = tuple(((f"{i}",), 1) for i in range(2000))
    other = Table[object]("version").gauge("gpugauge_other_info", "Other.", id)
    exposition = published()
    label_set = Mock(wraps=exposition_text.label_set)
    monkeypatch.setattr(exposition_text, "label_set", label_set)
    for tick in range(5):
        values = tuple((labels, tick) for labels, _ in large)
        exposition.publish(snapshot(Section("x", (family(FACTS, *values), Family(other, ((("0",), tick),))))))
        body(exposition)

    assert label_set.call_count == 2000


def test_only_changed_samples_of_a_family_are_rendered_again() -> None:
    def loads(changed: float) -> Family:
        return Family(LOAD, tuple(((str(i),), changed if i == 7 else 1e7) for i in range(100)))

    lines = Lines()
    lines.of(loads(2e7))
    with patch.object(exposition_text, "_number", wraps=exposition_text._number) as number:
        lines.of(loads(3e7))

    assert [call.args for call in number.call_args_list] == [(3e7,)]
