from __future__ import annotations

import ctypes.util
import os
import select
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gpugauge.base import isolated
from gpugauge.driver.api import Reply
from gpugauge.driver.codes import WORKER_ERROR
from gpugauge.driver.frames import PULSE_BYTES, Inbox, frame, reply
from gpugauge.driver.nvidia.nvml import Nvml
from gpugauge.driver.vendors.nvidia import NVIDIA
from gpugauge.driver.worker import Service, main, serve
from gpugauge.simulator import WORKER
from gpugauge.simulator.worker import service as simulated_service
from tests.drawn import cases
from tests.needs import require
from tests.simulator.build import scenario


class Child:
    """A worker process and the other end of its socket."""

    def __init__(self, process: subprocess.Popen[bytes], channel: socket.socket, bell: int) -> None:
        self.process, self.channel, self.inbox, self.bell = process, channel, Inbox(channel), bell

    def ask(self, op: str, **arguments: Any) -> Reply:
        self.channel.sendall(frame({"id": 5, "op": op, **arguments}))
        return reply(self.inbox.receive())

    def wait(self) -> int:
        """Wait for the eventfd; return the number of signals."""
        assert select.select([self.bell], [], [], 30)[0]
        return os.eventfd_read(self.bell)

    def ending(self) -> tuple[int, bytes, bytes]:
        out, err = self.process.communicate(timeout=30)
        return self.process.returncode, out, err


@contextmanager
def worker(module: str = WORKER) -> Iterator[Child]:
    ours, theirs = socket.socketpair()
    fd, bell = theirs.fileno(), os.eventfd(0, os.EFD_NONBLOCK)
    pulse = os.memfd_create("pulse")
    os.truncate(pulse, PULSE_BYTES)
    command = isolated.command(module, "--fd", str(fd), "--bell", str(bell), "--pulse", str(pulse))
    pipe = subprocess.PIPE
    with ours, subprocess.Popen(command, pass_fds=[fd, bell, pulse], stdout=pipe, stderr=pipe) as process:
        os.close(pulse)
        theirs.close()
        ours.settimeout(30)
        try:
            yield Child(process, ours, bell)
        finally:
            process.kill()
            os.close(bell)


def blocks_sigterm(pid: int) -> bool:
    status = Path(f"/proc/{pid}/status").read_text()
    (mask,) = (line.split()[1] for line in status.splitlines() if line.startswith("SigBlk"))
    return bool(int(mask, 16) >> (signal.SIGTERM - 1) & 1)


def test_opens_reads_and_closes() -> None:
    simulation = scenario("gpus: [{model: h100, uuid: GPU-1}]").simulation()
    with worker() as child:
        opened = child.ask("open", simulate=simulation)
        read = child.ask("read", index=0, groups=["static", "processes"])
        closed = child.ask("close")

        assert (opened.id, opened.op, opened.failed) == (5, "open", None)
        assert opened.values["driver"] == {
            "device_count": 1,
            "driver_version": "570.124.06",
            "cuda_driver_version": 12080,
            "simulated": True,
        }
        assert opened.calls["nvmlInitWithFlags"][0] == 1
        assert (read.op, read.index, read.failed, read.errors) == ("read", 0, None, {})
        assert read.values["static"]["uuid"] == "GPU-1"
        assert read.values["processes"] == {"processes": []}
        assert read.calls["nvmlDeviceGetUUID"][0] == 1
        assert read.received > 0
        assert closed.calls["nvmlShutdown"][0] == 1
        assert child.ending() == (0, b"", b"")


def test_devices_that_are_read_together_have_a_reply_each_and_one_signal() -> None:
    with worker() as child:
        opened = child.ask("open", simulate=scenario("gpus: {model: h100, count: 3}").simulation())
        child.wait()
        child.channel.sendall(frame({"id": 7, "op": "read", "indexes": [2, 0, 9], "groups": ["fast"]}))
        answers = [reply(child.inbox.receive()) for _ in range(3)]

        assert [(a.id, a.index, a.failed) for a in answers] == [(7, 2, None), (8, 0, None), (9, 9, "invalid_argument")]
        assert answers[0].calls == {}
        assert answers[1].calls == {}
        assert sum(a.calls["nvmlDeviceGetUtilizationRates"][0] for a in answers if a.calls) == 2
        assert opened.received <= answers[0].received <= answers[1].received
        assert child.wait() == 1


def test_long_replies_are_signalled_before_the_last_one() -> None:
    class LongReplies(Service):
        def message(self, request: dict[str, Any]) -> dict[str, Any]:
            return {"id": request["id"], "op": "read", "failed_call": "x" * 40_000}

    ours, theirs = socket.socketpair()
    rings = []
    with ours, theirs:
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        ours.sendall(frame({"id": 1, "op": "read", "indexes": [0, 1, 2], "groups": []}))
        ours.shutdown(socket.SHUT_WR)
        serve(theirs, LongReplies(Nvml()), lambda: rings.append(len(rings)))

    assert len(rings) == 2


def test_calls_are_sent_on_request_and_with_a_failure() -> None:
    simulation, now = scenario("gpus: {model: h100}").simulation(), time.monotonic()
    service = simulated_service(lambda: now)
    service.answer({"op": "open", "simulate": simulation})
    fast = {"op": "read", "index": 0, "groups": ["fast"]}
    counted = [service.answer(request).calls for request in (fast | {"calls": False}, fast, fast)]
    failure = service.answer({"op": "read", "index": 5, "groups": [], "calls": False})

    assert [calls.get("nvmlDeviceGetUtilizationRates", [0])[0] for calls in counted] == [0, 2, 1]
    # In a time that stands still, no call takes any.
    assert failure.calls == {"nvmlDeviceGetHandleByIndex_v2": [1, 0.0, 0.0]}


def test_ends_with_its_parent() -> None:
    with worker() as child:
        child.ask("open", simulate=scenario("gpus: {model: h100}").simulation())
        child.channel.close()

        assert child.ending() == (0, b"", b"")


def test_terminal_signals_are_ignored() -> None:
    with worker() as child:
        child.ask("open", simulate=scenario("gpus: {model: h100}").simulation())
        child.process.send_signal(signal.SIGINT)
        child.process.send_signal(signal.SIGHUP)

        assert child.ask("read", index=0, groups=["fast"]).failed is None


def test_sigterm_ends_it() -> None:
    with worker() as child:
        child.ask("open", simulate=scenario("gpus: {model: h100}").simulation())
        child.process.send_signal(signal.SIGTERM)

        assert child.ending() == (0, b"", b"")


def test_bytes_of_another_protocol_end_it() -> None:
    with worker() as child:
        child.channel.sendall(b"GET / HTTP/1.1\r\n\r\n")

        assert child.ending() == (0, b"", b"")


def test_failures_are_replies() -> None:
    with worker() as child:
        child.ask("open", simulate=scenario("gpus: {model: h100}\nfaults: [{code: gpu_is_lost}]").simulation())

        assert child.ask("read", index=0, groups=["fast"]).failed == "gpu_is_lost"
        assert child.ask("read", index=7, groups=["fast"]).failed == "invalid_argument"
        assert child.ask("read", index="0", groups=["fast"]).failed == "invalid_argument"
        assert child.ask("dance").failed == "invalid_argument"


def test_call_that_hangs_needs_sigkill() -> None:
    faults = "faults: [{call: nvmlDeviceGetPowerUsage, hang: true}]"
    with worker() as child:
        child.ask("open", simulate=scenario(f"gpus: {{model: h100}}\n{faults}").simulation())
        assert child.ask("read", index=0, groups=["fast"]).failed is None
        child.channel.settimeout(0.3)

        with pytest.raises(TimeoutError):
            child.ask("read", index=0, groups=["normal"])
        while not blocks_sigterm(child.process.pid):  # takes longer on a busy machine
            time.sleep(0.01)
        child.process.send_signal(signal.SIGTERM)
        with pytest.raises(subprocess.TimeoutExpired):
            child.process.wait(0.3)
        child.process.kill()

        assert child.process.wait(30) == -signal.SIGKILL


def test_crash_is_a_signal() -> None:
    with worker() as child:
        child.ask("open", simulate=scenario("gpus: {model: h100}\nfaults: [{crash: true}]").simulation())

        with pytest.raises((EOFError, ConnectionError)):
            child.ask("read", index=0, groups=["fast"])

        assert child.ending()[0] == -signal.SIGSEGV


def test_next_worker_continues_the_simulation() -> None:
    simulation = scenario("gpus: [{model: h100, load: 1.0}]").simulation()
    readings = []
    for _ in range(2):
        with worker() as child:
            child.ask("open", simulate=simulation)
            readings.append(child.ask("read", index=0, groups=["static", "normal"]).values)

    assert readings[0]["static"] == readings[1]["static"]
    assert readings[0]["normal"]["energy_millijoules"] < readings[1]["normal"]["energy_millijoules"]


def test_machine_without_the_library() -> None:
    require(ctypes.util.find_library("nvidia-ml") is None, "this machine has the real library")
    with worker(NVIDIA.worker) as child:
        reply = child.ask("open")

        assert (reply.failed, reply.failed_call) == ("library_not_found", "nvmlInitWithFlags")
        assert child.ask("close").failed is None
        assert child.ending() == (0, b"", b"")


def test_unexpected_error_is_a_reply_with_its_text() -> None:
    reply = simulated_service().answer({"id": 1, "op": "open", "simulate": {}})

    assert reply.failed == WORKER_ERROR
    assert reply.failed_call.startswith("KeyError: 'scenario' in gpugauge.simulator.")


@cases(
    "arguments",
    [
        [],
        ["--fd", "3"],
        ["--fd", "3", "--bell", "4"],
        ["--fd", "x", "--bell", "4", "--pulse", "5"],
        ["--fd", "3", "--bell", "4", "--pulse"],
    ],
)
def test_wrong_command_line(arguments: list[str]) -> None:
    assert main(arguments, Nvml()) == 2


@pytest.mark.parametrize("module", [WORKER, NVIDIA.worker], ids=["simulated", "real"])
def test_a_worker_that_has_opened_the_driver_has_no_privileges(module: str) -> None:
    options = {"simulate": scenario("gpus: [{model: h100}]").simulation()} if module == WORKER else {}
    with worker(module) as child:
        child.ask("open", **options)
        status = dict(line.split(":\t") for line in Path(f"/proc/{child.process.pid}/status").read_text().splitlines())

    sets = {name: int(status[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapAmb")}
    assert sets == dict.fromkeys(sets, 0)
    assert status["NoNewPrivs"] == "1"
    if os.geteuid() == 0 and int(Path("/proc/self/status").read_text().split("CapEff:\t")[1][:16], 16) >> 8 & 1:
        assert int(status["CapBnd"], 16) == 0  # CAP_SETPCAP was there
