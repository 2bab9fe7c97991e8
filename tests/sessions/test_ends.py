"""The reason for an end, from the last message and the exit status in the kernel."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpugauge.sessions import ends
from gpugauge.sessions.listener import Sessions
from gpugauge.wire import messages as wire
from tests.drawn import cases
from tests.needs import require
from tests.sessions.hooks import ONE, TWO, connect, hello, open_links, snap, started, until, zombie

ERROR = 3 << 8  # the exit status of exit code 3


def since_boot() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


# The last message, the exit status, and the reason.
REASONS: list[tuple[str | None, int | None, str]] = [
    ("finished", 0, "finished"),
    ("error", 0, "finished"),
    (None, 0, "finished"),
    ("other", 0, "finished"),
    ("finished", ERROR, "error"),
    (None, ERROR, "error"),
    ("other", ERROR, "error"),
    ("out_of_memory", ERROR, "out_of_memory"),
    ("interrupted", ERROR, "interrupted"),
    (None, 130 << 8, "interrupted"),
    ("finished", signal.SIGSEGV, "killed"),
    ("error", signal.SIGABRT, "error"),
    ("out_of_memory", signal.SIGABRT | 0x80, "out_of_memory"),
    (None, signal.SIGKILL, "killed"),
    (None, signal.SIGHUP, "killed"),
    (None, signal.SIGINT, "interrupted"),
    ("finished", None, "finished"),
    ("out_of_memory", None, "out_of_memory"),
    ("a newer hook's word", None, "other"),
    (None, None, "killed"),
    ("finished", ends.RUNNING, "finished"),
    ("other", ends.RUNNING, "other"),
    (None, ends.RUNNING, "other"),
]


def test_the_reason_for_an_end() -> None:
    assert [row for row in REASONS if ends.reason(*row[:2]) != row[2]] == []


@cases("code", [0, 3])
def test_the_status_of_a_process_that_nobody_has_waited_for(code: int) -> None:
    child = zombie(code)
    assert ends.status_in_proc(child, since_boot()) == code << 8
    assert ends.status_in_proc(child, 0.0) is None  # another process with the same pid
    os.waitpid(child, 0)
    assert ends.status_in_proc(child, since_boot()) is None


def test_the_status_of_a_process_that_continues() -> None:
    assert ends.status_in_proc(os.getpid(), since_boot()) == ends.RUNNING
    assert ends.status_in_proc(0, since_boot()) is None


def test_zero_is_not_the_status_of_a_process_that_may_not_be_traced(monkeypatch: pytest.MonkeyPatch) -> None:
    def readlink(_: Path) -> Path:
        raise PermissionError

    child = zombie(0)
    monkeypatch.setattr(Path, "readlink", readlink)
    assert ends.status_in_proc(child, since_boot()) is None
    os.waitpid(child, 0)


def kernel_reports_exits() -> bool:
    child = zombie(0)
    descriptor = os.pidfd_open(child)
    os.waitpid(child, 0)
    try:
        return ends._status_of_reaped(descriptor) == 0
    except OSError:
        return False
    finally:
        os.close(descriptor)


@pytest.fixture
def untraceable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sessions]:
    """Return a listener that may not trace the processes."""
    monkeypatch.setattr(ends, "status_in_proc", lambda *_: None)
    with started(tmp_path / "hook.sock") as listener:
        yield listener
    assert open_links("pidfd") == 0


def trained(listener: Sessions, code: int, session: str = ONE) -> int:
    """Start a process that reports that it has finished, and exits with `code`; return its pid."""
    child = os.fork()
    if not child:
        client = connect(listener)
        for message in (hello(session), snap(1, session), wire.encode(wire.Bye(session, 2, "finished"))):
            client.send(message)
        os._exit(code)
    until(lambda: [s.connected for s in listener.view() if s.hello.session == session] == [False])
    return child


def test_a_reason_is_settled_when_the_parent_has_waited(untraceable: Sessions) -> None:
    require(kernel_reports_exits(), "needs Linux 6.15 or newer")
    child = trained(untraceable, 3)
    before = untraceable.view()[0], untraceable.counters().ended
    os.waitpid(child, 0)
    assert (before[0].end_reason, sum(before[1].values())) == ("", 0)
    until(lambda: [s.end_reason for s in untraceable.view()] == ["error"])
    assert untraceable.view()[0].ended_at == before[0].ended_at
    assert untraceable.counters().ended["error"] == sum(untraceable.counters().ended.values()) == 1


def test_a_reason_is_settled_without_a_status(untraceable: Sessions, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ends, "STATUS_TIMEOUT_SECONDS", 0.1)
    child = trained(untraceable, 3)
    until(lambda: [s.end_reason for s in untraceable.view()] == ["finished"])
    os.waitpid(child, 0)


def test_processes_without_a_status_are_limited(untraceable: Sessions) -> None:
    require(kernel_reports_exits(), "needs Linux 6.15 or newer")
    untraceable._options.connections = 1
    children = [trained(untraceable, 3, session) for session in (ONE, TWO)]
    assert [s.end_reason for s in untraceable.view()] == ["", "finished"]
    assert open_links("pidfd") == 1
    for child in children:
        os.waitpid(child, 0)


def test_a_process_that_continues_after_its_last_message(tmp_path: Path) -> None:
    with started(tmp_path / "hook.sock") as listener:
        with connect(listener) as client:
            for message in (hello(), wire.encode(wire.Bye(ONE, 1, "finished")), snap(2)):
                client.send(message)
        until(lambda: [s.end_reason for s in listener.view()] == ["other"])
