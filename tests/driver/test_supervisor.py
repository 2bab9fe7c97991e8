from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpugauge.driver.client import WorkerGoneError, WorkerHangsError
from gpugauge.driver.codes import WORKER_ERROR
from gpugauge.driver.supervisor import Restarts
from tests.drawn import cases
from tests.driver.fakeworker import Node, read_on, running, until, up


def test_devices_are_read(run: Any) -> None:
    supervisor = run(Node("GPU-a", "GPU-b"))

    view = until(supervisor, lambda v: len(v.devices) == 2)

    assert (view.up, view.reason, up(view)) == (True, "ok", {"GPU-a": True, "GPU-b": True})


def test_drain_returns_each_reply_once(run: Any) -> None:
    _, supervisor = running(run, "GPU-a")
    supervisor.stop()

    first, second = supervisor.drain(), supervisor.drain()

    assert (len(first) > 0, second) == (True, ())


def test_replies_have_the_ordinal_of_their_worker(run: Any) -> None:
    node, supervisor = running(run, "GPU-a")
    first = {reply.worker for reply in supervisor.drain()}

    node.devices[0] = WorkerGoneError("ended")
    until(supervisor, lambda v: v.worker_restarts == 1)
    node.devices[0] = "GPU-a"
    until(supervisor, lambda v: v.worker_starts > 1 and up(v)["GPU-a"])
    supervisor.stop()

    assert first == {1}
    assert supervisor.drain()[-1].worker == supervisor.view().worker_starts > 1


def test_missing_driver_is_logged_once_and_opened_again(run: Any, caplog: pytest.LogCaptureFixture) -> None:
    node = Node("GPU-a")
    node.opening = 9
    with caplog.at_level("INFO"):
        supervisor = run(node)
        assert supervisor.settled.wait(5)
        down = supervisor.view()
        node.opening = None
        until(supervisor, lambda v: v.up)

    assert (down.up, down.reason) == (False, "driver_not_loaded")
    assert [r.levelname for r in caplog.records] == ["ERROR", "INFO"]
    assert "modprobe nvidia" in caplog.records[0].getMessage()
    fields = vars(caplog.records[0])["fields"]
    assert (fields["reason"], fields["call"]) == ("driver_not_loaded", "nvmlInitWithFlags")


def test_log_names_the_call_that_failed_when_the_driver_was_lost(run: Any, caplog: pytest.LogCaptureFixture) -> None:
    node = Node("GPU-a")
    supervisor = run(node)
    until(supervisor, lambda v: v.up)

    node.devices[0], node.opening = 18, 18
    with caplog.at_level("INFO"):
        until(supervisor, lambda v: v.reason == "library_mismatch")

    assert caplog.records[0].fields["call"] == "nvmlDeviceGetUUID"  # type: ignore[attr-defined]  # `extra`


def test_exception_of_the_worker_is_no_error_of_the_driver(run: Any, caplog: pytest.LogCaptureFixture) -> None:
    node = Node("GPU-a")
    node.opening, node.failed_call = WORKER_ERROR, "KeyError: 'x' in gpugauge.driver.nvidia.mig, line 7"
    with caplog.at_level("INFO"):
        supervisor = run(node)
        assert supervisor.settled.wait(5)

    line = caplog.records[0]
    assert supervisor.view().reason == "worker_error"
    assert line.getMessage().startswith("the worker process of gpugauge failed, not the driver")
    assert line.fields == {"reason": "worker_error", "error": node.failed_call}  # type: ignore[attr-defined]  # `extra`


def test_failure_of_one_device_is_logged_once_with_its_call(run: Any, caplog: pytest.LogCaptureFixture) -> None:
    node, supervisor = running(run, "GPU-a", "GPU-b")

    with caplog.at_level("INFO"):
        node.devices[1] = 15
        until(supervisor, lambda v: not up(v)["GPU-b"])
        read_on(supervisor, node)
        node.devices[1] = "GPU-b"
        until(supervisor, lambda v: up(v)["GPU-b"])

    failed, recovered = caplog.records
    assert failed.getMessage() == "GPU down: gpu_is_lost"
    lost, back = dict(failed.fields), dict(recovered.fields)  # type: ignore[attr-defined]  # `extra`
    assert (lost.pop("seconds") >= 0, back.pop("seconds") >= 0) == (True, True)
    same = {"index": 1, "uuid": "GPU-b"}
    assert lost == {**same, "reason": "gpu_is_lost", "previous": "ok", "call": "nvmlDeviceGetUUID"}
    assert recovered.getMessage() == "GPU back"
    assert back == {**same, "reason": "ok", "previous": "gpu_is_lost"}
    assert supervisor.view().worker_restarts == 0


def test_hanging_device_is_quarantined_and_the_others_are_read(run: Any) -> None:
    node, supervisor = running(run, "GPU-a", "GPU-b", "GPU-c")

    node.devices[1] = WorkerHangsError("no reply")
    view = until(supervisor, lambda v: v.worker_restarts == 1 and up(v)["GPU-c"])
    read_on(supervisor, node)

    assert up(view) == {"GPU-a": True, "GPU-b": False, "GPU-c": True}
    assert {d.uuid: d.reason for d in view.devices}["GPU-b"] == "hangs"
    assert supervisor.view().worker_restarts == 1


def test_device_that_ends_every_worker_is_quarantined(run: Any) -> None:
    node = Node("GPU-a", WorkerGoneError("SIGSEGV"))
    supervisor = run(node)

    view = until(supervisor, lambda v: v.worker_restarts == 2 and up(v) == {"GPU-a": True, "INDEX-1": False})

    assert (view.up, view.devices[1].reason) == (True, "crashes_worker")


def test_no_third_worker_beside_two_that_cannot_be_ended(run: Any) -> None:
    node, supervisor = running(run, "GPU-a")

    node.killable = False
    node.opening = node.devices[0] = WorkerHangsError("no reply")
    view = until(supervisor, lambda v: v.reason == "worker_unkillable")

    assert (view.workers_unkillable, len(node.workers), up(view)) == (2, 2, {"GPU-a": False})


def test_only_chosen_devices_are_read(run: Any) -> None:
    supervisor = run(Node("GPU-a", "GPU-b"), devices=["1"])

    until(supervisor, lambda v: bool(v.devices))

    assert up(supervisor.view()) == {"GPU-b": True}


def test_failure_of_the_thread_marks_the_devices_as_down(run: Any) -> None:
    node, supervisor = running(run, "GPU-a", "GPU-b")

    node.devices[1] = MemoryError("planted")
    down = until(supervisor, lambda v: v.reason == "failed")
    node.devices[1] = "GPU-b"
    back = until(supervisor, lambda v: v.up and up(v) == {"GPU-a": True, "GPU-b": True})

    assert (down.up, up(down)) == (False, {"GPU-a": False, "GPU-b": False})
    assert (len(node.workers), node.running) == (2, 1)
    assert back.facts is not None


DELAYS = (0.0, 0.5, 1.0, 2.0, 4.0, 8.0)  # seconds; 10 afterwards
# How long each worker lives, in seconds, and whether it replies.
LIVES = st.lists(st.tuples(st.sampled_from((0.0, 3.0, 29.0, 31.0, 59.0)), st.booleans()), min_size=1, max_size=12)


@given(LIVES)
def test_a_worker_proves_itself_only_by_replies_for_half_a_minute(lives: list[tuple[float, bool]]) -> None:
    restarts, now, failures = Restarts(), 0.0, 0
    for seconds, replies in lives:
        restarts.record_start(now)
        if replies:
            restarts.record_replies(now + seconds / 2)
            restarts.record_replies(now + seconds)
            failures = 0 if seconds > 30 else failures
        now += seconds
        restarts.after_worker_failure(now)
        assert restarts.next_start - now == pytest.approx(DELAYS[failures] if failures < len(DELAYS) else 10.0)
        now, failures = restarts.next_start, failures + 1
    assert restarts.count == len(lives)


@cases("lived", [0.1, 5.0, 29.9])
def test_workers_that_reply_and_fail_soon_are_started_ever_later(lived: float) -> None:
    restarts, now, delays = Restarts(), 0.0, []
    for _ in range(8):
        restarts.record_start(now)
        restarts.record_replies(now + lived)
        now += lived
        restarts.after_worker_failure(now)
        delays.append(restarts.next_start - now)
        now = restarts.next_start

    assert delays == pytest.approx([*DELAYS, 10.0, 10.0])


def test_driver_that_cannot_be_opened_is_tried_ever_later() -> None:
    restarts, delays = Restarts(), []
    for _ in range(8):
        restarts.after_driver_failure(0.0)
        delays.append(restarts.next_start)

    assert delays == [2.0**n if n < 6 else 60.0 for n in range(8)]
    restarts.after_driver_failure(0.0)
    assert restarts.next_start == 60.0  # the back-off stays
    restarts.reset()
    restarts.after_driver_failure(0.0)
    assert restarts.next_start == 1.0
