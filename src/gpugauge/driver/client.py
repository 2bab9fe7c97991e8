"""The parent's end of one worker process: start it, ask it, end it. It never waits without a bound."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

from gpugauge.driver.api import Reply
from gpugauge.driver.frames import receive_frame, send_frame

# How long a worker may take to end after each of: a polite request (unless told otherwise), SIGTERM, SIGKILL.
_GRACE_SECONDS = 0.3


class WorkerGoneError(Exception):
    """The worker ended or sent something that is no answer; the next one starts afresh."""


class WorkerHangsError(Exception):
    """No answer came before the deadline."""


class Worker:
    """A fresh interpreter that owns the driver. Raises OSError when it cannot be started."""

    def __init__(self) -> None:
        self._channel, theirs = socket.socketpair()
        with theirs:
            fd = theirs.fileno()
            command = [sys.executable, "-m", "gpugauge.driver.worker", "--fd", str(fd)]
            self._process = subprocess.Popen(
                command, pass_fds=[fd], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
            )
        self._next_id = 0
        self._poll = select.poll()
        self._poll.register(self._channel, select.POLLIN)

    @property
    def pid(self) -> int:
        """The worker's process id."""
        return self._process.pid

    def send(self, op: str, **arguments: Any) -> int:
        """Send a request and return its number; answers come in the same order."""
        self._next_id += 1
        # Requests are small, but a stopped worker does not read: the pipe may fill, and sending is bounded too.
        self._channel.settimeout(1.0)
        try:
            send_frame(self._channel, {"id": self._next_id, "op": op, **arguments})
        except TimeoutError as error:
            raise WorkerHangsError("the worker does not read its requests") from error
        except OSError as error:
            raise WorkerGoneError(str(error)) from error
        return self._next_id

    def answered(self, seconds: float) -> bool:
        """Wait so long for an answer, or for the worker's end; tell whether `receive` has something to say at once."""
        return bool(self._poll.poll(max(0.0, seconds) * 1000))

    def receive(self, number: int, deadline: float) -> Reply:
        """Wait at most `deadline` seconds for the answer to request `number`."""
        self._channel.settimeout(deadline)
        try:
            reply = Reply(**receive_frame(self._channel))
        except TimeoutError as error:
            raise WorkerHangsError(f"no answer within {deadline:g} s") from error
        except (OSError, EOFError, ValueError, TypeError) as error:
            raise WorkerGoneError(str(error) or type(error).__name__) from error
        if reply.id != number:
            raise WorkerGoneError(f"answer {reply.id} to request {number}")
        return reply

    def ask(self, op: str, deadline: float, **arguments: Any) -> Reply:
        """Send one request and wait for its answer."""
        return self.receive(self.send(op, **arguments), deadline)

    def interrupt(self) -> None:
        """Make a `receive` that is under way in another thread fail at once."""
        with contextlib.suppress(OSError):
            self._channel.shutdown(socket.SHUT_RDWR)

    def end(self, *, polite: bool = True, patience: float = _GRACE_SECONDS) -> bool:
        """End the process, politely first, which may take `patience` seconds: a killed owner of the driver once froze
        a MIG card (dcgm-exporter#84). Returns False when even SIGKILL did not end it within the grace time: it hangs
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
        self._channel.close()
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
