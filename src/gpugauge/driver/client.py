"""The daemon's end of one worker process: it starts the process, sends requests and ends it. Every wait is bounded."""

from __future__ import annotations

import contextlib
import mmap
import os
import select
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterable, Sequence
from io import FileIO
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from gpugauge.base import isolated, privileges
from gpugauge.driver.frames import PULSE_BYTES, Inbox, frame, reply

if TYPE_CHECKING:  # loaded while the first worker starts
    from gpugauge.driver.api import Group, Reply

# The time that a worker gets to end after a close request (by default), after SIGTERM and after SIGKILL.
GRACE_SECONDS = 0.3
# The replies of all GPUs are awaited together for this long, then one by one: a GPU hangs or is slow.
_BATCH_SECONDS = 0.1
# The longest time for a reply, however many calls it takes: the other GPUs wait for it.
_MAX_REPLY_SECONDS = 30.0
# The time that a worker gets to read a request when its socket is full.
_WRITE_SECONDS = 1.0


class WorkerGoneError(Exception):
    """The worker ended, or sent something that is not a reply."""


class WorkerHangsError(Exception):
    """No reply came before the deadline."""


class Worker:
    """An isolated process that runs `main()` of `module` and owns the driver. Raises OSError if it cannot start."""

    _opening = 0  # the id of the request to open the driver
    _called: Sequence[float] = (0.0,)  # the time at which its last call of the library ended, in monotonic seconds

    def __init__(self, module: str) -> None:
        self._channel, theirs = socket.socketpair()
        self._channel.setblocking(False)
        self._bell = FileIO(os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC))
        try:
            with theirs, FileIO(os.memfd_create("pulse"), "r+") as pulse:
                pulse.truncate(PULSE_BYTES)
                self._called = memoryview(mmap.mmap(pulse.fileno(), PULSE_BYTES)).cast("d")
                fds = [theirs.fileno(), self._bell.fileno(), pulse.fileno()]
                self._process = subprocess.Popen(
                    isolated.command(module, "--fd", str(fds[0]), "--bell", str(fds[1]), "--pulse", str(fds[2])),
                    pass_fds=fds,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    cwd=isolated.FOLDER,
                    env=isolated.environment(dict(os.environ)),
                )
        except OSError:
            self._close()
            raise
        self._next_id = 0
        self._inbox = Inbox(self._channel)
        self._readable, self._bell_rung, self._writable = select.poll(), select.poll(), select.poll()
        self._readable.register(self._channel, select.POLLIN)
        self._writable.register(self._channel, select.POLLOUT)
        self._bell_rung.register(self._bell, select.POLLIN)
        self._bell_rung.register(self._channel, 0)  # the end of the channel is always reported

    @property
    def pid(self) -> int:
        """The process id of the worker."""
        return self._process.pid

    def send(self, op: str, **arguments: Any) -> int:
        """Send a request and return its id. Replies come in the order of the requests."""
        self._next_id += 1
        self._write(frame({"id": self._next_id, "op": op, **arguments}))
        return self._next_id

    def open(self, **options: Any) -> int:
        """Request the driver to be opened with options of the backend, unless that was done; return the reply's id."""
        self._opening = self._opening or self.send("open", **options)
        return self._opening

    def read(self, devices: Iterable[tuple[int, list[Group]]]) -> list[int]:
        """Request groups of readings of GPUs by index; return the ids of the replies, in the same order."""
        first, frames = self._next_id + 1, b""
        for groups, run in groupby(devices, itemgetter(1)):
            indexes = [index for index, _ in run]
            frames += frame({"id": self._next_id + 1, "op": "read", "indexes": indexes, "groups": groups})
            self._next_id += len(indexes)
        self._write(frames)
        return list(range(first, self._next_id + 1))

    def wait_for_reply(self, seconds: float) -> bool:
        """Wait at most `seconds` for a reply or for the end of the worker; return whether `receive` does not block."""
        if self._inbox.ready():
            return True
        # What one `recv` has not returned is there, and no ring comes for it.
        together = 0.0 if self._readable.poll(0) else min(max(0.0, seconds), _BATCH_SECONDS)
        if self._bell_rung.poll(together * 1000):
            self._bell.read(8)  # possibly an earlier ring, for replies that were received one by one
        if not self._readable.poll(max(0.0, seconds - together) * 1000):
            if not self.reaped():
                return False
            self.interrupt()  # a process that the library has started still has the other end
        return True

    def receive(self, number: int, deadline: float) -> Reply:
        """Wait at most `deadline` seconds for a reply by its id. Raises WorkerGoneError or WorkerHangsError."""
        end = time.monotonic() + deadline
        try:
            while (message := self._inbox.take()) is None:
                with contextlib.suppress(BlockingIOError):
                    self._inbox.fill()
                    continue
                if not self.wait_for_reply(end - time.monotonic()):
                    raise WorkerHangsError(f"no reply within {deadline:g} s")
            answer = reply(message)
        except (OSError, EOFError, ValueError, TypeError) as error:
            raise WorkerGoneError(str(error) or type(error).__name__) from error
        if answer.id != number:
            raise WorkerGoneError(f"reply {answer.id} to request {number}")
        return answer

    def time_left(self, begin: float, deadline: float) -> float:
        """Return the seconds until a reply awaited since `begin` is late: each call may take `deadline` seconds."""
        end = min(max(begin, self._called[0]) + deadline, begin + max(deadline, _MAX_REPLY_SECONDS))
        return end - time.monotonic()

    def ask(self, op: str, deadline: float, **arguments: Any) -> Reply:
        """Send one request and return its reply. Raises WorkerGoneError or WorkerHangsError."""
        return self.receive(self.send(op, **arguments), deadline)

    def interrupt(self) -> None:
        """Make a `receive` in another thread fail at once."""
        with contextlib.suppress(OSError):
            self._channel.shutdown(socket.SHUT_RDWR)

    def end(self, *, graceful: bool = True, grace_seconds: float = GRACE_SECONDS) -> bool:
        """End the process, with `graceful` by a request (dcgm-exporter#84); return False if it hangs in the kernel."""
        if graceful:
            with contextlib.suppress(WorkerGoneError, WorkerHangsError):
                self.send("close")
        self.interrupt()
        for number in (None, signal.SIGTERM, signal.SIGKILL)[0 if graceful else 1 :]:
            if number is not None:
                self._process.send_signal(number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(grace_seconds if number is None else GRACE_SECONDS)
                break
        self._close()
        return self.reaped()

    def kill(self) -> None:
        """Send SIGKILL, so that an `end` in another thread returns at once."""
        self._process.kill()

    def reaped(self) -> bool:
        """Return whether the process has ended; collects its exit status."""
        return self._process.poll() is not None

    def was_killed(self) -> bool:
        """Return whether a signal from outside ended the process: no call of its own was the reason."""
        return self._process.poll() in {-signal.SIGKILL, -signal.SIGTERM, -signal.SIGINT, -signal.SIGHUP}

    def resident_bytes(self) -> int | None:
        """Return the resident memory of the process in bytes; None once it has ended."""
        try:
            pages = Path(f"/proc/{self.pid}/statm").read_text(encoding="ascii").split()[1]
        except (OSError, IndexError):
            return None
        return int(pages) * os.sysconf("SC_PAGE_SIZE")

    def capabilities(self) -> int:
        """Return the capabilities that the process has kept, as bits."""
        return privileges.permitted(self.pid)

    def ending(self) -> str:
        """Return a phrase for the log: how the process ended."""
        code = self._process.poll()
        if code is None:
            return "does not end"
        return f"was ended by signal {-code}" if code < 0 else f"exited with status {code}"

    def _write(self, frames: bytes) -> None:
        """Send within a bound: a stopped worker does not read, and the socket buffer may fill."""
        try:
            while frames:
                with contextlib.suppress(BlockingIOError):
                    frames = frames[self._channel.send(frames) :]
                if frames and not self._writable.poll(1000 * _WRITE_SECONDS):
                    raise WorkerHangsError("the worker does not read its requests")
        except OSError as error:
            raise WorkerGoneError(str(error)) from error

    def _close(self) -> None:
        self._channel.close()
        self._bell.close()


Spawn: TypeAlias = Callable[[str], Worker]
"""Starts a worker, by its module. Raises OSError."""


def ahead(module: str, **options: Any) -> Spawn:
    """Start a worker that opens the driver. The function that is returned returns it once, and then starts others; it
    may raise OSError.
    """
    started: list[Worker] = []
    with contextlib.suppress(OSError, WorkerGoneError, WorkerHangsError):  # the function tries again, or its caller
        started.append(Worker(module))
        started[0].open(**options)
    return lambda module: started.pop() if started else Worker(module)
