"""The file of the trainings, for reports after their end and after a reboot. A damaged one is replaced."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Callable
from pathlib import Path

from gpugauge.base import jsonfile
from gpugauge.base.guard import Loop
from gpugauge.base.logline import Condition, fields
from gpugauge.exposition.trainings import Trainings
from gpugauge.snapshot import Snapshot
from gpugauge.web.server import Reply, Request, Route

log = logging.getLogger("gpugauge")

PATH = "/api/v1/trainings"
_PERIOD_SECONDS, _LIVE_SECONDS = 5.0, 300.0  # between two looks, and two writes while trainings run
_STOP_SECONDS = 1.0


class TrainingsFile:
    """Follows the trainings in a thread; without a path nothing is written."""

    def __init__(self, path: Path | None, snapshot: Callable[[], Snapshot | None]) -> None:
        self._path, self._snapshot = path, snapshot
        self._trainings = Trainings(socket.gethostname())
        self._ends, self._saved = 0, time.monotonic()
        self._failure = Condition(log)
        self._loop = Loop(
            "trainings", self._turn, finish=self._save, wait=lambda: self._loop.stopping.wait(_PERIOD_SECONDS)
        )

    def start(self) -> None:
        """Read the file, and start the thread."""
        try:
            self._trainings.load(jsonfile.read_bytes(self._path) if self._path else b"")
        except FileNotFoundError:
            pass
        except (OSError, ValueError) as error:
            sentence = "the file of the trainings cannot be used; it is replaced"
            log.warning(sentence, extra=fields(path=str(self._path), error=str(error)))
        self._loop.start()

    def stop(self) -> None:
        """Write the file once more."""
        self._loop.stopping.set()
        self._loop.join(_STOP_SECONDS)

    def route(self) -> Route:
        """Return the route with what the file would have now."""

        async def answer(_: Request) -> Reply:
            body = await asyncio.to_thread(self._trainings.body, self._snapshot())
            return Reply(200, body, "application/gzip", (("Cache-Control", "no-store"),))

        return Route(answer)

    def _turn(self) -> None:
        self._trainings.feed(self._snapshot())
        late = self._trainings.live and time.monotonic() - self._saved > _LIVE_SECONDS
        if self._trainings.ends != self._ends or late:
            self._save()

    def _save(self) -> None:
        data = self._trainings.body(self._snapshot())
        self._ends, self._saved = self._trainings.ends, time.monotonic()
        if self._path is None or not data:
            return
        try:
            jsonfile.replace_bytes(self._path, data)
        except OSError as error:
            sentence = "the file of the trainings cannot be written: reports after a restart will lack them"
            self._failure.failing(sentence, path=str(self._path), error=error.strerror or str(error))
        else:
            self._failure.recovered("the file of the trainings was written again", path=str(self._path))
