"""The server of the simulated fleet: `/node/N/metrics` for all nodes, from one thread of one process.

The rules look back for up to an hour, and would cost too little on a fleet without a past. So the first scrapes of a
node return its past hour, with timestamps, for the metrics that a rule looks back on; later ones return the present.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Mapping

from tornado.httpserver import HTTPServer
from tornado.netutil import bind_sockets
from tornado.web import Application, RequestHandler

from qa.bench.fleet_bodies import Template
from qa.bench.fleet_nodes import Job, identified, jobs

# Seconds before the start at which the past in each of the first scrapes begins; the last one reaches the present.
PAST = (3600.0, 900.0, 450.0)
_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Fleet:
    """The present metrics of all nodes."""

    def __init__(
        self, templates: Mapping[str, Template], nodes: int, interval: float, windows: Mapping[str, float]
    ) -> None:
        self.began = time.time()
        self.jobs = jobs(nodes, self.began - PAST[0], self.began + 3600)
        self._templates, self._interval = templates, interval
        spans = sorted({w for w in windows.values() if w <= PAST[0]} | {PAST[0]})
        self._parts = {
            span: {name: made.only(windows, span) for name, made in templates.items()} for span in spans if span
        }
        self._kept: dict[int, tuple[Job, bytes]] = {}
        self._scrapes = [0] * nodes  # by node
        self._until = [0.0] * nodes

    @property
    def alive(self) -> int:
        """The number of nodes that have served their past."""
        return sum(scrapes > len(PAST) for scrapes in self._scrapes)

    def job(self, node: int, now: float) -> Job:
        """Return the job on the node."""
        return next(job for job in self.jobs[node] if job.end > now)

    def body(self, node: int) -> bytes:
        """Return the body of the next scrape."""
        scrapes, now = self._scrapes[node], time.time()
        self._scrapes[node] += 1
        if scrapes < len(PAST):
            begin = self._until[node] or self.began - PAST[0]
            end = self.began - PAST[scrapes + 1] if scrapes + 1 < len(PAST) else now - self._interval / 2
            self._until[node] = end
            return self._past(node, begin, end)
        job = self.job(node, now)
        template = self._templates[job.template(node)]
        if self._kept.get(node, (None,))[0] is not job:
            self._kept[node] = (job, identified(template.text, node, job))
        return self._kept[node][1] % tuple(template.values(now, job.start))

    def _past(self, node: int, begin: float, end: float) -> bytes:
        made: list[bytes] = []
        texts: dict[tuple[str, float], bytes] = {}
        at = begin
        while at < end:
            job = self.job(node, at)
            span = next(span for span in self._parts if span >= min(self.began - at, PAST[0]))
            template = self._parts[span][job.template(node)]
            text = texts.get((job.name, span)) or identified(template.text, node, job)
            texts[job.name, span] = text
            stamp = b" %d" % (1000 * at)
            made.append(text % tuple(value + stamp for value in template.values(at, job.start)))
            at += self._interval
        return b"".join(made)


class _Handler(RequestHandler):
    def initialize(self, fleet: Fleet) -> None:
        self.fleet = fleet

    def get(self, node: str) -> None:
        self.set_header("Content-Type", _TYPE)
        self.finish(self.fleet.body(int(node)))

    def compute_etag(self) -> None:
        return None


def serve(fleet: Fleet) -> int:
    """Serve from a daemon thread, and return the port."""
    (socket,) = bind_sockets(0, "127.0.0.1")

    async def forever() -> None:
        server = HTTPServer(Application([(r"/node/(\d+)/metrics", _Handler, {"fleet": fleet})], log_function=_quiet))
        server.add_sockets([socket])
        await asyncio.Event().wait()

    threading.Thread(target=lambda: asyncio.run(forever()), daemon=True).start()
    port: int = socket.getsockname()[1]
    return port


def _quiet(_: RequestHandler) -> None:
    """Log no requests."""
