from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from typing import cast

import pytest

from gpugauge.daemon import lifecycle
from gpugauge.daemon.lifecycle import ATTACH, FORGET, RELEASE, RELOAD, lifecycle_routes
from gpugauge.driver.api import Device, DeviceReading, DriverFacts, DriverView
from gpugauge.driver.supervisor import Release, Supervisor
from gpugauge.web.server import Reply, Request
from tests.drawn import cases


class Driver:
    """A driver that obeys at once. With `stuck` it is never released; `reason` is its state after an attach."""

    def __init__(self) -> None:
        self.asked = Release()
        self.reason, self.stuck, self.unkillable = "ok", False, 0
        self.devices = {"GPU-a": True, "GPU-b": False}

    def release(self, seconds: float) -> None:
        self.asked.begin(seconds)

    def attach(self) -> None:
        self.asked.end()

    def forget(self, uuid: str) -> None:
        if not self.stuck:
            del self.devices[uuid]

    def view(self) -> DriverView:
        if self.asked.left() > 0 and not self.stuck:
            return DriverView(False, "released", workers_unkillable=self.unkillable, released_until=self.asked.until())
        devices = tuple(Device(uuid, up, "ok", DeviceReading(), {}) for uuid, up in self.devices.items())
        return DriverView(self.reason == "ok", self.reason, DriverFacts(2) if self.reason == "ok" else None, devices)


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lifecycle, "_REPLY_TIMEOUT_SECONDS", 0.2)


def done(result: str | Exception) -> Future[str]:
    future: Future[str] = Future()
    if isinstance(result, Exception):
        future.set_exception(result)
    else:
        future.set_result(result)
    return future


def ask(
    path: str,
    driver: Driver | None = None,
    *,
    reload: Callable[[], Future[str]] = Future,
    enabled: bool = True,
    headers: dict[str, str] | None = None,
) -> tuple[int, str]:
    path, _, query = path.partition("?")
    routes = lifecycle_routes(cast("Supervisor | None", driver), reload, lambda: enabled, frozenset({"localhost"}))
    request = Request("POST", path, query, {"host": "localhost", **(headers or {})}, b"", "127.0.0.1")

    async def answer() -> Reply:
        reply = routes[path].handler(request)
        return reply if isinstance(reply, Reply) else await reply

    reply = asyncio.run(answer())
    assert routes[path].methods == ("POST",)
    return reply.status, reply.body.decode().strip()


def test_release_is_answered_when_the_driver_is_free_with_its_end() -> None:
    driver = Driver()

    status, text = ask(RELEASE + "?for=10m", driver)

    assert status == 200
    assert text.startswith("the driver is free until 20")
    assert driver.asked.left() == pytest.approx(600, abs=5)


def test_release_moves_the_end_of_the_one_before() -> None:
    driver = Driver()
    ask(RELEASE + "?for=10m", driver)

    assert ask(RELEASE + "?for=1m", driver)[0] == 200
    assert driver.asked.left() == pytest.approx(60, abs=5)


@cases("query", ["", "?for=", "?for=10", "?for=0s", "?for=25h", "?for=1m&for=2m", "?until=10m"])
def test_release_needs_a_valid_duration(query: str) -> None:
    driver = Driver()

    status, text = ask(RELEASE + query, driver)

    assert (status, driver.asked.left() > 0, len(text.splitlines())) == (400, False, 1)


def test_release_that_takes_too_long_is_reported_and_goes_on() -> None:
    driver = Driver()
    driver.stuck = True

    status, text = ask(RELEASE + "?for=10m", driver)

    assert status == 503
    assert "not free yet" in text
    assert driver.asked.left() > 0


def test_driver_is_not_free_while_a_worker_cannot_be_killed() -> None:
    driver = Driver()
    driver.unkillable = 1

    status, text = ask(RELEASE + "?for=10m", driver)

    assert status == 503
    assert "no signal ends it" in text


def test_attach_reports_the_state_of_the_driver() -> None:
    driver = Driver()
    driver.release(600)

    assert ask(ATTACH, driver) == (200, "the driver answers, GPUs: 2")
    driver.reason = "library_mismatch"
    status, text = ask(ATTACH, driver)
    assert status == 503
    assert "different versions" in text
    driver.reason = "starting"
    assert ask(ATTACH, driver) == (503, "the driver does not answer yet: it is being opened")


def test_without_a_driver_there_is_nothing_to_do() -> None:
    assert [ask(path)[0] for path in (RELEASE + "?for=1m", ATTACH)] == [200, 200]


def test_reload_reports_its_result() -> None:
    assert ask(RELOAD, reload=lambda: done("read again")) == (200, "read again")
    assert ask(RELOAD, reload=lambda: done(ValueError("g.yaml:3: web.x: unknown"))) == (
        500,
        "reload failed, settings unchanged: g.yaml:3: web.x: unknown",
    )
    assert ask(RELOAD)[0] == 503  # never done


@cases("path", [RELEASE + "?for=10m", ATTACH, RELOAD])
def test_all_is_refused_unless_enabled(path: str) -> None:
    driver, reloads = Driver(), list[int]()

    def reload() -> Future[str]:
        reloads.append(1)
        return done("")

    status, text = ask(path, driver, reload=reload, enabled=False)

    assert status == 403
    assert "--web.enable-lifecycle" in text
    assert (driver.asked.left() > 0, reloads) == (False, [])


@cases("headers", [{"host": "evil.example"}, {"origin": "http://evil.example"}])
def test_requests_of_foreign_pages_are_refused(headers: dict[str, str]) -> None:
    driver = Driver()

    assert ask(RELEASE + "?for=10m", driver, headers=headers)[0] == 403
    assert driver.asked.left() <= 0


def test_device_that_is_down_is_forgotten() -> None:
    driver = Driver()

    status, text = ask(FORGET + "?uuid=GPU-b", driver)

    assert (status, text) == (200, "GPU-b is forgotten; it is reported again once the driver reads it")
    assert driver.devices == {"GPU-a": True}


@cases(
    ("query", "told"),
    [
        ("", "the uuid of the GPU is missing"),
        ("?uuid=", "the uuid of the GPU is missing"),
        ("?uuid=GPU-c", "there is no GPU GPU-c; GPUs that are down: GPU-b"),
        ("?uuid=GPU-a", "GPU-a answers: only a GPU that is down can be forgotten"),
    ],
)
def test_device_that_cannot_be_forgotten(query: str, told: str) -> None:
    driver = Driver()

    status, text = ask(FORGET + query, driver)

    assert (status, text[: len(told)], len(driver.devices)) == (400, told, 2)


def test_device_that_is_not_forgotten_in_time() -> None:
    driver = Driver()
    driver.stuck = True

    assert ask(FORGET + "?uuid=GPU-b", driver) == (503, "GPU-b is not forgotten yet: the driver is busy")


def test_forgetting_needs_the_lifecycle_and_a_driver() -> None:
    assert ask(FORGET + "?uuid=GPU-b", Driver(), enabled=False)[0] == 403
    assert ask(FORGET + "?uuid=GPU-b")[0] == 200
