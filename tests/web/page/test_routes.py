import re
import time
from dataclasses import replace
from functools import partial

import pytest

from gpugauge.snapshot import Snapshot
from gpugauge.status.history import History
from gpugauge.status.model import Status
from gpugauge.status.node import build
from gpugauge.web.page import routes
from gpugauge.web.page.links import Links
from gpugauge.web.page.routes import page_routes
from gpugauge.web.server import Reply, Request
from tests.serving import answer
from tests.status.statusfacts import snapshot


def get(current: Snapshot | None, path: str = "/", reason: str | None = None, scenario: str | None = None) -> Reply:
    table = page_routes(lambda: current, partial(build, history=History()), lambda: reason, "/own/metrics", scenario)
    return answer(table[path], Request("GET", path, "", {}, b"", "127.0.0.1"))


def test_links_are_relative_and_resources_are_local() -> None:
    reply = get(snapshot())

    assert (reply.status, reply.content_type) == (200, "text/html; charset=utf-8")
    assert b'href="./own/metrics"' in reply.body
    assert [foreign for foreign in (b"//", b" style=", b"<style", b"<script>") if foreign in reply.body] == []
    assert re.findall(rb" on[a-z]+=", reply.body) == []
    headers = dict(reply.headers)
    assert headers["Content-Security-Policy"].startswith("default-src 'none'; script-src 'self'; style-src 'self'")
    assert "unsafe" not in headers["Content-Security-Policy"]
    assert (headers["X-Frame-Options"], headers["Referrer-Policy"]) == ("DENY", "no-referrer")


@pytest.mark.parametrize("name", ["page.js", "page.css", "page.svg"])
def test_its_files(name: str) -> None:
    reply = get(snapshot(), f"/{name}")

    assert (reply.status, name.encode() in get(snapshot()).body) == (200, True)
    assert reply.content_type.partition(";")[0] in {"text/javascript", "text/css", "image/svg+xml"}


def test_stale_values_are_not_shown() -> None:
    reply = get(snapshot(), reason="the last snapshot is 40 s old", scenario="node")

    assert reply.status == 503
    assert b"the last snapshot is 40 s old" in reply.body
    assert b"Simulated" in reply.body
    assert b"GPU-a" not in reply.body


def test_before_the_first_snapshot() -> None:
    assert get(None).status == 503


def test_rendered_once_per_snapshot_with_its_age_in_each_reply(monkeypatch: pytest.MonkeyPatch) -> None:
    rendered: list[str | None] = []

    def content(_: Status, scenario: str | None, _links: Links) -> tuple[str, str]:
        rendered.append(scenario)
        return "<p>", " s old</p>"

    monkeypatch.setattr(routes, "content", content)
    current = [replace(snapshot(), monotonic=time.monotonic() - 7)]
    route = page_routes(lambda: current[0], partial(build, history=History()), lambda: None, "/metrics")["/"]
    request = Request("GET", "/", "", {}, b"", "127.0.0.1")

    first, second = answer(route, request), answer(route, request)
    assert (len(rendered), b"<p>7 s old</p>" in first.body, second.status) == (1, True, 200)
    current[0] = replace(current[0])
    answer(route, request)
    assert len(rendered) == 2
