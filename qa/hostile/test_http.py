"""The server under drawn sequences of bytes; after each an honest scrape is answered."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from random import Random

import pytest
from tests.serving import Gate, client, serving

from gpugauge.web.server import Reply, Request
from qa.hostile import http
from qa.hostile.http_faults import FAULTS

HONEST = "127.0.0.1"


@contextmanager
def recording() -> Iterator[tuple[tuple[str, int], list[http.Served]]]:
    """Serve, and record the requests that come from other addresses."""
    served: list[http.Served] = []

    def record(request: Request) -> Reply | None:
        if request.remote != HONEST:
            host = request.headers.get("Host")
            served.append(http.Served(request.method, request.path, request.query, host, request.body))
        return None

    with serving(access=Gate(record)) as address:
        yield address, served


def judged(sequences: Iterator[http.Sequence]) -> None:
    with recording() as (address, served), client(address) as scraper:
        for number, sequence in enumerate(sequences):
            received = http.send(address, sequence)
            scraper.request("GET", "/metrics")
            assert scraper.getresponse().read().startswith(b"# HELP gpugauge_build_info")
            # By now every request of the sequence is recorded: the scrape came after them.
            assert list(http.faults(sequence, received, served)) == [], (number, sequence)
            served.clear()


@pytest.mark.parametrize("seed", range(4))
def test_drawn_sequences_are_read_as_they_are_meant(seed: int) -> None:
    chance = Random(seed)
    judged(http.draw(chance) for _ in range(100))


@pytest.mark.parametrize("seed", range(4))
def test_changed_sequences_are_read_as_llhttp_reads_them(seed: int) -> None:
    chance = Random(1000 + seed)
    judged(http.draw_changed(chance) for _ in range(150))


@pytest.mark.parametrize("about", FAULTS)
def test_each_wrong_request_is_refused_and_nothing_after_it_is_served(about: str) -> None:
    statuses, variants = FAULTS[about]
    after = b"GET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n"
    judged(
        http.Sequence(variant + rest, [], frozenset(statuses), pieces, about)
        for variant in variants
        for rest in (b"", after)
        for pieces in ([], [1, len(variant) // 2, len(variant)])
    )


def test_the_judgement_notices_a_request_that_is_read_otherwise() -> None:
    sequence = http.Sequence(b"", [http.Served("GET", "/", "", "x", b"")])
    other = http.Served("GET", "/", "", "y", b"")
    reply = b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n%b\r\na"
    meant = sequence.served or []
    assert not list(http.faults(sequence, reply % b"Connection: close\r\n", meant))
    assert list(http.faults(sequence, reply % b"Connection: close\r\n", [other]))
    assert list(http.faults(sequence, reply % b"", meant))
    assert list(http.faults(sequence, b"", meant))
    changed = http.Sequence(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\na")
    assert list(http.faults(changed, b"", [http.Served("POST", "/", "", "x", b"")]))
    assert not list(http.faults(changed, b"", [http.Served("POST", "/", "", "x", b"a")]))
