"""Content negotiation: the format and encoding that a request prefers."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple


class Variant(NamedTuple):
    """A format and an encoding of the same families."""

    openmetrics: bool
    gzip: bool


TEXT = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
# Of Prometheus 3: how names with characters other than a-z, A-Z, 0-9, _ and : are written. Ours have none, so that the
# body is the same with each of them.
_ESCAPINGS = frozenset({"allow-utf-8", "underscores", "dots", "values"})

VARIANTS = tuple(itertools.starmap(Variant, itertools.product((False, True), repeat=2)))


# prometheus_client's choose_encoder is not used: it ignores q-values, raises on `version=abc` and announces any version
# that the request names.


@lru_cache(maxsize=16)
def negotiate(accept: str, accept_encoding: str) -> Variant:
    """Return the variant for the Accept and Accept-Encoding headers of a request, "" for an absent header."""
    return Variant(_prefers_openmetrics(accept), _prefers_gzip(accept_encoding))


@lru_cache(maxsize=16)
def content_type(accept: str, openmetrics: bool) -> str:
    """Return the content type for the Accept header of a request. It has the escaping that the header asks for, if it
    asks for version 1.0.0 of the format: the older text format has no such parameter.
    """
    kind, default = ("application/openmetrics-text", OPENMETRICS) if openmetrics else ("text/plain", TEXT)
    asked = [(quality, parameters) for name, parameters, quality in _ranges(accept) if name == kind and quality > 0]
    _, preferred = max(asked, key=lambda each: each[0], default=(0.0, dict[str, str]()))
    escaping = preferred.get("escaping")
    if preferred.get("version") != "1.0.0" or escaping not in _ESCAPINGS:
        return default
    return f"{kind}; version=1.0.0; charset=utf-8; escaping={escaping}"


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
