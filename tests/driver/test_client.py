from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpugauge.driver.api import Group
from gpugauge.driver.client import Worker, WorkerGoneError, WorkerHangsError
from gpugauge.simulator import WORKER
from tests.simulator.build import scenario


@pytest.fixture
def worker() -> Iterator[Worker]:
    made = Worker(WORKER)
    yield made
    if not made.reaped():
        made.end()


def test_reply_is_awaited_in_slices(worker: Worker) -> None:
    simulation = scenario("gpus: {model: h100}").simulation()
    os.kill(worker.pid, signal.SIGSTOP)  # so that it cannot reply yet
    number = worker.send("open", simulate=simulation)

    assert not worker.wait_for_reply(0)
    os.kill(worker.pid, signal.SIGCONT)
    assert worker.wait_for_reply(20)
    assert worker.receive(number, 1).failed is None


def test_replies_of_all_devices_are_awaited_together(worker: Worker) -> None:
    opened = worker.send("open", simulate=scenario("gpus: {model: h100, count: 8}").simulation())
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
    hang = {"call": "nvmlDeviceGetUtilizationRates", "gpu": 1, "hang": True}
    worker.ask("open", 20, simulate=scenario(f"gpus: {{model: h100, count: 3}}\nfaults: [{hang}]").simulation())
    numbers = worker.read([(index, ["fast"]) for index in range(3)])

    assert worker.receive(numbers[0], 20).index == 0
    with pytest.raises(WorkerHangsError):
        worker.receive(numbers[1], 0.5)


def test_replies_of_slow_devices_are_received_one_by_one(worker: Worker) -> None:
    slow = {"call": "nvmlDeviceGetUtilizationRates", "delay": 0.15}
    worker.ask("open", 20, simulate=scenario(f"gpus: {{model: h100, count: 3}}\nfaults: [{slow}]").simulation())

    for _ in range(2):  # a signal for replies that were received one by one has no effect on the next read
        numbers = worker.read([(index, ["fast"]) for index in range(3)])
        assert [worker.receive(number, 20).index for number in numbers] == [0, 1, 2]


def test_interrupt_ends_a_wait_at_once(worker: Worker) -> None:
    hang = {"call": "nvmlDeviceGetUtilizationRates", "hang": True}
    worker.ask("open", 20, simulate=scenario(f"gpus: {{model: h100}}\nfaults: [{hang}]").simulation())
    (number,) = worker.read([(0, ["fast"])])
    threading.Timer(0.2, worker.interrupt).start()

    with pytest.raises(WorkerGoneError):
        worker.receive(number, 60)
    worker.end(graceful=False)


def test_stopped_worker_that_reads_nothing_hangs(worker: Worker) -> None:
    worker._process.send_signal(signal.SIGSTOP)

    with pytest.raises(WorkerHangsError):
        worker.send("x" * 1_000_000)


def test_worker_that_cannot_be_started_leaves_nothing_open(monkeypatch: pytest.MonkeyPatch) -> None:
    before = set(Path("/proc/self/fd").iterdir())
    monkeypatch.setattr(sys, "executable", "/no/such/file")

    with pytest.raises(OSError, match="No such file"):
        Worker(WORKER)

    assert len(list(Path("/proc/self/fd").iterdir())) == len(before)


def test_resident_memory_of_the_process(worker: Worker) -> None:
    worker.ask("open", 20, simulate=scenario("gpus: {model: h100}").simulation())
    status = Path(f"/proc/{worker.pid}/status").read_text()
    (kilobytes,) = (int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS"))

    assert worker.resident_bytes() == pytest.approx(kilobytes * 1024, rel=0.05)
    assert worker.end()
    assert worker.resident_bytes() is None


def test_leak_of_the_library_is_visible(worker: Worker) -> None:
    leak = {"call": "nvmlDeviceGetUtilizationRates", "leak": "8 MiB"}
    simulation = scenario(f"gpus: {{model: h100}}\nfaults: [{leak}]").simulation()
    worker.ask("open", 20, simulate=simulation)
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
    slow = {"call": "nvmlDeviceGetUtilizationRates", "delay": 1.0}
    worker.ask("open", 20, simulate=scenario(f"gpus: {{model: h100}}\nfaults: [{slow}]").simulation())
    worker.send("read", index=0, groups=["fast"])
    time.sleep(0.2)  # let the call begin

    assert worker.end(grace_seconds=10)
    assert worker.ending() == "exited with status 0"
