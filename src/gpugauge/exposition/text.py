"""Lines of OpenMetrics 1.0 and of https://prometheus.io/docs/instrumenting/exposition_formats/ (0.0.4)."""

from __future__ import annotations

from functools import lru_cache
from typing import Generic, TypeAlias, TypeVar

from gpugauge.metric import Family, HistogramValue, LabelValues, Metric, Value

_T = TypeVar("_T", str, bytes)
Samples: TypeAlias = "tuple[tuple[LabelValues, Value] | None, ...]"


class Lines:
    """Rendered lines by metric, so that unchanged samples are not rendered again; two threads use it."""

    def __init__(self) -> None:
        self._labels = LabelSets[str]()
        self._rendered: dict[Metric, tuple[Samples, str]] = {}

    def of(self, family: Family) -> str:
        """Return the lines of the samples, the same in both formats; "" if no sample is a number."""
        samples, text = self._rendered.get(family.metric, ((), ""))
        if samples is not family.samples:
            if samples != family.samples:
                text = _lines(family, self._labels, samples, text)
            self._rendered[family.metric] = (family.samples, text)
        return text


# Unused label sets that the cache may hold beside four times the largest family.
_MAX_UNUSED_LABEL_SETS = 256


class LabelSets(Generic[_T]):
    """Cache of rendered label sets by names and values. Unused sets are dropped from time to time."""

    def __init__(self) -> None:
        self._texts: dict[tuple[str, ...], dict[LabelValues, _T]] = {}
        self._largest_family: dict[tuple[str, ...], int] = {}

    def texts(self, names: tuple[str, ...], expected: int) -> dict[LabelValues, _T]:
        """Return the cached texts for these names; the caller adds missing ones, `expected` of them in all."""
        texts = self._texts.setdefault(names, {})
        largest = self._largest_family[names] = max(expected, self._largest_family.get(names, 0))
        if len(texts) > 4 * largest + _MAX_UNUSED_LABEL_SETS:
            texts.clear()
            self._largest_family[names] = expected
        return texts


def _lines(family: Family, labels: LabelSets[str], last_samples: Samples, last_text: str) -> str:
    """Return the lines of a family; `last_samples` and `last_text` are its samples and lines of the previous call."""
    metric = family.metric
    if metric.kind == "histogram":
        return _histogram_lines(family, labels)
    name, names, samples, lines = metric.name, metric.labels, family.samples, []
    texts = labels.texts(names, len(samples))
    last_lines = last_text.split("\n")
    if not len(samples) == len(last_samples) == len(last_lines) - 1:
        last_samples, last_lines = (None,) * len(samples), [""] * len(samples)
    # Most samples of a large family are unchanged: ratios of 0, states, idle integrals.
    for sample, last_sample, line in zip(samples, last_samples, last_lines, strict=False):
        if sample == last_sample:
            lines.append(line)
            continue
        values, value = sample
        label_text = texts.get(values) or texts.setdefault(values, label_set(names, values))
        # Inline for the common numbers: a function call for each would double the time of a body.
        kind = type(value)
        if kind is float and -1e6 < value < 1e6:  # type: ignore[operator]  # only histograms hold HistogramValue
            lines.append(f"{name}{label_text} {value!r}")
        elif kind is int and -1_000_000 < value < 1_000_000:  # type: ignore[operator]  # as above
            lines.append(f"{name}{label_text} {value}.0")
        elif (number := _number(value)) is not None:  # type: ignore[arg-type]  # as above
            lines.append(f"{name}{label_text} {number}")
    return "\n".join([*lines, ""])


def _histogram_lines(family: Family, labels: LabelSets[str]) -> str:
    metric, lines = family.metric, []
    bounds = _bounds(metric.buckets)
    name, names, bucket_names = metric.name, metric.labels, (*metric.labels, "le")
    texts = labels.texts(names, len(family.samples))
    bucket_texts = labels.texts(bucket_names, len(family.samples) * len(bounds))
    for values, value in family.samples:
        assert isinstance(value, HistogramValue)
        total = _number(value.total)
        if total is None:
            continue
        counts = [f"{count}.0" if -1_000_000 < count < 1_000_000 else go_float(count) for count in value.counts]
        for bound, count in zip(bounds, counts, strict=True):
            key = (*values, bound)
            text = bucket_texts.get(key) or bucket_texts.setdefault(key, label_set(bucket_names, key))
            lines.append(f"{name}_bucket{text} {count}\n")
        text = texts.get(values) or texts.setdefault(values, label_set(names, values))
        lines.append(f"{name}_count{text} {counts[-1]}\n{name}_sum{text} {total}\n")
    return "".join(lines)


@lru_cache(maxsize=64)
def _bounds(buckets: tuple[float, ...]) -> tuple[str, ...]:
    return tuple(go_float(bound) for bound in (*buckets, float("inf")))


def label_set(names: tuple[str, ...], values: LabelValues) -> str:
    """Return a label set as text, sorted by name; "" without labels."""
    pairs = sorted(zip(names, values, strict=True))
    return "{" + ",".join(f'{name}="{_escape(value)}"' for name, value in pairs) + "}" if pairs else ""


def encoded(text: str) -> bytes:
    """Return a label value as UTF-8. A lone surrogate, which UTF-8 cannot encode, is escaped: values stay distinct."""
    return text.encode("utf-8", "backslashreplace")


@lru_cache(maxsize=4096)
def _escape(text: str) -> str:
    return encoded(text).decode().replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


@lru_cache(maxsize=1024)
def heading(metric: Metric, openmetrics: bool) -> str:
    """Return the HELP, TYPE and, in OpenMetrics, UNIT lines of a metric."""
    name, help_text = metric.name, metric.help.replace("\\", r"\\").replace("\n", r"\n")
    unit = ""
    if openmetrics:
        name, help_text = name.removesuffix("_total"), help_text.replace('"', r"\"")
        if metric.unit:
            unit = f"# UNIT {name} {unit_of(metric)}\n"
    return f"# HELP {name} {help_text}\n# TYPE {name} {metric.kind}\n{unit}"


def unit_of(metric: Metric) -> str:
    """Return the unit as OpenMetrics and protobuf name it."""
    return metric.unit.removeprefix("timestamp_")


def go_float(value: float) -> str:
    """Return the number formatted as by Go and the official clients. Raises OverflowError for integers beyond float."""
    text = repr(float(value))
    if -1e6 < value < 1e6:
        return text
    if text in _SPECIAL:
        return _SPECIAL[text]
    whole, dot, fraction = text.partition(".")
    if value > 0 and dot and "e" not in fraction:  # Go uses exponents from 1e6 on
        return f"{whole[0]}.{whole[1:]}{fraction}".rstrip("0").rstrip(".") + f"e+{len(whole) - 1:02d}"
    return text


_SPECIAL = {"inf": "+Inf", "-inf": "-Inf", "nan": "NaN"}


def _number(value: float) -> str | None:
    """Return the text of the value; None for NaN or overflow, so that a wrong reading loses its sample only."""
    try:
        return go_float(value) if value == value else None  # noqa: PLR0124  # NaN is unequal to itself
    except OverflowError:
        return None
