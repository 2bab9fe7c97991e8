"""The life cycle of the worker: release, planned replacement, and loss of the driver."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from gpugauge.driver.api import DriverView
from gpugauge.driver.client import Worker, WorkerGoneError, WorkerHangsError
from gpugauge.driver.reader import ReadingIntervals
from gpugauge.driver.recycling import RecyclingLimits
from gpugauge.driver.supervisor import Supervisor
from gpugauge.simulator import WORKER
from tests.driver.fakeworker import INTERVALS, Node, read_on, released, running, until, up
from tests.simulator.build import scenario

SIMULATED = partial(Worker, WORKER)


# --- release and attach ---


def test_released_driver_has_no_worker_and_its_devices_are_unknown(run: Any) -> None:
    node, supervisor = running(run, "GPU-a", "GPU-b")

    before = time.time()
    view = released(supervisor, 60)

    assert (view.up, view.worker_pid, view.facts, node.running) == (False, None, None, 0)
    assert {d.reason for d in view.devices} == {"released"}
    assert view.released_until == pytest.approx(before + 60, abs=2)
    assert (view.worker_restarts, view.lost_since) == (0, None)


def test_device_that_hung_is_read_at_once_after_a_release(run: Any) -> None:
    node, supervisor = running(run, "GPU-a", "GPU-b")
    node.devices[1] = WorkerHangsError("no reply")
    until(supervisor, lambda v: v.up and up(v) == {"GPU-a": True, "GPU-b": False})
    released(supervisor, 60)
    node.devices[1] = "GPU-b"  # it was reset

    supervisor.attach()

    until(supervisor, lambda v: up(v) == {"GPU-a": True, "GPU-b": True})


def test_readings_keep_their_interval_after_a_release(run: Any) -> None:
    node = Node("GPU-a")
    supervisor = run(node, intervals=INTERVALS._replace(intervals={"fast": 1.0}))
    until(supervisor, lambda v: v.up)
    released(supervisor, 1.0)
    before = len(node.workers)
    until(supervisor, lambda v: len(node.workers) > before and len(node.workers[-1].requests) > 3)


def test_view_of_a_thread_that_stopped_publishing_is_empty(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    _, supervisor = running(run, "GPU-a")
    supervisor.stop()
    assert supervisor.view().devices
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 65)
    assert supervisor.view().devices  # a minute is the longest interval
    monkeypatch.setattr(time, "monotonic", lambda: now + 100)

    view = supervisor.view()

    assert (view.up, view.reason, view.devices) == (False, "stuck", ())


@pytest.mark.parametrize("seconds", [30, 7200])
def test_second_release_moves_the_end(run: Any, seconds: float) -> None:
    _, supervisor = running(run, "GPU-a")
    released(supervisor, 600)

    supervisor.release(seconds)

    until(supervisor, lambda v: v.released_until is not None and abs(v.released_until - time.time() - seconds) < 2)


def test_end_of_a_release_follows_a_clock_that_is_set(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    _, supervisor = running(run, "GPU-a")
    supervisor.release(600)
    reported = until(supervisor, lambda v: v.reason == "released").released_until
    assert reported is not None
    real = time.time

    monkeypatch.setattr("gpugauge.driver.supervisor.time.time", lambda: real() + 3600)

    until(supervisor, lambda v: v.released_until is not None and abs(v.released_until - reported - 3600) < 2)


def test_release_does_not_wait_for_a_reply(run: Any) -> None:
    node, supervisor = running(run, "GPU-a")
    node.silent = True
    supervisor._intervals = type(INTERVALS)(INTERVALS.intervals, deadline=60.0, open_deadline=60.0)

    start = time.monotonic()
    view = released(supervisor, 60)

    assert time.monotonic() - start < 5
    assert (node.running, view.worker_restarts) == (0, 0)


def test_stop_does_not_wait_for_the_grace_time_of_a_release() -> None:
    hang = {"call": "nvmlDeviceGetUtilizationRates", "hang": True}
    simulation = scenario(f"gpus: {{model: h100}}\nfaults: [{hang}]").simulation()
    supervisor = Supervisor(ReadingIntervals({"fast": 0.05}, deadline=60.0), SIMULATED, simulation)
    supervisor.start()
    pid = until(supervisor, lambda v: v.up).worker_pid  # it hangs as soon as it reads the GPU
    supervisor.release(60)
    time.sleep(1)  # until the thread waits for the end of the worker, which hangs

    start = time.monotonic()
    supervisor.stop()

    assert time.monotonic() - start < 2
    assert pid is not None
    assert not Path(f"/proc/{pid}").exists()


def test_driver_that_was_down_is_released_too(run: Any) -> None:
    node = Node("GPU-a")
    node.opening = 18
    supervisor = run(node)
    until(supervisor, lambda v: v.reason == "library_mismatch")

    released(supervisor, 60)
    started = len(node.workers)
    node.opening = None
    supervisor.attach()
    until(supervisor, lambda v: v.up)

    assert len(node.workers) == started + 1


def test_device_that_is_missing_after_a_release_is_down(run: Any) -> None:
    node, supervisor = running(run, "GPU-a", "GPU-b")
    released(supervisor, 60)

    del node.devices[0]
    supervisor.attach()
    view = until(supervisor, lambda v: v.up and up(v)["GPU-b"])

    assert {d.uuid: d.reason for d in view.devices} == {"GPU-a": "not_enumerated", "GPU-b": "ok"}


@pytest.mark.parametrize(("capabilities", "lines"), [(0, 0), (1 << 19, 1)])
def test_a_worker_that_keeps_capabilities_is_reported_once(
    run: Any, caplog: pytest.LogCaptureFixture, capabilities: int, lines: int
) -> None:
    node = Node("GPU-a")
    node.capabilities = capabilities
    supervisor = run(node)
    for _ in range(3):
        until(supervisor, lambda v: v.up)
        released(supervisor, 60)
        supervisor.attach()
    until(supervisor, lambda v: v.up)

    reports = [record for record in caplog.records if "keeps capabilities" in record.getMessage()]
    assert len(node.workers) == 4
    assert [vars(record)["fields"] for record in reports] == [{"capabilities": "0x80000"}] * lines


# --- planned replacements ---

QUICK = RecyclingLimits(check_interval_seconds=0.02, memory_min_age_seconds=0.0)


def test_old_worker_is_replaced_and_no_device_goes_down(run: Any) -> None:
    node, supervisor = running(run, "GPU-a", limits=RecyclingLimits(age_seconds=0.2))

    views = []

    def replaced_twice(view: DriverView) -> bool:
        views.append((view.up, up(view)))
        return view.worker_recycles["age"] >= 2

    until(supervisor, replaced_twice)

    assert {(driver, device["GPU-a"]) for driver, device in views} == {(True, True)}
    assert supervisor.view().worker_restarts == 0
    assert node.running == 1


def test_real_worker_whose_library_leaks_is_replaced() -> None:
    leak = {"call": "nvmlDeviceGetUtilizationRates", "leak": "16 MiB"}
    simulation = scenario(f"gpus: {{model: h100}}\nfaults: [{leak}]").simulation()
    limits = RecyclingLimits(resident_bytes=100 << 20, check_interval_seconds=0.05, memory_min_age_seconds=0.0)
    supervisor = Supervisor(ReadingIntervals({"fast": 0.05}), SIMULATED, simulation, limits=limits)
    supervisor.start()
    try:
        first = until(supervisor, lambda v: v.worker_pid is not None).worker_pid
        view = until(supervisor, lambda v: v.worker_recycles["memory"] >= 1 and v.worker_pid not in {None, first})
    finally:
        supervisor.stop()

    assert not Path(f"/proc/{first}").exists()
    assert (view.up, view.worker_restarts, list(up(view).values())) == (True, 0, [True])


def test_limit_below_the_size_of_a_new_worker_makes_no_loop(run: Any) -> None:
    limits = RecyclingLimits(resident_bytes=10, check_interval_seconds=0.02, memory_min_age_seconds=0.5)
    node, supervisor = running(run, "GPU-a", limits=limits)

    until(supervisor, lambda v: v.worker_recycles["memory"] == 2)

    assert len(node.workers) == 3


def test_device_that_was_plugged_in_is_found(run: Any) -> None:
    bus = {"a"}
    node, supervisor = running(run, "GPU-a", limits=QUICK, bus=lambda: frozenset(bus))

    node.devices.append("GPU-b")
    bus.add("b")
    view = until(supervisor, lambda v: up(v) == {"GPU-a": True, "GPU-b": True})

    assert view.worker_recycles["cards"] == 1


def test_device_that_left_the_bus_and_came_back(run: Any) -> None:
    bus = {"a", "b"}
    node, supervisor = running(run, "GPU-a", "GPU-b", limits=QUICK, bus=lambda: frozenset(bus))

    bus.remove("b")
    node.devices[1] = 15
    lost = until(supervisor, lambda v: not up(v)["GPU-b"])
    workers = len(node.workers)
    read_on(supervisor, node)  # no replacement now
    assert (len(node.workers), lost.worker_recycles["cards"]) == (workers, 0)
    node.devices[1] = "GPU-b"
    bus.add("b")

    until(supervisor, lambda v: up(v)["GPU-b"] and v.worker_recycles["cards"] == 1)


def test_lost_device_that_was_repaired_is_found(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpugauge.driver.recycling._RETRY_SECONDS", 0.3)
    node, supervisor = running(run, "GPU-a", "GPU-b", limits=QUICK)
    released(supervisor, 0.1)
    del node.devices[1]
    until(supervisor, lambda v: v.up and up(v) == {"GPU-a": True, "GPU-b": False})

    node.devices.append("GPU-b")

    view = until(supervisor, lambda v: up(v) == {"GPU-a": True, "GPU-b": True})
    assert view.worker_recycles["cards"] >= 1


def test_other_intervals_need_no_new_worker(run: Any) -> None:
    node, supervisor = running(run, "GPU-a")

    supervisor.configure(type(INTERVALS)({"fast": 0.01}, 0.05, 0.05), [], RecyclingLimits(), 0.0)
    reads = len(node.workers[0].requests)
    until(supervisor, lambda _: len(node.workers[0].requests) > reads + 5)

    assert len(node.workers) == 1
    # On a busy machine a turn may be late; nothing is due in the next one.
    assert {group for _, request in node.workers[0].requests[-5:] for group in request["groups"]} == {"fast"}


# --- failures ---


def test_driver_that_was_up_is_lost_until_it_is_up_again(run: Any) -> None:
    node, supervisor = running(run, "GPU-a")

    before = time.monotonic()
    node.devices[0], node.opening = 1, 18
    uninitialized = until(supervisor, lambda v: v.reason == "uninitialized").lost_since
    mismatch = until(supervisor, lambda v: v.reason == "library_mismatch").lost_since
    node.devices[0], node.opening = "GPU-a", None
    back = until(supervisor, lambda v: v.up)

    assert uninitialized is not None
    assert uninitialized >= before
    assert mismatch == uninitialized
    assert back.lost_since is None


def test_driver_that_was_never_up_is_not_lost(run: Any) -> None:
    node = Node("GPU-a")
    node.opening = 9

    assert until(run(node), lambda v: v.reason == "driver_not_loaded").lost_since is None


def test_device_of_a_killed_worker_is_not_quarantined(run: Any) -> None:
    node, supervisor = running(run, "GPU-a")

    node.killed, node.devices[0] = True, WorkerGoneError("killed")
    until(supervisor, lambda v: v.worker_restarts == 3)
    node.devices[0] = "GPU-a"
    until(supervisor, lambda v: up(v)["GPU-a"] and v.worker_restarts >= 3)


def test_workers_that_reply_before_they_fail_are_replaced_with_a_back_off(run: Any) -> None:
    """Each worker reads all GPUs once, and fails in the next reading: its replies do not end the back-off."""
    node, supervisor = running(run, "GPU-a")
    start = time.monotonic()
    for count in range(1, 4):
        node.killed, node.devices[0] = True, WorkerGoneError("killed")
        until(supervisor, partial(_has_failed, count))
        node.devices[0] = "GPU-a"
        until(supervisor, partial(_has_replied, node, count))

    assert time.monotonic() - start >= 1.5  # at once, after half a second, after one second


def _has_failed(count: int, view: DriverView) -> bool:
    return view.worker_restarts == count


def _has_replied(node: Node, count: int, _: DriverView) -> bool:
    reads: list[str] = [op for op, _ in node.workers[-1].requests if op == "read"]
    return len(node.workers) > count and len(reads) > 1
