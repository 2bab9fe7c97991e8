from __future__ import annotations

import os
from collections.abc import Mapping

import pytest

from gpugauge.web.guard import guarded, own_names, own_names_only
from gpugauge.web.server import Reply, Request, Route, sentence

NAMES = own_names(["gpu7.example.com", ""])


def ask(headers: Mapping[str, str]) -> int:
    request = Request("POST", "/-/reload", "", {name.lower(): text for name, text in headers.items()}, b"", "127.0.0.1")
    reply = guarded(lambda _: sentence(200, "done"), NAMES)(request)
    assert isinstance(reply, Reply)
    return reply.status


@pytest.mark.parametrize(
    "host",
    [
        *(
            "127.0.0.1:10478",
            "10.1.2.3",
            "[::1]:10478",
            "[2001:db8::1]",
            "localhost:10478",
            "LOCALHOST",
            "localhost.",
            "localhost.:1",
        ),
        *("gpu7.example.com:443", os.uname().nodename),
    ],
)
def test_addresses_and_own_names_are_allowed(host: str) -> None:
    assert ask({"Host": host}) == 200


@pytest.mark.parametrize(
    "host",
    [
        *("evil.example:10478", "localhost.evil.example", "127.0.0.1.evil.example", "user@localhost", "localhost:x"),
        *("localhost/", "[::1", ":10478", "localhost, evil.example", "127.1", "0x7f000001", "\xff"),
    ],
)
def test_any_other_name_is_refused(host: str) -> None:
    assert ask({"Host": host}) == 403


def test_a_request_without_host_is_allowed() -> None:
    assert ask({}) == 200


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Origin": "http://localhost:10478"}, 200),
        ({"Origin": "http://localhost:10478", "Sec-Fetch-Site": "same-origin"}, 200),
        ({"Sec-Fetch-Site": "none"}, 200),
        ({"Origin": "http://localhost:8080"}, 403),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://localhost]:10478"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Origin": "http://localhost:10478", "Sec-Fetch-Site": "cross-site"}, 403),
    ],
)
def test_pages_of_other_sites_are_refused(headers: dict[str, str], status: int) -> None:
    assert ask({"Host": "localhost:10478", **headers}) == status


@pytest.mark.parametrize(
    ("listening", "status"), [(["127.0.0.1", "::1", "localhost"], 403), (["127.0.0.1", ""], 200), (["10.0.0.1"], 200)]
)
def test_on_the_loopback_device_only_own_names_are_allowed(listening: list[str], status: int) -> None:
    routes = own_names_only({"/": Route(lambda _: sentence(200, "the page"))}, listening)
    reply = routes["/"].handler(Request("GET", "/", "", {"host": "evil.example"}, b"", "127.0.0.1"))

    assert isinstance(reply, Reply)
    assert reply.status == status
