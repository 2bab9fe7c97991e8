"""Content negotiation: the format and encoding that a request prefers."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from functools import lru_cache
from typing import Literal, NamedTuple, TypeAlias, get_args

# "sparse" is protobuf without the series at 0 that the start timestamps make superfluous (Metric.sparse).
Format: TypeAlias = Literal["text", "openmetrics", "protobuf", "sparse"]


class Variant(NamedTuple):
    """A format and an encoding of the same families."""

    format: Format
    gzip: bool


TEXT = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
PROTOBUF = "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; encoding=delimited"
_CONTENT_TYPES = {"text": TEXT, "openmetrics": OPENMETRICS, "protobuf": PROTOBUF, "sparse": PROTOBUF}
# Parameters of a media range that has a format, with the value of one that is not there.
_RICHER: tuple[tuple[Format, str, dict[str, tuple[str, str]]], ...] = (
    (
        "protobuf",
        "application/vnd.google.protobuf",
        {"proto": ("io.prometheus.client.metricfamily", ""), "encoding": ("delimited", "")},
    ),
    ("openmetrics", "application/openmetrics-text", {"version": ("1.0.0", "1.0.0")}),
)
# Of Prometheus 3: how other characters than a-z, A-Z, 0-9, _ and : are written in names. Ours have none.
_ESCAPINGS = frozenset({"allow-utf-8", "underscores", "dots", "values"})

VARIANTS = tuple(itertools.starmap(Variant, itertools.product(get_args(Format), (False, True))))


# prometheus_client's choose_encoder ignores q-values, raises on `version=abc` and announces any version asked for.


@lru_cache(maxsize=16)
def negotiate(accept: str, accept_encoding: str, *, sparse: bool = False) -> Variant:
    """Return the variant for these headers, "" for an absent one. `sparse`: series at 0 may be left out (protobuf)."""
    form = _preferred(accept)
    return Variant("sparse" if sparse and form == "protobuf" else form, _prefers_gzip(accept_encoding))


@lru_cache(maxsize=16)
def content_type(accept: str, form: Format) -> str:
    """Return the content type for an Accept header, with the escaping that it asks for."""
    default = _CONTENT_TYPES[form]
    kind = default.partition(";")[0]
    asked = [(quality, parameters) for name, parameters, quality in _ranges(accept) if name == kind and quality > 0]
    _, preferred = max(asked, key=lambda each: each[0], default=(0.0, dict[str, str]()))
    escaping = preferred.get("escaping")
    if escaping not in _ESCAPINGS or (default != PROTOBUF and preferred.get("version") != "1.0.0"):
        return default
    return f"{default.replace('version=0.0.4', 'version=1.0.0')}; escaping={escaping}"


def _preferred(accept: str) -> Format:
    """Return the format with the highest quality; of equal ones the richest."""
    qualities: dict[Format, float] = {"protobuf": 0.0, "openmetrics": 0.0, "text": 0.0}
    for kind, parameters, quality in _ranges(accept):
        if kind == "text/plain":
            qualities["text"] = max(qualities["text"], quality)
        for form, name, required in _RICHER:
            if kind == name and all(parameters.get(key, absent) == value for key, (value, absent) in required.items()):
                qualities[form] = max(qualities[form], quality)
    best = max(qualities, key=qualities.__getitem__)  # the first of equal ones
    return best if qualities[best] > 0 else "text"


def _prefers_gzip(accept_encoding: str) -> bool:
    qualities = {coding: quality for coding, _, quality in _ranges(accept_encoding)}
    gzip = qualities.get("gzip", qualities.get("x-gzip", qualities.get("*", float(qualities.get("identity") == 0))))
    return gzip > 0 and gzip >= qualities.get("identity", 0.0)


def _ranges(header: str) -> Iterable[tuple[str, dict[str, str], float]]:
    """Yield (value, parameters, quality) of each part of `value;key=text;q=0.5, …`; an invalid quality counts as 0."""
    for part in header.split(","):
        value, *rest = (item.strip().lower() for item in part.split(";"))
        pairs = (item.partition("=") for item in rest)
        parameters = {key.strip(): text.strip().strip('"') for key, _, text in pairs}
        try:
            quality = float(parameters.pop("q", "1"))
        except ValueError:
            quality = 0.0
        yield value, parameters, quality
