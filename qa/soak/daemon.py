"""The daemon of the soak, in virtual time and one thread, from the hook's real socket to the bodies and the page."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import socket
import tempfile
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from tests.collectors.proctree import CUDA, write
from tests.golden_metrics import START, FreeOfCost, rank
from tests.virtual import ACCEPT

from gpugauge import catalog
from gpugauge.base import guard
from gpugauge.catalog import create_collectors
from gpugauge.collectors.base import Sources
from gpugauge.daemon.sampler import Sampler
from gpugauge.daemon.selection import Selection
from gpugauge.exposition.render import Exposition
from gpugauge.sessions import connection as sessions_socket
from gpugauge.sessions import ends
from gpugauge.sessions import listener as sessions
from gpugauge.sessions import store as sessions_store
from gpugauge.sessions.connection import Connection
from gpugauge.sessions.listener import Sessions
from gpugauge.sessions.receiver.protocol import ENDED, MESSAGE
from gpugauge.snapshot import Snapshot
from gpugauge.status.history import History
from gpugauge.status.model import as_json
from gpugauge.status.node import build
from gpugauge.web.page.links import NO_LINKS
from gpugauge.web.page.render import content
from gpugauge.wire import messages as wire
from gpugauge.wire import record as wire_record
from gpugauge.workload.workloads import Workloads
from qa.soak.driver import Driver
from qa.soak.load import BOOTED, STEP, Happening, Job, Load
from qa.soak.watch import BOOT_ID, LINGER, Watch, unix

SEED = 7
MEMORY_TICKS = 6 * 3600 // STEP  # between two measurements of memory and descriptors
PAGE_TICKS = 30  # between two renderings of the page
_UNLIMITED: dict[str, Any] = dict.fromkeys(("connects", "rate", "burst", "messages_by_owner", "bytes_by_owner"), 1e12)


class Clock:
    """Virtual time, in place of the module `time`."""

    def __init__(self) -> None:
        self.now = BOOTED

    def module(self) -> SimpleNamespace:
        return SimpleNamespace(
            time=lambda: unix(self.now),
            monotonic=lambda: self.now,
            monotonic_ns=lambda: round(1e9 * self.now),
            sleep=lambda _: None,
            CLOCK_BOOTTIME=time.CLOCK_BOOTTIME,
            clock_gettime=lambda _: self.now,
        )


class ThreadlessSessions(Sessions):
    """The hook's socket without its thread; serve() does the thread's work. The receiver runs in real time, so its
    rates are not limited.
    """

    sent = handled = 0

    def begin(self) -> None:
        self.start()
        assert self._thread is not None
        self._thread.join()
        self._done, self._thread = self._thread, None

    def end(self) -> None:
        self._thread = self._done
        self.stop()

    def _run(self) -> None:
        """Do nothing, see serve()."""
        assert self._thread is not None
        self._thread.stopping.set()

    def serve(self) -> None:
        """Wait for all messages and ends that were sent."""
        deadline = time.monotonic() + 60
        while self.handled < self.sent:
            assert time.monotonic() < deadline, "the receiver does not pass messages on"
            self._turn(1)
        self._turn(0)

    def _handle(self, kind: int, number: int, body: bytes, descriptors: list[int]) -> None:
        super()._handle(kind, number, body, descriptors)
        self.handled += kind in {MESSAGE, ENDED}

    def _open_session(self, connection: Connection, hello: wire.Hello) -> None:
        """All connections come from this process; the pid is that of the hello."""
        connection.pid, connection.start = hello.pid, None
        super()._open_session(connection, hello)

    def _end(self, connection: Connection, rejected: str, pidfd: int | None) -> None:
        if pidfd is not None:  # of this process
            os.close(pidfd)
        super()._end(connection, rejected, None)


class Soak:
    """The daemon and its load."""

    def __init__(self, folder: Path, stack: ExitStack, ticks: int, seed: int) -> None:
        self.load, self.clock, self.ticks = Load(ticks, seed), Clock(), ticks
        self.watch = Watch(self.load)
        for module in (sessions, sessions_socket, sessions_store):
            stack.enter_context(patch.object(module, "time", self.clock.module()))
        # The kernel does not have these processes.
        stack.enter_context(patch.object(ends, "status_in_proc", lambda *_: None))
        self._proc = folder / "proc"
        (self._proc / "sys/kernel/random").mkdir(parents=True)
        (self._proc / "sys/kernel/random/boot_id").write_text(f"{BOOT_ID}\n")
        (self._proc / "stat").write_text(f"btime {unix(0.0):.0f}\n")
        self._sessions = ThreadlessSessions(str(folder / "hook.sock"), linger_seconds=LINGER, **_UNLIMITED)
        self._sessions.begin()
        stack.callback(self._sessions.end)
        procfs = FreeOfCost(str(self._proc))
        workloads = Workloads(procfs, cgroup_root=folder, clock=lambda: self.clock.now)
        self._driver, self.exposition, self._history = Driver(self.load), Exposition(10 * STEP), History()
        self._news = Happening()
        self._sampler = Sampler(
            create_collectors(Sources(procfs, workloads, self._sessions)),
            lambda: self._driver.answer(self._news),
            self._publish,
            float(STEP),
        )
        self._selection = Selection([row.name for row in catalog.metrics()], (), ())
        self._sockets: dict[int, socket.socket] = {}
        self.bytes = 0
        self._template = rank(0, 0.0)

    def run(self) -> None:
        """Run all ticks, and compare the counters at the end."""
        for tick in range(self.ticks):
            snapshot = self.tick()
            if tick % MEMORY_TICKS == 0:
                self.watch.measure_memory(len(self._sockets))
        self.watch.finish(snapshot)

    def tick(self) -> Snapshot:
        """Advance by a minute, and return the snapshot."""
        self._news = self.load.advance()
        self.clock.now = BOOTED + self.load.tick * STEP
        (self._proc / "uptime").write_text(f"{self.clock.now} 0.0\n")
        for job in self._news.ended:
            self._end(job)
        for job in self._news.begun:
            self._begin(job)
        for job in self.load.jobs.values():
            if job.hooked:
                self._sockets[job.pid].send(self._snap(job))
                self._sessions.sent += 1
        self._sessions.serve()
        snapshot = self._sampler.tick(unix(self.clock.now), self.clock.now)
        self.watch.check(snapshot)
        return snapshot

    def _publish(self, snapshot: Snapshot) -> None:
        self.exposition.publish(self._selection.of(snapshot))
        self._history.feed(snapshot)
        self.bytes += len(self.exposition.respond(ACCEPT, "gzip", self.clock.now).body)
        if self.load.tick % PAGE_TICKS == 0:
            found = build(snapshot, self._history)
            json.dumps(as_json(found))
            content(found, None, NO_LINKS)

    # --- the training processes ---

    def _begin(self, job: Job) -> None:
        write(self._proc, job.pid, start=job.start_ticks, maps=CUDA, command=("python", f"train{job.number}.py"))
        if not job.hooked:
            return
        hook = self._sockets[job.pid] = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        hook.connect(str(self._sessions.path))
        facts = {"command": f"train{job.number}.py", "torch": "2.13.0", "rank": "0", "world_size": "1"}
        hello = wire.Hello(job.session, 1, job.pid, 4026531836, START + job.begin * STEP, facts)
        record = os.memfd_create("record", os.MFD_ALLOW_SEALING)
        os.ftruncate(record, wire_record.RECORD_BYTES)
        memory = bytearray(wire_record.RECORD_BYTES)
        wire_record.write_head(memory)
        words = [2, 2, round(1e9 * self.clock.now), 0, 0, *[0] * len(wire_record.PHASES), 2]
        wire_record.write(memory, words)
        os.pwrite(record, memory, 0)
        fcntl.fcntl(record, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
        socket.send_fds(hook, [wire.encode(hello)], [record])
        self._sessions.sent += 1
        os.close(record)

    def _snap(self, job: Job) -> bytes:
        count = job.steps(self.load.tick)
        template = self._template.snap
        assert template is not None
        log2 = tuple(count if i == 16 else 0 for i in range(wire.LOG2_BUCKETS))
        steps = wire.Progress(count, count * 0.05, unix(self.clock.now), log2)
        devices = tuple(
            replace(template.devices[0], index=i, uuid=self.load.devices[device].uuid)
            for i, device in enumerate(job.devices)
        )
        snap = replace(
            template, session=job.session, sequence=2 + self.load.tick, steps=steps, batches=steps, devices=devices
        )
        return wire.encode(snap)

    def _end(self, job: Job) -> None:
        shutil.rmtree(self._proc / str(job.pid))
        self.watch.ended(job)
        if not job.hooked:
            return
        hook = self._sockets.pop(job.pid)
        hook.send(self._snap(job))
        self._sessions.sent += 2
        if job.reason != "killed":
            hook.send(wire.encode(wire.Bye(job.session, 10**6, job.reason)))
            self._sessions.sent += 1
        hook.close()


def soak(ticks: int, seed: int = SEED) -> Soak:
    """Run the load through the daemon; errors are in the `watch` of the result."""
    with ExitStack() as stack:
        shared = Path("/dev/shm")
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=shared if shared.is_dir() else None)))
        # A tick waits for the work in the background.
        stack.enter_context(patch.object(guard, "START_WAIT_SECONDS", 60.0))
        made = Soak(folder, stack, ticks, seed)
        made.run()
        return made
