"""Bodies of /metrics, rendered ahead of the scrape: text, OpenMetrics and protobuf, each plain or gzip."""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Callable
from functools import cache, cached_property
from typing import TYPE_CHECKING, NamedTuple

from gpugauge.exposition.accept import OPENMETRICS, TEXT, VARIANTS, Format, Variant, content_type, negotiate
from gpugauge.exposition.text import Lines, go_float, heading
from gpugauge.metric import Family, Metric
from gpugauge.snapshot import Section, Snapshot
from gpugauge.workload.job import called

if TYPE_CHECKING:
    from gpugauge.exposition.messages import Messages

__all__ = ["OPENMETRICS", "TEXT", "Exposition", "Response", "Variant", "go_float", "negotiate"]

# A variant without a scrape for this long is no longer rendered ahead. Prometheus scrapes every 15 to 120 s.
_RENDER_AHEAD_FOR_SECONDS = 300.0
# A variant is rendered ahead if its next scrape is expected within this time.
_EXPECTED_WITHIN_SECONDS = 1.5
# Before an expected scrape, two ticks are at most this far apart.
_MAX_TICK_GAP_SECONDS = 1.0
# Number of gaps between scrapes that are remembered. The shortest counts: there may be several scrapers or a person.
_REMEMBERED_GAPS = 4
# Different choices of processes that are rendered of one snapshot, together as long as so many whole bodies.
_MOST_CHOICES, _MOST_BODIES = 16, 3
_PLAIN = "text/plain; charset=utf-8"
# Prefix of the exporter's own families, the only ones that are returned from a stale snapshot.
OWN_PREFIX = "gpugauge_"
_JOB = ("workload_job_kind", "workload_namespace", "workload_job")

_GZIP_HEADER = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"
# Level 1 takes a third of the default level's time; the result is a sixth larger.
_GZIP_LEVEL = 1


class Response(NamedTuple):
    """Response to a scrape; `content_encoding` is None for plain bytes."""

    body: bytes
    content_type: str
    content_encoding: str | None = None
    status: int = 200


class _Demand:
    """Times of the scrapes of one variant, and whether the next one may be near: then its body is rendered ahead."""

    def __init__(self, now: float) -> None:
        self._last = now
        self._gaps: tuple[float, ...] = ()  # replaced, never changed: the sampler's thread reads it

    def record_scrape(self, now: float) -> None:
        """Record a scrape."""
        self._gaps = (*self._gaps, now - self._last)[-_REMEMBERED_GAPS:]
        self._last = now

    def recent(self, now: float) -> bool:
        """Return whether the last scrape was less than five minutes ago."""
        return now - self._last <= _RENDER_AHEAD_FOR_SECONDS

    def expected(self, begin: float, end: float) -> bool:
        """Return whether a scrape may come between `begin` and `end`."""
        # One scrape may be that of a probe or a person: before a second one, none is expected.
        earliest = self._last + min(self._gaps, default=math.inf) - _EXPECTED_WITHIN_SECONDS
        return self.recent(begin) and end >= earliest


class Exposition:
    """Renders the bodies of each snapshot: `publish` is for the sampler's thread, `respond` for the server's."""

    def __init__(self, stale_after: float) -> None:
        self.stale_after = stale_after
        self._formats = _Formats()
        self._demands: dict[Variant, _Demand] = {}
        self._current: _Publication | None = None

    def publish(self, snapshot: Snapshot) -> None:
        """Render the variants that may be scraped before the next snapshot. Bytes of unchanged sections are reused."""
        last, now = self._current, snapshot.monotonic
        rendered = last.bodies.sections if last else {}
        bodies = _Bodies({s: rendered.get(s) or _RenderedSection(s, self._formats) for s in snapshot.sections})
        if self._starts_are_asked_for(now):
            self._formats.messages.starts.update(snapshot)
        # Ticks may be seconds apart, but there is always one just before an expected scrape.
        gap = min(_MAX_TICK_GAP_SECONDS, now - last.monotonic) if last else 0.0
        for variant in VARIANTS:
            demand = self._demands.get(variant)
            if demand and demand.expected(now, now + gap):
                bodies.body(variant)
        self._current = _Publication(snapshot, bodies, self._formats)

    def age(self, now_monotonic: float) -> float | None:
        """Return the seconds since the current snapshot was taken, None before the first one."""
        return now_monotonic - self._current.monotonic if self._current else None

    def respond(
        self,
        accept: str | None,
        accept_encoding: str | None,
        now_monotonic: float,
        *,
        sparse: bool = False,
        only: Only | None = None,
    ) -> Response:
        """Return the response: 503 before a snapshot; of a stale one the own families; else what `only` names."""
        current = self._current
        if current is None:
            return Response(b"no snapshot yet: the first one is being taken\n", _PLAIN, None, 503)
        variant = negotiate(accept or "", accept_encoding or "", sparse=sparse)
        if variant.format in _PROTOBUF and not self._starts_are_asked_for(now_monotonic):
            # The first scrape, too, has starts: Prometheus takes none for a series with a sample. The sampler's thread
            # updates them only after this scrape is recorded.
            self._formats.messages.starts.update(current.snapshot)
        fresh = now_monotonic - current.monotonic <= self.stale_after
        if only and fresh:
            bodies = current.chosen(only)
            if bodies is None:
                return Response(b"too many different choices at once: ask again later\n", _PLAIN, None, 503)
        else:
            if variant in self._demands:
                self._demands[variant].record_scrape(now_monotonic)
            else:
                self._demands[variant] = _Demand(now_monotonic)
            bodies = current.bodies if fresh else current.own_bodies
        kind = content_type(accept or "", variant.format)
        return Response(bodies.body(variant), kind, "gzip" if variant.gzip else None)

    def _starts_are_asked_for(self, now: float) -> bool:
        return any(d.recent(now) for variant, d in self._demands.copy().items() if variant.format in _PROTOBUF)


_PROTOBUF: frozenset[Format] = frozenset({"protobuf", "sparse"})


class _Formats:
    """The caches of the formats. That of protobuf is loaded for the first request that asks for it."""

    def __init__(self) -> None:
        self.lines = Lines()

    @cached_property
    def messages(self) -> Messages:
        from gpugauge.exposition.messages import Messages  # noqa: PLC0415  (not loaded for the text formats)

        return Messages()


class Only(NamedTuple):
    """Processes by their label, and those of jobs."""

    processes: frozenset[str] = frozenset()
    jobs: frozenset[str] = frozenset()

    def __bool__(self) -> bool:
        return bool(self.processes or self.jobs)


class _Choice:
    """The part of each family that is about some processes and their GPUs."""

    def __init__(self, snapshot: Snapshot, only: Only) -> None:
        self._of = {"process": set(only.processes), "uuid": set[str]()}
        if only:
            families = [family for section in snapshot.sections for family in section.families]
            self._add("process", families, _JOB, lambda *job: bool(job[2] and called(*job) & only.jobs))
            self._add("uuid", families, ("process",), self._of["process"].__contains__)

    def _add(self, label: str, families: list[Family], by: tuple[str, ...], chosen: Callable[..., bool]) -> None:
        chosen = cache(chosen)
        for family in families:
            names = family.metric.labels
            if {label, *by}.issubset(names):
                at, of = names.index(label), [names.index(each) for each in by]
                rows = (labels for labels, _ in family.samples if chosen(*(labels[place] for place in of)))
                self._of[label].update(labels[at] for labels in rows)

    def of(self, family: Family) -> Family | None:
        """Return the part of a family, None if there is none."""
        names = family.metric.labels
        if family.metric.name.startswith(OWN_PREFIX):
            return family
        label = next((label for label in self._of if label in names), None)
        if label is None:
            return None
        at, wanted = names.index(label), self._of[label]
        samples = tuple(sample for sample in family.samples if sample[0][at] in wanted)
        return Family(family.metric, samples) if samples else None


class _Publication:
    """Bodies of one snapshot, and on demand the bodies of the exporter's own families alone."""

    def __init__(self, snapshot: Snapshot, bodies: _Bodies, formats: _Formats) -> None:
        self.snapshot, self.monotonic = snapshot, snapshot.monotonic
        self.bodies, self._formats = bodies, formats
        self._chosen: dict[Only, _Bodies] = {}

    @cached_property
    def own_bodies(self) -> _Bodies:
        return self._bodies_of(Only())

    def chosen(self, only: Only) -> _Bodies | None:
        """Return the own families, and these processes with their GPUs; None if many others were rendered."""
        found = self._chosen.get(only)
        rendered = sum(bodies.samples for bodies in self._chosen.values())
        if found is None and len(self._chosen) < _MOST_CHOICES and rendered <= _MOST_BODIES * self.bodies.samples:
            found = self._chosen[only] = self._bodies_of(only)
        return found

    def _bodies_of(self, only: Only) -> _Bodies:
        chosen = _Choice(self.snapshot, only)
        # The cache of lines holds the last samples of the whole families.
        formats = _Formats() if only else self._formats
        sections = [Section(s.collector, tuple(filter(None, map(chosen.of, s.families)))) for s in self.bodies.sections]
        return _Bodies({section: _RenderedSection(section, formats) for section in sections})


class _Bodies:
    """Bodies by variant, rendered at the first use. Both threads may render the same body; the bytes are equal."""

    def __init__(self, sections: dict[Section, _RenderedSection]) -> None:
        self.sections = sections
        self._by_variant: dict[Variant, bytes] = {}

    @cached_property
    def samples(self) -> int:
        return sum(len(family.samples) for section in self.sections for family in section.families)

    def body(self, variant: Variant) -> bytes:
        body = self._by_variant.get(variant)
        if body is None:
            join = self._gzip if variant.gzip else self._plain
            body = self._by_variant[variant] = join(variant.format)
        return body

    def _plain(self, form: Format) -> bytes:
        return b"".join((*(section.plain(form) for section in self.sections.values()), _ending(form)))

    def _gzip(self, form: Format) -> bytes:
        """Join the deflate streams of the sections into one gzip member; curl and others fail on several members."""
        ending = _ending(form)
        crc, size = 0, 0
        for plain in (*(section.plain(form) for section in self.sections.values()), ending):
            crc, size = zlib.crc32(plain, crc), size + len(plain)
        deflated = (section.deflated(form) for section in self.sections.values())
        trailer = struct.pack("<II", crc, size & 0xFFFFFFFF)
        return b"".join((_GZIP_HEADER, *deflated, _deflate(ending, zlib.Z_FINISH), trailer))


class _RenderedSection:
    """Bytes of one section, by format and compression, rendered at the first use."""

    def __init__(self, section: Section, formats: _Formats) -> None:
        self._section = section
        self._formats = formats
        self._families: list[tuple[Metric, str]] | None = None
        self._plain: dict[Format, bytes] = {}
        self._deflated: dict[Format, bytes] = {}

    def plain(self, form: Format) -> bytes:
        body = self._plain.get(form)
        if body is None:
            if form in _PROTOBUF:
                messages, sparse = self._formats.messages, form == "sparse"
                body = b"".join([messages.of(family, sparse=sparse) for family in self._section.families])
            else:
                body = self._text(openmetrics=form == "openmetrics")
            self._plain[form] = body
        return body

    def _text(self, *, openmetrics: bool) -> bytes:
        if self._families is None:
            rendered = [(family.metric, self._formats.lines.of(family)) for family in self._section.families]
            self._families = [(metric, lines) for metric, lines in rendered if lines]
        return "".join([heading(metric, openmetrics) + lines for metric, lines in self._families]).encode()

    def deflated(self, form: Format) -> bytes:
        """Return a raw deflate stream that ends on a byte boundary; later streams do not refer back into it."""
        deflated = self._deflated.get(form)
        if deflated is None:
            deflated = self._deflated[form] = _deflate(self.plain(form), zlib.Z_FULL_FLUSH)
        return deflated


def gzipped(body: bytes) -> bytes:
    """Return a body as one gzip member."""
    compressor = zlib.compressobj(_GZIP_LEVEL, zlib.DEFLATED, zlib.MAX_WBITS | 16)
    return compressor.compress(body) + compressor.flush()


def _ending(form: Format) -> bytes:
    return b"# EOF\n" if form == "openmetrics" else b""


def _deflate(data: bytes, mode: int) -> bytes:
    compressor = zlib.compressobj(_GZIP_LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS)
    return compressor.compress(data) + compressor.flush(mode)
