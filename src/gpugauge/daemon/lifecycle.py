"""HTTP endpoints to reload the settings, release and attach the driver, forget a GPU: `web.enable_lifecycle`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Future
from datetime import datetime, timezone
from urllib.parse import parse_qs

from gpugauge.base.duration import parse_duration
from gpugauge.driver.advice import advice
from gpugauge.driver.api import RELEASED, DriverView
from gpugauge.driver.supervisor import Supervisor
from gpugauge.web.guard import guarded
from gpugauge.web.server import Handler, Reply, Request, Route, sentence

RELEASE, ATTACH, RELOAD, FORGET = "/-/release", "/-/attach", "/-/reload", "/-/forget"
# A release always ends: a release without end that is forgotten would leave the machine without monitoring.
_MIN_RELEASE_SECONDS, _MAX_RELEASE_SECONDS = 1.0, 24 * 3600.0
# A request waits this long for its effect; less than the server's own limit.
_REPLY_TIMEOUT_SECONDS = 12.0
_POLL_SECONDS = 0.05
# Two computations of the end of the same release differ by less.
_RELEASE_END_TOLERANCE_SECONDS = 1.0
_DISABLED = sentence(403, "the lifecycle endpoints are disabled: start the daemon with --web.enable-lifecycle")
_NO_DRIVER = sentence(200, "driver.mode=off: this daemon does not use the driver, there is nothing to release")


def lifecycle_routes(
    driver: Supervisor | None, reload: Callable[[], Future[str]], enabled: Callable[[], bool], names: frozenset[str]
) -> dict[str, Route]:
    """Return the routes, which answer 403 while `enabled` returns False. `names` are those of guard.own_names."""

    def route(handler: Handler) -> Route:
        return Route(guarded(lambda request: handler(request) if enabled() else _DISABLED, names), ("POST",))

    return {
        RELEASE: route(lambda request: _release(driver, request)),
        ATTACH: route(lambda _: _attach(driver)),
        RELOAD: route(lambda _: _reload(reload)),
        FORGET: route(lambda request: _forget(driver, request)),
    }


def _release_seconds(query: str) -> float:
    """Return the seconds of `for=10m`. Raises ValueError."""
    given = parse_qs(query, keep_blank_values=True).get("for", [])
    if len(given) != 1:
        raise ValueError("the duration is missing: use /-/release?for=10m; a release always ends by itself")
    seconds = parse_duration(given[0])
    if not _MIN_RELEASE_SECONDS <= seconds <= _MAX_RELEASE_SECONDS:
        raise ValueError(f"the duration of a release is from 1s to 24h, not {given[0]}")
    return seconds


async def _release(driver: Supervisor | None, request: Request) -> Reply:
    try:
        seconds = _release_seconds(request.query)
    except ValueError as error:
        return sentence(400, str(error))
    if driver is None:
        return _NO_DRIVER
    driver.release(seconds)
    end = time.time() + seconds

    def effective(view: DriverView) -> bool:
        until = view.released_until
        return until is not None and abs(until - end) <= _RELEASE_END_TOLERANCE_SECONDS

    view = await _wait_for(driver, effective)
    if view.reason != RELEASED:
        return sentence(
            503,
            f"the driver is not free yet after {_REPLY_TIMEOUT_SECONDS:g} s; it is not used {_until(end)}, as soon as "
            "the worker has ended",
        )
    if view.workers_unkillable:
        return sentence(
            503,
            f"the driver is not used {_until(end)}, but it is not free: a previous worker hangs inside the kernel and "
            "no signal ends it",
        )
    return sentence(200, f"the driver is free {_until(end)}: the worker has ended, the next one starts then")


async def _attach(driver: Supervisor | None) -> Reply:
    if driver is None:
        return _NO_DRIVER
    driver.attach()
    view = await _wait_for(driver, lambda v: v.reason not in {RELEASED, "starting"})
    if view.up and view.facts:
        return sentence(200, f"the driver answers, GPUs: {view.facts.device_count}")
    reason = "it is being opened" if view.reason in {RELEASED, "starting"} else advice(view.reason, view.vendor)
    return sentence(503, f"the driver does not answer yet: {reason}")


async def _forget(driver: Supervisor | None, request: Request) -> Reply:
    given = parse_qs(request.query, keep_blank_values=True).get("uuid", [])
    if len(given) != 1 or not given[0]:
        return sentence(400, "the uuid of the GPU is missing: use /-/forget?uuid=GPU-…, as in the label of gpu_up")
    if driver is None:
        return _NO_DRIVER
    uuid = given[0]
    known = {device.uuid: device.up for device in driver.view().devices}
    if uuid not in known:
        down = ", ".join(sorted(name for name, up in known.items() if not up)) or "none"
        return sentence(400, f"there is no GPU {uuid}; GPUs that are down: {down}")
    if known[uuid]:
        return sentence(400, f"{uuid} answers: only a GPU that is down can be forgotten")
    driver.forget(uuid)
    view = await _wait_for(driver, lambda v: all(device.uuid != uuid for device in v.devices))
    if any(device.uuid == uuid for device in view.devices):
        return sentence(503, f"{uuid} is not forgotten yet: the driver is busy")
    return sentence(200, f"{uuid} is forgotten; it is reported again once the driver reads it")


async def _reload(reload: Callable[[], Future[str]]) -> Reply:
    try:
        return sentence(200, await asyncio.wait_for(asyncio.wrap_future(reload()), _REPLY_TIMEOUT_SECONDS))
    except asyncio.TimeoutError:
        text = f"the reload has not finished after {_REPLY_TIMEOUT_SECONDS:g} s; the log reports its result"
        return sentence(503, text)
    except Exception as error:  # noqa: BLE001  (the reloader has logged it)
        return sentence(500, f"reload failed, settings unchanged: {error}")


async def _wait_for(driver: Supervisor, condition: Callable[[DriverView], bool]) -> DriverView:
    """Wait up to `_REPLY_TIMEOUT_SECONDS` until `condition` holds; return the latest view in either case."""
    end = time.monotonic() + _REPLY_TIMEOUT_SECONDS
    while not condition(driver.view()) and time.monotonic() < end:
        await asyncio.sleep(_POLL_SECONDS)
    return driver.view()


def _until(unix: float) -> str:
    moment = datetime.fromtimestamp(unix, timezone.utc)
    return f"until {moment.isoformat(timespec='seconds').replace('+00:00', 'Z')}"
