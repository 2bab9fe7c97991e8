"""Life cycle of the daemon: start its parts, run until a signal or a fatal condition, stop its parts. In a pod, it gets
SIGTERM in the moment in which the training ends, and ends after a last scrape.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import gc
import logging
import math
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack

from gpugauge import __version__
from gpugauge.base.forecast import ScrapeForecast
from gpugauge.base.guard import Loop
from gpugauge.base.logline import fields
from gpugauge.daemon.assembly import Parts
from gpugauge.daemon.reload import Reloader
from gpugauge.driver.advice import advice
from gpugauge.driver.client import Spawn, Worker
from gpugauge.driver.supervisor import UNKILLABLE, Supervisor
from gpugauge.sessions.session import Session
from gpugauge.settings.model import Settings

log = logging.getLogger("gpugauge")

# A training that ends at the same time as the request has closed its connection by then.
_MIN_SECONDS = 0.5
# The response to a scrape is sent within this time.
_RESPONSE_SECONDS = 0.5


class LastScrape:
    """Calls `finish` after the request to stop, or after the last scrape of `sessions`, in the sampler's thread."""

    def __init__(
        self, forecast: ScrapeForecast, sessions: Callable[[], Iterable[Session]], finish: Callable[[], None]
    ) -> None:
        self._forecast, self._sessions, self._finish = forecast, sessions, finish
        self._requested: float | None = None
        self._settled = False
        self._published: float | None = None  # the first snapshot in which every end has its reason
        self._scraped: float | None = None  # when every scraper had requested it

    def request(self, wait_seconds: float) -> None:
        """Finish after a scrape of the ended trainings, or after `wait_seconds`; at once at a second request."""
        if self._requested is not None or not wait_seconds:
            self._finish()
            return
        self._requested = time.monotonic()
        timer = threading.Timer(wait_seconds, self._finish)
        timer.daemon = True
        timer.start()

    def after_tick(self, now: float) -> None:
        """Finish if nothing is left to be scraped. `now` is after the snapshot of the tick was published."""
        if self._requested is None:
            return
        self._forecast.record_viewer(now)  # the next tick is an interval away
        if self._settled and self._published is None:
            self._published = now
            log.info("waiting for a last scrape", extra=fields(since=round(now - self._requested, 1)))
        sessions = list(self._sessions())
        if not sessions:
            self._finish()
        elif self._published is None:
            early = now - self._requested < _MIN_SECONDS
            self._settled = not early and all(each.connected or each.end_reason for each in sessions)
        elif self._scraped is None:
            self._scraped = now if self._forecast.scraped_by_all(self._published, now) else None
        elif now - self._scraped >= _RESPONSE_SECONDS:
            self._finish()


# If the sampler has not ticked for this long, the process exits, so that its service manager restarts it.
_STUCK_SAMPLER_SECONDS = 60.0
_WATCHDOG_PERIOD_SECONDS = 5.0
# From the last scrape to the end of the process, whatever its parts wait for: less than TimeoutStopSec= of the unit,
# after which systemd kills all processes. The children end by themselves when the daemon has ended.
_STOP_SECONDS = 3.0
# Arguments of gc.set_threshold: a collection starts at 20,000 objects, about 2 MB at most.
GC_THRESHOLDS = (20_000, 5, 5)
_EXIT_SOFTWARE = 70  # EX_SOFTWARE of sysexits.h
_EXIT_UNAVAILABLE = 69  # EX_UNAVAILABLE of sysexits.h
# Parameters of glibc's malloc.h. One heap: one for each thread costs 1 MB in all, most of it never used. The thresholds
# are fixed: otherwise the first large buffer that is freed raises them to megabytes, and what is freed later is kept.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
_MALLOC = {_M_ARENA_MAX: 1, _M_MMAP_THRESHOLD: 512 << 10, _M_TRIM_THRESHOLD: 256 << 10}
# The first tick waits this long for the driver, so that the first scrape is complete.
_DRIVER_WAIT_SECONDS = 3.0


def run(settings: Settings, load: Callable[[], Settings], spawn: Spawn = Worker) -> int:
    """Serve until SIGTERM or SIGINT; return the exit code. Raises ConfigError, ListenError or SessionsError."""
    stop = threading.Event()
    reloader = Reloader(settings, load)
    _stop_on_signals(stop.set)
    signal.signal(signal.SIGHUP, lambda *_: reloader.request())
    # Each training process and each scraper uses a descriptor; the default soft limit of 1024 exists for select(2).
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(65536, hard) if hard != resource.RLIM_INFINITY else 65536, hard))
    # A tick holds the interpreter lock for milliseconds; with the default of 5 ms a scrape would wait longer.
    sys.setswitchinterval(0.001)
    with contextlib.suppress(AttributeError):  # not glibc
        for parameter, value in _MALLOC.items():
            ctypes.CDLL(None).mallopt(parameter, value)
    ended = threading.Event()
    with ExitStack() as stack:
        stack.callback(ended.set)
        parts = Parts(settings, stack, reloader, spawn)
        daemon = _Daemon(parts, stack, stop, ended)
        _stop_on_signals(daemon.stop_after_last_scrape, parts.sampler.wake)
        return daemon.run(reloader)


def _stop_on_signals(*actions: Callable[[], None]) -> None:
    def stop(*_: object) -> None:
        for action in actions:
            action()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)


class _Daemon:
    """Runs the assembled parts and decides when the process ends."""

    def __init__(self, parts: Parts, stack: ExitStack, stop: threading.Event, ended: threading.Event) -> None:
        self._parts, self._stack, self._stop, self._ended = parts, stack, stop, ended
        self._last_tick = self._seen_tick = time.monotonic()
        self._stuck_seconds = 0.0
        self._exit_code = 0
        self._sampling = False
        self._last_scrape = LastScrape(parts.forecast, parts.sessions, self._finish)

    def stop_after_last_scrape(self) -> None:
        """End the daemon; see hook.last_scrape_seconds. For signal handlers."""
        self._last_scrape.request(self._parts.settings.hook.last_scrape_seconds if self._sampling else 0.0)

    def _finish(self) -> None:
        self._stop.set()
        self._parts.sampler.wake()

    def run(self, reloader: Reloader) -> int:
        """Run until `stop` is set; return the exit code."""
        parts, settings = self._parts, self._parts.settings
        parts.server.start()
        self._stack.callback(parts.server.stop)
        if parts.access:
            parts.access.start()
            self._stack.callback(parts.access.stop)
        if parts.driver:
            parts.driver.start()
            self._stack.callback(parts.driver.stop)
            if not self._wait_for_driver(parts.driver):
                return 1
        parts.trainings.start()
        self._stack.callback(parts.trainings.stop)
        reloader.start(parts.configure)
        self._stack.callback(reloader.stop)
        Loop("watchdog", self._watch, self._stop, self._end).start()
        listening = ", ".join(f"{host}:{port}" for host, port in parts.server.addresses)
        log.info("serving", extra=fields(version=__version__, listen=listening, simulate=settings.simulate or "no"))
        # Modules and tables live until the end; without this, each full collection traverses them and delays scrapes.
        gc.freeze()
        with contextlib.suppress(AttributeError):  # not glibc
            ctypes.CDLL(None).malloc_trim(0)  # returns to the kernel what the start has freed, half a megabyte
        # The objects of a tick are freed by reference counts at the next tick; collections took 10 % of the CPU time.
        gc.set_threshold(*GC_THRESHOLDS)
        self._sampling = True
        notifier = parts.notifier
        # A wait may be longer than WatchdogSec= of the unit.
        parts.sampler.run(self._stop, self._after_tick, notifier.watchdog, notifier.watchdog_interval or math.inf)
        log.info("stopping")
        notifier.stopping()
        return self._exit_code

    def _wait_for_driver(self, driver: Supervisor) -> bool:
        """Wait for the driver to open or to fail; return False if driver.mode requires it and it is down."""
        required = self._parts.settings.driver.mode == "required"
        start = time.monotonic()
        while not driver.settled.wait(0.05) and not self._stop.is_set():
            if not required and time.monotonic() - start > _DRIVER_WAIT_SECONDS:
                break
        view = driver.view()
        if required and view.reason != "ok" and not self._stop.is_set():
            log.error("driver.mode=required: %s", advice(view.reason, view.vendor), extra=fields(reason=view.reason))
            return False
        return True

    def _after_tick(self) -> None:
        """Notify the watchdogs; end the daemon if the HTTP server has ended or the driver is lost."""
        self._last_tick = time.monotonic()
        if not self._parts.server.serving:
            log.critical("HTTP server thread ended, exiting")
            self._exit_code = _EXIT_SOFTWARE
            self._stop.set()
            return
        self._parts.notifier.watchdog()
        self._last_scrape.after_tick(time.monotonic())
        if self._parts.driver and self._is_lost(self._parts.driver):
            self._exit_code = _EXIT_UNAVAILABLE
            self._stop.set()

    def _is_lost(self, driver: Supervisor) -> bool:
        """Return whether a driver that was up is down for driver.lost_exit_seconds: a new container may help."""
        limit, view = self._parts.settings.driver.lost_exit_seconds, driver.view()
        if not limit or view.lost_since is None or time.monotonic() - view.lost_since < limit:
            return False
        if view.reason == UNKILLABLE:  # the container cannot end before the worker; the daemon can still serve metrics
            return False
        log.error(
            "driver lost, exiting: %s",
            advice(view.reason, view.vendor),
            extra=fields(reason=view.reason, seconds=round(time.monotonic() - view.lost_since)),
        )
        return True

    def _watch(self) -> None:
        """Exit the process when the sampler is stuck."""
        if self._stop.wait(_WATCHDOG_PERIOD_SECONDS):
            return
        # Counts own periods instead of clock time: after SIGSTOP and SIGCONT the sampler is not stuck.
        self._stuck_seconds += _WATCHDOG_PERIOD_SECONDS
        if self._last_tick != self._seen_tick:
            self._seen_tick, self._stuck_seconds = self._last_tick, 0.0
        if self._stuck_seconds > max(_STUCK_SAMPLER_SECONDS, 3 * self._parts.settings.sampling.interval_seconds):
            log.critical("sampler stuck, exiting", extra=fields(seconds=round(self._stuck_seconds)))
            faulthandler.dump_traceback()
            os._exit(_EXIT_SOFTWARE)

    def _end(self) -> None:
        """Exit the process when its parts do not stop in time."""
        if not self._ended.wait(_STOP_SECONDS):
            log.warning("stopping takes too long, exiting", extra=fields(seconds=_STOP_SECONDS))
            os._exit(self._exit_code)
