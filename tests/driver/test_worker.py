from __future__ import annotations

import ctypes.util
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gpugauge.driver.api import Reply
from gpugauge.driver.frames import receive_frame, send_frame
from gpugauge.driver.worker import Service, main
from tests.driver.simulated.build import scenario


class Child:
    """A worker process and our end of its socket."""

    def __init__(self, process: subprocess.Popen[bytes], channel: socket.socket) -> None:
        self.process, self.channel = process, channel

    def ask(self, op: str, **arguments: Any) -> Reply:
        send_frame(self.channel, {"id": 5, "op": op, **arguments})
        return Reply(**receive_frame(self.channel))

    def ending(self) -> tuple[int, bytes, bytes]:
        out, err = self.process.communicate(timeout=30)
        return self.process.returncode, out, err


@contextmanager
def worker() -> Iterator[Child]:
    ours, theirs = socket.socketpair()
    fd = theirs.fileno()
    command = [sys.executable, "-m", "gpugauge.driver.worker", "--fd", str(fd)]
    with ours, subprocess.Popen(command, pass_fds=[fd], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        theirs.close()
        ours.settimeout(30)
        try:
            yield Child(process, ours)
        finally:
            process.kill()


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
            "nvml_version": "12.570.124.06",
            "cuda_driver_version": 12080,
            "simulated": True,
        }
        assert opened.calls["nvmlInitWithFlags"][0] == 1
        assert (read.op, read.index, read.failed, read.errors) == ("read", 0, None, {})
        assert read.values["static"]["uuid"] == "GPU-1"
        assert read.values["processes"] == {"processes": []}
        assert read.calls["nvmlDeviceGetUUID"][0] == 1
        assert closed.calls["nvmlShutdown"][0] == 1
        assert child.ending() == (0, b"", b"")


def test_ends_with_its_parent() -> None:
    with worker() as child:
        child.ask("open", simulate=scenario("gpus: {model: h100}").simulation())
        child.channel.close()

        assert child.ending() == (0, b"", b"")


def test_terminal_signals_are_the_parents() -> None:
    with worker() as child:
        child.ask("open", simulate=scenario("gpus: {model: h100}").simulation())
        child.process.send_signal(signal.SIGINT)
        child.process.send_signal(signal.SIGHUP)

        assert child.ask("read", index=0, groups=["fast"]).failed is None


def test_terminates_politely() -> None:
    with worker() as child:
        child.ask("open", simulate=scenario("gpus: {model: h100}").simulation())
        child.process.send_signal(signal.SIGTERM)

        assert child.ending() == (0, b"", b"")


def test_foreign_bytes_end_it_quietly() -> None:
    with worker() as child:
        child.channel.sendall(b"GET / HTTP/1.1\r\n\r\n")

        assert child.ending() == (0, b"", b"")


def test_failures_are_answers() -> None:
    with worker() as child:
        child.ask("open", simulate=scenario("gpus: {model: h100}\nfaults: [{code: gpu_is_lost}]").simulation())

        assert child.ask("read", index=0, groups=["fast"]).failed == 15
        assert child.ask("read", index=7, groups=["fast"]).failed == 2
        assert child.ask("read", index="0", groups=["fast"]).failed == 2
        assert child.ask("dance").failed == 2


def test_call_that_hangs_needs_sigkill() -> None:
    faults = "faults: [{call: nvmlDeviceGetPowerUsage, hang: true}]"
    with worker() as child:
        child.ask("open", simulate=scenario(f"gpus: {{model: h100}}\n{faults}").simulation())
        assert child.ask("read", index=0, groups=["fast"]).failed is None
        child.channel.settimeout(0.3)

        with pytest.raises(TimeoutError):
            child.ask("read", index=0, groups=["normal"])
        while not blocks_sigterm(child.process.pid):  # a busy machine may need longer to get there
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


def test_next_worker_sees_the_same_world_go_on() -> None:
    simulation = scenario("gpus: [{model: h100, load: 1.0}]").simulation()
    readings = []
    for _ in range(2):
        with worker() as child:
            child.ask("open", simulate=simulation)
            readings.append(child.ask("read", index=0, groups=["static", "normal"]).values)

    assert readings[0]["static"] == readings[1]["static"]
    assert readings[0]["normal"]["energy_millijoules"] < readings[1]["normal"]["energy_millijoules"]


@pytest.mark.skipif(ctypes.util.find_library("nvidia-ml") is not None, reason="this machine has the real library")
def test_machine_without_the_library() -> None:
    with worker() as child:
        reply = child.ask("open", simulate=None)

        assert (reply.failed, reply.failed_call) == (12, "nvmlInitWithFlags")
        assert child.ask("close").failed is None
        assert child.ending() == (0, b"", b"")


def test_bug_is_an_answer_that_names_it() -> None:
    reply = Service().answer({"id": 1, "op": "open", "simulate": {}})

    assert (reply.failed, reply.failed_call) == (999, "KeyError: 'scenario'")


@pytest.mark.parametrize("arguments", [[], ["--fd"], ["--fd", "x"], ["3"]])
def test_wrong_command_line(arguments: list[str]) -> None:
    assert main(arguments) == 2
