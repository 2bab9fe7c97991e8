"""The parent's end of one worker process: start it, ask it, end it. It never waits without a bound."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable
from io import FileIO
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

from gpugauge.driver.api import Group, Reply
from gpugauge.driver.frames import Inbox, frame
from gpugauge.driver.messages import reply

# How long a worker may take to end after each of: a polite request (unless told otherwise), SIGTERM, SIGKILL.
_GRACE_SECONDS = 0.3
# How long the answers of many GPUs have to come together; then they are taken one by one: a GPU hangs, or is slow.
_TOGETHER_SECONDS = 0.1


class WorkerGoneError(Exception):
    """The worker ended or sent something that is no answer; the next one starts afresh."""


class WorkerHangsError(Exception):
    """No answer came before the deadline."""


class Worker:
    """A fresh interpreter that owns the driver and runs `module`. Raises OSError when it cannot be started."""

    def __init__(self, module: str) -> None:
        self._channel, theirs = socket.socketpair()
        self._channel.setblocking(False)
        self._bell = FileIO(os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC))
        try:
            with theirs:
                fds = [theirs.fileno(), self._bell.fileno()]
                command = [sys.executable, "-m", module, "--fd", str(fds[0]), "--bell", str(fds[1])]
                self._process = subprocess.Popen(
                    command, pass_fds=fds, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
                )
        except OSError:
            self._close()
            raise
        self._next_id = 0
        self._inbox = Inbox(self._channel)
        self._news, self._rung, self._room = select.poll(), select.poll(), select.poll()
        self._news.register(self._channel, select.POLLIN)
        self._room.register(self._channel, select.POLLOUT)
        self._rung.register(self._bell, select.POLLIN)
        self._rung.register(self._channel, 0)  # its end, which needs no asking for

    @property
    def pid(self) -> int:
        """The worker's process id."""
        return self._process.pid

    def send(self, op: str, **arguments: Any) -> int:
        """Send a request and return its number; answers come in the same order."""
        self._next_id += 1
        self._write(frame({"id": self._next_id, "op": op, **arguments}))
        return self._next_id

    def read(self, devices: Iterable[tuple[int, list[Group]]]) -> list[int]:
        """Ask for groups of readings of each GPU, by index; return the numbers of the answers, in this order."""
        first, frames = self._next_id + 1, b""
        for groups, run in groupby(devices, itemgetter(1)):
            indexes = [index for index, _ in run]
            frames += frame({"id": self._next_id + 1, "op": "read", "indexes": indexes, "groups": groups})
            self._next_id += len(indexes)
        self._write(frames)
        return list(range(first, self._next_id + 1))

    def answered(self, seconds: float) -> bool:
        """Wait so long for an answer, or for the worker's end; tell whether `receive` has something to say at once."""
        if self._inbox.ready():
            return True
        together = min(max(0.0, seconds), _TOGETHER_SECONDS)
        if self._rung.poll(together * 1000):
            self._bell.read(8)  # it may be an old one, for answers that were taken one by one
        return bool(self._news.poll(max(0.0, seconds - together) * 1000))

    def receive(self, number: int, deadline: float) -> Reply:
        """Wait at most `deadline` seconds for the answer to request `number`."""
        end = time.monotonic() + deadline
        try:
            while (message := self._inbox.take()) is None:
                if not self._filled() and not self.answered(end - time.monotonic()):
                    raise WorkerHangsError(f"no answer within {deadline:g} s")
            answer = reply(message)
        except (OSError, EOFError, ValueError, TypeError) as error:
            raise WorkerGoneError(str(error) or type(error).__name__) from error
        if answer.id != number:
            raise WorkerGoneError(f"answer {answer.id} to request {number}")
        return answer

    def ask(self, op: str, deadline: float, **arguments: Any) -> Reply:
        """Send one request and wait for its answer."""
        return self.receive(self.send(op, **arguments), deadline)

    def interrupt(self) -> None:
        """Make a `receive` that is under way in another thread fail at once."""
        with contextlib.suppress(OSError):
            self._channel.shutdown(socket.SHUT_RDWR)

    def end(self, *, polite: bool = True, patience: float = _GRACE_SECONDS) -> bool:
        """End the process, politely first, which may take `patience` seconds: a killed owner of the driver once froze
        a MIG GPU (dcgm-exporter#84). Returns False when even SIGKILL did not end it within the grace time: it hangs
        inside the kernel.
        """
        if polite:
            with contextlib.suppress(WorkerGoneError, WorkerHangsError):
                self.send("close")
        self.interrupt()
        for number in (None, signal.SIGTERM, signal.SIGKILL):
            if number is None and not polite:
                continue
            if number is not None:
                self._process.send_signal(number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(patience if number is None else _GRACE_SECONDS)
                break
        self._close()
        return self.reaped()

    def kill(self) -> None:
        """Send SIGKILL, for an `end` under way in another thread that has become too patient."""
        self._process.kill()

    def reaped(self) -> bool:
        """Whether the process has ended; collects its exit status."""
        return self._process.poll() is not None

    def was_killed(self) -> bool:
        """Whether the process was ended by a signal that comes from outside: nothing that it did brought it about."""
        return self._process.poll() in {-signal.SIGKILL, -signal.SIGTERM, -signal.SIGINT, -signal.SIGHUP}

    def resident_bytes(self) -> int | None:
        """Return the process's resident memory; None once it has ended."""
        try:
            pages = Path(f"/proc/{self.pid}/statm").read_text(encoding="ascii").split()[1]
        except (OSError, IndexError):
            return None
        return int(pages) * os.sysconf("SC_PAGE_SIZE")

    def ending(self) -> str:
        """How the process ended, for the log."""
        code = self._process.poll()
        if code is None:
            return "does not end"
        return f"was ended by signal {-code}" if code < 0 else f"exited with status {code}"

    def _filled(self) -> bool:
        """Receive what is there; tell whether there was anything."""
        try:
            self._inbox.fill()
        except BlockingIOError:
            return False
        return True

    def _write(self, frames: bytes) -> None:
        """Send, within a bound: requests are small, but a stopped worker does not read, and the pipe may fill."""
        try:
            while frames:
                with contextlib.suppress(BlockingIOError):
                    frames = frames[self._channel.send(frames) :]
                if frames and not self._room.poll(1000):
                    raise WorkerHangsError("the worker does not read its requests")
        except OSError as error:
            raise WorkerGoneError(str(error)) from error

    def _close(self) -> None:
        self._channel.close()
        self._bell.close()
