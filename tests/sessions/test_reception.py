"""The daemon's side of the hook socket with a receiver that the test plays: what it sends, and how it is replaced."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpugauge.base.logline import Occasions
from gpugauge.sessions import listener as listeners
from gpugauge.sessions import reception
from gpugauge.sessions.listener import Sessions, SessionsError
from gpugauge.sessions.receiver import protocol as p
from gpugauge.wire import messages as wire
from tests.sessions.hooks import ONE, TWO, open_links, open_records, shared_record, steps_of, until
from tests.sessions.playedreceiver import Played, ban, settle

# --- sessions of a receiver that is gone ---


def lost(begin: Callable[..., Sessions], **identity: Any) -> tuple[Sessions, Played]:
    """Return a listener with one session whose receiver has ended, and the next receiver."""
    listener = begin()
    Played.made[-1].begin(1, ONE, **identity)
    Played.made[-1].message(1, wire.Snap(ONE, 1, steps=wire.Progress(7)))
    until(lambda: [steps_of(s) for s in listener.view()] == [7])
    Played.made[-1].channel.shutdown(socket.SHUT_RDWR)
    until(lambda: len(Played.made) == 2)
    return listener, Played.made[-1]


def ticks(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[19])


def test_a_lost_session_belongs_to_its_process(start: Callable[..., Sessions]) -> None:
    own: dict[str, Any] = {"pid": os.getpid(), "start": ticks(os.getpid())}
    listener, played = lost(start, **own)
    for number, other in enumerate(({**own, "start": own["start"] + 1}, {**own, "pid": 1}, {**own, "uid": 2}), 1):
        played.begin(number, ONE, **other)
        settle(listener, number)
        assert listener.counters().rejected["malformed"] == number
    assert [(s.connected, steps_of(s)) for s in listener.view()] == [(True, 7)]

    played.begin(9, ONE, **own)
    played.message(9, wire.Snap(ONE, 1, steps=wire.Progress(8)))
    settle(listener, 9)

    assert [(s.connected, steps_of(s)) for s in listener.view()] == [(True, 8)]
    assert sum(listener.counters().ended.values()) == 0


def test_a_lost_session_lasts_as_long_as_its_process(start: Callable[..., Sessions]) -> None:
    child = os.fork()
    if not child:
        time.sleep(60)
        os._exit(0)
    listener, _ = lost(start, pid=child, start=ticks(child))
    time.sleep(0.1)  # some sweeps
    assert [s.connected for s in listener.view()] == [True]

    os.kill(child, 9)

    until(lambda: [s.end_reason for s in listener.view()] == ["killed"])  # a zombie has ended
    os.waitpid(child, 0)
    assert listener.counters().ended["killed"] == 1


def test_a_lost_session_without_a_pid_is_awaited_for_a_while(
    start: Callable[..., Sessions], monkeypatch: pytest.MonkeyPatch
) -> None:
    listener, _ = lost(start)
    time.sleep(0.1)
    assert [s.connected for s in listener.view()] == [True]

    monkeypatch.setattr(listeners, "LOST_SECONDS", 0.1)

    until(lambda: [(s.connected, s.end_reason) for s in listener.view()] == [(False, "killed")])


def test_the_record_of_a_lost_session_is_read_on(start: Callable[..., Sessions]) -> None:
    listener, descriptor = start(), shared_record()
    Played.made[-1].begin(1, ONE, descriptor)
    until(lambda: [s.record is not None for s in listener.view()] == [True])
    Played.made[-1].channel.shutdown(socket.SHUT_RDWR)
    until(lambda: len(Played.made) == 2)
    before = listener.view()[0].record
    os.close(descriptor)

    until(lambda: listener.view()[0].record != before)  # the time in its phase grows
    listener.stop()
    assert open_records() == 0


# --- descriptors ---


def test_only_the_first_descriptor_is_taken_and_none_stays_open(start: Callable[..., Sessions]) -> None:
    listener = start()
    played, records, unwanted = Played.made[-1], [shared_record() for _ in range(2)], os.memfd_create("record")
    played.begin(1, ONE, records[0], unwanted)
    played.send(p.ALIVE, 0, p.STATE.pack(0, 0, 0, 0.0), (unwanted,))
    played.begin(2, TWO, records[1])
    for descriptor in (*records, unwanted):
        os.close(descriptor)
    settle(listener, 1)

    assert [s.record.phase if s.record else "" for s in listener.view()] == ["training", "training"]
    assert open_records() == 2
    for number in (1, 2):
        played.send(p.ENDED, number)
    settle(listener, 2)
    assert open_records() == 0


def test_a_rejected_session_keeps_no_descriptor_of_its_process(start: Callable[..., Sessions]) -> None:
    listener = start()
    played, pidfd = Played.made[-1], os.pidfd_open(os.getpid())
    played.begin(1, ONE)
    played.send(p.ENDED, 1, b"rate", (pidfd,))
    os.close(pidfd)
    settle(listener, 1)

    assert [s.end_reason for s in listener.view()] == ["rejected"]
    assert open_links("pidfd") == 0


# --- rejections ---


def test_a_rejection_is_logged_once_for_each_user_and_reason(
    start: Callable[..., Sessions], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    listener = start()
    for uid, reason in ((1, "rate"), (1, "rate"), (2, "rate"), (1, "silent"), (2, "rate")):
        Played.made[-1].reject(reason, uid, 3, f"because of {reason}")
    settle(listener, 1)
    logged = [(record.getMessage(), vars(record)["fields"]) for record in caplog.records]

    assert logged == [
        (f"hook connection closed: because of {reason}", {"reason": reason, "uid": uid})
        for uid, reason in ((1, "rate"), (2, "rate"), (1, "silent"))
    ]
    assert listener.counters().rejected["rate"] == 12
    listener._logged = Occasions(0.0, 1)
    for _ in range(2):
        Played.made[-1].reject("connections", 1, 1)
    settle(listener, 2)
    assert len(caplog.records) == 5


def test_refusals_of_a_range_of_users_do_not_fill_the_log(
    start: Callable[..., Sessions], caplog: pytest.LogCaptureFixture
) -> None:
    listener = start()
    for uid in range(1000):
        Played.made[-1].reject("rate", uid, 1)
    settle(listener, 3)

    assert listener.counters().rejected["rate"] == 1000
    assert len(caplog.records) == listeners._MAX_LOGGED < 100


def test_refusals_of_users_that_are_counted_together(
    start: Callable[..., Sessions], caplog: pytest.LogCaptureFixture
) -> None:
    listener = start()
    Played.made[-1].reject("connect_rate", p.MANY_USERS, 900)
    settle(listener, 1)

    assert listener.counters().rejected["connect_rate"] == 900
    assert [vars(record)["fields"]["uid"] for record in caplog.records] == ["many"]


def test_a_reason_of_tomorrow_is_counted_as_malformed(start: Callable[..., Sessions]) -> None:
    listener = start()
    Played.made[-1].reject("too beautiful", 1, 2)
    settle(listener, 1)

    assert listener.counters().rejected == {**dict.fromkeys(listener.counters().rejected, 0), "malformed": 2}


# --- the receiver ---


def test_the_receiver_is_isolated_and_has_the_options(start: Callable[..., Sessions], tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as theirs:
        inherited = theirs.dup()
        listener = start(inherited, connections=9)
        played = Played.made[-1]

        assert played.command[1:4] == ["-I", "-S", "-c"]
        assert played.options["cwd"] == "/"
        assert played.options["start_new_session"] is True  # Ctrl-C is for the daemon
        assert played.passed == [*map(int, played.command[6].split())]
        assert (played.passed[1], played.command[7]) == (inherited.fileno(), str(tmp_path / "hook.sock"))
        assert p.Options.of(played.command[8:]).words() == listener._options.words()
        assert listener._options.connections == 9
        assert listener.receiver_pid() == played.pid
        listener.stop()
        assert inherited.fileno() == -1
    assert played.ended == ["wait 1"]
    assert listener.receiver_pid() is None


@pytest.mark.parametrize(
    ("first", "text"),
    [
        (p.HEADER.pack(p.FAILED, 0) + b"no permission", "no permission"),
        (None, "the receiver did not start within 0.05 s"),
    ],
)
def test_a_receiver_that_does_not_start(
    first: bytes | None, text: str, start: Callable[..., Sessions], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpugauge.sessions.intake.START_SECONDS", 0.05)
    monkeypatch.setattr(Played, "first", first)

    with pytest.raises(SessionsError, match=text):
        start()

    assert Played.made[-1].ended[0] == "kill"


def test_a_receiver_that_ends_before_it_is_ready(
    start: Callable[..., Sessions], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Played, "first", b"")
    made = Played.__init__

    def ends(self: Played, *arguments: Any, **options: Any) -> None:
        made(self, *arguments, **options)
        self.channel.shutdown(socket.SHUT_RDWR)

    monkeypatch.setattr(Played, "__init__", ends)

    with pytest.raises(SessionsError, match="the receiver ended"):
        start()


@pytest.mark.parametrize(
    ("by_itself", "graceful", "ended"),
    [(True, True, ["wait 1"]), (False, True, ["wait 1", "kill", "wait 1"]), (True, False, ["kill", "wait 1"])],
)
def test_a_receiver_that_is_replaced_is_ended(
    by_itself: bool, graceful: bool, ended: list[str], start: Callable[..., Sessions]
) -> None:
    """One that asks for it gets the time to end; one that has closed its end of the channel is killed."""
    listener, before = start(), Played.made[-1]
    before.ends_by_itself = by_itself
    if graceful:
        before.send(p.REPLACE)
    else:
        before.channel.shutdown(socket.SHUT_RDWR)
    reason = "blocked" if graceful else "ended"

    until(lambda: before.ended == ended)
    assert len(Played.made) == 2
    assert before.channel.recv(1) == b""  # its end of the channel is closed
    assert listener.counters().replaced == {**dict.fromkeys(("stuck", "blocked", "ended"), 0), reason: 1}
    assert listener.counters().replaced_at == pytest.approx(time.time(), abs=5)
    assert f"({reason})" in listener.trouble()
    settle(listener, 1)  # the next one is heard


def test_a_receiver_that_is_silent_for_three_seconds_is_replaced(start: Callable[..., Sessions]) -> None:
    """It reports every second."""
    listener, began = start(), time.monotonic()
    intake = listener._reception._intake
    assert intake
    assert intake.received_at >= began - 5
    intake.received_at = time.monotonic() - 2.0
    time.sleep(0.1)  # some turns
    settle(listener, 1)
    assert intake.received_at >= began
    assert len(Played.made) == 1

    intake.received_at = time.monotonic() - 3.5

    until(lambda: len(Played.made) == 2)
    settle(listener, 2)
    assert listener.counters().replaced == {"stuck": 1, "blocked": 0, "ended": 0}
    assert Played.made[0].ended == ["wait 1"]  # it may only have got no CPU time


def test_a_receiver_that_cannot_be_started_is_tried_again(
    start: Callable[..., Sessions], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    listener = start()
    assert listener.trouble() == ""
    failure = OSError(11, "Resource temporarily unavailable")
    monkeypatch.setattr(Played, "refused", failure)
    with caplog.at_level("INFO"):
        Played.made[-1].channel.shutdown(socket.SHUT_RDWR)
        until(lambda: listener.trouble() == f"training processes cannot report: {failure.strerror}")
        assert listener.receiver_pid() is None
        assert listener.view() == ()
        monkeypatch.setattr(Played, "refused", None)
        assert 1 < listener._reception._retry_at - time.monotonic() <= 3
        time.sleep(0.1)  # some turns
        assert len(Played.made) == 1
        listener._reception._retry_at = 0.0
        until(lambda: len(Played.made) == 2)
        settle(listener, 1)

    assert caplog.messages[1:] == [
        "the receiver of training processes cannot be started",
        "the receiver of training processes is started",
    ]
    assert listener.trouble()  # still reported
    monkeypatch.setattr(reception, "REPORT_SECONDS", 0.0)
    assert listener.trouble() == ""


def test_bans_outlast_the_receiver_that_made_them(
    start: Callable[..., Sessions], caplog: pytest.LogCaptureFixture
) -> None:
    listener = start()
    Played.made[-1].send(p.BANNED, 0, ban(7, 300.0, "/evil"))
    Played.made[-1].send(p.BANNED, 0, ban(8, 0.0, "/over"))
    settle(listener, 1)
    assert [vars(record)["fields"] for record in caplog.records] == [
        {"uid": 7, "cgroup": "/evil", "seconds": 300.0},
        {"uid": 8, "cgroup": "/over", "seconds": 0.0},
    ]

    for made in (2, 3):
        time.sleep(0.05)
        Played.made[-1].channel.shutdown(socket.SHUT_RDWR)
        until(lambda made=made: len(Played.made) == made)  # type: ignore[misc]  # the lambda has a default
        settle(listener, made)
        ((kind, _, body),) = Played.made[-1].commands()
        uid, seconds = p.BAN_BODY.unpack_from(body)
        assert (kind, uid, body[p.BAN_BODY.size :]) == (p.BAN, 7, b"/evil")
        assert 300 - 30 < seconds < 300 - 0.04 * (made - 1)


def test_what_the_receiver_reports_is_logged(start: Callable[..., Sessions], caplog: pytest.LogCaptureFixture) -> None:
    listener = start()
    Played.made[-1].send(p.REOPENED, 0, b"opened again")
    Played.made[-1].send(p.FAILED, 0, b"out of memory")
    settle(listener, 1)

    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("WARNING", "opened again"),
        ("ERROR", "the receiver failed: out of memory"),
    ]
    assert vars(caplog.records[0])["fields"] == {"path": listener.path}


def test_a_receiver_that_rests_may_be_silent_for_longer(
    start: Callable[..., Sessions], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(p, "REST_SECONDS", 30.0)
    listener = start()
    intake = listener._reception._intake
    assert intake
    Played.made[-1].send(p.RESTING)
    Played.made[-1].reject("rate", 1, 1)  # no report, so the rest goes on
    until(lambda: sum(listener.counters().rejected.values()) == 1)

    intake.received_at = time.monotonic() - 25.0
    listener._reception.watch()
    assert (intake.resting, len(Played.made)) == (True, 1)

    intake.received_at = time.monotonic() - 34.0
    listener._reception.watch()
    assert len(Played.made) == 2


def test_receivers_that_do_not_end_are_waited_for_later(
    start: Callable[..., Sessions], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reception, "STUCK_SECONDS", 0.2)
    listener = start()
    for number in range(1, 5):
        Played.made[-1].channel.shutdown(socket.SHUT_RDWR)
        until(lambda number=number: listener.counters().replaced["ended"] == number)  # type: ignore[misc]  # the lambda has a default
        until(lambda number=number: len(Played.made) == number + 1)  # type: ignore[misc]  # the lambda has a default
    Played.made[-1].channel.shutdown(socket.SHUT_RDWR)
    until(lambda: listener.counters().replaced["ended"] == 5)
    time.sleep(0.5)
    abandoned = listener._reception._abandoned

    assert [intake.pid for intake in abandoned] == [played.pid for played in Played.made]
    assert len(Played.made) == 5  # there is no other one before one of them has ended
    assert listener.receiver_pid() is None
    for played in Played.made[:-1]:
        played.status = -9
    until(lambda: len(Played.made) == 6)
    assert [intake.pid for intake in listener._reception._abandoned] == [Played.made[4].pid]


# --- the listener itself ---


def test_the_time_for_which_ended_sessions_are_kept_can_be_changed(start: Callable[..., Sessions]) -> None:
    listener = start(linger_seconds=300.0)
    assert listener.linger_seconds == 300.0
    listener.linger_seconds = 0.0
    Played.made[-1].begin(1, ONE)
    settle(listener, 1)
    assert len(listener.view()) == 1
    Played.made[-1].send(p.ENDED, 1)

    until(lambda: listener.view() == ())
    assert listener.counters().ended["killed"] == 1


def test_nothing_is_swept_without_connections(start: Callable[..., Sessions], monkeypatch: pytest.MonkeyPatch) -> None:
    swept: list[float] = []
    monkeypatch.setattr(Sessions, "_sweep", lambda _, now: swept.append(now))
    listener = start()
    for turn in range(1, 6):
        settle(listener, turn)
    assert swept == []

    Played.made[-1].open(1)
    until(lambda: len(swept) > 2)


def test_sessions_can_be_viewed_before_the_start_and_after_the_stop(
    start: Callable[..., Sessions], tmp_path: Path
) -> None:
    idle = Sessions(str(tmp_path / "idle"))
    assert (idle.view(), idle.receiver_pid(), idle.trouble()) == ((), None, "")
    idle.stop()
    listener = start()
    Played.made[-1].begin(1, ONE)
    settle(listener, 1)
    listener.stop()

    assert [s.hello.session for s in listener.view()] == [ONE]


def test_a_start_that_lies_outside_the_life_of_its_process_is_not_believed(start: Callable[..., Sessions]) -> None:
    listener, now = start(), time.time()
    for number, claimed in enumerate((now - 1000, now + 1000), 1):
        Played.made[-1].open(number)
        Played.made[-1].message(number, wire.Hello(f"{number:032}", 0, started=claimed))
    settle(listener, 1)

    assert [s.hello.started for s in listener.view()] == [now - 1000, pytest.approx(now, abs=10)]
