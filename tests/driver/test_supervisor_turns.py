"""How workers are ended, when the next one is started, what is published meanwhile, and how the thread stops."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from gpugauge.base.guard import Loop
from gpugauge.driver import client, inventory, reader, recycling, roster, supervisor
from gpugauge.driver.api import DriverFacts
from gpugauge.driver.client import GRACE_SECONDS, Worker, WorkerGoneError, WorkerHangsError
from gpugauge.driver.reader import ReadingIntervals
from gpugauge.driver.recycling import RecyclingLimits
from gpugauge.driver.supervisor import DriverState, Supervisor
from tests.drawn import cases
from tests.driver.fakeworker import INTERVALS, FakeWorker, Node, running, until, up

# The next reading of the schedule is far: whatever happens has another cause.
RARE = ReadingIntervals({"fast": 3600.0, "normal": 3600.0}, deadline=0.05, open_deadline=0.05)
PATIENT = ReadingIntervals({"fast": 0.02, "normal": 0.04}, deadline=60.0, open_deadline=60.0)


@pytest.fixture
def rare(run: Callable[..., Supervisor]) -> Callable[..., Supervisor]:
    return partial(run, intervals=RARE)


# --- the end of a worker: one that works may be in the middle of a call, one that failed is not waited for ---


def hangs(node: Node, _: Supervisor) -> None:
    node.devices[0] = WorkerHangsError("no reply")


def is_gone(node: Node, _: Supervisor) -> None:
    node.devices[0] = WorkerGoneError("crashed")


def loses_the_driver(node: Node, _: Supervisor) -> None:
    node.devices[:] = [1, 1]
    node.opening = 1


def fails_in_the_thread(node: Node, _: Supervisor) -> None:
    node.devices[0] = MemoryError("planted")


def releases(_: Node, running: Supervisor) -> None:
    running.release(60)


def releases_while_it_waits(node: Node, running: Supervisor) -> None:
    running._intervals = PATIENT
    node.silent = True
    time.sleep(0.05)
    running.release(60)


def reads_others(_: Node, running: Supervisor) -> None:
    running.configure(INTERVALS, ["GPU-b"], RecyclingLimits(), 0.0)


def stops(_: Node, running: Supervisor) -> None:
    running.stop()


def stops_while_it_waits(node: Node, running: Supervisor) -> None:
    running._intervals = PATIENT
    node.silent = True
    time.sleep(0.05)
    running.stop()


@pytest.mark.parametrize(
    ("event", "graceful", "planned"),
    [
        (hangs, False, False),
        (is_gone, False, False),
        (fails_in_the_thread, False, False),
        (loses_the_driver, True, False),
        (releases, True, True),
        (releases_while_it_waits, True, True),
        (reads_others, True, True),
        (stops, True, False),
        (stops_while_it_waits, True, False),
    ],
)
def test_a_worker_is_ended_as_its_condition_allows(
    event: Callable[[Node, Supervisor], None], graceful: bool, planned: bool, run: Any
) -> None:
    node = Node("GPU-a", "GPU-b")
    running = run(node)
    until(running, lambda v: len(v.devices) == 2)

    event(node, running)
    until(running, lambda _: bool(node.ends))
    node.silent = False

    assert node.ends[0][0] is graceful
    # A planned end outlasts a slow call; a daemon that stops does not wait for it.
    assert node.ends[0][1] >= INTERVALS.open_deadline if planned else node.ends[0][1] == GRACE_SECONDS
    assert (node.ends[0][1] > ReadingIntervals({}).deadline) is planned
    if event in (hangs, is_gone):
        until(running, lambda v: v.worker_restarts > 0)
    else:
        assert running.view().worker_restarts == 0


@pytest.mark.parametrize(
    ("failure", "reason", "sentence", "graceful"),
    [
        (WorkerHangsError("no reply"), "timeout", "opening the driver timed out", False),
        (WorkerGoneError("crashed"), "worker_failed", "worker ended while it opened the driver", True),
    ],
)
def test_a_worker_that_fails_to_open_the_driver(
    failure: Exception, reason: str, sentence: str, graceful: bool, rare: Any, caplog: pytest.LogCaptureFixture
) -> None:
    node = Node("GPU-a")
    node.opening = failure
    with caplog.at_level("INFO"):
        running = rare(node)
        view = until(running, lambda v: v.reason == reason)

    assert (view.up, view.worker_pid, view.facts, node.ends[0][0]) == (False, None, None, graceful)
    logged = {record.getMessage(): vars(record)["fields"] for record in caplog.records}
    assert logged[sentence] == {"worker": "was ended", "pid": FakeWorker.pid}


def test_a_worker_that_cannot_be_started(rare: Any, caplog: pytest.LogCaptureFixture) -> None:
    node = Node("GPU-a")
    node.spawning = OSError(11, "Resource temporarily unavailable")
    with caplog.at_level("INFO"):
        running = rare(node)
        down = until(running, lambda v: v.reason == "worker_failed")

    assert (down.up, down.worker_starts, node.ends) == (False, 0, [])
    (record,) = caplog.records
    assert vars(record)["fields"] == {"reason": "worker_failed", "error": str(node.spawning)}
    node.spawning = None
    assert until(running, lambda v: v.up).worker_starts == 1


# --- the next worker ---


def fails_to_open(node: Node, running: Supervisor) -> None:
    node.opening = 9
    running._slot.end()


def is_released(node: Node, running: Supervisor) -> None:
    fails_to_open(node, running)
    running._pass()
    running.release(12.0)


def answers_nothing(node: Node, _: Supervisor) -> None:
    node.devices[0] = 999


def is_slow(node: Node, _: Supervisor) -> None:
    node.spent = (0.3, 1)


def is_well(_: Node, __: Supervisor) -> None:
    pass


@cases(
    ("event", "back", "due"),
    [
        (is_well, math.inf, 5.0),
        (answers_nothing, math.inf, 1.0),  # is it down?
        (is_slow, math.inf, 1.0),
        (fails_to_open, 1.0, 5.0),
        (is_released, 7.0, 5.0),
    ],
)
def test_when_the_next_turn_is_due(
    event: Callable[[Node, Supervisor], None], back: float, due: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next worker, and the next reading, in simulated seconds; the clock begins with 0, as after a boot."""
    now = [0.0]
    clock = SimpleNamespace(monotonic=lambda: now[0], time=lambda: now[0])
    for module in (client, inventory, reader, roster, supervisor):
        monkeypatch.setattr(module, "time", clock)
    node = Node("GPU-a", "GPU-b")
    running = Supervisor(ReadingIntervals({"fast": 1.0, "normal": 5.0}, idle=5.0), node.spawn)
    for now[0] in (0.0, 5.0):
        assert running._pass() == math.inf
    event(node, running)
    now[0] = 10.0

    assert (running._pass(), running._pace._due) == (back, 10.0 + due)
    node.opening, now[0] = None, 10.0 + (due if back == math.inf else back)
    running._pass()
    assert running.view().up


def test_a_worker_that_is_replaced_is_followed_at_once(rare: Any, caplog: pytest.LogCaptureFixture) -> None:
    node = Node("GPU-a", "GPU-b")
    running = rare(node)
    until(running, lambda v: up(v) == {"GPU-a": True, "GPU-b": True})

    running.configure(RARE, ["GPU-a"], RecyclingLimits(), 0.0)
    with caplog.at_level("INFO", "gpugauge.driver"):
        running.forget("GPU-none")  # ends the wait
        until(running, lambda v: v.worker_starts == 2 and up(v) == {"GPU-a": True})

    logged = {record.getMessage(): vars(record)["fields"] for record in caplog.records}
    assert logged["worker replaced"] == {"reason": "settings", "resident_bytes": node.resident}
    assert running.view().worker_recycles == {"memory": 0, "age": 0, "cards": 0, "settings": 1}


@pytest.mark.parametrize("failure", [WorkerHangsError("no reply"), 15])
def test_a_quarantined_device_is_no_reason_for_another_worker(
    failure: Any, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lost one is: it may have been repaired."""
    monkeypatch.setattr(recycling, "_RETRY_SECONDS", 0.2)
    node = Node("GPU-a", "GPU-b")
    running = run(node, limits=RecyclingLimits(check_interval_seconds=0.05))
    until(running, lambda v: len(v.devices) == 2)
    node.devices[1] = failure
    until(running, lambda v: not up(v)["GPU-b"] and up(v)["GPU-a"])
    time.sleep(0.5)

    assert (running.view().worker_recycles["cards"] > 0) is (failure == 15)


def test_a_reading_on_demand_replaces_no_worker(rare: Any) -> None:
    """A scrape waits for it."""
    node, read = Node("GPU-a", "GPU-b"), threading.Event()
    running = rare(node)
    until(running, lambda v: len(v.devices) == 2)
    time.sleep(0.05)
    running.on_reading = read.set
    running.configure(RARE, ["GPU-a"], RecyclingLimits(), 0.0)

    running.request_reading()

    assert read.wait(10)
    assert (len(node.workers), node.ends) == (1, [])


def test_a_driver_of_which_nothing_can_be_read_is_up_once_one_gpu_is(run: Any) -> None:
    node, reader = running(run, "GPU-a", "GPU-b")
    node.devices[:] = [999, 999]
    until(reader, lambda v: v.reason == "unknown")
    node.devices[0] = "GPU-a"

    assert up(until(reader, lambda v: v.reason == "ok")) == {"GPU-a": True, "GPU-b": False}


@pytest.mark.parametrize(("devices", "reason"), [(2, "unknown"), (0, "ok")])
def test_a_driver_that_could_not_be_read_and_is_opened_is_up_only_without_gpus(devices: int, reason: str) -> None:
    state = DriverState()
    state.set_open(DriverFacts(device_count=2))
    state.set_down("unknown", unread=True)

    state.set_open(DriverFacts(device_count=devices))

    assert state.reason == reason


# --- what is published ---


def test_before_the_first_attempt_the_driver_is_starting() -> None:
    view = Supervisor(RARE, worker=Node("GPU-a").spawn).view()

    assert (view.up, view.reason, view.devices, view.worker_starts) == (False, "starting", (), 0)


@cases(("simulate", "simulated"), [(None, False), ({}, True), ({"gpus": []}, True)])
def test_the_options_of_a_simulation_reach_the_worker(simulate: Any, simulated: bool, rare: Any) -> None:
    node = Node("GPU-a")
    view = until(rare(node, simulate=simulate), lambda v: v.up)

    assert view.simulated is simulated
    assert node.workers[0].requests[0] == ("open", {"simulate": simulate} if simulated else {})
    assert (view.worker_pid, view.worker_starts, view.released_until) == (FakeWorker.pid, 1, None)


def test_values_grow_old_while_a_reply_is_awaited(rare: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "_WAIT_SLICE_SECONDS", 0.01)
    node = Node("GPU-a")
    running = rare(node, intervals=PATIENT)
    until(running, lambda v: v.up and up(v)["GPU-a"])

    running._inventory.limits = {"fast": 0.1, "normal": 0.1}
    node.silent = True
    view = until(running, lambda v: not up(v)["GPU-a"])

    assert (view.up, view.devices[0].reason, view.worker_restarts) == (True, "stale", 0)
    node.silent = False
    until(running, lambda v: up(v)["GPU-a"])


def test_a_thread_that_publishes_is_not_stuck(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "_MAX_VIEW_AGE_SECONDS", 0.5)
    running = run(Node("GPU-a"))
    until(running, lambda v: v.up)
    time.sleep(0.6)

    until(running, lambda v: v.up and up(v)["GPU-a"])


# --- the end of the thread ---


class Unending(Loop):
    """A thread that does not end; records for how long it is waited for."""

    def __init__(self) -> None:
        super().__init__("unending", lambda: None)
        self.waits: list[float] = []

    def join(self, timeout: float | None = None) -> None:
        assert timeout is not None
        self.waits.append(timeout)

    def is_alive(self) -> bool:
        return True


def test_stop_is_bounded_and_interrupts_what_the_thread_waits_for() -> None:
    interrupted = []

    class Waiting(FakeWorker):
        def interrupt(self) -> None:
            interrupted.append(thread.waits[:])

    node = Node("GPU-a")
    running, thread = Supervisor(RARE, worker=lambda: Waiting(node)), Unending()
    running._slot.start()
    running._thread = thread

    running.stop()

    assert [len(waits) for waits in interrupted] == [1]  # after it had the chance to end
    assert 1.0 < sum(thread.waits) <= 1.5


def test_a_worker_that_is_ended_while_the_daemon_stops_is_killed() -> None:
    """Its end would take longer than the daemon has."""
    node, ending, killed = Node("GPU-a"), threading.Event(), threading.Event()

    class Slow(FakeWorker):
        def end(self, *, graceful: bool = True, grace_seconds: float = 0.3) -> bool:
            ending.set()
            killed.wait(10)
            return super().end(graceful=graceful, grace_seconds=grace_seconds)

        def kill(self) -> None:
            killed.set()

    def spawn() -> Worker:
        node.workers.append(Slow(node))
        return node.workers[-1]

    running = Supervisor(RARE, worker=spawn)
    running.start()
    until(running, lambda v: v.up)
    running.release(60)
    assert ending.wait(10)

    running.stop()

    assert killed.is_set()
    assert node.running == 0
    assert not running._thread.is_alive()


def test_gpus_are_stored_when_the_daemon_stops(rare: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    closed = []
    running = rare(Node("GPU-a"))
    until(running, lambda v: v.up)
    monkeypatch.setattr(running._roster, "close", lambda: closed.append(True))

    running.stop()

    assert closed == [True]
