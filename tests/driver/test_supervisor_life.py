"""The worker's life beside its failures: given back, taken again, replaced as planned, and lost."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from gpugauge.driver.api import DriverView
from gpugauge.driver.client import Worker, WorkerGoneError
from gpugauge.driver.recycling import Limits
from gpugauge.driver.schedule import Pace
from gpugauge.driver.supervisor import DriverSource
from gpugauge.simulator import WORKER
from tests.driver.fakeworker import PACE, Node, until, up
from tests.simulator.build import scenario

SIMULATED = partial(Worker, WORKER)


def running(run: Any, node: Node, **arguments: Any) -> Any:
    source = run(node, **arguments)
    until(source, lambda v: len(v.devices) == len(node.devices))
    return source


# --- release and attach ---


def test_released_driver_has_no_worker_and_its_devices_are_unknown(run: Any) -> None:
    node = Node("GPU-a", "GPU-b")
    source = running(run, node)

    before = time.time()
    source.release(60)
    view = until(source, lambda v: v.reason == "released")

    assert (view.up, view.worker_pid, view.facts, node.running) == (False, None, None, 0)
    assert {d.reason for d in view.devices} == {"released"}
    assert view.released_until == pytest.approx(before + 60, abs=2)
    assert (view.worker_restarts, view.lost_since) == (0, None)


def test_release_ends_by_itself(run: Any) -> None:
    node = Node("GPU-a")
    source = running(run, node)
    source.release(0.2)
    until(source, lambda v: v.reason == "released")

    view = until(source, lambda v: v.up and up(v)["GPU-a"])

    assert (view.released_until, len(node.workers), view.worker_restarts) == (None, 2, 0)


def test_readings_go_on_at_their_pace_after_a_release() -> None:
    node = Node("GPU-a")
    source = DriverSource(replace(PACE, intervals={"fast": 1.0}), worker=node.spawn)
    source.start()
    try:
        until(source, lambda v: v.up)
        source.release(1.0)
        until(source, lambda v: v.reason == "released")
        before = len(node.workers)
        until(source, lambda v: len(node.workers) > before and len(node.workers[-1].requests) > 3)
    finally:
        source.stop()


def test_nothing_is_shown_of_a_thread_that_stopped_telling(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    source = running(run, Node("GPU-a"))
    source.stop()
    assert source.view().devices
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 100)

    view = source.view()

    assert (view.up, view.reason, view.devices) == (False, "stuck", ())


def test_attach_ends_a_release_at_once(run: Any) -> None:
    node = Node("GPU-a")
    source = running(run, node)
    source.release(3600)
    until(source, lambda v: v.reason == "released")

    source.attach()

    assert until(source, lambda v: v.up).facts is not None


@pytest.mark.parametrize("seconds", [30, 7200])
def test_second_release_moves_the_end(run: Any, seconds: float) -> None:
    source = running(run, Node("GPU-a"))
    source.release(600)
    until(source, lambda v: v.reason == "released")

    source.release(seconds)

    until(source, lambda v: v.released_until is not None and abs(v.released_until - time.time() - seconds) < 2)


def test_end_of_a_release_is_told_by_a_clock_that_was_set(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    source = running(run, Node("GPU-a"))
    source.release(600)
    told = until(source, lambda v: v.reason == "released").released_until
    assert told is not None
    real = time.time

    monkeypatch.setattr("gpugauge.driver.release.time.time", lambda: real() + 3600)

    until(source, lambda v: v.released_until is not None and abs(v.released_until - told - 3600) < 2)


def test_release_does_not_wait_for_an_answer(run: Any) -> None:
    node = Node("GPU-a")
    source = running(run, node)
    node.silent = True
    source._pace = type(PACE)(PACE.intervals, deadline=60.0, open_deadline=60.0)

    start = time.monotonic()
    source.release(60)
    view = until(source, lambda v: v.reason == "released")

    assert time.monotonic() - start < 5
    assert (node.running, view.worker_restarts) == (0, 0)


def test_stop_does_not_wait_for_a_release_to_be_polite() -> None:
    hang = {"call": "nvmlDeviceGetUtilizationRates", "hang": True}
    simulation = scenario(f"gpus: {{model: h100}}\nfaults: [{hang}]").simulation()
    source = DriverSource(Pace({"fast": 0.05}, deadline=60.0), SIMULATED, simulation)
    source.start()
    pid = until(source, lambda v: v.up).worker_pid  # it hangs as soon as it is asked about the GPU
    source.release(60)
    time.sleep(1)  # until the thread waits for the worker's end, which does not come

    start = time.monotonic()
    source.stop()

    assert time.monotonic() - start < 2
    assert pid is not None
    assert not Path(f"/proc/{pid}").exists()


def test_driver_that_was_down_is_released_too(run: Any) -> None:
    node = Node("GPU-a")
    node.opening = 18
    source = run(node)
    until(source, lambda v: v.reason == "library_mismatch")

    source.release(60)
    until(source, lambda v: v.reason == "released")
    started = len(node.workers)
    node.opening = None
    source.attach()
    until(source, lambda v: v.up)

    assert len(node.workers) == started + 1


def test_device_that_is_missing_after_a_release_is_down(run: Any) -> None:
    node = Node("GPU-a", "GPU-b")
    source = running(run, node)
    source.release(60)
    until(source, lambda v: v.reason == "released")

    del node.devices[0]
    source.attach()
    view = until(source, lambda v: v.up and up(v)["GPU-b"])

    assert {d.uuid: d.reason for d in view.devices} == {"GPU-a": "not_enumerated", "GPU-b": "ok"}


# --- planned replacements ---

QUICK = Limits(look_seconds=0.02, least_seconds=0.0)


def test_old_worker_is_replaced_and_no_device_goes_down(run: Any) -> None:
    node = Node("GPU-a")
    source = running(run, node, limits=Limits(age_seconds=0.2))

    seen = []

    def replaced_twice(view: DriverView) -> bool:
        seen.append((view.up, up(view)))
        return view.worker_recycles["age"] >= 2

    until(source, replaced_twice)

    assert {(driver, device["GPU-a"]) for driver, device in seen} == {(True, True)}
    assert source.view().worker_restarts == 0
    assert node.running == 1


def test_worker_that_grew_is_replaced(run: Any) -> None:
    node = Node("GPU-a")
    source = running(run, node, limits=replace(QUICK, resident_bytes=5000))
    assert source.view().worker_recycles["memory"] == 0

    node.resident = 6000
    until(source, lambda v: v.worker_recycles["memory"] == 1)
    node.resident = 1000


def test_real_worker_whose_library_leaks_is_replaced() -> None:
    leak = {"call": "nvmlDeviceGetUtilizationRates", "leak": "16 MiB"}
    simulation = scenario(f"gpus: {{model: h100}}\nfaults: [{leak}]").simulation()
    limits = Limits(resident_bytes=100 << 20, look_seconds=0.05, least_seconds=0.0)
    source = DriverSource(Pace({"fast": 0.05}), SIMULATED, simulation, limits=limits)
    source.start()
    try:
        first = until(source, lambda v: v.worker_pid is not None).worker_pid
        view = until(source, lambda v: v.worker_recycles["memory"] >= 1 and v.worker_pid not in {None, first})
    finally:
        source.stop()

    assert not Path(f"/proc/{first}").exists()
    assert (view.up, view.worker_restarts, list(up(view).values())) == (True, 0, [True])


def test_limit_below_what_a_worker_needs_makes_no_loop(run: Any) -> None:
    node = Node("GPU-a")
    source = running(run, node, limits=Limits(resident_bytes=10, look_seconds=0.02, least_seconds=0.5))

    until(source, lambda v: v.worker_recycles["memory"] == 2)

    assert len(node.workers) == 3


def test_device_that_was_plugged_in_is_found(run: Any) -> None:
    node, bus = Node("GPU-a"), {"a"}
    source = running(run, node, limits=QUICK, bus=lambda: frozenset(bus))

    node.devices.append("GPU-b")
    bus.add("b")
    view = until(source, lambda v: up(v) == {"GPU-a": True, "GPU-b": True})

    assert view.worker_recycles["cards"] == 1


def test_device_that_left_the_bus_keeps_its_place_and_is_found_when_it_is_back(run: Any) -> None:
    node, bus = Node("GPU-a", "GPU-b"), {"a", "b"}
    source = running(run, node, limits=QUICK, bus=lambda: frozenset(bus))

    bus.remove("b")
    node.devices[1] = 15
    lost = until(source, lambda v: not up(v)["GPU-b"])
    workers = len(node.workers)
    time.sleep(0.2)  # nothing may happen now
    assert (len(node.workers), lost.worker_recycles["cards"]) == (workers, 0)
    node.devices[1] = "GPU-b"
    bus.add("b")

    until(source, lambda v: up(v)["GPU-b"] and v.worker_recycles["cards"] == 1)


def test_other_devices_are_read_after_a_reload(run: Any) -> None:
    node = Node("GPU-a", "GPU-b")
    source = running(run, node)

    source.configure(PACE, ["GPU-b"], Limits())
    view = until(source, lambda v: up(v) == {"GPU-b": True})

    assert view.worker_recycles["settings"] == 1


def test_other_pace_needs_no_new_worker(run: Any) -> None:
    node = Node("GPU-a")
    source = running(run, node)

    source.configure(type(PACE)({"fast": 0.01}, 0.05, 0.05), [], Limits())
    reads = len(node.workers[0].requests)
    until(source, lambda _: len(node.workers[0].requests) > reads + 5)

    assert len(node.workers) == 1
    # A turn that a busy machine held up is followed by one in which nothing is due.
    assert {group for _, asked in node.workers[0].requests[-5:] for group in asked["groups"]} == {"fast"}


# --- failures ---


def test_driver_that_answered_once_and_fails_is_lost_until_it_answers(run: Any) -> None:
    node = Node("GPU-a")
    source = running(run, node)

    before = time.monotonic()
    node.devices[0], node.opening = 1, 18
    uninitialized = until(source, lambda v: v.reason == "uninitialized").lost_since
    mismatch = until(source, lambda v: v.reason == "library_mismatch").lost_since
    node.devices[0], node.opening = "GPU-a", None
    back = until(source, lambda v: v.up)

    assert uninitialized is not None
    assert uninitialized >= before
    assert mismatch == uninitialized
    assert back.lost_since is None


def test_driver_that_never_answered_is_not_lost(run: Any) -> None:
    node = Node("GPU-a")
    node.opening = 9

    assert until(run(node), lambda v: v.reason == "driver_not_loaded").lost_since is None


def test_device_is_not_blamed_for_a_worker_that_was_killed(run: Any) -> None:
    node = Node("GPU-a")
    source = running(run, node)

    node.killed, node.devices[0] = True, WorkerGoneError("killed")
    until(source, lambda v: v.worker_restarts == 3)
    node.devices[0] = "GPU-a"
    until(source, lambda v: up(v)["GPU-a"] and v.worker_restarts >= 3)


def test_worker_that_dies_young_is_replaced_ever_later(run: Any) -> None:
    node = Node("GPU-a")
    source = running(run, node)

    node.killed, node.devices[0] = True, WorkerGoneError("killed")
    start = time.monotonic()
    until(source, lambda v: v.worker_restarts == 3)

    assert time.monotonic() - start >= 0.5  # at once, then after half a second
    node.devices[0] = "GPU-a"
