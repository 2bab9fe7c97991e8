"""The datagrams between receiver and daemon, and the options of the receiver. Both ends have the same version."""

from __future__ import annotations

import struct

HEADER = struct.Struct("=BI")  # kind, number of the connection (0: none)
PEER = struct.Struct("=iiqdi")  # the fields of peer.Identity, with the uid of its owner
STATE = struct.Struct("=IIId")  # open connections, closes that block, banned owners, seconds of CPU time
REFUSED = struct.Struct("=iI")  # uid, count
MANY_USERS = -1  # in the place of the uid

# From the receiver.
(
    READY,  # the socket is open
    FAILED,  # it cannot be opened, or the receiver ends; text
    ALIVE,  # every second: STATE; first of all after RESTING
    OPENED,  # before the first message of a connection: PEER, cgroup
    MESSAGE,  # the datagram of a hook, with the shared record beside the first one
    ENDED,  # the connection has ended; the reason of a rejection, empty without one; the pidfd of the process
    REJECTED,  # connections closed: REFUSED, reason, a zero byte, detail
    BANNED,  # an owner is banned: uid, cgroup, as BAN has them
    REOPENED,  # the socket's path was removed, and there is a new one; text
    REPLACE,  # the receiver asks for a successor: too many of its closes block
    RESTING,  # nobody is connected: the next report comes after REST_SECONDS, or before anything is done
) = range(1, 12)

# From the daemon.
CLOSE, BAN, ASK = range(64, 67)  # close a connection; ban an owner for the seconds in BAN_BODY; ask a process
BAN_BODY = struct.Struct("=id")  # uid, seconds; the cgroup follows

REST_SECONDS = 5.0
MAX_DATAGRAM_BYTES = 64 * 1024  # more than the longest message of a hook


class Options:
    """The limits. A receiver gets them on its command line, as `name=value`."""

    backlog = 4096  # connections not yet accepted; the kernel's own limit, net.core.somaxconn, is as large
    ban_seconds = 300.0
    burst = 300.0  # messages at once: a hook's queue holds 277 of the smallest (hook/client.py)
    bytes_by_owner = 4e6  # a second, of a user or of a cgroup; twice as many in all
    connections = 2048
    connections_by_cgroup = 1024
    connections_by_user = 1536
    connects = 20.0  # a second by one user, twice as many of one cgroup; at once those that a user may have
    hello_seconds = 10.0  # a connection without a message is closed after this time
    message_bytes = 16 * 1024
    messages_by_owner = 1500.0  # a second, of a user or of a cgroup: as many trainings send one a second
    mode = 0o666
    rate = 10.0  # messages a second of one connection
    record_bytes = 4096

    def __init__(self, **values: float) -> None:
        for name, value in values.items():
            setattr(self, name, type(getattr(self, name))(value))

    def words(self) -> list[str]:
        """Return those that were given as words of a command line."""
        return [f"{name}={value}" for name, value in vars(self).items()]

    @classmethod
    def of(cls, words: list[str]) -> Options:
        """Return the options of the words of a command line."""
        return cls(**{name: float(value) for name, _, value in (word.partition("=") for word in words)})
