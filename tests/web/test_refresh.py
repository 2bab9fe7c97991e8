import asyncio
import time
from collections.abc import Callable
from threading import Thread

import pytest

from gpugauge.base.forecast import ScrapeForecast
from gpugauge.exposition.render import Exposition
from gpugauge.snapshot import Snapshot
from gpugauge.web.refresh import Refresh
from gpugauge.web.routes import standard_routes
from gpugauge.web.server import sentence
from tests.serving import SNAPSHOT, Gate, fetch, serving


class Requests(list[float]):
    """Counts requests for a reading."""

    def __call__(self) -> None:
        self.append(0.0)


def refresh(read_at: float = 0.0) -> tuple[Refresh, Requests]:
    requests = Requests()
    made = Refresh(requests)
    made.publish(read_at, read_at + 0.01)
    return made, requests


def due(made: Refresh, *times: float, expected: bool = False) -> list[bool]:
    return [made.due(at, expected=expected) for at in times]


def test_scrape_waits_unless_the_reading_is_new() -> None:
    assert [due(refresh(100.0)[0], at) for at in (100.01, 100.03, 100.05, 110.0)] == [[False], [False], [True], [True]]


def test_expected_scrape_does_not_wait_for_the_reading_that_was_made_for_it() -> None:
    assert [due(refresh(100.0)[0], at, expected=True)[0] for at in (100.05, 100.15, 100.17)] == [False, False, True]


def test_scrapes_at_once_share_a_reading() -> None:
    made, requests = refresh()

    assert due(made, 10.0, 10.001, 10.02) == [True, True, True]
    assert len(requests) == 1


def test_scrape_does_not_wait_before_the_first_reading() -> None:
    requests = Requests()
    made = Refresh(requests)
    made.publish(float("-inf"), 1.0)

    assert (due(made, 1.0, 20.0), requests) == ([False, False], [])


def test_reading_that_comes_too_late_is_tried_less_and_less_often() -> None:
    made, requests = refresh()

    def slow(at: float) -> bool:
        waits = made.due(at, expected=False)
        if waits:
            made.publish(at, at + 0.05)
        return waits

    waits = [at for at in range(10, 1200, 10) if slow(float(at))]

    assert len(requests) == len(waits) <= 12
    assert waits[-1] - waits[-2] == 300


def test_reading_in_time_ends_the_pause() -> None:
    made, _ = refresh()
    for at in (10.0, 20.0, 30.0, 40.0):  # too late each time
        due(made, at)
    made.due(60.0, expected=False)
    made.publish(60.0, 60.02)

    assert due(made, 61.0) == [True]


def test_reading_that_began_before_the_request_is_accepted_if_it_is_new() -> None:
    made, _ = refresh()
    due(made, 10.0)
    made.publish(9.9, 10.01)
    old = made.outstanding
    made.publish(9.97, 10.02)

    assert (old, made.outstanding) == (True, False)


def test_flood_gets_few_readings_and_earns_none() -> None:
    made, requests = refresh()
    for step in range(2000):
        made.publish(step * 0.05 - 1, step * 0.05)
        made.due(step * 0.05, expected=False)

    assert len(requests) <= 3


class Daemon:
    """A sampler that publishes a snapshot `delay` seconds after each request, or never."""

    def __init__(self, delay: float | None) -> None:
        self.exposition, self.delay, self.requests = Exposition(stale_after=3600), delay, 0
        self.refresh = Refresh(self._request)
        self.publish()

    def publish(self) -> None:
        now = time.monotonic()
        self.exposition.publish(Snapshot(0.0, now, SNAPSHOT.sections))
        self.refresh.publish(now if self.requests else now - 10, now)

    def _request(self) -> None:
        self.requests += 1
        if self.delay is not None:
            Thread(target=self._later, args=[self.delay]).start()

    def _later(self, delay: float) -> None:
        time.sleep(delay)
        self.publish()


def scrape(daemon: Daemon, access: Gate | None = None) -> int:
    table = standard_routes(daemon.exposition, "/metrics", lambda: None, ScrapeForecast(), refresh=daemon.refresh)
    with serving(table, access=access) as address:
        return fetch(address, "/metrics")[0]


@pytest.mark.parametrize("delay", [0.0, 0.005, None])
def test_scrape_is_answered_with_and_without_the_reading(delay: float | None) -> None:
    daemon = Daemon(delay)

    assert (scrape(daemon), daemon.requests) == (200, 1)


def test_scrape_without_permission_causes_no_reading() -> None:
    daemon = Daemon(0.0)

    assert (scrape(daemon, Gate(lambda _: sentence(401, "who are you?"))), daemon.requests) == (401, 0)


def two_scrapes(before: Callable[[Refresh], None], during: Callable[[Refresh], None]) -> bool:
    """Let two scrapes wait in an event loop; return whether the reading came before the limit."""
    made = Refresh(lambda: None)
    made.publish(0.0, 0.01)

    async def scrapes() -> bool:
        assert made.due(time.monotonic(), expected=False)
        before(made)
        task = asyncio.gather(made.wait(), made.wait())
        await asyncio.sleep(0)
        Thread(target=during, args=[made]).start()
        await task
        return not made.outstanding

    return asyncio.run(scrapes())


def arrive(made: Refresh) -> None:
    now = time.monotonic()
    made.publish(now, now)


def nothing(_: Refresh) -> None:
    pass


@pytest.mark.parametrize(("before", "during"), [(arrive, nothing), (nothing, arrive)])
def test_reading_releases_the_scrapes_that_wait(
    before: Callable[[Refresh], None], during: Callable[[Refresh], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpugauge.web.refresh.WAIT_SECONDS", 3600.0)

    assert two_scrapes(before, during)


def test_scrapes_do_not_wait_longer_than_the_limit() -> None:
    assert not two_scrapes(nothing, nothing)
