"""The daemon's life: start what the assembly made, run until told to stop or unable to go on, and take it apart."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import gc
import logging
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack

from gpugauge import __version__
from gpugauge.daemon.assembly import Parts
from gpugauge.daemon.reload import Reloader
from gpugauge.driver.supervisor import UNKILLABLE, DriverSource
from gpugauge.logline import fields
from gpugauge.settings.model import Settings
from gpugauge.status.driver_advice import advice

log = logging.getLogger("gpugauge")

# A sampler that has not ticked for this long will not: the process ends, and whoever started it starts another.
_DEAD_SECONDS = 60.0
# How often that is looked at.
_LOOK_SECONDS = 5.0
# Objects made and not dropped after which the garbage collector looks for cycles among them: some 2 MB at most.
COLLECT = (20_000, 5, 5)
_EXIT_DEAD = 70  # EX_SOFTWARE
_EXIT_LOST = 69  # EX_UNAVAILABLE
# M_ARENA_MAX of glibc's malloc.h: the most heaps.
_ARENA_MAX = -8
# How long the first snapshot waits for the driver, so that a first scrape is complete.
_PATIENCE_SECONDS = 3.0


def run(settings: Settings, load: Callable[[], Settings]) -> int:
    """Serve until SIGTERM or SIGINT; return the exit code. SIGHUP calls `load` for new settings, which raises
    ConfigError. Raises ConfigError (web.config.file, scenario), ListenError, SelectionError or SessionsError.
    """
    stop = threading.Event()
    reloader = Reloader(settings, load)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    signal.signal(signal.SIGHUP, lambda *_: reloader.request())
    # Each training process and each scraper holds a descriptor; the default soft limit of 1024 is for select(2).
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(65536, hard) if hard != resource.RLIM_INFINITY else 65536, hard))
    # The threads hold the interpreter for the milliseconds of a tick; a scrape should not wait a whole default turn.
    sys.setswitchinterval(0.001)
    # One heap for all threads: they would get one each, most of it never used, 1 MB in all.
    with contextlib.suppress(AttributeError):  # another C library than glibc
        ctypes.CDLL(None).mallopt(_ARENA_MAX, 1)
    with ExitStack() as stack:
        return _Life(Parts(settings, stack, reloader), stack, stop).run(reloader)


class _Life:
    """From the first tick to the last."""

    def __init__(self, parts: Parts, stack: ExitStack, stop: threading.Event) -> None:
        self._parts, self._stack, self._stop = parts, stack, stop
        self._last_tick = time.monotonic()
        self._exit_code = 0

    def run(self, reloader: Reloader) -> int:
        """Run until told to stop; return the exit code."""
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
        reloader.start(parts.configure)
        self._stack.callback(reloader.stop)
        threading.Thread(target=self._watch, name="watchdog", daemon=True).start()
        listening = ", ".join(f"{host}:{port}" for host, port in parts.server.addresses)
        log.info("serving", extra=fields(version=__version__, listen=listening, simulate=settings.simulate or "no"))
        # Modules and tables stay to the end: the garbage collector would hold up a scrape to look at them all again.
        gc.freeze()
        # What one tick makes goes with the next, without it: to look for cycles in it was a tenth of the CPU time.
        gc.set_threshold(*COLLECT)
        parts.sampler.run(self._stop, self._alive)
        log.info("stopping")
        parts.notifier.stopping()
        return self._exit_code

    def _wait_for_driver(self, driver: DriverSource) -> bool:
        """Give the driver a moment, with driver.mode=required all it takes; False if it must answer but does not."""
        required = self._parts.settings.driver.mode == "required"
        start = time.monotonic()
        while not driver.settled.wait(0.05) and not self._stop.is_set():
            if not required and time.monotonic() - start > _PATIENCE_SECONDS:
                break
        reason = driver.view().reason
        if required and reason != "ok" and not self._stop.is_set():
            log.error("driver.mode=required: %s", advice(reason), extra=fields(reason=reason))
            return False
        return True

    def _alive(self) -> None:
        """After each tick."""
        self._last_tick = time.monotonic()
        if not self._parts.server.serving:
            log.critical("the HTTP server has ended, ending the process")
            self._exit_code = _EXIT_DEAD
            self._stop.set()
            return
        self._parts.notifier.watchdog()
        if self._parts.driver and self._has_lost(self._parts.driver):
            self._exit_code = _EXIT_LOST
            self._stop.set()

    def _has_lost(self, driver: DriverSource) -> bool:
        """Whether a driver that has answered fails for so long that only a fresh container may help. One that has never
        answered does not count, so that a broken machine makes no loop of short lives.
        """
        limit, view = self._parts.settings.driver.lost_exit_seconds, driver.view()
        if not limit or view.lost_since is None or time.monotonic() - view.lost_since < limit:
            return False
        if view.reason == UNKILLABLE:  # a container does not end before its last process: here somebody can still ask
            return False
        log.error(
            "ending the process, since the driver has answered and does not any more: %s",
            advice(view.reason),
            extra=fields(reason=view.reason, seconds=round(time.monotonic() - view.lost_since)),
        )
        return True

    def _watch(self) -> None:
        """End the process when the sampler is stuck: fresh values will not come back by themselves."""
        seen, waited = self._last_tick, 0.0
        while True:
            time.sleep(_LOOK_SECONDS)
            # Counted in own rounds: a process that was stopped and goes on has not been stuck.
            waited = waited + _LOOK_SECONDS if self._last_tick == seen else 0.0
            seen = self._last_tick
            if waited > max(_DEAD_SECONDS, 3 * self._parts.settings.sampling.interval_seconds):
                log.critical("the sampler is stuck, ending the process", extra=fields(seconds=round(waited)))
                faulthandler.dump_traceback()
                os._exit(_EXIT_DEAD)
