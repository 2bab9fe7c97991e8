"""The content type of a scrape: the parameter `escaping` of Prometheus 3."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.exposition import choose_encoder

from gpugauge.exposition.render import OPENMETRICS, TEXT, Exposition
from gpugauge.snapshot import Snapshot
from tests.exposition.test_render import PROMETHEUS_2_42, PROMETHEUS_3_5

TEXT_1 = "text/plain; version=1.0.0; charset=utf-8"


def published() -> Exposition:
    exposition = Exposition(stale_after=10)
    exposition.publish(Snapshot(1.7e9, 0.0, ()))
    return exposition


@pytest.mark.parametrize(
    ("accept", "kind"),
    [
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
    ],
)
def test_the_content_type_has_the_escaping_that_is_asked_for(accept: str, kind: str) -> None:
    assert published().respond(accept, None, 0.0).content_type == kind


def part(kind: str, version: str, escaping: str, quality: str) -> str:
    return f"{kind};version={version};escaping={escaping};q={quality}"


@given(
    st.lists(
        st.builds(
            part,
            st.sampled_from(["text/plain", "application/openmetrics-text", "application/json"]),
            st.just("1.0.0"),
            st.sampled_from(["allow-utf-8", "underscores", "dots", "values"]),
            st.sampled_from(["0.1", "0.5", "0.9"]),
        ),
        min_size=1,
        max_size=1,
    ).flatmap(lambda first: st.permutations([*first, "text/html;q=1.0", "*/*;q=0.1"]))
)
def test_drawn_escapings_agree_with_the_official_client(ranges: list[str]) -> None:
    accept = ",".join(ranges)
    _, expected = choose_encoder(accept)
    answered = published().respond(accept, None, 0.0).content_type

    if "json" not in accept:
        assert set(answered.split("; ")) == set(expected.split("; "))
    else:
        assert answered == TEXT
