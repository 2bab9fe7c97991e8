"""Serves the played fleet: `/node/N/metrics` for all nodes, from one thread of one process.

The rules look back for up to an hour. A fleet that has just begun would make them cheap, so the first scrapes of a node
tell its past, with timestamps, and only of what a rule looks back for; after them a scrape tells what is now.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Mapping

from tornado.httpserver import HTTPServer
from tornado.netutil import bind_sockets
from tornado.web import Application, RequestHandler

from bench.fleet_nodes import Job, identified, jobs
from bench.fleet_pages import Template

# Seconds before the start from which each of the first scrapes tells; the last of them goes to the present.
PAST = (3600.0, 900.0, 450.0)
_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Fleet:
    """All nodes: what they serve now."""

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
        self._told = [0] * nodes  # scrapes of each node
        self._until = [0.0] * nodes

    @property
    def alive(self) -> int:
        """How many nodes have told their past."""
        return sum(told > len(PAST) for told in self._told)

    def job(self, node: int, now: float) -> Job:
        """Return what runs on the node."""
        return next(job for job in self.jobs[node] if job.end > now)

    def page(self, node: int) -> bytes:
        """Return the answer to the next scrape."""
        told, now = self._told[node], time.time()
        self._told[node] += 1
        if told < len(PAST):
            begin = self._until[node] or self.began - PAST[0]
            end = self.began - PAST[told + 1] if told + 1 < len(PAST) else now - self._interval / 2
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


class _Page(RequestHandler):
    def initialize(self, fleet: Fleet) -> None:
        self.fleet = fleet

    def get(self, node: str) -> None:
        self.set_header("Content-Type", _TYPE)
        self.finish(self.fleet.page(int(node)))

    def compute_etag(self) -> None:
        return None


def serve(fleet: Fleet) -> int:
    """Serve from a thread that ends with the program; returns the port."""
    (socket,) = bind_sockets(0, "127.0.0.1")

    async def forever() -> None:
        server = HTTPServer(Application([(r"/node/(\d+)/metrics", _Page, {"fleet": fleet})], log_function=_quiet))
        server.add_sockets([socket])
        await asyncio.Event().wait()

    threading.Thread(target=lambda: asyncio.run(forever()), daemon=True).start()
    port: int = socket.getsockname()[1]
    return port


def _quiet(_: RequestHandler) -> None:
    """Log no requests."""
