"""Sessions and their counts in the store, connections and their records, and the path of the socket."""

from __future__ import annotations

import errno
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from gpugauge.sessions import connection as connections
from gpugauge.sessions import ends, store
from gpugauge.sessions.budget import LIMITS, PLAIN_SERIES, Budget
from gpugauge.sessions.connection import Connection, prepare
from gpugauge.sessions.receiver.protocol import PEER
from gpugauge.sessions.session import NO_OWNER, Session
from gpugauge.sessions.store import Store
from gpugauge.wire import messages as wire
from gpugauge.wire import record as wire_record
from gpugauge.workload.identity import JOB_LABELS
from tests.drawn import cases
from tests.sessions.hooks import open_records, shared_record, written, zombie
from tests.sessions.test_budget import maximal


def connected(session: str = "", uid: int = 1, cgroup: str = "/c", **identity: int) -> Connection:
    known = {"pid": 0, "start": 0} | identity
    made = Connection(1, PEER.pack(known["pid"], uid, known["start"], 1.0, 1) + cgroup.encode())
    made.session = session or None
    return made


def opened(stored: Store, name: str, uid: int = 1, snap: wire.Snap | None = None) -> Connection:
    made = connected(name, uid, f"/{uid}")
    stored.open(made, wire.Hello(name, 1))
    if snap:
        stored.update(made, snap)
    return made


def names(stored: Store) -> list[str]:
    return [session.hello.session for session in stored.view()]


def test_an_ended_session_is_kept_for_its_time() -> None:
    stored = Store(60.0, 10, Budget())
    gone, stays = opened(stored, "a"), opened(stored, "b")
    assert not stored.lingering()
    before = time.time()
    stored.close(gone, "finished")
    now = time.monotonic()

    stored.sweep([stays], now + 59)
    assert stored.lingering()
    assert [(s.connected, s.end_reason) for s in stored.view()] == [(False, "finished"), (True, "")]
    assert before <= (stored.view()[0].ended_at or 0) <= time.time()
    stored.sweep([stays], now + 61)

    assert names(stored) == ["b"]
    assert not stored.lingering()
    assert stored.known("a") is None
    assert stored.counters().ended["finished"] == 1


def test_of_too_many_ended_sessions_the_oldest_go_first() -> None:
    stored = Store(60.0, 2, Budget())
    for name in "abcd":
        stored.close(opened(stored, name), "finished")
        stored.sweep([], time.monotonic())
        assert len(names(stored)) <= 2

    assert names(stored) == ["c", "d"]


def test_a_session_that_came_back_does_not_expire() -> None:
    stored = Store(60.0, 10, Budget())
    stored.close(opened(stored, "a", snap=wire.Snap("a", 1, 5)), "killed")
    opened(stored, "a")
    assert not stored.lingering()
    stored.sweep([], time.monotonic() + 100)

    (session,) = stored.view()
    assert (session.connected, session.end_reason, session.snap) == (True, "", wire.Snap("a", 1, 5))


def test_an_ended_session_gives_its_series_back_when_it_is_dropped() -> None:
    stored = Store(60.0, 10, Budget(series=10**6, series_by_owner=PLAIN_SERIES))
    first = opened(stored, "a")
    stored.close(first, "finished")
    opened(stored, "b")
    assert names(stored) == ["a"]  # the other one has no room

    stored.sweep([], time.monotonic() + 61)
    opened(stored, "c")

    assert names(stored) == ["c"]
    assert stored.counters().cut == {**dict.fromkeys(LIMITS, 0), "user": 1}


def test_a_session_without_room_leaves_nothing_but_its_count() -> None:
    stored = Store(60.0, 10, Budget(series=10**6, series_by_owner=PLAIN_SERIES))
    opened(stored, "a")
    hidden = opened(stored, "b")
    stored.close(hidden, "error")

    assert stored.known("b") is None
    assert not stored.lingering()
    assert stored.counters().ended["error"] == 1


def test_details_that_have_no_room_are_left_out_of_each_message() -> None:
    stored = Store(60.0, 10, Budget(series=10**6, series_by_owner=PLAIN_SERIES + 30))
    connection = opened(stored, "a", snap=maximal("a"))
    (cut,) = stored.view()
    small = wire.Snap("a", 2, devices=(wire.Device(0, "GPU-1", 10),))
    stored.update(connection, small)
    (whole,) = stored.view()

    assert cut.snap is not None
    assert (cut.snap.devices, cut.snap.parameters, cut.snap.optimizer_state) == ((), (), ())
    assert cut.snap.steps == maximal("a").steps
    assert whole.snap == small


@cases(
    ("limit", "owners"),
    [
        ("user", [(1, "/a"), (1, "/b"), (1, "/c")]),
        ("cgroup", [(1, "/a"), (2, "/a"), (3, "/a")]),
        ("all", [(1, "/a"), (2, "/b"), (3, "/c")]),
    ],
)
def test_each_limit_is_counted_once_and_named(
    limit: str, owners: list[tuple[int, str]], caplog: pytest.LogCaptureFixture
) -> None:
    series = PLAIN_SERIES if limit == "all" else 10**6  # users with few series have twice as much
    stored = Store(60.0, 10, Budget(series=series, series_by_owner=2 * PLAIN_SERIES))
    for name, (uid, cgroup) in zip("abc", owners, strict=True):
        for _ in range(2):
            stored.open(connected(name, uid, cgroup), wire.Hello(name, 1))

    assert names(stored) == ["a", "b"]
    assert stored.counters().cut == {**dict.fromkeys(LIMITS, 0), limit: 1}
    assert [f"by {limit} is reached" in message for message in caplog.messages] == [True]


def test_cuts_are_logged_once_in_ten_minutes_for_each_user_and_limit(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = Store(60.0, 10, Budget(series=10**6, series_by_owner=PLAIN_SERIES))
    for uid in (1, 2):
        for number in range(4):
            opened(stored, f"{uid} {number}", uid)

    assert [vars(record)["fields"] for record in caplog.records] == [{"uid": n, "cgroup": f"/{n}"} for n in (1, 2)]
    assert stored.counters().cut["user"] == 6
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 590)
    opened(stored, "1 5")
    assert len(caplog.records) == 2
    monkeypatch.setattr(time, "monotonic", lambda: now + 610)
    opened(stored, "1 6")
    assert len(caplog.records) == 3


def test_a_range_of_users_does_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    stored = Store(60.0, 10, Budget(series=10**6, series_by_owner=PLAIN_SERIES))
    for uid in range(1000):
        for number in range(2):
            opened(stored, f"{uid} {number}", uid)

    assert stored.counters().cut["user"] == 1000
    assert len(caplog.records) == store._MAX_LOGGED < 100


def test_a_reason_is_settled_once_and_always_counted() -> None:
    stored = Store(60.0, 10, Budget())
    stored.close(opened(stored, "a"), "")
    assert (stored.view()[0].end_reason, sum(stored.counters().ended.values())) == ("", 0)

    stored.settle("a", "error")
    stored.settle("a", "killed")
    stored.settle("dropped meanwhile", "killed")
    opened(stored, "a")
    stored.settle("a", "killed")  # of the end before it came back

    assert stored.view()[0].end_reason == ""
    assert {reason: count for reason, count in stored.counters().ended.items() if count} == {"error": 1, "killed": 3}


def test_a_settled_reason_is_not_replaced() -> None:
    stored = Store(60.0, 10, Budget())
    stored.close(opened(stored, "a"), "")
    stored.settle("a", "error")
    stored.settle("a", "killed")

    assert stored.view()[0].end_reason == "error"


def test_a_view_is_the_same_object_until_something_changes() -> None:
    stored = Store(60.0, 10, Budget())
    views = [stored.view()]
    connection = opened(stored, "a")
    views.append(stored.view())
    assert stored.view() is views[-1]
    stored.sweep([connection], 0.0)  # without a record nothing changes
    assert stored.view() is views[-1]
    stored.update(connection, wire.Snap("a", 1))
    views.append(stored.view())
    stored.close(connection, "")
    views.append(stored.view())
    stored.settle("a", "error")
    views.append(stored.view())
    stored.sweep([], time.monotonic() + 61)
    views.append(stored.view())

    assert [len(view) for view in views] == [0, 1, 1, 1, 1, 0]
    assert len({id(view) for view in views[1:-1]}) == 4


def test_counts_are_the_same_object_until_one_changes() -> None:
    stored = Store(60.0, 10, Budget())
    seen = [stored.counters()]
    before = time.time()
    changes: list[Callable[[], None]] = [
        lambda: stored.reject("rate", 3),
        lambda: stored.replace("stuck"),
        lambda: stored.ban(2),
        lambda: stored.close(opened(stored, "a"), "error"),
    ]
    for change in changes:
        change()
        assert stored.counters() is stored.counters()
        seen.append(stored.counters())
    stored.ban(2)
    assert stored.counters() is seen[-1]

    assert (seen[0].replaced_at, seen[0].banned, sum(seen[0].rejected.values())) == (None, 0, 0)
    assert (seen[-1].rejected["rate"], seen[-1].replaced, seen[-1].banned) == (
        3,
        {"stuck": 1, "blocked": 0, "ended": 0},
        2,
    )
    assert before <= (seen[-1].replaced_at or 0) <= time.time()
    assert seen[1].replaced_at is None  # a view is frozen


def test_facts_of_a_snapshot_are_newer_than_those_of_the_first_message() -> None:
    hello = wire.Hello("a", 1, facts={"torch": "2.13", "name": "before"})

    assert Session(hello, 1, 1).facts == hello.facts
    assert Session(hello, 1, 1, wire.Snap("a", 1, facts={"name": "after", "ranks": "8"})).facts == {
        "torch": "2.13",
        "name": "after",
        "ranks": "8",
    }


# --- a connection and its record ---


@pytest.fixture
def recorded() -> Iterator[tuple[Connection, int]]:
    """Return a connection with a shared record, and a descriptor of the record."""
    descriptor = shared_record()
    connection = connected("a")
    connection.attach(os.dup(descriptor))
    yield connection, descriptor
    connection.close()
    connection.close()  # idempotent
    os.close(descriptor)
    assert open_records() == 0


def test_a_connection_without_a_record() -> None:
    connection = connected("a")

    assert (connection.read_record(), connection.record) == (False, None)
    assert connection.lost_at is None
    assert connection.cgroup == "/c"


def test_the_record_does_not_change_after_the_last_message(recorded: tuple[Connection, int]) -> None:
    connection, descriptor = recorded
    written(descriptor, "training", 5)
    connection.end("finished")
    written(descriptor, "loading", 6)

    assert connection.read_record()
    assert connection.record is not None
    assert (connection.record.phase, connection.record.steps, connection.bye) == ("training", 5, "finished")


def test_the_seconds_of_a_phase_never_decrease(recorded: tuple[Connection, int]) -> None:
    connection, descriptor = recorded
    assert connection.read_record()
    before = connection.record
    written(descriptor, "training", 9, since=time.monotonic_ns())  # as if the phase had just begun
    connection.read_record()
    after = connection.record

    assert before is not None
    assert after is not None
    assert (after.steps, after.seconds["training"]) == (9, before.seconds["training"])
    assert before.seconds["training"] > 1  # since boot
    assert after.seconds["loading"] == 0


def test_a_half_written_record_is_not_taken(recorded: tuple[Connection, int]) -> None:
    connection, descriptor = recorded
    connection.read_record()
    before = connection.record
    os.pwrite(descriptor, b"\x07", wire_record._HEAD.size)  # the first sequence, and not its copy

    assert connection.read_record()
    assert connection.record is before


def test_a_record_that_cannot_be_read_is_left_as_it_was(
    recorded: tuple[Connection, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    connection, descriptor = recorded
    written(descriptor, "training", 5)
    connection.read_record()
    before = connection.record

    def fails(*_: object) -> bytes:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    monkeypatch.setattr(os, "pread", fails)

    assert connection.read_record()
    assert connection.record is before
    assert before is not None


def test_another_record_replaces_the_first(recorded: tuple[Connection, int]) -> None:
    connection, _ = recorded
    other = shared_record()
    written(other, "loading", 1)
    connection.attach(other)

    connection.read_record()

    assert connection.record is not None
    assert connection.record.phase == "loading"


def own_start(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[19])


def test_whether_the_process_of_a_connection_runs() -> None:
    start = own_start(os.getpid())
    child = zombie(0)
    ended = connected("a", pid=child, start=own_start(child))

    assert connected("a", pid=os.getpid(), start=start).alive() is True
    assert connected("a", pid=os.getpid(), start=start - 1).alive() is False  # another process with the same pid
    assert connected("a", pid=2**22 + 1, start=start).alive() is False
    assert connected("a").alive() is None
    assert ended.alive() is False
    assert connections._is_dead(child)
    os.waitpid(child, 0)
    assert not connections._is_dead(child)  # it may be that of another pid namespace
    assert not connections._is_dead(os.getpid())


@cases(("bye", "reason"), [(None, "other"), ("error", "error")])
def test_the_end_of_a_process_that_runs_on(bye: str | None, reason: str) -> None:
    identity = PEER.pack(os.getpid(), 1, 1, time.clock_gettime(time.CLOCK_BOOTTIME), os.getpid())
    connection = Connection(1, identity)
    connection.session, connection.bye = "a", bye
    pidfd = os.pidfd_open(os.getpid())

    ending = connection.ending(pidfd)

    assert (ending.session, ending.reason()) == ("a", reason)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(pidfd)  # closed: the status is known
    ending.close()


# --- an end whose status is not known yet ---


def test_the_status_is_awaited_until_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(ends, "_status_of_reaped", asked.append)
    pidfd = os.pidfd_open(os.getpid())
    ending = ends.Ending("a", "error", pidfd, 0, 1.0)
    now = time.monotonic()

    assert ending.reason() == ""
    monkeypatch.setattr(time, "monotonic", lambda: now + 2.5)
    assert ending.reason() == ""
    os.fstat(pidfd)
    monkeypatch.setattr(time, "monotonic", lambda: now + 3.5)
    assert ending.reason() == "error"
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(pidfd)
    assert ending.reason() == "error"
    assert asked == [pidfd] * 3


def test_a_status_that_arrives_gives_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[int | None] = [None, 9]
    monkeypatch.setattr(ends, "_status_of_reaped", lambda _: found.pop(0))
    ending = ends.Ending("a", None, os.pidfd_open(os.getpid()), 0, 1.0)

    assert [ending.reason() for _ in range(3)] == ["", "killed", "killed"]


def test_a_kernel_that_does_not_report_ends_leaves_the_last_message(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: int) -> int:
        raise OSError(25, "Inappropriate ioctl for device")

    monkeypatch.setattr(ends, "_status_of_reaped", refuse)
    pidfd = os.pidfd_open(os.getpid())

    assert ends.Ending("a", "interrupted", pidfd, 0, 1.0).reason() == "interrupted"
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(pidfd)


# --- the path of the socket ---


@cases("length", [107, 108])
def test_a_path_may_be_as_long_as_the_kernel_takes(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Path("/tmp") / f"gpugauge-{os.getpid()}"
    path = folder / ("x" * (length - len(str(folder)) - 1))
    try:
        if length > 107:
            with pytest.raises(OSError, match="at most 107 bytes"):
                prepare(path)
            return
        prepare(path)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as bound:
            bound.bind(str(path))
        path.unlink()
    finally:
        if folder.exists():
            folder.rmdir()


def test_the_folder_of_the_socket_is_made_for_every_user(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        prepare(tmp_path / "a" / "b" / "hook.sock")
        (tmp_path / "own").mkdir(mode=0o700)
        prepare(tmp_path / "own" / "hook.sock")
    finally:
        os.umask(before)

    assert {path.stat().st_mode & 0o7777 for path in (tmp_path / "a", tmp_path / "a" / "b")} == {0o755}
    assert (tmp_path / "own").stat().st_mode & 0o7777 == 0o700  # that of an administrator stays


def test_a_socket_is_taken_while_its_daemon_lives(tmp_path: Path) -> None:
    path = tmp_path / "hook.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as other:
        other.bind(str(path))
        prepare(path)  # nobody listens
        other.listen(0)
        with pytest.raises(OSError, match="another daemon listens on it"):
            prepare(path)
        client = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
        with client, suppress(BlockingIOError):
            client.connect(str(path))

        def serve() -> None:
            other.accept()[0].close()

        accept = threading.Timer(0.3, serve)  # its queue is full for some time only
        accept.start()
        with pytest.raises(OSError, match="another daemon listens on it"):
            prepare(path)
        accept.join()
    prepare(path)
    path.unlink()
    path.mkdir()
    with pytest.raises(OSError, match="not a socket"):
        prepare(path)


def test_a_session_without_an_owner_has_all_labels_of_a_job() -> None:
    assert NO_OWNER == ("",) * len(JOB_LABELS)
