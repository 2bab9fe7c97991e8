"""Which format, escaping and compression a scrape gets: the headers Accept and Accept-Encoding."""

from __future__ import annotations

from prometheus_client.exposition import choose_encoder

from gpugauge.exposition.accept import PROTOBUF
from gpugauge.exposition.render import OPENMETRICS, TEXT, Exposition, Variant, negotiate
from gpugauge.snapshot import Snapshot

OPENMETRICS_ACCEPT = "application/openmetrics-text;version=1.0.0"
PROTOBUF_ACCEPT = PROTOBUF.replace(" ", "")
TEXT_1 = "text/plain; version=1.0.0; charset=utf-8"
# What the two supported ends of Prometheus send, without protobuf and with it.
PROMETHEUS_2_42 = (
    "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
    "text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
)
PROMETHEUS_3_5 = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,"
    "application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,"
    "text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)
NATIVE_2_42 = (
    f"{PROTOBUF_ACCEPT},application/openmetrics-text;version=1.0.0;q=0.8,text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
)
NATIVE_3_5 = f"{PROTOBUF_ACCEPT};escaping=allow-utf-8;q=0.6,text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
CONTENT_TYPES = [
    ("", TEXT),
    ("*/*", TEXT),
    (PROMETHEUS_2_42, OPENMETRICS),
    (PROMETHEUS_3_5, f"{OPENMETRICS}; escaping=allow-utf-8"),
    ("text/plain;version=0.0.4;escaping=underscores", TEXT),  # has no escaping
    ("text/plain;version=1.0.0", TEXT),
    ("text/plain;version=1.0.0;escaping=allow-utf-8", f"{TEXT_1}; escaping=allow-utf-8"),
    ("text/plain;version=1.0.0;escaping=dots;q=0.2,text/plain;version=0.0.4;q=0.3", TEXT),
    ("text/plain;version=1.0.0;escaping=dots;q=0,text/plain;version=0.0.4;q=0.3", TEXT),
    ("application/openmetrics-text;version=1.0.0", OPENMETRICS),
    ("application/openmetrics-text;escaping=values", OPENMETRICS),
    ("application/openmetrics-text;version=1.0.0;escaping=values", f"{OPENMETRICS}; escaping=values"),
    ("application/openmetrics-text;version=1.0.0;escaping=no", OPENMETRICS),
    ("application/openmetrics-text;version=1.0.0;escaping=a\r\nb", OPENMETRICS),
    ('application/openmetrics-text;version=1.0.0;Escaping="Dots"', f"{OPENMETRICS}; escaping=dots"),
    (PROTOBUF_ACCEPT, PROTOBUF),
    (NATIVE_2_42, PROTOBUF),
    (NATIVE_3_5, f"{PROTOBUF}; escaping=allow-utf-8"),
    (f"{PROTOBUF_ACCEPT};q=0.3,text/plain;version=0.0.4;q=0.5", TEXT),
    (f"{PROTOBUF_ACCEPT};q=0.3,application/openmetrics-text;version=1.0.0;q=0.5", OPENMETRICS),
    (PROTOBUF_ACCEPT.replace("delimited", "text"), TEXT),
    (PROTOBUF_ACCEPT.replace("delimited", "compact-text"), TEXT),
    ("application/vnd.google.protobuf", TEXT),
    ("application/vnd.google.protobuf;proto=other.Message;encoding=delimited", TEXT),
    (f"{PROTOBUF_ACCEPT};q=0", TEXT),
    ("application/*", TEXT),
]
IS_OPENMETRICS = [
    (OPENMETRICS_ACCEPT, True),
    ("application/openmetrics-text", True),
    ("Application/OpenMetrics-Text; Version=1.0.0; charset=utf-8", True),
    ("text/plain;q=0.9,application/openmetrics-text;version=1.0.0;q=0.5", False),
    ("application/openmetrics-text;version=0.0.1", False),
    ("application/openmetrics-text;version=abc", False),
    ("application/openmetrics-text;version=1.0.0;q=0", False),
    ("application/openmetrics-text;version=1.0.0;q=nonsense", False),
    (";;;,,,q=,=;q", False),
    ("text/plain, application/openmetrics-text", True),  # equal: the richer one
    ("text/plain;q=0.5, application/openmetrics-text;q=0.5", True),
    ("text/plain;q=0.6, application/openmetrics-text;q=0.5", False),
    ('application/openmetrics-text; version="1.0.0"', True),
    ("application/openmetrics-text; version=x1.0.0", False),
    ("application/openmetrics-text; version=1.0.0; q=0.2, text/plain; q=0.1", True),
    ("application/openmetrics-text; q=0.1, application/openmetrics-text; q=0.9, text/plain; q=0.5", True),
    ("text/plain; q=0.9, text/plain; q=0.1, application/openmetrics-text; q=0.5", False),
    ("text/html, application/json", False),
]
IS_ZIPPED = [
    ("", False),
    ("gzip", True),
    ("GZIP;q=1.0", True),
    ("deflate, gzip;q=0.5, *;q=0.1", True),
    ("gzip;q=0", False),
    ("gzip;q=0, *", False),
    ("*", True),
    ("identity", False),
    ("identity;q=0", True),
    ("identity;q=0, gzip;q=0", False),
    ("identity;q=0.9, gzip;q=0.5", False),
    ("br", False),
    ("gzip;q=nan", False),
    ("gzip, identity", True),
    ("gzip;q=0.5, identity;q=0.5", True),
    ("gzip;q=0.5, identity;q=0.6", False),
    ("x-gzip", True),
    ("x-gzip;q=0, *", False),
    ("*;q=0.5, identity", False),
    ("gzip;q=x", False),
]


def content_type(accept: str) -> str:
    exposition = Exposition(stale_after=10)
    exposition.publish(Snapshot(1.7e9, 0.0, ()))
    return exposition.respond(accept, None, 0.0).content_type


def test_the_content_type_is_the_one_that_is_asked_for() -> None:
    assert [(accept, content_type(accept)) for accept, kind in CONTENT_TYPES if content_type(accept) != kind] == []


def test_the_format_with_the_higher_quality_is_sent() -> None:
    formats = {True: Variant("openmetrics", gzip=False), False: Variant("text", gzip=False)}

    assert [accept for accept, openmetrics in IS_OPENMETRICS if negotiate(accept, "") != formats[openmetrics]] == []


def test_gzip_is_sent_unless_plain_bytes_are_preferred() -> None:
    assert [text for text, zipped in IS_ZIPPED if negotiate("", text) != Variant("text", gzip=zipped)] == []


def test_negotiation_agrees_with_the_official_client_where_that_is_right() -> None:
    for accept in ("", "*/*", "text/plain", PROMETHEUS_2_42, PROMETHEUS_3_5):
        _, expected = choose_encoder(accept)
        openmetrics = expected.startswith("application/openmetrics-text")
        assert openmetrics == (negotiate(accept, "").format == "openmetrics"), accept
