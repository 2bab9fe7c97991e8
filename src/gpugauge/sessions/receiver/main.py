"""The entry point of the receiver: `main(["channel [listening socket]", path, name=value...])`."""

from __future__ import annotations

import _socket
import posix

from gpugauge.sessions.receiver import protocol as p
from gpugauge.sessions.receiver.channel import Channel
from gpugauge.sessions.receiver.loop import Receiver
from gpugauge.sessions.receiver.socketfile import SocketFile


def main(arguments: list[str]) -> None:
    """Run until the daemon closes its end of the channel. Never returns."""
    descriptor, *inherited = map(int, arguments[0].split())
    sock = _socket.socket(fileno=descriptor)
    channel = Channel(sock)
    status = 1
    try:
        options = p.Options.of(arguments[2:])
        opened = SocketFile(arguments[1], int(options.mode), int(options.backlog), *inherited)
        receiver = Receiver(channel, opened, options)
        while channel.running:
            receiver.turn(receiver.wait())
        receiver.shut()
        status = 0
    except Exception as error:  # noqa: BLE001 - the daemon logs it and starts a successor
        text = (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
        sock.settimeout(p.REST_SECONDS)
        try:
            sock.send(p.HEADER.pack(p.FAILED, 0) + text.encode())
        except OSError:
            pass
    finally:
        posix._exit(status)  # noqa: SLF001 - a thread that closes for ever must not delay the end
