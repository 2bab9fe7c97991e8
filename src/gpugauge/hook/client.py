"""The connection to the daemon. It never waits, and it is opened again after a restart of the daemon."""

from __future__ import annotations

import _thread
import contextlib
import os
import signal
import socket
from collections.abc import Callable, Sequence

from gpugauge.hook.clock import NS_PER_SECOND

# A connection that lasted this long was accepted: when it breaks, the daemon has ended, and every publication tries to
# connect (a failing connect costs 10 µs). A connection that breaks sooner was rejected: the pauses grow.
_ACCEPTED_AFTER_NS = 10 * NS_PER_SECOND
_RETRY_PAUSE_MAX_NS = 30 * NS_PER_SECOND

# The queue of messages for a daemon that does not read; Linux grants twice as many bytes. The default of some machines
# is megabytes, and messages that wait so long are out of date when they are read.
SEND_BUFFER_BYTES = 106_496


class Client:
    """One seqpacket connection. Times are perf_counter_ns; no method waits, and none raises OSError."""

    def __init__(self, paths: Sequence[str]) -> None:
        self._paths = paths
        self._socket: socket.socket | None = None
        self._inode = 0
        self._opened = 0
        self._listener = 0  # the process with a thread that listens on the connection
        self._pause = NS_PER_SECOND
        self._not_before = 0

    @property
    def connected(self) -> bool:
        """Whether there was a connection at the last message."""
        return self._socket is not None

    def connect(self, now: int, hello: Callable[[], tuple[bytes, int | None]]) -> bool:
        """Return whether there is a connection; try to open one, with the datagram and descriptor of `hello`."""
        if self._socket is not None:
            return True
        if now < self._not_before:
            return False
        for path in self._paths:
            candidate = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
            try:
                candidate.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
                candidate.connect(path)
                data, descriptor = hello()
                try:
                    socket.send_fds(candidate, [data], [] if descriptor is None else [descriptor], socket.MSG_NOSIGNAL)
                except PermissionError:  # a daemon that accepts no descriptors (Linux 6.16)
                    candidate.send(data, socket.MSG_NOSIGNAL)
            except Exception as error:
                candidate.close()
                if isinstance(error, OSError):
                    continue
                raise
            candidate.setblocking(True)
            self._socket, self._listener = candidate, 0
            self._inode = os.fstat(candidate.fileno()).st_ino
            self._opened = now
            return True
        return False

    def send(self, now: int, data: bytes) -> bool:
        """Send one datagram; return False if the connection has broken. A full queue drops the message."""
        own = self._own()
        if own is None:
            return False
        try:
            own.send(data, socket.MSG_NOSIGNAL | socket.MSG_DONTWAIT)
        except BlockingIOError:
            pass  # counts are cumulative: the next message has them all
        except OSError:
            self.close()
            if now - self._opened >= _ACCEPTED_AFTER_NS:
                self._pause = NS_PER_SECOND
            else:
                self._not_before = now + self._pause
                self._pause = min(2 * self._pause, _RETRY_PAUSE_MAX_NS)
            return False
        return True

    def close(self) -> None:
        """Close the connection. In a forked child the connection of the parent stays open."""
        if (own := self._own()) is not None:
            if self._listener == os.getpid():
                with contextlib.suppress(OSError):
                    own.shutdown(socket.SHUT_RDWR)  # a thread that listens would keep it open
            own.close()
            self._socket = None

    def listen(self, answer: Callable[[], bytes]) -> bool:
        """Return whether a thread sends the `answer` to each question that arrives; start it, once for a connection."""
        if self._listener != os.getpid() and (own := self._own()) is not None:
            with contextlib.suppress(RuntimeError):  # the limit of threads is reached
                # Not of the module threading: the program does not see it, and does not wait for it.
                _thread.start_new_thread(_serve, (own, self._inode, answer))
                self._listener = os.getpid()
        return self._listener == os.getpid()

    def leave(self) -> None:
        """Leave the connection open until the process ends."""
        if (own := self._own()) is not None:
            own.detach()
            self._socket = None

    def _own(self) -> socket.socket | None:
        """Return the socket; None if the program has closed its descriptor, whose number is then used again."""
        own = self._socket
        if own is None:
            return None
        with contextlib.suppress(OSError):
            if os.fstat(own.fileno()).st_ino == self._inode:
                return own
        own.detach()
        self._socket = None
        return None


def _serve(own: socket.socket, inode: int, answer: Callable[[], bytes]) -> None:
    """Answer each question until the connection ends, or the program has closed its descriptor."""
    try:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # they are for the program's threads
        while own.recv(16) and os.fstat(own.fileno()).st_ino == inode:
            own.send(answer(), socket.MSG_NOSIGNAL | socket.MSG_DONTWAIT)
    except Exception:
        pass
