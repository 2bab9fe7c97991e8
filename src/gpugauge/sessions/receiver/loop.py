"""The loop of the receiver: it accepts connections, and passes messages on. Nothing that a stranger does blocks it."""

from __future__ import annotations

import _socket
import posix
import resource
import select
import time

from gpugauge.sessions.receiver import protocol as p
from gpugauge.sessions.receiver.channel import Channel
from gpugauge.sessions.receiver.closing import MAX_THREADS, Closer
from gpugauge.sessions.receiver.limits import Bucket, Limits
from gpugauge.sessions.receiver.peer import CgroupUser, Identity, cgroup_at, identify, pidfd, user
from gpugauge.sessions.receiver.rights import ANCILLARY_BYTES, sort
from gpugauge.sessions.receiver.socketfile import SocketFile, close_may_block, shut

_MAX_REPORTED = 64  # users and reasons at once: a range of users would fill the channel


class Refusals:
    """Counts by user, reason and detail. Users beyond a limit are counted together."""

    def __init__(self) -> None:
        self._counts: dict[tuple[int, str, str], int] = {}

    def add(self, uid: int, reason: str, detail: str) -> None:
        """Count a connection."""
        key = uid, reason, detail
        if key not in self._counts and len(self._counts) >= _MAX_REPORTED:
            key = p.MANY_USERS, reason, detail
        self._counts[key] = self._counts.get(key, 0) + 1

    def report(self, channel: Channel) -> None:
        """Send the counts, and begin again with none: also while messages wait, unless the daemon reads nothing."""
        if channel.full >= _MAX_REPORTED:
            return
        counts, self._counts = self._counts, {}
        for (uid, reason, detail), count in counts.items():
            channel.send(p.REJECTED, body=p.REFUSED.pack(uid, count) + reason.encode() + b"\0" + detail.encode())


_BEAT_SECONDS = 1.0
_PAUSE_SECONDS = 0.1  # without credit
_BATCH_SECONDS = 0.02  # between two batches of accepted connections while a user opens too many
_BLOCKED_SECONDS = 1.0  # a close that takes longer bans its owner
_DUE_SECONDS = 4.0  # a connection from which nothing was read for so long is read whatever the others have sent
_FIRST_MESSAGES = 3  # of a connection: they, too, are read whatever the others have sent
_MAX_ADMITTED = 256  # in one turn: the ends of the connections before are read in between
_MAX_UNWANTED = 32  # descriptors that are no record, from one connection
_MAX_WAITING = 64  # closes of one owner: above, its messages stay unread, and new connections pass no descriptors
_SPARE_DESCRIPTORS = 512  # two messages with as many as the kernel allows; a surplus would be closed on receipt
_SELF = CgroupUser(p.MANY_USERS, "")
_TOO_MANY_OF_CGROUP = "the cgroup opens too many connections a second"


class Peer:
    """One accepted connection."""

    __slots__ = ("bucket", "identity", "messages", "number", "opened", "owner", "read_at", "sock", "unwanted")

    def __init__(self, sock: _socket.socket, number: int, identity: Identity, options: p.Options) -> None:
        self.sock, self.number, self.identity, self.owner = sock, number, identity, identity.owner
        self.opened = time.monotonic()
        self.bucket = Bucket(options.rate, options.burst)
        self.messages = self.unwanted = 0
        self.read_at = float("-inf")


class Receiver:
    """The connections of a listening socket."""

    def __init__(self, channel: Channel, socketfile: SocketFile, options: p.Options) -> None:
        self._channel, self._file, self._options = channel, socketfile, options
        self._limits, self._closer, self._refusals = Limits(options), Closer(), Refusals()
        self._peers: dict[int, Peer] = {}  # by descriptor
        self._numbers: dict[int, Peer] = {}
        self._paused: list[Peer] = []
        self._cgroups: dict[int, str] = {}  # by pid, of one turn: who opens too many does so in few processes
        self._last_number = 0
        self._empty_since = time.clock_gettime(time.CLOCK_BOOTTIME)
        self._beat_due = self._resume_due = float("-inf")
        self._crowded = self._passing_off = self._resting = False
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._capacity = limit - _SPARE_DESCRIPTORS
        self._epoll = select.epoll()
        self._epoll.register(channel.descriptor, select.EPOLLIN)
        self._epoll.register(socketfile.socket.fileno(), select.EPOLLIN)
        self._channel.send(p.READY)

    def turn(self, seconds: float) -> None:
        """Serve what is there, or comes within `seconds`."""
        if self._channel.full:
            self._channel.wait(seconds)
        self._poll(seconds)
        now = time.monotonic()
        if self._paused and now >= self._resume_due:
            for peer in self._paused:
                self._epoll.register(peer.sock.fileno(), select.EPOLLIN)
            self._paused = []
        if now >= self._beat_due:
            self._beat(now)
        if self._crowded:
            self._crowded = False
            time.sleep(_BATCH_SECONDS)

    def _poll(self, seconds: float) -> None:
        began, arrived = time.clock_gettime(time.CLOCK_BOOTTIME), False
        events = self._epoll.poll(seconds)
        if events and self._resting:
            self._beat(time.monotonic(), resting=False)
        for descriptor, _ in sorted(events, key=self._place):
            if descriptor == self._file.socket.fileno():
                arrived = True
            elif descriptor == self._channel.descriptor:
                self._run_commands()
            elif (peer := self._peers.get(descriptor)) is not None and not self._channel.full:
                self._serve(peer)
        if arrived:
            self._accept()
        else:
            self._empty_since = began

    def _place(self, event: tuple[int, int]) -> tuple[bool, float]:
        """Return the place of an event: newcomers first, then those that have waited for longest."""
        peer = self._peers.get(event[0])
        return (peer.messages >= _FIRST_MESSAGES, peer.read_at) if peer else (False, float("-inf"))

    def wait(self) -> float:
        """Return the longest time for the next turn."""
        return _PAUSE_SECONDS if self._paused or self._channel.full else max(0.0, self._beat_due - time.monotonic())

    def shut(self) -> None:
        """End all connections, so that their processes open new ones, to a daemon that takes over. Closes nothing."""
        self._file.shut()
        for peer in self._peers.values():
            shut(peer.sock)

    def _accept(self) -> None:
        listening, last = self._file.socket, self._last_number + _MAX_ADMITTED
        self._cgroups.clear()
        for _ in range(int(self._options.backlog)):
            if self._last_number >= last:
                return
            now = time.clock_gettime(time.CLOCK_BOOTTIME)
            try:
                descriptor, _ = listening._accept()  # type: ignore[attr-defined]  # noqa: SLF001 - not in typeshed; accept() is of the module socket
            except BlockingIOError:
                self._empty_since = now
                return
            except OSError as error:
                # Out of descriptors: the connection stays in the queue, and without a pause the loop would spin.
                self._refusals.add(0, "connections", error.strerror or "accept failed")
                time.sleep(_PAUSE_SECONDS)
                return
            self._admit(descriptor)

    def _admit(self, descriptor: int) -> None:
        sock = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET, fileno=descriptor)
        sock.setblocking(False)
        pid, uid = user(sock)
        owner = CgroupUser(uid, "")
        if self._limits.connects(("user", uid)):
            self._turn_away(sock, owner, "connect_rate", "the user opens too many connections a second")
            return
        if len(self._peers) + self._closer.total >= self._capacity:
            self._turn_away(sock, owner, "connections", "the limit of open files is reached")
            return
        cgroup = self._cgroups.get(pid) or self._cgroups.setdefault(pid, cgroup_at(pid))
        if cgroup and self._limits.connects(("cgroup", cgroup), 0):
            # A range of users is refused before the costly proof of each. It is this connection that is refused, also
            # if its pid belongs to another process by now.
            self._turn_away(sock, owner, "connect_rate", _TOO_MANY_OF_CGROUP)
            return
        identity = identify(sock, self._empty_since)
        owner, full = identity.owner, self._limits.full(identity.owner)
        if owner.cgroup and self._limits.connects(("cgroup", owner.cgroup)):
            self._turn_away(sock, owner, "connect_rate", _TOO_MANY_OF_CGROUP)
        elif self._limits.banned(owner):
            self._turn_away(sock, owner, "banned", "the user is banned for some minutes")
        elif full:
            self._turn_away(sock, owner, "connections", f"the limit of connections by {full} is reached")
        else:
            self._last_number += 1
            peer = Peer(sock, self._last_number, identity, self._options)
            self._peers[descriptor] = self._numbers[peer.number] = peer
            self._limits.add(owner, 1)
            self._epoll.register(descriptor, select.EPOLLIN)

    def _turn_away(self, sock: _socket.socket, owner: CgroupUser, reason: str, detail: str) -> None:
        self._discard(sock, owner)
        self._refusals.add(owner.uid, reason, detail)
        self._crowded |= reason == "connect_rate"

    def _serve(self, peer: Peer) -> None:
        """Read one message only, so that a busy client does not delay the others."""
        now, options = time.monotonic(), self._options
        due = peer.messages < _FIRST_MESSAGES or now - peer.read_at >= _DUE_SECONDS
        if self._closer.waiting(peer.owner) > _MAX_WAITING or not (due or self._limits.may_read(peer.owner)):
            self._epoll.unregister(peer.sock.fileno())
            self._resume_due = now + _PAUSE_SECONDS if not self._paused else self._resume_due
            self._paused.append(peer)
            return
        try:
            data, ancillary, flags, _ = peer.sock.recvmsg(
                options.message_bytes, ANCILLARY_BYTES, _socket.MSG_CMSG_CLOEXEC
            )
        except BlockingIOError:
            return
        except OSError:
            self._end(peer, "")
            return
        record, others = sort(ancillary, options.record_bytes if data and peer.messages == 0 else 0)
        if others:
            peer.unwanted += len(others)
            self._closer.close(peer.owner, others)
        if not data:
            self._end(peer, "")
            return
        peer.messages += 1
        peer.read_at = now
        self._limits.read(peer.owner, len(data))
        if reason := self._excess(peer, flags):
            if record is not None:
                posix.close(record)
            self._end(peer, *reason)
            return
        if peer.messages == 1:
            i = peer.identity
            body = p.PEER.pack(i.pid, i.owner.uid, i.start, i.accepted, i.claimed) + i.owner.cgroup.encode()
            self._channel.send(p.OPENED, peer.number, body)
        self._channel.send(p.MESSAGE, peer.number, data, [] if record is None else [record])

    def _excess(self, peer: Peer, flags: int) -> tuple[str, str] | None:
        """Return reason and detail if the connection has gone over a limit with its last message."""
        if not peer.bucket.spend():
            return "rate", f"at most {self._options.rate:g} messages a second are expected"
        if flags & _socket.MSG_TRUNC:
            return "oversized", f"a message has at most {self._options.message_bytes} bytes"
        if peer.unwanted > _MAX_UNWANTED:
            return "malformed", "only the first message may carry a descriptor, of a shared record"
        return None

    def _end(self, peer: Peer, reason: str, detail: str = "") -> None:
        descriptor = peer.sock.fileno()
        if peer in self._paused:
            self._paused.remove(peer)
        else:
            self._epoll.unregister(descriptor)
        if detail:
            self._refusals.add(peer.owner.uid, reason, detail)
        if peer.messages:
            process = None if reason else pidfd(peer.sock)
            self._channel.send(p.ENDED, peer.number, reason.encode(), [] if process is None else [process])
        del self._peers[descriptor], self._numbers[peer.number]
        self._limits.add(peer.owner, -1)
        self._discard(peer.sock, peer.owner)

    def _discard(self, sock: _socket.socket, owner: CgroupUser) -> None:
        shut(sock)
        if close_may_block(sock):
            self._closer.close(owner, [sock.detach()])
        else:
            sock.close()

    def _beat(self, now: float, *, resting: bool = True) -> None:
        """Report to the daemon, and do what is due every second."""
        self._closer.retry()
        blocked = self._closer.blocked(_BLOCKED_SECONDS)
        for owner in blocked:
            if owner != _SELF and self._limits.ban(owner, self._options.ban_seconds):
                body = p.BAN_BODY.pack(owner.uid, self._options.ban_seconds) + owner.cgroup.encode()
                self._channel.send(p.BANNED, body=body)
                for peer in [peer for peer in self._peers.values() if peer.owner == owner]:
                    self._end(peer, "banned", "closing a descriptor that the user has passed blocks")
        late = now - self._options.hello_seconds
        for peer in [peer for peer in self._peers.values() if not peer.messages and peer.opened < late]:
            self._end(peer, "silent", f"no hello within {self._options.hello_seconds:g} seconds")
        if reason := self._file.missing():
            self._reopen(reason)
        bans = self._limits.sweep()
        stopped = len(blocked) >= MAX_THREADS
        if not self._passing_off and (stopped or self._closer.total > _MAX_WAITING):
            self._passing_off = self._file.pass_descriptors(allowed=False)
        elif self._passing_off and not (stopped or bans) and self._closer.total <= _MAX_WAITING:
            self._passing_off = not self._file.pass_descriptors(allowed=True)
        if not self._channel.full:
            if stopped or self._closer.total > self._capacity // 2:
                self._channel.send(p.REPLACE)
            self._channel.send(p.ALIVE, body=p.STATE.pack(len(self._peers), len(blocked), bans, time.process_time()))
        self._refusals.report(self._channel)
        self._rest(now, resting and not bans)

    def _rest(self, now: float, allowed: bool) -> None:
        self._resting = allowed and not (self._peers or self._closer.total or self._channel.full)
        self._beat_due = now + (p.REST_SECONDS if self._resting else _BEAT_SECONDS)
        if self._resting:
            self._channel.send(p.RESTING)

    def _reopen(self, reason: str) -> None:
        if self._file.owned:
            old = self._file.socket
            try:
                self._file.open()
            except OSError as error:
                self._channel.send(p.REOPENED, body=f"{reason}, and cannot be opened again: {error.strerror}".encode())
                return
            self._epoll.unregister(old.fileno())
            self._closer.close(_SELF, [old.detach()])
            self._epoll.register(self._file.socket.fileno(), select.EPOLLIN)
            reason += ", and is opened again"
        self._channel.send(p.REOPENED, body=reason.encode())

    def _run_commands(self) -> None:
        while command := self._channel.command():
            kind, number, body = command
            peer = self._numbers.get(number)
            if kind == p.BAN:
                uid, seconds = p.BAN_BODY.unpack_from(body)
                self._limits.ban(CgroupUser(uid, body[p.BAN_BODY.size :].decode()), seconds)
            elif peer and kind == p.CLOSE:
                self._end(peer, "rejected")
            elif peer:
                try:
                    peer.sock.send(b"?", _socket.MSG_NOSIGNAL)
                except OSError:
                    pass  # it reads nothing, or ends
