from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpugauge.driver import client
from gpugauge.driver.api import Group
from gpugauge.driver.client import Worker, WorkerGoneError, WorkerHangsError, ahead
from gpugauge.simulator import WORKER
from tests.simulator.build import scenario


@pytest.fixture
def worker() -> Iterator[Worker]:
    made = Worker(WORKER)
    yield made
    if not made.reaped():
        made.end()


def simulation(count: int = 1, **fault: Any) -> dict[str, Any]:
    """Return the options of H100s with a fault."""
    return scenario(f"gpus: {{model: h100, count: {count}}}\nfaults: {[fault] if fault else []}").simulation()


def test_reply_is_awaited_in_slices(worker: Worker) -> None:
    os.kill(worker.pid, signal.SIGSTOP)  # so that it cannot reply yet
    number = worker.send("open", simulate=simulation())

    assert not worker.wait_for_reply(0)
    os.kill(worker.pid, signal.SIGCONT)
    assert worker.wait_for_reply(20)
    assert worker.receive(number, 1).failed is None


def test_replies_of_all_devices_are_awaited_together(worker: Worker) -> None:
    opened = worker.send("open", simulate=simulation(8))
    assert worker._bell_rung.poll(20_000)
    worker._bell.read(8)  # `wait_for_reply` reads it only if a reply comes soon
    worker.receive(opened, 20)
    groups: tuple[list[Group], ...] = (["fast"], ["static", "fast"])
    numbers = worker.read([(index, groups[index // 4]) for index in range(8)])

    assert worker._bell_rung.poll(20_000)  # all have replied
    assert worker.wait_for_reply(20)
    waiting, worker._bell_rung = worker._bell_rung, None  # type: ignore[assignment]  # no further wait

    assert [worker.receive(number, 20).index for number in numbers] == list(range(8))
    worker._bell_rung = waiting
    assert not worker.wait_for_reply(0)


def test_device_that_hangs_is_the_first_without_a_reply(worker: Worker) -> None:
    worker.ask("open", 20, simulate=simulation(3, call="nvmlDeviceGetUtilizationRates", gpu=1, hang=True))
    numbers = worker.read([(index, ["fast"]) for index in range(3)])

    assert worker.receive(numbers[0], 20).index == 0
    with pytest.raises(WorkerHangsError):
        worker.receive(numbers[1], 0.5)


def test_replies_of_slow_devices_are_received_one_by_one(worker: Worker) -> None:
    worker.ask("open", 20, simulate=simulation(3, call="nvmlDeviceGetUtilizationRates", delay=0.15))

    for _ in range(2):  # a signal for replies that were received one by one has no effect on the next read
        numbers = worker.read([(index, ["fast"]) for index in range(3)])
        assert [worker.receive(number, 20).index for number in numbers] == [0, 1, 2]


def test_interrupt_ends_a_wait_at_once(worker: Worker) -> None:
    worker.ask("open", 20, simulate=simulation(call="nvmlDeviceGetUtilizationRates", hang=True))
    (number,) = worker.read([(0, ["fast"])])
    threading.Timer(0.2, worker.interrupt).start()

    with pytest.raises(WorkerGoneError):
        worker.receive(number, 60)
    worker.end(graceful=False)


def test_worker_that_cannot_be_started_leaves_nothing_open(monkeypatch: pytest.MonkeyPatch) -> None:
    before = set(Path("/proc/self/fd").iterdir())
    monkeypatch.setattr(sys, "executable", "/no/such/file")

    with pytest.raises(OSError, match="No such file"):
        Worker(WORKER)

    assert len(list(Path("/proc/self/fd").iterdir())) == len(before)


def test_a_worker_that_was_started_ahead_is_the_first() -> None:
    children = Path(f"/proc/self/task/{os.getpid()}/children")
    before = children.read_text().split()
    spawn = ahead(WORKER, simulate=simulation(3))
    (started,) = set(children.read_text().split()).difference(before)

    first, second = spawn(WORKER), spawn(WORKER)
    assert (first.pid == int(started), second.pid == int(started)) == (True, False)
    opened = first.receive(first.open(), 20)  # it was asked to before
    assert (opened.op, opened.values["driver"]["device_count"]) == ("open", 3)
    assert first.ask("close", 20).op == "close"
    assert first.end()
    assert second.end()


def test_a_worker_that_cannot_be_started_ahead_is_started_later(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as missing:
        missing.setattr(sys, "executable", "/no/such/file")
        spawn = ahead(WORKER)
        with pytest.raises(OSError, match="No such file"):
            spawn(WORKER)

    assert spawn(WORKER).end()


def test_resident_memory_of_the_process(worker: Worker) -> None:
    worker.ask("open", 20, simulate=simulation())
    status = Path(f"/proc/{worker.pid}/status").read_text()
    (kilobytes,) = (int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS"))

    assert worker.resident_bytes() == pytest.approx(kilobytes * 1024, rel=0.05)
    assert worker.end()
    assert worker.resident_bytes() is None


def test_leak_of_the_library_is_visible(worker: Worker) -> None:
    worker.ask("open", 20, simulate=simulation(call="nvmlDeviceGetUtilizationRates", leak="8 MiB"))
    before = worker.resident_bytes()
    for _ in range(3):
        worker.ask("read", 20, index=0, groups=["fast"])
    after = worker.resident_bytes()

    assert before is not None
    assert after is not None
    assert 20 << 20 < after - before < 40 << 20


@pytest.mark.parametrize(
    ("number", "killed"), [(signal.SIGKILL, True), (signal.SIGSEGV, False), (signal.SIGABRT, False)]
)
def test_kill_from_outside_is_distinguished_from_a_crash(worker: Worker, number: int, killed: bool) -> None:
    assert not worker.was_killed()
    worker._process.send_signal(number)
    assert worker.wait_for_reply(10)  # the end ends the wait, too

    assert worker.end()
    assert worker.was_killed() is killed


def test_grace_time_lasts_until_a_call_is_over(worker: Worker) -> None:
    worker.ask("open", 20, simulate=simulation(call="nvmlDeviceGetUtilizationRates", delay=1.0))
    worker.send("read", index=0, groups=["fast"])
    time.sleep(0.2)  # let the call begin

    assert worker.end(grace_seconds=10)
    assert worker.ending() == "exited with status 0"


def test_end_of_a_worker_whose_library_has_started_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """That process has the worker's end of the channel, so that this end does not see it close."""
    pair, kept = socket.socketpair, []

    def socketpair() -> tuple[socket.socket, socket.socket]:
        ours, theirs = pair()
        kept.append(theirs.dup())
        return ours, theirs

    monkeypatch.setattr(socket, "socketpair", socketpair)
    worker = Worker(WORKER)
    number = worker.send("open", simulate=simulation())
    worker.receive(number, 20)
    os.kill(worker.pid, signal.SIGKILL)

    (number,) = worker.read([(0, ["fast"])])
    assert worker.wait_for_reply(1) or worker.wait_for_reply(20)  # it may not have ended at once
    with pytest.raises(WorkerGoneError):
        worker.receive(number, 20)
    worker.end()
    kept[0].close()


def waited(worker: Worker, number: int, deadline: float) -> float:
    """Wait for a reply as long as the worker does not hang; return the seconds."""
    begin = time.monotonic()
    while not worker.wait_for_reply(min(0.05, worker.time_left(begin, deadline))):
        if worker.time_left(begin, deadline) <= 0:
            raise WorkerHangsError
    worker.receive(number, 1)
    return time.monotonic() - begin


def test_many_slow_calls_are_no_hang(worker: Worker) -> None:
    worker.ask("open", 20, simulate=simulation(call="nvmlDeviceGetClockInfo", delay=0.4))
    (number,) = worker.read([(0, ["normal"])])  # four clocks

    assert waited(worker, number, deadline=1.0) >= 1.2  # the fourth one is too slow


def test_one_slow_call_is_a_hang(worker: Worker) -> None:
    worker.ask("open", 20, simulate=simulation(call="nvmlDeviceGetPowerUsage", delay=30.0))
    (number,) = worker.read([(0, ["normal"])])

    with pytest.raises(WorkerHangsError):
        waited(worker, number, deadline=1.0)


def test_a_reply_has_its_own_limit(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many calls it takes: the other GPUs wait for it."""
    monkeypatch.setattr(client, "_MAX_REPLY_SECONDS", 1.2)
    worker.ask("open", 20, simulate=simulation(call="nvmlDeviceGet*", delay=0.3))
    (number,) = worker.read([(0, ["normal"])])

    with pytest.raises(WorkerHangsError):
        waited(worker, number, deadline=0.6)
