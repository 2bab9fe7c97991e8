"""Receivers that do not end: how many there may be."""

from __future__ import annotations

import math
import os
import selectors
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, ClassVar

import pytest

from gpugauge.sessions import reception as module
from gpugauge.sessions.budget import Budget
from gpugauge.sessions.listener import checked_start
from gpugauge.sessions.receiver import protocol as p
from gpugauge.sessions.reception import Reception, free_tasks
from gpugauge.sessions.store import Store
from tests.drawn import cases


class Unkillable:
    """A double of a receiver that no signal ends."""

    made: ClassVar[list[Unkillable]] = []

    def __init__(self, *_: object) -> None:
        self.channel, self._other = socket.socketpair()
        self.pid, self.ended, self.received_at, self.released = 1 + len(self.made), False, math.inf, False
        self.made.append(self)

    def reaped(self) -> bool:
        return self.released

    def end(self, *, graceful: bool = True) -> None:
        assert graceful in {True, False}
        self.channel.close()
        self._other.close()

    def command(self, *_: object) -> None:
        raise AssertionError("there is no ban")


@pytest.fixture
def reception(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(module, "Intake", Unkillable)
    monkeypatch.setattr(module, "free_tasks", lambda: math.inf)
    Unkillable.made = []
    with selectors.DefaultSelector() as selector:
        made = Reception(Path("/x"), p.Options(), selector, Store(1.0, 1, Budget()), lambda: None)
        made.start(None)
        yield made
        made.stop()


def test_receivers_that_do_not_end_are_limited(
    reception: Reception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(20):
        reception.handle(p.REPLACE, b"")
    assert len(Unkillable.made) == 5
    assert reception.pid == 5  # the last one serves its connections on
    assert [r.message for r in caplog.records].count(
        "closing blocks in too many receivers: this one stays, and closes nothing more"
    ) == 1

    Unkillable.made[0].released = True
    reception.handle(p.REPLACE, b"")
    assert reception.pid == 6

    Unkillable.made[1].released = True
    monkeypatch.setattr(module, "free_tasks", lambda: 32)
    reception.handle(p.REPLACE, b"")
    assert reception.pid == 6
    monkeypatch.setattr(module, "free_tasks", lambda: 33)
    reception.handle(p.REPLACE, b"")
    assert reception.pid == 7


def test_a_receiver_that_ends_has_no_successor_while_too_many_have_not_ended(
    reception: Reception, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(4):
        reception.handle(p.REPLACE, b"")
    Unkillable.made[-1].ended = True
    reception.watch()
    assert reception.pid is None
    assert "too many receivers before it have not ended" in reception.trouble()

    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + module.STUCK_SECONDS)
    reception.watch()
    assert reception.pid is None
    Unkillable.made[0].released = True
    monkeypatch.setattr(time, "monotonic", lambda: now + 2 * module.STUCK_SECONDS)
    reception.watch()
    assert reception.pid == 6


@cases(
    ("cgroups", "files", "free"),
    [
        ("0::/a/b\n", {"a/b": ("128", "100")}, 28),
        ("0::/a/b\n", {"a/b": ("max", "100")}, math.inf),
        ("0::/\n", {}, math.inf),
        ("8:pids:/a\n4:memory:/a\n0::/b\n", {"pids/a": ("50", "49"), "b": ("max", "1")}, 1),
        ("4:memory:/a\n", {"memory/a": ("50", "49")}, math.inf),
    ],
)
def test_tasks_that_the_cgroup_allows(
    cgroups: str, files: dict[str, tuple[str, str]], free: float, tmp_path: Path
) -> None:
    for folder, (limit, current) in files.items():
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "pids.max").write_text(f"{limit}\n")
        (tmp_path / folder / "pids.current").write_text(f"{current}\n")
    (tmp_path / "cgroup").write_text(cgroups)
    assert free_tasks(tmp_path / "cgroup", tmp_path) == free
    assert free_tasks(tmp_path / "none", tmp_path) == math.inf


def test_a_claim_is_kept_between_the_start_of_the_process_and_now_and_otherwise_replaced() -> None:
    before = time.time()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        after = time.time()  # on a busy machine this is late
        time.sleep(0.3)  # a claim of now lies well behind the start, which the kernel states in hundredths of a second
        now = time.time()
        lies = (-2 * 86400.0, -3600.0, -5.0, 5.0, 86400.0, -1e12, 1e12)
        kept, found = checked_start(now, process.pid), [checked_start(time.time() + lie, process.pid) for lie in lies]
        process.kill()

    assert kept == now
    assert [start for start in found if start is None or not before - 0.1 < start < after + 0.1] == []


def test_a_process_that_proc_does_not_show() -> None:
    """It may have connected again, so that a claim in the past is possible."""
    now = time.time()

    for pid in (0, 2**30):
        assert checked_start(now - 3600, pid) == now - 3600
        assert checked_start(now + 3600, pid) == pytest.approx(now, abs=1)


def test_claims_that_are_no_time() -> None:
    for claim in (float("nan"), float("inf"), float("-inf"), -1.0):
        found = checked_start(claim, os.getpid())
        assert found is not None
        assert 0 < found <= time.time() + 1
    assert checked_start(None, os.getpid()) is None
