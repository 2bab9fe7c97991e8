"""Reload of the settings while the daemon runs, in its own thread. After an error the old settings stay in use."""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from queue import SimpleQueue

from gpugauge.base.guard import Loop
from gpugauge.base.logline import fields
from gpugauge.daemon import logs
from gpugauge.settings.kinds import ConfigError
from gpugauge.settings.model import Settings
from gpugauge.settings.options import walk
from gpugauge.snapshot import LastReload

log = logging.getLogger("gpugauge")

# Prefixes of the keys that a reload applies (Parts.configure). All other settings need a restart.
LIVE = (
    *("log.", "metrics.", "collector.", "sampling.", "verdict.", "faults.", "process.", "hook.linger_seconds"),
    "hook.last_scrape_seconds",
    *("driver.devices", "driver.deadline_seconds", "driver.worker_", "driver.lost_exit_seconds", "driver.forget_"),
    "web.enable_lifecycle",
)


class Reloader:
    """Queue of reload requests, also from signal handlers; a burst is handled by one or two reloads."""

    def __init__(self, started_with: Settings, load: Callable[[], Settings]) -> None:
        self._started_with, self._used, self._load = started_with, started_with, load
        self._requests: SimpleQueue[Future[str] | None] = SimpleQueue()  # its put() is reentrant, for signal handlers
        self.last = LastReload(True, time.time())

    def start(self, apply: Callable[[Settings], None]) -> None:
        """Start the thread. `apply` applies new settings, or raises ConfigError."""
        self._loop = Loop("reload", functools.partial(self._turn, apply))
        self._loop.start()

    def stop(self) -> None:
        """End the thread after the pending requests; does not wait for it."""
        self._requests.put(None)

    def request(self) -> Future[str]:
        """Request a reload. The future returns one sentence with the changed keys, or raises ConfigError."""
        future: Future[str] = Future()
        future.set_running_or_notify_cancel()  # a caller that stops waiting must not cancel the reload
        self._requests.put(future)
        return future

    def _turn(self, apply: Callable[[Settings], None]) -> None:
        requests = [self._requests.get()]
        # One reload for all requests that came before it begins.
        while not self._requests.empty():
            requests.append(self._requests.get())
        if None in requests:
            self._loop.stopping.set()
        if futures := [future for future in requests if future]:
            self._handle(futures, apply)

    def _handle(self, futures: Sequence[Future[str]], apply: Callable[[Settings], None]) -> None:
        try:
            result = self._reload(apply)
        except Exception as error:
            if isinstance(error, ConfigError):
                log.error("reload failed, settings unchanged: %s", error)
            else:
                log.exception("reload failed")
            self.last = self.last._replace(successful=False)
            for future in futures:
                future.set_exception(error)
        else:
            for future in futures:
                future.set_result(result)

    def _reload(self, apply: Callable[[Settings], None]) -> str:
        settings = self._load()
        apply(settings)
        logs.setup(settings.log.level, settings.log.format)
        changed = [key for key in different(self._used, settings) if is_live(key)]
        waiting = [key for key in different(self._started_with, settings) if not is_live(key)]
        self._used, self.last = settings, LastReload(True, time.time())
        report = {"changed": ", ".join(changed) or "nothing"}
        if waiting:
            report["needs_restart"] = ", ".join(waiting)
        log.info("settings reloaded", extra=fields(**report))
        restart = f"; needs a restart: {report['needs_restart']}" if waiting else ""
        return f"settings reloaded; changed: {report['changed']}{restart}"


def is_live(key: str) -> bool:
    """Return whether a reload applies the setting."""
    return key.startswith(LIVE)


def different(before: Settings, after: Settings) -> Iterator[str]:
    """Yield the keys of the settings whose values differ."""
    for setting in walk():
        path = setting.key.split(".")
        if functools.reduce(getattr, path, before) != functools.reduce(getattr, path, after):
            yield setting.key
