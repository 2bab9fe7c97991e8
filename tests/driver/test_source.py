from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from gpugauge.driver.api import DriverView, Reply
from gpugauge.driver.client import Worker, WorkerGoneError, WorkerHangsError
from gpugauge.driver.source import DriverSource, Pace

PACE = Pace({"fast": 0.02, "normal": 0.04}, deadline=0.05, open_deadline=0.05)


class Node:
    """A node with cards by index; each answers with its uuid, an NVML code, or the exception that its worker meets."""

    def __init__(self, *cards: str | int | Exception) -> None:
        self.cards = list(cards)
        self.opening: int | Exception | None = None
        self.killable = True
        self.workers: list[FakeWorker] = []

    def spawn(self) -> Worker:
        self.workers.append(FakeWorker(self))
        return self.workers[-1]


class FakeWorker(Worker):
    """Answers from the node's present state, without a process."""

    pid = 1

    def __init__(self, node: Node) -> None:
        self.node, self.requests, self.ended = node, [], False  # type: ignore[var-annotated] # filled by send

    def send(self, op: str, **arguments: Any) -> int:
        self.requests.append((op, arguments))
        return len(self.requests)

    def receive(self, number: int, deadline: float) -> Reply:
        op, arguments = self.requests[number - 1]
        if op == "open":
            if isinstance(self.node.opening, Exception):
                raise self.node.opening
            return Reply(
                number, op, values={"driver": {"device_count": len(self.node.cards)}}, failed=self.node.opening
            )
        card = self.node.cards[arguments["index"]]
        if isinstance(card, Exception):
            raise card
        if isinstance(card, int):
            return Reply(number, op, arguments["index"], failed=card)
        values = {group: {"utilization_percent": 50} if group == "fast" else {} for group in arguments["groups"]}
        if "static" in values:
            values["static"] = {"uuid": card, "index": arguments["index"]}
        return Reply(number, op, arguments["index"], values)

    def interrupt(self) -> None:
        pass

    def end(self, *, polite: bool = True) -> bool:
        self.ended = True
        return self.node.killable

    def reaped(self) -> bool:
        return self.ended and self.node.killable

    def ending(self) -> str:
        return "was ended"


def until(source: DriverSource, what: Callable[[DriverView], bool]) -> DriverView:
    deadline = time.monotonic() + 10
    while not what(source.view()):
        assert time.monotonic() < deadline, source.view()
        time.sleep(0.005)
    return source.view()


def up(view: DriverView) -> dict[str, bool]:
    return {d.uuid: d.up for d in view.devices}


@pytest.fixture
def run() -> Any:
    sources: list[DriverSource] = []

    def start(node: Node, **arguments: Any) -> DriverSource:
        sources.append(DriverSource(PACE, worker=node.spawn, **arguments))
        sources[-1].start()
        return sources[-1]

    yield start
    for source in sources:
        source.stop()


def test_cards_are_read(run: Any) -> None:
    source = run(Node("GPU-a", "GPU-b"))

    view = until(source, lambda v: len(v.devices) == 2)

    assert (view.up, view.reason, up(view)) == (True, "ok", {"GPU-a": True, "GPU-b": True})


def test_drain_gives_each_answer_once(run: Any) -> None:
    source = run(Node("GPU-a"))
    until(source, lambda v: bool(v.devices))
    source.stop()

    first, second = source.drain(), source.drain()

    assert (len(first) > 0, second) == (True, ())


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


def test_hanging_card_is_left_out_and_its_neighbours_go_on(run: Any) -> None:
    node = Node("GPU-a", "GPU-b", "GPU-c")
    source = run(node)
    until(source, lambda v: len(v.devices) == 3)

    node.cards[1] = WorkerHangsError("no answer")
    view = until(source, lambda v: v.worker_restarts == 1 and up(v)["GPU-c"])
    reads = len(node.workers[-1].requests)
    until(source, lambda _: len(node.workers[-1].requests) > reads + 4)

    assert up(view) == {"GPU-a": True, "GPU-b": False, "GPU-c": True}
    assert {d.uuid: d.reason for d in view.devices}["GPU-b"] == "hangs"
    assert source.view().worker_restarts == 1


def test_lost_card_costs_no_worker(run: Any) -> None:
    node = Node("GPU-a", "GPU-b")
    source = run(node)
    until(source, lambda v: len(v.devices) == 2)

    node.cards[0] = 15
    view = until(source, lambda v: not up(v)["GPU-a"])

    assert up(view) == {"GPU-a": False, "GPU-b": True}
    assert view.worker_restarts == 0


def test_worker_that_ends_is_replaced_and_counted(run: Any) -> None:
    node = Node("GPU-a")
    source = run(node)
    until(source, lambda v: bool(v.devices))

    node.cards[0] = WorkerGoneError("killed")
    until(source, lambda v: v.worker_restarts == 1)
    node.cards[0] = "GPU-a"
    view = until(source, lambda v: up(v)["GPU-a"] and v.worker_restarts >= 1)

    assert view.up


def test_card_that_ends_every_worker_is_left_out(run: Any) -> None:
    node = Node("GPU-a", WorkerGoneError("SIGSEGV"))
    source = run(node)

    view = until(source, lambda v: v.worker_restarts == 2 and up(v) == {"GPU-a": True})

    assert view.up


def test_no_third_worker_beside_two_that_cannot_be_ended(run: Any) -> None:
    node = Node("GPU-a")
    source = run(node)
    until(source, lambda v: bool(v.devices))

    node.killable = False
    node.opening = node.cards[0] = WorkerHangsError("no answer")
    view = until(source, lambda v: v.reason == "worker_unkillable")

    assert (view.workers_unkillable, len(node.workers), up(view)) == (2, 2, {"GPU-a": False})


def test_only_chosen_devices_are_read(run: Any) -> None:
    source = run(Node("GPU-a", "GPU-b"), allowed=lambda index, _uuid: index == 1)

    until(source, lambda v: bool(v.devices))

    assert up(source.view()) == {"GPU-b": True}
