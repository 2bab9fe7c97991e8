"""Receivers that do not end: how many there may be."""

from __future__ import annotations

import math
import selectors
import socket
import time
from pathlib import Path
from typing import Any, ClassVar

import pytest

from gpugauge.sessions import reception as module
from gpugauge.sessions.budget import Budget
from gpugauge.sessions.receiver import protocol as p
from gpugauge.sessions.reception import Reception
from gpugauge.sessions.store import Store
from gpugauge.sessions.tasks import free_tasks
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
