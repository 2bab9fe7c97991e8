"""The hook's listening socket and its path."""

from __future__ import annotations

import _socket
import posix

from gpugauge.sessions.receiver.peer import CREDENTIALS

_SO_PASSRIGHTS = 83  # Linux 6.16
_CREDENTIALS_BYTES = _socket.CMSG_SPACE(CREDENTIALS.size)


def collects_in_close(release: str) -> bool:
    """Return whether the close of any Unix socket also closes what is in queues that nobody can read any more: before
    Linux 6.9 the kernel collects this garbage, of any user, in the thread that closes.
    """
    parts = release.partition("-")[0].split(".")
    return [int("0" + "".join(filter(str.isdigit, part))) for part in parts] < [6, 9]


COLLECTS_IN_CLOSE = collects_in_close(posix.uname().release)


class SocketFile:
    """A listening socket: opened at `path`, or inherited from the service manager, whose path is left alone."""

    def __init__(self, path: str, mode: int, backlog: int, inherited: int | None = None) -> None:
        self._path, self._mode, self._backlog = path, mode, backlog
        self.owned = inherited is None  # ours to open again and to remove
        self._inode: tuple[int, int] | None = None
        self.socket = self.open() if inherited is None else _socket.socket(fileno=inherited)
        self.socket.setblocking(False)
        self._missing = False
        self.pass_descriptors(allowed=True)  # an inherited socket has the value that was set last

    def open(self) -> _socket.socket:
        """Return a new listening socket, in the place of what is at the path. Raises OSError."""
        folder, _, name = self._path.rpartition("/")
        posix.chdir(folder or "/")  # the path of a socket has at most 107 bytes, so the temporary name is relative
        temporary = f".{posix.getpid()}"
        made = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET | _socket.SOCK_CLOEXEC)
        try:
            made.bind(temporary)
            posix.chmod(temporary, self._mode)
            made.listen(self._backlog)
            made.setblocking(False)
            found = posix.stat(temporary)
            posix.rename(temporary, name)
        except OSError:
            made.close()
            try:
                posix.unlink(temporary)
            except OSError:
                pass
            raise
        self._inode = (found.st_dev, found.st_ino)
        self.socket = made
        return made

    def missing(self) -> str:
        """Return the reason if the path is gone, once for each time; "" otherwise."""
        try:
            posix.stat(self._path)
        except FileNotFoundError:
            before, self._missing = self._missing, True
            if self.owned:
                return "the hook's socket was removed"
            again = "the hook's socket was removed: restart the socket unit, because new trainings cannot report"
            return "" if before else again
        except OSError:
            return ""
        self._missing = False
        return ""

    def pass_descriptors(self, *, allowed: bool) -> bool:
        """Allow or refuse descriptors on connections that are opened from now on; return whether the kernel can."""
        try:
            self.socket.setsockopt(_socket.SOL_SOCKET, _SO_PASSRIGHTS, int(allowed))
        except OSError:
            return False
        return True

    def shut(self) -> None:
        """Remove the path unless another daemon has taken it."""
        if not self.owned:
            return
        try:
            found = posix.stat(self._path)
            if (found.st_dev, found.st_ino) == self._inode:
                posix.unlink(self._path)
        except OSError:
            pass


def close_may_block(sock: _socket.socket) -> bool:
    """Return whether descriptors that others have sent may be closed with a connection that was shut."""
    try:  # it keeps what was allowed when it was opened
        if not sock.getsockopt(_socket.SOL_SOCKET, _SO_PASSRIGHTS):
            return False
    except OSError:
        pass
    return COLLECTS_IN_CLOSE or holds_messages(sock)


def holds_messages(sock: _socket.socket) -> bool:
    """Return whether messages are queued in a connection that was shut, so that none can come after this."""
    try:
        # With this option each message has credentials, also an empty one, and the end has none.
        sock.setsockopt(_socket.SOL_SOCKET, _socket.SO_PASSCRED, True)
        data, ancillary, flags, _ = sock.recvmsg(
            1, _CREDENTIALS_BYTES, _socket.MSG_PEEK | _socket.MSG_DONTWAIT | _socket.MSG_CMSG_CLOEXEC
        )
    except OSError:
        return True
    return bool(data or ancillary or flags & _socket.MSG_CTRUNC)


def shut(sock: _socket.socket) -> None:
    """End a connection, without closing it."""
    try:
        sock.shutdown(_socket.SHUT_RDWR)
    except OSError:
        pass
