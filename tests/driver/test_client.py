from __future__ import annotations

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


def test_answer_is_awaited_in_slices(worker: Worker) -> None:
    simulation = scenario("gpus: {model: h100}").simulation()
    number = worker.send("open", simulate=simulation)

    assert not worker.answered(0)
    assert worker.answered(20)
    assert worker.receive(number, 1).failed is None


def test_answers_of_all_devices_are_there_when_one_is(worker: Worker) -> None:
    opened = worker.send("open", simulate=scenario("gpus: {model: h100, count: 8}").simulation())
    assert worker._rung.poll(20_000)
    worker._bell.read(8)  # here, and not in `answered`, which hears it only of an answer that comes soon
    worker.receive(opened, 20)
    groups: tuple[list[Group], ...] = (["fast"], ["static", "fast"])
    numbers = worker.read([(index, groups[index // 4]) for index in range(8)])

    assert worker._rung.poll(20_000)  # by then all are there
    assert worker.answered(20)
    waiting, worker._rung = worker._rung, None  # type: ignore[assignment]  # nothing is waited for any more

    assert [worker.receive(number, 20).index for number in numbers] == list(range(8))
    worker._rung = waiting
    assert not worker.answered(0)


def test_device_that_hangs_is_the_first_without_an_answer(worker: Worker) -> None:
    hang = {"call": "nvmlDeviceGetUtilizationRates", "gpu": 1, "hang": True}
    worker.ask("open", 20, simulate=scenario(f"gpus: {{model: h100, count: 3}}\nfaults: [{hang}]").simulation())
    numbers = worker.read([(index, ["fast"]) for index in range(3)])

    assert worker.receive(numbers[0], 20).index == 0
    with pytest.raises(WorkerHangsError):
        worker.receive(numbers[1], 0.5)


def test_slow_devices_are_taken_one_by_one_and_later_ones_together_again(worker: Worker) -> None:
    slow = {"call": "nvmlDeviceGetUtilizationRates", "delay": 0.15}
    worker.ask("open", 20, simulate=scenario(f"gpus: {{model: h100, count: 3}}\nfaults: [{slow}]").simulation())

    for _ in range(2):  # a bell for answers that were taken one by one does not confuse the next time
        numbers = worker.read([(index, ["fast"]) for index in range(3)])
        assert [worker.receive(number, 20).index for number in numbers] == [0, 1, 2]


def test_interrupt_ends_a_wait_at_once(worker: Worker) -> None:
    hang = {"call": "nvmlDeviceGetUtilizationRates", "hang": True}
    worker.ask("open", 20, simulate=scenario(f"gpus: {{model: h100}}\nfaults: [{hang}]").simulation())
    (number,) = worker.read([(0, ["fast"])])
    threading.Timer(0.2, worker.interrupt).start()

    with pytest.raises(WorkerGoneError):
        worker.receive(number, 60)
    worker.end(polite=False)


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


def test_resident_memory_is_the_processes_own_and_none_after_its_end(worker: Worker) -> None:
    worker.ask("open", 20, simulate=scenario("gpus: {model: h100}").simulation())
    status = Path(f"/proc/{worker.pid}/status").read_text()
    (kilobytes,) = (int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS"))

    assert worker.resident_bytes() == pytest.approx(kilobytes * 1024, rel=0.05)
    assert worker.end()
    assert worker.resident_bytes() is None


def test_leak_of_the_library_shows(worker: Worker) -> None:
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
def test_kill_from_outside_is_told_from_a_crash(worker: Worker, number: int, killed: bool) -> None:
    assert not worker.was_killed()
    worker._process.send_signal(number)
    assert worker.answered(10)  # the end is news, too

    assert worker.end()
    assert worker.was_killed() is killed


def test_patience_lasts_until_a_call_is_over(worker: Worker) -> None:
    slow = {"call": "nvmlDeviceGetUtilizationRates", "delay": 1.0}
    worker.ask("open", 20, simulate=scenario(f"gpus: {{model: h100}}\nfaults: [{slow}]").simulation())
    worker.send("read", index=0, groups=["fast"])
    time.sleep(0.2)  # let the call begin

    assert worker.end(patience=10)
    assert worker.ending() == "exited with status 0"
