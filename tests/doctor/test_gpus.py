from functools import partial

import pytest

from gpugauge.doctor import gpus as devices
from gpugauge.doctor.gpus import ask
from gpugauge.driver.api import Reply
from gpugauge.driver.client import Worker, WorkerGoneError, WorkerHangsError
from gpugauge.simulator import WORKER
from gpugauge.simulator.scenario.load import load_scenario

SIMULATED = partial(Worker, WORKER)
ERRORS = {"x": "unknown", "y": "not_supported"}


def test_a_simulated_machine() -> None:
    driver = ask(SIMULATED, load_scenario("node").simulation())

    assert (driver.reason, len(driver.up)) == ("ok", 8)
    assert driver.facts is not None
    assert driver.facts.simulated
    assert driver.up[3].reading.index == 3
    assert driver.up[3].reading.compute_capability == (9, 0)
    assert [p.pid for p in driver.up[4].reading.processes or ()] == [41101]
    assert driver.up[3].generations.keys() == {"static", "fast", "normal", "slow", "processes", "mig"}


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


def opened(count: int = 3) -> Reply:
    return Reply(1, "open", values={"driver": {"device_count": count}})


def read(index: int) -> tuple[Reply, Reply]:
    identity = Reply(2, "read", index, values={"static": {"uuid": f"GPU-{index}", "index": index}})
    return identity, Reply(3, "read", index, values={"fast": {"utilization_percent": 7}}, errors=ERRORS)


def asked(*workers: Scripted) -> devices.Driver:
    waiting = list(workers)
    return ask(spawn=lambda: waiting.pop(0))


def states(driver: devices.Driver) -> list[tuple[int, str, str]]:
    return [(device.reading.index, device.uuid, device.reason) for device in driver.devices]


def test_a_device_that_is_lost() -> None:
    worker = Scripted(
        opened(4),
        *read(0),
        Reply(3, "read", 1, failed="gpu_is_lost"),
        read(2)[0],
        Reply(5, "read", 2, failed="reset_required"),
    )
    worker.answers += [Reply(6, "read", 3, values={"static": {}}), Reply(7, "read", 3, values={"fast": {}})]

    driver = asked(worker)

    assert states(driver) == [
        (0, "GPU-0", "ok"),
        (1, "", "gpu_is_lost"),
        (2, "GPU-2", "reset_required"),
        (3, "", "reports no uuid"),
    ]
    assert driver.errors[0] == ERRORS
    assert worker.ended == [True]


@pytest.mark.parametrize(
    ("error", "reason"), [(WorkerHangsError(), "hangs"), (WorkerGoneError(), "ends the process that reads it")]
)
def test_the_devices_after_one_that_ends_the_worker_are_read_by_another(error: Exception, reason: str) -> None:
    first, third = Scripted(opened(4), *read(0), error), Scripted(opened(4), *read(3))

    driver = asked(first, Scripted(opened(4), read(2)[0], error), third)

    assert states(driver) == [(0, "GPU-0", "ok"), (1, "", reason), (2, "GPU-2", reason), (3, "GPU-3", "ok")]
    assert (first.ended, third.ended) == ([False], [True])  # one that hangs does not read a polite request


def test_a_driver_that_does_not_open_again() -> None:
    driver = asked(Scripted(opened(), *read(0), WorkerHangsError()), Scripted(WorkerHangsError()))

    assert states(driver)[1:] == [
        (1, "", "hangs"),
        (2, "", "not read: the driver cannot be opened again (timeout)"),
    ]


def test_a_driver_that_numbers_the_devices_anew() -> None:
    second = Scripted(opened(2))
    driver = asked(Scripted(opened(), *read(0), WorkerHangsError()), second)

    assert states(driver)[2] == (2, "", "not read: the driver found 3 GPUs, and then 2")
    assert second.ended == [True]


def test_the_last_device_hangs() -> None:
    assert states(asked(Scripted(opened(1), WorkerHangsError()))) == [(0, "", "hangs")]


@pytest.mark.parametrize(("error", "reason"), [(WorkerHangsError(), "timeout"), (WorkerGoneError(), "worker_failed")])
def test_a_worker_that_fails_while_it_opens(error: Exception, reason: str) -> None:
    assert asked(Scripted(error)).reason == reason


def test_a_worker_that_cannot_be_started() -> None:
    def spawn() -> Worker:
        raise OSError("no more processes")

    assert ask(spawn=spawn).reason == "worker_failed"
