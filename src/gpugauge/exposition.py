"""The bytes of /metrics, made ahead of the scrape: two text formats, each plain or gzip, from the current snapshot.

Sources: https://prometheus.io/docs/instrumenting/exposition_formats/ (text 0.0.4) and OpenMetrics 1.0.
"""

from __future__ import annotations

import itertools
import struct
import zlib
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import NamedTuple

from gpugauge.metric import TIMESTAMP, Family, HistogramValue, LabelValues, Metric
from gpugauge.snapshot import Section, Snapshot

TEXT = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"

# A variant that nobody asked for this long (seconds) is no longer made ahead; Prometheus scrapes every 15 to 120 s.
KEPT_WARM = 300.0
# The families about the exporter itself, which stay when everything else is too old to be shown.
OWN_PREFIX = "gpugauge_"

_GZIP_HEADER = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"
# Level 1 takes a third of the default's time, for bodies a sixth larger.
_GZIP_LEVEL = 1


class Variant(NamedTuple):
    """One way to ask for the same families."""

    openmetrics: bool
    gzip: bool


VARIANTS = tuple(itertools.starmap(Variant, itertools.product((False, True), repeat=2)))


class Response(NamedTuple):
    """What the HTTP server sends; `content_encoding` is None for plain bytes."""

    body: bytes
    content_type: str
    content_encoding: str | None = None
    status: int = 200


class Exposition:
    """Turns each published snapshot into bytes. `stale_after`: seconds after which a snapshot's values are withheld.

    `publish` belongs to the sampler's thread, `respond` to the server's; they meet in one attribute, rebound at once.
    """

    def __init__(self, stale_after: float) -> None:
        self._stale_after = stale_after
        self._labels = _Labels()
        self._asked: dict[Variant, float] = {}
        self._current: _Publication | None = None

    def publish(self, snapshot: Snapshot) -> None:
        """Make the variants that were asked for lately, reusing the bytes of sections that did not change."""
        known = self._current.page.pieces if self._current else {}
        page = _Page({section: known.get(section) or _Piece(section, self._labels) for section in snapshot.sections})
        for variant in VARIANTS:
            if snapshot.monotonic - self._asked.get(variant, float("-inf")) <= KEPT_WARM:
                page.body(variant)
        self._current = _Publication(snapshot.monotonic, page, self._labels)

    def age(self, now_monotonic: float) -> float | None:
        """Return the seconds since the current snapshot was taken, None before the first one."""
        return now_monotonic - self._current.monotonic if self._current else None

    def respond(self, accept: str | None, accept_encoding: str | None, now_monotonic: float) -> Response:
        """Answer a scrape with the values of its Accept and Accept-Encoding headers; 503 before the first snapshot."""
        current = self._current
        if current is None:
            return Response(b"no snapshot yet: the first one is being taken\n", "text/plain; charset=utf-8", None, 503)
        variant = negotiate(accept or "", accept_encoding or "")
        self._asked[variant] = now_monotonic
        page = current.page if now_monotonic - current.monotonic <= self._stale_after else current.own_page()
        content_type = OPENMETRICS if variant.openmetrics else TEXT
        return Response(page.body(variant), content_type, "gzip" if variant.gzip else None)


class _Publication:
    """One snapshot's page, and, made on demand, the page with nothing but the families about the exporter."""

    def __init__(self, monotonic: float, page: _Page, labels: _Labels) -> None:
        self.monotonic = monotonic
        self.page = page
        self._labels = labels
        self._own: _Page | None = None

    def own_page(self) -> _Page:
        if self._own is None:
            sections = [
                Section(section.collector, tuple(f for f in section.families if f.metric.name.startswith(OWN_PREFIX)))
                for section in self.page.pieces
            ]
            self._own = _Page({section: _Piece(section, self._labels) for section in sections})
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

    def __init__(self, section: Section, labels: _Labels) -> None:
        self._section = section
        self._labels = labels
        self._lines: list[tuple[Metric, str]] | None = None
        self._texts: dict[bool, bytes] = {}
        self._deflated: dict[bool, bytes] = {}

    def text(self, openmetrics: bool) -> bytes:
        text = self._texts.get(openmetrics)
        if text is None:
            if self._lines is None:  # the samples' lines are the same in both formats
                lines = [(family.metric, "".join(_lines(family, self._labels))) for family in self._section.families]
                self._lines = [(metric, text) for metric, text in lines if text]
            body = "".join([_heading(metric, openmetrics) + lines for metric, lines in self._lines])
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


# --- lines ---


class _Labels:
    """Label sets as text, `{a="b",c="d"}`, by names and values; a set that is gone is forgotten soon after."""

    def __init__(self) -> None:
        self._texts: dict[tuple[str, ...], dict[LabelValues, str]] = {}

    def texts(self, names: tuple[str, ...], expected: int) -> dict[LabelValues, str]:
        """Return what is known for these names; far more than the `expected` number are remains, and are dropped."""
        texts = self._texts.setdefault(names, {})
        if len(texts) > 4 * expected + 4096:
            texts.clear()
        return texts


def _lines(family: Family, labels: _Labels) -> Iterator[str]:
    metric = family.metric
    if metric.kind == "histogram":
        yield from _histogram_lines(family, labels)
        return
    name, names = metric.name, metric.labels
    texts = labels.texts(names, len(family.samples))
    for values, value in family.samples:
        number = _number(value)  # type: ignore[arg-type]  # only histograms hold HistogramValue
        if number is not None:
            label_text = texts.get(values) or texts.setdefault(values, _label_text(names, values))
            yield f"{name}{label_text} {number}\n"


def _histogram_lines(family: Family, labels: _Labels) -> Iterator[str]:
    metric = family.metric
    bounds = [go_float(bound) for bound in (*metric.buckets, float("inf"))]
    names, bucket_names = metric.labels, (*metric.labels, "le")
    texts = labels.texts(names, len(family.samples))
    bucket_texts = labels.texts(bucket_names, len(family.samples) * len(bounds))
    for values, value in family.samples:
        assert isinstance(value, HistogramValue)
        total = _number(value.total)
        if total is None:
            continue
        for bound, count in zip(bounds, value.counts, strict=True):
            key = (*values, bound)
            text = bucket_texts.get(key) or bucket_texts.setdefault(key, _label_text(bucket_names, key))
            yield f"{metric.name}_bucket{text} {go_float(count)}\n"
        text = texts.get(values) or texts.setdefault(values, _label_text(names, values))
        yield f"{metric.name}_count{text} {go_float(value.counts[-1])}\n{metric.name}_sum{text} {total}\n"


def _label_text(names: tuple[str, ...], values: LabelValues) -> str:
    pairs = sorted(zip(names, values, strict=True))
    return "{" + ",".join(f'{name}="{_escape(value)}"' for name, value in pairs) + "}" if pairs else ""


def _escape(text: str) -> str:
    """Escape a label's value. A lone surrogate, which UTF-8 cannot carry, is written out: two values stay two."""
    text = text.encode("utf-8", "backslashreplace").decode()
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


@lru_cache(maxsize=1024)
def _heading(metric: Metric, openmetrics: bool) -> str:
    name, help_text = metric.name, metric.help.replace("\\", r"\\").replace("\n", r"\n")
    unit = ""
    if openmetrics:
        name, help_text = name.removesuffix("_total"), help_text.replace('"', r"\"")
        if metric.unit:
            unit = f"# UNIT {name} {'seconds' if metric.unit == TIMESTAMP else metric.unit}\n"
    return f"# HELP {name} {help_text}\n# TYPE {name} {metric.kind}\n{unit}"


def go_float(value: float) -> str:
    """Format as Go does, and the official clients with it; raises OverflowError for integers beyond any float."""
    text = repr(float(value))
    if -1e6 < value < 1e6:
        return text
    if text in _SPECIAL:
        return _SPECIAL[text]
    whole, dot, fraction = text.partition(".")
    if value > 0 and dot and "e" not in fraction:  # Go changes to exponents sooner than Python
        return f"{whole[0]}.{whole[1:]}{fraction}".rstrip("0").rstrip(".") + f"e+{len(whole) - 1:02d}"
    return text


_SPECIAL = {"inf": "+Inf", "-inf": "-Inf", "nan": "NaN"}


def _number(value: float) -> str | None:
    """Return the value's text, None for what is no number: a reader's slip costs its sample, not the scrape."""
    try:
        return go_float(value) if value == value else None  # noqa: PLR0124  # not a number is unequal to itself
    except OverflowError:
        return None


# --- negotiation ---
# Not prometheus_client's choose_encoder: it ignores q-values, raises on `version=abc` and claims any version asked for.


@lru_cache(maxsize=16)
def negotiate(accept: str, accept_encoding: str) -> Variant:
    """Choose the variant for a request's Accept and Accept-Encoding headers, both "" where absent."""
    return Variant(_prefers_openmetrics(accept), _prefers_gzip(accept_encoding))


def _prefers_openmetrics(accept: str) -> bool:
    openmetrics = text = 0.0
    for kind, parameters, quality in _ranges(accept):
        if kind == "application/openmetrics-text" and parameters.get("version", "1.0.0") == "1.0.0":
            openmetrics = max(openmetrics, quality)
        elif kind == "text/plain":
            text = max(text, quality)
    return openmetrics > 0 and openmetrics >= text


def _prefers_gzip(accept_encoding: str) -> bool:
    qualities = {coding: quality for coding, _, quality in _ranges(accept_encoding)}
    gzip = qualities.get("gzip", qualities.get("x-gzip", qualities.get("*", 0.0)))
    return gzip > 0 and gzip >= qualities.get("identity", 0.0)


def _ranges(header: str) -> Iterable[tuple[str, dict[str, str], float]]:
    """Split `value;key=text;q=0.5, …` into (value, parameters, quality); a quality that is no number counts as 0."""
    for part in header.split(","):
        value, *rest = (item.strip().lower() for item in part.split(";"))
        pairs = (item.partition("=") for item in rest)
        parameters = {key.strip(): text.strip().strip('"') for key, _, text in pairs}
        try:
            quality = float(parameters.pop("q", "1"))
        except ValueError:
            quality = 0.0
        yield value, parameters, quality
