"""A node whose worker is not a process: it replies from the current state of the node, or fails as the node says."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

from gpugauge.driver.api import DriverView, Group, Reply
from gpugauge.driver.client import Worker
from gpugauge.driver.nvidia.caller import code_name
from gpugauge.driver.reader import ReadingIntervals
from gpugauge.driver.supervisor import Supervisor

INTERVALS = ReadingIntervals({"fast": 0.02, "normal": 0.04}, deadline=0.05, open_deadline=0.05)


class Node:
    """A node with GPUs by index: the uuid in their replies, an NVML return code, or an exception of the worker."""

    def __init__(self, *devices: str | int | Exception) -> None:
        self.devices = list(devices)
        self.opening: int | str | Exception | None = None
        self.failed_call = "nvmlInitWithFlags"
        self.silent = False  # no replies and no failures
        self.killable, self.killed = True, False
        self.resident = 1000
        self.capabilities = 0
        self.spent = (0.0, 0)  # seconds and calls of each reading
        self.workers: list[FakeWorker] = []
        self.spawning: OSError | None = None
        self.ends: list[tuple[bool, float]] = []  # of the workers: whether they were asked to close, and the seconds

    def spawn(self) -> Worker:
        if self.spawning:
            raise self.spawning
        self.workers.append(FakeWorker(self))
        return self.workers[-1]

    @property
    def running(self) -> int:
        return sum(not worker.ended for worker in self.workers)


class FakeWorker(Worker):
    """Replies from the current state of the node, without a process."""

    pid = 1

    def __init__(self, node: Node) -> None:
        self.node, self.requests, self.ended = node, [], False  # type: ignore[var-annotated] # filled by send

    def send(self, op: str, **arguments: Any) -> int:
        self.requests.append((op, arguments))
        return len(self.requests)

    def read(self, devices: Iterable[tuple[int, list[Group]]]) -> list[int]:
        return [self.send("read", index=index, groups=groups) for index, groups in devices]

    def wait_for_reply(self, seconds: float) -> bool:
        if self.node.silent:
            time.sleep(min(seconds, 0.01))
        return not self.node.silent

    def receive(self, number: int, deadline: float) -> Reply:
        op, arguments = self.requests[number - 1]
        if op == "open":
            if isinstance(self.node.opening, Exception):
                raise self.node.opening
            values: dict[str, dict[str, Any]] = {"driver": {"device_count": len(self.node.devices)}}
            failed = code_name(code) if isinstance(code := self.node.opening, int) else code
            return Reply(number, op, values=values, failed=failed, failed_call=self.node.failed_call)
        device = self.node.devices[arguments["index"]]
        if isinstance(device, Exception):
            raise device
        if isinstance(device, int):
            return Reply(number, op, arguments["index"], failed=code_name(device), failed_call="nvmlDeviceGetUUID")
        values = {group: {"utilization_percent": 50} if group == "fast" else {} for group in arguments["groups"]}
        if "static" in values:
            values["static"] = {"uuid": device, "index": arguments["index"]}
        return Reply(number, op, arguments["index"], values, spent=self.node.spent)

    def interrupt(self) -> None:
        pass

    def end(self, *, graceful: bool = True, grace_seconds: float = 0.3) -> bool:
        self.ended = True
        self.node.ends.append((graceful, grace_seconds))
        return self.node.killable

    def reaped(self) -> bool:
        return self.ended and self.node.killable

    def was_killed(self) -> bool:
        return self.node.killed

    def resident_bytes(self) -> int | None:
        return self.node.resident

    def capabilities(self) -> int:
        return self.node.capabilities

    def ending(self) -> str:
        return "was ended"


def running(run: Any, *devices: str, **arguments: Any) -> tuple[Node, Supervisor]:
    """Return a node, and a supervisor that has read all its GPUs."""
    node = Node(*devices)
    supervisor: Supervisor = run(node, **arguments)
    until(supervisor, lambda v: len(v.devices) == len(devices))
    return node, supervisor


def released(supervisor: Supervisor, seconds: float) -> DriverView:
    """Release the driver, and return the view once it is."""
    supervisor.release(seconds)
    return until(supervisor, lambda v: v.reason == "released")


def read_on(supervisor: Supervisor, node: Node) -> None:
    """Wait until the GPUs have been read some times more: what follows from the last change has followed."""
    worker = node.workers[-1]
    reads = len(worker.requests)
    until(supervisor, lambda _: node.workers[-1] is not worker or len(worker.requests) > reads + 6)


def until(supervisor: Supervisor, what: Callable[[DriverView], bool]) -> DriverView:
    deadline = time.monotonic() + 60  # starting a worker on a machine with other work
    while not what(supervisor.view()):
        assert time.monotonic() < deadline, supervisor.view()
        time.sleep(0.005)
    return supervisor.view()


def up(view: DriverView) -> dict[str, bool]:
    return {d.uuid: d.up for d in view.devices}
