"""What NCCL's RAS says of the ranks of a job: the collectives that each has launched, and who does not answer.

It counts launches, not completions, and neither sends nor all-to-all. One process of a job and host answers on a port;
of two jobs of one user any does, and a second user's job cannot be asked.
"""

from __future__ import annotations

import re
import socket
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice, zip_longest
from pathlib import Path
from typing import NamedTuple

from gpugauge.workload.processfiles import HostProcess
from gpugauge.workload.procfs import Procfs

_PORT, _ADDRESS = 28028, re.compile(rb"(?:^|\0)NCCL_RAS_ADDR=[^\0]{0,255}:(\d{1,5})(?:\0|$)")
# In all for the ports of one user. NCCL collects for at most 10 s.
_SECONDS = 12.0
_MAX_LINE, _MAX_BYTES, _MAX_RANKS, _MAX_COUNTS = 1024, 8 << 20, 16384, 16
_LISTENING = "0A"  # TCP_LISTEN in include/net/tcp_states.h
_LOOPBACKS = {"0100007F": "127.0.0.1", "0" * 8: "127.0.0.1", "0" * 24 + "01000000": "::1", "0" * 32: "::1"}
# What is said before the question, and how the replies begin. NCCL before 2.29.2 may crash if it is asked while ranks
# are missing (NVIDIA/nccl#1762): the word that only later ones know, with a group that none has, does nothing.
_BEFORE = (
    (b"CLIENT PROTOCOL 2\n", b"SERVER PROTOCOL "),
    (b"SET FORMAT json\n", b"OK"),
    (b"MONITOR none\n", b"ERROR: Invalid event group"),
)
# Of the text of a rank. It is not parsed as JSON: the memory that it takes would have no bound.
_HOST, _PID = re.compile(rb'"host"\s*:\s*"([0-9A-Fa-f.:]{2,45})"'), re.compile(rb'"pid"\s*:\s*(\d{1,10})\b')
_STOPPED = re.compile(
    rb'"(?:finalize_called|destroy_flag|abort_flag)"\s*:\s*true|"(?:init_state|async_error)"\s*:\s*(?!0\b|7\b)\d'
)  # 7 is ncclInProgress
_SILENT, _DEAD = (re.compile(rb'"%s"\s*:\s*true' % key) for key in (b"unresponsive", b"considered_dead"))
_COUNT = re.compile(rb":\s*(\d{1,18})\b")


class Launches(NamedTuple):
    """What NCCL says of a process: the collectives that all ranks of its communicators have launched, by how many the
    last running `rank` of one, at the address `host`, is behind the others, and how many ranks do not answer or are
    dead.
    """

    total: int = 0
    behind: int = 0
    rank: str = ""  # its number in the communicator
    host: str = ""
    unresponsive: int = 0
    dead: int = 0
    size: int = 0  # ranks of its largest communicator

    @property
    def held_up(self) -> bool:
        """Whether ranks wait for others, if all counts stand still."""
        return self.behind + self.unresponsive + self.dead > 0


class _Rank(NamedTuple):
    number: str
    host: str
    pid: int
    running: bool
    silent: bool
    dead: bool
    counts: tuple[int, ...]  # by kind of collective


_Communicator = tuple[list[_Rank], list[_Rank]]  # the ranks that answered, and those that did not


def inquire(procfs: Procfs, wanted: Sequence[str], hosts: Mapping[str, HostProcess]) -> dict[str, Launches]:
    """Return what NCCL says of the processes that are `wanted`, of all on this machine. Only a port of the same user in
    the daemon's own network is asked: who listens there may say what he likes about his own processes only.
    """
    inner = {process: host.container_pid or host.pid for process, host in hosts.items()}
    numbers = Counter(inner.values())
    ports: defaultdict[tuple[int, int], dict[int, str]] = defaultdict(dict)
    for process in wanted:
        pid = hosts[process].pid
        status = procfs.status(pid)
        # In containers on the machine's network, two processes may have the same number.
        if status and numbers[inner[process]] == 1 and _shares_network(procfs, pid):
            address = _ADDRESS.search(procfs.content(pid, "environ"))
            ports[status.uid, int(address[1]) if address else _PORT][inner[process]] = process
    found: dict[str, Launches] = {}
    until: dict[int, float] = {}
    for (uid, port), processes in ports.items():
        for host in dict.fromkeys(_listeners(port, uid)):
            with suppress(OSError, ValueError):  # it is too old, too slow, or no NCCL
                answer = _ask(host, port, until.setdefault(uid, time.monotonic() + _SECONDS))
                found |= _of_processes(_communicators(answer), processes)
    return found


def _ask(host: str, port: int, until: float) -> bytes:
    """Return the answer of NCCL, or raise OSError or ValueError if it is too old or does not end in time."""
    with socket.create_connection((host, port), timeout=max(0.0, until - time.monotonic())) as connection:
        for line, expected in _BEFORE:
            connection.sendall(line)
            if not _receive(connection, until, _MAX_LINE, b"\n").startswith(expected):
                raise ValueError("no NCCL from 2.29.2 on")
        connection.sendall(b"STATUS\n")
        return _receive(connection, until, _MAX_BYTES)


def _receive(connection: socket.socket, until: float, limit: int, end: bytes | None = None) -> bytes:
    received = bytearray()
    while len(received) <= limit and not (end and end in received):
        connection.settimeout(until - time.monotonic())
        more = connection.recv(65536)
        if not more:
            break
        received += more
    return bytes(received)


def _communicators(answer: bytes) -> list[_Communicator]:
    """Return the communicators of an answer. Raises ValueError if it is cut, or has too many ranks."""
    text = answer.strip()
    whole = text.startswith(b"{") and text.endswith(b"}") and text.count(b"{") == text.count(b"}")
    if not whole or len(answer) > _MAX_BYTES or text.count(b'"rank"') + text.count(b'"hash"') > _MAX_RANKS:
        raise ValueError("no whole answer, or too many ranks")
    each = (part.partition(b'"missing_ranks"') for part in text.split(b'"hash"')[1:])
    return [(_ranks(answered), _ranks(others)) for answered, _, others in each]


def _ranks(text: bytes) -> list[_Rank]:
    return [_rank(part) for part in text.split(b'"rank"')[1:]]


def _rank(text: bytes) -> _Rank:
    number, host, pid = _COUNT.match(text), _HOST.search(text), _PID.search(text)
    counts = text.partition(b'"collective_counts"')[2].partition(b"}")[0]
    return _Rank(
        number[1].decode() if number else "",
        host[1].decode() if host else "",
        int(pid[1]) if pid else -1,
        not _STOPPED.search(text),
        bool(_SILENT.search(text)),
        bool(_DEAD.search(text)),
        tuple(int(count[1]) for count in islice(_COUNT.finditer(counts), _MAX_COUNTS)),
    )


def _of_processes(communicators: Sequence[_Communicator], processes: Mapping[int, str]) -> dict[str, Launches]:
    """Return what they say of the processes of this machine, by pid."""
    found: dict[str, Launches] = {}
    for ranks, missing in communicators:
        most = sum(max(kind) for kind in zip_longest(*(rank.counts for rank in ranks), fillvalue=0))
        last = min(ranks, key=lambda rank: sum(rank.counts), default=_rank(b""))
        behind = most - sum(last.counts) if all(rank.running for rank in ranks) else 0
        said = Launches(sum(sum(rank.counts) for rank in ranks), behind, last.number, last.host)
        silent, dead = sum(rank.silent and not rank.dead for rank in missing), sum(rank.dead for rank in missing)
        for process in {processes[rank.pid] for rank in ranks if rank.pid in processes and _is_here(rank.host)}:
            before = found.get(process, Launches())
            worst = said if behind > before.behind else before
            found[process] = worst._replace(
                total=before.total + said.total,
                unresponsive=max(before.unresponsive, silent),
                dead=max(before.dead, dead),
                size=max(before.size, len(ranks) + len(missing)),
            )
    return found


def _shares_network(procfs: Procfs, pid: int) -> bool:
    try:
        return (procfs.root / f"{pid}/ns/net").readlink() == Path("/proc/self/ns/net").readlink()
    except OSError:
        return False


def _listeners(port: int, uid: int) -> Iterator[str]:
    """Yield the loopback addresses of this network at which processes of a user listen on a port."""
    for file in ("tcp", "tcp6"):
        with suppress(OSError), Path(f"/proc/self/net/{file}").open() as lines:  # there may be no IPv6
            for line in islice(lines, 1, None):
                _, local, _, state, _, _, _, owner, _ = line.split(None, 8)
                if state != _LISTENING:
                    break  # these come first
                address, _, number = local.partition(":")
                if address in _LOOPBACKS and int(number, 16) == port and int(owner) == uid:
                    yield _LOOPBACKS[address]


def _is_here(host: str) -> bool:
    """Return whether an address is one of this machine: a socket can be bound to it."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        socket.inet_pton(family, host)  # else it would be resolved as a name
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((host, 0))
    except OSError:
        return False
    return True
