from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpugauge.driver.client import Worker
from tests.driver.simulated.build import scenario


@pytest.fixture
def worker() -> Iterator[Worker]:
    made = Worker()
    yield made
    if not made.reaped():
        made.end()


def test_answer_is_awaited_in_slices(worker: Worker) -> None:
    simulation = scenario("gpus: {model: h100}").simulation()
    number = worker.send("open", simulate=simulation)

    assert not worker.answered(0)
    assert worker.answered(20)
    assert worker.receive(number, 1).failed is None


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
