from functools import partial

import pytest

from gpugauge.doctor import gpus as devices
from gpugauge.doctor.gpus import ask
from gpugauge.driver.api import Reply
from gpugauge.driver.client import Worker, WorkerGoneError, WorkerHangsError
from gpugauge.simulator import WORKER
from gpugauge.simulator.scenario.load import load_scenario

SIMULATED = partial(Worker, WORKER)


def test_a_simulated_machine() -> None:
    driver = ask(SIMULATED, load_scenario("node").simulation())

    assert (driver.reason, len(driver.up)) == ("ok", 8)
    assert driver.facts is not None
    assert driver.facts.simulated
    assert driver.up[3].reading.index == 3
    assert driver.up[3].reading.compute_capability == (9, 0)
    assert [p.pid for p in driver.up[4].reading.processes or ()] == [41101]


def test_no_driver() -> None:
    assert ask(SIMULATED, load_scenario("no-driver").simulation()) == devices.Driver("driver_not_loaded")


class Scripted(Worker):
    """Returns the given answers in order; an exception is raised."""

    def __init__(self, *answers: Reply | Exception) -> None:
        self.answers = list(answers)
        self.ended: list[bool] = []

    def ask(self, op: str, deadline: float, **arguments: object) -> Reply:
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def end(self, *, graceful: bool = True, grace_seconds: float = 0.3) -> bool:
        self.ended.append(graceful)
        return True


OPENED = Reply(1, "open", values={"driver": {"device_count": 3}})
READ = Reply(2, "read", 0, values={"static": {"uuid": "GPU-a", "index": 0}, "fast": {"utilization_percent": 7}})


def test_a_device_that_is_lost() -> None:
    worker = Scripted(OPENED, READ, Reply(3, "read", 1, failed=15), Reply(4, "read", 2, values={"static": {}}))

    driver = ask(spawn=lambda: worker)

    assert [(c.reading.index, c.up, c.reason) for c in driver.devices] == [
        (0, True, "ok"),
        (1, False, "gpu_is_lost"),
        (2, False, "reports no uuid"),
    ]
    assert worker.ended == [True]


def test_devices_after_one_that_hangs_are_not_read() -> None:
    worker = Scripted(OPENED, READ, WorkerHangsError())

    driver = ask(spawn=lambda: worker)

    assert [c.reason for c in driver.devices] == ["ok", "hangs", "not read"]
    assert worker.ended == [False]  # a polite request would not be read


@pytest.mark.parametrize(("error", "reason"), [(WorkerHangsError(), "timeout"), (WorkerGoneError(), "worker_failed")])
def test_a_worker_that_fails_while_it_opens(error: Exception, reason: str) -> None:
    assert ask(spawn=lambda: Scripted(error)).reason == reason


def test_a_worker_that_cannot_be_started() -> None:
    def spawn() -> Worker:
        raise OSError("no more processes")

    assert ask(spawn=spawn).reason == "worker_failed"
