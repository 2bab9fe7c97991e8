from __future__ import annotations

from typing import Any

import pytest

from gpugauge.driver.client import WorkerGoneError, WorkerHangsError
from tests.driver.fakeworker import Node, until, up


def test_devices_are_read(run: Any) -> None:
    source = run(Node("GPU-a", "GPU-b"))

    view = until(source, lambda v: len(v.devices) == 2)

    assert (view.up, view.reason, up(view)) == (True, "ok", {"GPU-a": True, "GPU-b": True})


def test_drain_gives_each_answer_once(run: Any) -> None:
    source = run(Node("GPU-a"))
    until(source, lambda v: bool(v.devices))
    source.stop()

    first, second = source.drain(), source.drain()

    assert (len(first) > 0, second) == (True, ())


def test_answers_tell_which_worker_gave_them(run: Any) -> None:
    node = Node("GPU-a")
    source = run(node)
    until(source, lambda v: bool(v.devices))
    first = {reply.worker for reply in source.drain()}

    node.devices[0] = WorkerGoneError("ended")
    until(source, lambda v: v.worker_restarts == 1)
    node.devices[0] = "GPU-a"
    until(source, lambda v: v.worker_starts > 1 and up(v)["GPU-a"])
    source.stop()

    assert first == {1}
    assert source.drain()[-1].worker == source.view().worker_starts > 1


def test_missing_driver_is_told_once_and_tried_again(run: Any, caplog: pytest.LogCaptureFixture) -> None:
    node = Node("GPU-a")
    node.opening = 9
    with caplog.at_level("INFO"):
        source = run(node)
        assert source.settled.wait(5)
        down = source.view()
        node.opening = None
        until(source, lambda v: v.up)

    assert (down.up, down.reason) == (False, "driver_not_loaded")
    assert [r.levelname for r in caplog.records] == ["ERROR", "INFO"]
    assert "modprobe nvidia" in caplog.records[0].getMessage()


def test_hanging_device_is_left_out_and_its_neighbours_go_on(run: Any) -> None:
    node = Node("GPU-a", "GPU-b", "GPU-c")
    source = run(node)
    until(source, lambda v: len(v.devices) == 3)

    node.devices[1] = WorkerHangsError("no answer")
    view = until(source, lambda v: v.worker_restarts == 1 and up(v)["GPU-c"])
    reads = len(node.workers[-1].requests)
    until(source, lambda _: len(node.workers[-1].requests) > reads + 4)

    assert up(view) == {"GPU-a": True, "GPU-b": False, "GPU-c": True}
    assert {d.uuid: d.reason for d in view.devices}["GPU-b"] == "hangs"
    assert source.view().worker_restarts == 1


def test_lost_device_costs_no_worker(run: Any) -> None:
    node = Node("GPU-a", "GPU-b")
    source = run(node)
    until(source, lambda v: len(v.devices) == 2)

    node.devices[0] = 15
    view = until(source, lambda v: not up(v)["GPU-a"])

    assert up(view) == {"GPU-a": False, "GPU-b": True}
    assert view.worker_restarts == 0


def test_worker_that_ends_is_replaced_and_counted(run: Any) -> None:
    node = Node("GPU-a")
    source = run(node)
    until(source, lambda v: bool(v.devices))

    node.devices[0] = WorkerGoneError("killed")
    until(source, lambda v: v.worker_restarts == 1)
    node.devices[0] = "GPU-a"
    view = until(source, lambda v: up(v)["GPU-a"] and v.worker_restarts >= 1)

    assert view.up


def test_device_that_ends_every_worker_is_left_out(run: Any) -> None:
    node = Node("GPU-a", WorkerGoneError("SIGSEGV"))
    source = run(node)

    view = until(source, lambda v: v.worker_restarts == 2 and up(v) == {"GPU-a": True})

    assert view.up


def test_no_third_worker_beside_two_that_cannot_be_ended(run: Any) -> None:
    node = Node("GPU-a")
    source = run(node)
    until(source, lambda v: bool(v.devices))

    node.killable = False
    node.opening = node.devices[0] = WorkerHangsError("no answer")
    view = until(source, lambda v: v.reason == "worker_unkillable")

    assert (view.workers_unkillable, len(node.workers), up(view)) == (2, 2, {"GPU-a": False})


def test_only_chosen_devices_are_read(run: Any) -> None:
    source = run(Node("GPU-a", "GPU-b"), devices=["1"])

    until(source, lambda v: bool(v.devices))

    assert up(source.view()) == {"GPU-b": True}


def test_failure_of_the_thread_itself_takes_the_devices_down_and_a_fresh_worker_follows(run: Any) -> None:
    node = Node("GPU-a", "GPU-b")
    source = run(node)
    until(source, lambda v: len(v.devices) == 2)

    node.devices[1] = MemoryError("planted")
    down = until(source, lambda v: v.reason == "failed")
    node.devices[1] = "GPU-b"
    back = until(source, lambda v: v.up and up(v) == {"GPU-a": True, "GPU-b": True})

    assert (down.up, up(down)) == (False, {"GPU-a": False, "GPU-b": False})
    assert (len(node.workers), node.running) == (2, 1)
    assert back.facts is not None
