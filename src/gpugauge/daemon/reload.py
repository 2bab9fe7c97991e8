"""New settings for a daemon that runs: read again on request, in a thread of its own; a bad file changes nothing."""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from queue import SimpleQueue
from typing import NamedTuple

from gpugauge.daemon import logs
from gpugauge.daemon.selection import SelectionError
from gpugauge.logline import fields
from gpugauge.settings.kinds import ConfigError
from gpugauge.settings.model import Settings
from gpugauge.settings.options import walk

log = logging.getLogger("gpugauge")

# The settings that a reload changes, by the beginning of their keys (Parts.configure); all others need a restart.
LIVE = (
    *("log.", "metrics.", "collector.", "sampling.", "verdict.", "process.", "hook.linger_seconds"),
    *("driver.devices", "driver.deadline_seconds", "driver.worker_", "driver.lost_exit_seconds"),
    "web.enable_lifecycle",
)


class LastReload(NamedTuple):
    """How the last reading of the settings went, and the Unix time of the last good one."""

    successful: bool
    timestamp: float


class Reloader:
    """Takes requests at any time, from a signal handler too; works on them once started. `load` raises ConfigError."""

    def __init__(self, started_with: Settings, load: Callable[[], Settings]) -> None:
        self._started_with, self._used, self._load = started_with, started_with, load
        self._requests: SimpleQueue[Future[str] | None] = SimpleQueue()  # its put() may be interrupted by itself
        self.last = LastReload(True, time.time())

    def start(self, apply: Callable[[Settings], None]) -> None:
        """Begin; `apply` puts new settings into use and raises SelectionError if they cannot be."""
        threading.Thread(target=self._run, args=(apply,), name="reload", daemon=True).start()

    def stop(self) -> None:
        """Take no more requests; does not wait."""
        self._requests.put(None)

    def request(self) -> Future[str]:
        """Ask for a reload; the future tells what changed, in a sentence, or raises ConfigError or SelectionError."""
        future: Future[str] = Future()
        future.set_running_or_notify_cancel()  # whoever stops waiting for it must not disturb it
        self._requests.put(future)
        return future

    def _run(self, apply: Callable[[Settings], None]) -> None:
        while (future := self._requests.get()) is not None:
            self._answer(future, apply)

    def _answer(self, future: Future[str], apply: Callable[[Settings], None]) -> None:
        try:
            future.set_result(self._reload(apply))
        except (ConfigError, SelectionError) as error:
            self.last = self.last._replace(successful=False)
            log.error("the settings stay as they were: %s", error)
            future.set_exception(error)
        except Exception as error:
            self.last = self.last._replace(successful=False)
            log.exception("the settings could not be read again")
            future.set_exception(error)

    def _reload(self, apply: Callable[[Settings], None]) -> str:
        settings = self._load()
        apply(settings)
        logs.setup(settings.log.level, settings.log.format)
        changed = [key for key in different(self._used, settings) if is_live(key)]
        waiting = [key for key in different(self._started_with, settings) if not is_live(key)]
        self._used, self.last = settings, LastReload(True, time.time())
        told = {"changed": ", ".join(changed) or "nothing"}
        if waiting:
            told["needs_restart"] = ", ".join(waiting)
        log.info("the settings were read again", extra=fields(**told))
        restart = f"; needs a restart: {told['needs_restart']}" if waiting else ""
        return f"the settings were read again; changed: {told['changed']}{restart}"


def is_live(key: str) -> bool:
    """Whether a reload puts the setting into use."""
    return key.startswith(LIVE)


def different(before: Settings, after: Settings) -> Iterator[str]:
    """Yield the keys of the settings that differ."""
    for setting in walk():
        path = setting.key.split(".")
        if functools.reduce(getattr, path, before) != functools.reduce(getattr, path, after):
            yield setting.key
