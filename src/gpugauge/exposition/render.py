"""The bytes of /metrics, made ahead of the scrape: two text formats, each plain or gzip, from the current snapshot."""

from __future__ import annotations

import struct
import zlib
from typing import NamedTuple

from gpugauge.exposition.accept import VARIANTS, Variant, negotiate
from gpugauge.exposition.text import Lines, go_float, heading
from gpugauge.metric import Metric
from gpugauge.snapshot import Section, Snapshot

__all__ = ["OPENMETRICS", "TEXT", "Exposition", "Response", "Variant", "go_float", "negotiate"]

TEXT = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"

# A variant that nobody asked for this long (seconds) is no longer made ahead; Prometheus scrapes every 15 to 120 s.
KEPT_WARM = 300.0
# Seconds before the next scrape is expected from which on its bytes are made ahead again.
_EARLY = 1.5
# Seconds between two ticks while somebody looks, at most.
_STEP = 1.0
# How many gaps between scrapes are remembered. The shortest counts, for there may be two scrapers, or a person.
_GAPS = 4
# The families about the exporter itself, which stay when everything else is too old to be shown.
OWN_PREFIX = "gpugauge_"

_GZIP_HEADER = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"
# Level 1 takes a third of the default's time, for bodies a sixth larger.
_GZIP_LEVEL = 1


class Response(NamedTuple):
    """What the HTTP server sends; `content_encoding` is None for plain bytes."""

    body: bytes
    content_type: str
    content_encoding: str | None = None
    status: int = 200


class _Demand:
    """When a variant was asked for, and how soon it may be asked for again (monotonic seconds).

    A scraper keeps its rhythm to the millisecond: bytes that nobody would fetch before the next tick are not made. Who
    comes unexpected waits the few milliseconds that making them takes.
    """

    def __init__(self, now: float) -> None:
        self._last = now
        self._gaps: tuple[float, ...] = ()  # rebound, never changed: the other thread reads it

    def ask(self, now: float) -> None:
        """Take note of a scrape."""
        self._gaps = (*self._gaps, now - self._last)[-_GAPS:]
        self._last = now

    def expected(self, begin: float, end: float) -> bool:
        """Whether a scrape may come between two times."""
        return begin - self._last <= KEPT_WARM and end >= self._last + min(self._gaps, default=0.0) - _EARLY


class Exposition:
    """Turns each published snapshot into bytes. `stale_after`: seconds after which a snapshot's values are withheld.

    `publish` belongs to the sampler's thread, `respond` to the server's; they meet in one attribute, rebound at once.
    """

    def __init__(self, stale_after: float) -> None:
        self.stale_after = stale_after
        self._lines = Lines()
        self._asked: dict[Variant, _Demand] = {}
        self._current: _Publication | None = None

    def publish(self, snapshot: Snapshot) -> None:
        """Make the variants that may be asked for before the next snapshot, reusing the bytes of sections that did not
        change.
        """
        before, now = self._current, snapshot.monotonic
        known = before.page.pieces if before else {}
        page = _Page({section: known.get(section) or _Piece(section, self._lines) for section in snapshot.sections})
        # Ticks may be seconds apart while nobody looks; but there is always one just before a scrape that is expected.
        step = min(_STEP, now - before.monotonic) if before else 0.0
        for variant in VARIANTS:
            demand = self._asked.get(variant)
            if demand and demand.expected(now, now + step):
                page.body(variant)
        self._current = _Publication(now, page, self._lines)

    def age(self, now_monotonic: float) -> float | None:
        """Return the seconds since the current snapshot was taken, None before the first one."""
        return now_monotonic - self._current.monotonic if self._current else None

    def respond(self, accept: str | None, accept_encoding: str | None, now_monotonic: float) -> Response:
        """Answer a scrape with the values of its Accept and Accept-Encoding headers; 503 before the first snapshot."""
        current = self._current
        if current is None:
            return Response(b"no snapshot yet: the first one is being taken\n", "text/plain; charset=utf-8", None, 503)
        variant = negotiate(accept or "", accept_encoding or "")
        self._ask(variant, now_monotonic)
        page = current.page if now_monotonic - current.monotonic <= self.stale_after else current.own_page()
        content_type = OPENMETRICS if variant.openmetrics else TEXT
        return Response(page.body(variant), content_type, "gzip" if variant.gzip else None)

    def _ask(self, variant: Variant, now: float) -> None:
        demand = self._asked.get(variant)
        if demand is None:
            self._asked[variant] = _Demand(now)
        else:
            demand.ask(now)


class _Publication:
    """One snapshot's page, and, made on demand, the page with nothing but the families about the exporter."""

    def __init__(self, monotonic: float, page: _Page, lines: Lines) -> None:
        self.monotonic = monotonic
        self.page = page
        self._lines = lines
        self._own: _Page | None = None

    def own_page(self) -> _Page:
        if self._own is None:
            sections = [
                Section(section.collector, tuple(f for f in section.families if f.metric.name.startswith(OWN_PREFIX)))
                for section in self.page.pieces
            ]
            self._own = _Page({section: _Piece(section, self._lines) for section in sections})
        return self._own


class _Page:
    """Bodies by variant, made when first asked for. Both threads may make the same body: it is the same bytes."""

    def __init__(self, pieces: dict[Section, _Piece]) -> None:
        self.pieces = pieces
        self._bodies: dict[Variant, bytes] = {}

    def body(self, variant: Variant) -> bytes:
        body = self._bodies.get(variant)
        if body is None:
            join = self._gzip if variant.gzip else self._plain
            body = self._bodies[variant] = join(variant.openmetrics)
        return body

    def _plain(self, openmetrics: bool) -> bytes:
        return b"".join((*(piece.text(openmetrics) for piece in self.pieces.values()), _ending(openmetrics)))

    def _gzip(self, openmetrics: bool) -> bytes:
        """Join the sections' deflate streams into one gzip member: several members break curl and others."""
        ending = _ending(openmetrics)
        crc, size = 0, 0
        for text in (*(piece.text(openmetrics) for piece in self.pieces.values()), ending):
            crc, size = zlib.crc32(text, crc), size + len(text)
        deflated = (piece.deflated(openmetrics) for piece in self.pieces.values())
        trailer = struct.pack("<II", crc, size & 0xFFFFFFFF)
        return b"".join((_GZIP_HEADER, *deflated, _deflate(ending, zlib.Z_FINISH), trailer))


class _Piece:
    """One section's bytes in every form that was needed so far."""

    def __init__(self, section: Section, lines: Lines) -> None:
        self._section = section
        self._lines = lines
        self._families: list[tuple[Metric, str]] | None = None
        self._texts: dict[bool, bytes] = {}
        self._deflated: dict[bool, bytes] = {}

    def text(self, openmetrics: bool) -> bytes:
        text = self._texts.get(openmetrics)
        if text is None:
            if self._families is None:
                written = [(family.metric, self._lines.of(family)) for family in self._section.families]
                self._families = [(metric, lines) for metric, lines in written if lines]
            body = "".join([heading(metric, openmetrics) + lines for metric, lines in self._families])
            text = self._texts[openmetrics] = body.encode()
        return text

    def deflated(self, openmetrics: bool) -> bytes:
        """Return a raw deflate stream that ends on a byte boundary and that nothing after it refers back into."""
        deflated = self._deflated.get(openmetrics)
        if deflated is None:
            deflated = self._deflated[openmetrics] = _deflate(self.text(openmetrics), zlib.Z_FULL_FLUSH)
        return deflated


def _ending(openmetrics: bool) -> bytes:
    return b"# EOF\n" if openmetrics else b""


def _deflate(data: bytes, mode: int) -> bytes:
    compressor = zlib.compressobj(_GZIP_LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS)
    return compressor.compress(data) + compressor.flush(mode)
