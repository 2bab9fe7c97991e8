"""The receiver's end of the socket to the daemon. Sending never blocks."""

from __future__ import annotations

import _socket
import errno
import posix
import select
import struct

from gpugauge.sessions.receiver import protocol as p


class Channel:
    """Datagrams to and from the daemon. `running` is false once the daemon has closed its end."""

    def __init__(self, sock: _socket.socket) -> None:
        self._sock = sock
        sock.setblocking(False)
        self._outbox: list[tuple[bytes, list[int]]] = []
        self._poll = select.poll()
        self.descriptor = sock.fileno()
        self.running = True

    @property
    def full(self) -> int:
        """How many datagrams the daemon has not yet taken. Messages then stay in the sockets of the hooks."""
        return len(self._outbox)

    def send(self, kind: int, number: int = 0, body: bytes = b"", descriptors: list[int] | None = None) -> None:
        """Send a datagram now or later, and close the descriptors afterwards: a sealed memfd or a process only."""
        self._outbox.append((p.HEADER.pack(kind, number) + body, descriptors or []))
        if len(self._outbox) == 1:
            self._flush()

    def wait(self, seconds: float) -> None:
        """Wait at most `seconds` for room, and send what there is room for."""
        self._poll.register(self.descriptor, select.POLLOUT)
        self._poll.poll(seconds * 1000)
        self._flush()

    def command(self) -> tuple[int, int, bytes] | None:
        """Return kind, number of the connection, and body of the next command; None if none has arrived."""
        try:
            data = self._sock.recv(p.MAX_DATAGRAM_BYTES)
        except BlockingIOError:
            return None
        except OSError:
            data = b""
        if not data:
            self.running = False
            return None
        return (*p.HEADER.unpack_from(data), data[p.HEADER.size :])

    def _flush(self) -> None:
        sent = 0
        for data, descriptors in self._outbox:
            rights = [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, struct.pack(f"{len(descriptors)}i", *descriptors))]
            try:
                self._sock.sendmsg([data], rights if descriptors else [], _socket.MSG_NOSIGNAL)
            except BlockingIOError:
                break
            except OSError as error:
                if error.errno != errno.ETOOMANYREFS:
                    self.running = False
                    break
                while descriptors:  # the session has no record
                    posix.close(descriptors.pop())
                break
            for descriptor in descriptors:
                posix.close(descriptor)
            sent += 1
        del self._outbox[:sent]
