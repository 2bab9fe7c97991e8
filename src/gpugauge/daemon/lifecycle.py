"""What changes the daemon by HTTP, if `web.enable_lifecycle` allows it: reload, release of the driver, attach."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from datetime import datetime, timezone
from urllib.parse import parse_qs

from gpugauge.driver.api import RELEASED, DriverView
from gpugauge.driver.supervisor import DriverSource
from gpugauge.duration import parse_duration
from gpugauge.status.driver_advice import advice
from gpugauge.web.guard import guarded
from gpugauge.web.server import Handler, Reply, Request, Route, sentence

RELEASE, ATTACH, RELOAD = "/-/release", "/-/attach", "/-/reload"
# A release without end would leave a machine unwatched because somebody forgot it.
_SHORTEST, _LONGEST = 1.0, 24 * 3600.0
# Seconds for which a reply waits until it is true; below the server's own limit.
_PATIENCE = 12.0
_LOOK_SECONDS = 0.05
# An answer that was sent before the clocks were read again may be so much off.
_TOLERANCE = 1.0
_OFF = sentence(403, "changing the daemon by HTTP is not enabled: start it with --web.enable-lifecycle")
_NO_DRIVER = sentence(200, "driver.mode=off: this daemon does not use the driver, there is nothing to give back")


def lifecycle_routes(
    driver: DriverSource | None, reload: Callable[[], Future[str]], enabled: Callable[[], bool], names: frozenset[str]
) -> dict[str, Route]:
    """Return the routes; they refuse everything while `enabled` says no. `names` are this machine's (guard.own_names);
    `reload` asks for a reload and returns what will have become of it.
    """

    def route(handler: Handler) -> Route:
        return Route(guarded(lambda request: handler(request) if enabled() else _OFF, names), ("POST",))

    return {
        RELEASE: route(lambda request: _release(driver, request)),
        ATTACH: route(lambda _: _attach(driver)),
        RELOAD: route(lambda _: _reload(reload)),
    }


def _release(driver: DriverSource | None, request: Request) -> Reply | Awaitable[Reply]:
    try:
        seconds = _wanted(request.query)
    except ValueError as error:
        return sentence(400, str(error))
    return _NO_DRIVER if driver is None else _released(driver, seconds)


def _wanted(query: str) -> float:
    """Return the seconds of `for=10m`; raises ValueError."""
    given = parse_qs(query, keep_blank_values=True).get("for", [])
    if len(given) != 1:
        raise ValueError("for how long? say /-/release?for=10m; a release always ends by itself")
    seconds = parse_duration(given[0])
    if not _SHORTEST <= seconds <= _LONGEST:
        raise ValueError(f"a release lasts from 1s to 24h, not {given[0]}")
    return seconds


async def _released(driver: DriverSource, seconds: float) -> Reply:
    driver.release(seconds)
    end = time.time() + seconds
    view = await _until(driver, lambda v: v.released_until is not None and abs(v.released_until - end) <= _TOLERANCE)
    if view.reason != RELEASED:
        return sentence(503, f"the driver is not free yet after {_PATIENCE:g} s; it will be left alone {_at(end)}")
    if view.workers_unkillable:
        return sentence(
            503,
            f"the driver is left alone {_at(end)}, but it is not free: a former worker hangs inside the kernel and "
            "no signal ends it",
        )
    return sentence(200, f"the driver is free {_at(end)}: the worker has ended, the next one starts then")


async def _attach(driver: DriverSource | None) -> Reply:
    if driver is None:
        return _NO_DRIVER
    driver.attach()
    view = await _until(driver, lambda v: v.reason not in {RELEASED, "starting"})
    if view.up and view.facts:
        return sentence(200, f"the driver answers, GPUs: {view.facts.device_count}")
    why = "it is being opened" if view.reason in {RELEASED, "starting"} else advice(view.reason)
    return sentence(503, f"the driver does not answer yet: {why}")


async def _reload(reload: Callable[[], Future[str]]) -> Reply:
    try:
        return sentence(200, await asyncio.wait_for(asyncio.wrap_future(reload()), _PATIENCE))
    except asyncio.TimeoutError:
        return sentence(503, f"the settings are still being read after {_PATIENCE:g} s; the log will tell")
    except Exception as error:  # noqa: BLE001  (the reloader has logged it)
        return sentence(500, f"the settings stay as they were: {error}")


async def _until(driver: DriverSource, condition: Callable[[DriverView], bool]) -> DriverView:
    """Wait for a view that fulfils the condition; return the latest one, also if none came in time."""
    end = time.monotonic() + _PATIENCE
    while not condition(driver.view()) and time.monotonic() < end:
        await asyncio.sleep(_LOOK_SECONDS)
    return driver.view()


def _at(unix: float) -> str:
    moment = datetime.fromtimestamp(unix, timezone.utc)
    return f"until {moment.isoformat(timespec='seconds').replace('+00:00', 'Z')}"
