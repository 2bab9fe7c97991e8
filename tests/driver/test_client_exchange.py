"""The daemon's end of a worker whose part the test plays: requests, replies in drawn parts, and the end."""

from __future__ import annotations

import json
import os
import random
import select
import signal
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from gpugauge.driver import client
from gpugauge.driver.api import Group
from gpugauge.driver.client import Worker, WorkerGoneError, WorkerHangsError
from tests.drawn import cases, seeds


class Process:
    """Stands in for the process of a worker: the test holds its ends. It ends by what `ended_by` says."""

    pid = 4711

    def __init__(self, command: list[str], *, pass_fds: list[int], **_: object) -> None:
        self.command = command
        self.channel = socket.socket(fileno=os.dup(pass_fds[0]))
        self.channel.settimeout(10)
        self.bell = os.dup(pass_fds[1])
        self.ended_by: signal.Signals | str | None = "close"
        self.status: int | None = None
        self.signals: list[int] = []
        self.waited: list[float] = []

    def requests(self) -> list[dict[str, Any]]:
        """Return the requests that have arrived."""
        data = b""
        self.channel.setblocking(False)
        while True:
            try:
                part = self.channel.recv(1 << 20)
            except BlockingIOError:
                break
            if not part:
                break
            data += part
        found = []
        while data:
            (length,) = struct.unpack("!I", data[:4])
            found.append(json.loads(data[4 : 4 + length]))
            data = data[4 + length :]
        return found

    def send_signal(self, number: int) -> None:
        self.signals.append(number)

    def wait(self, seconds: float) -> int:
        self.waited.append(seconds)
        if self.ended_by == "close" and not self.signals:
            self.status = 0
        elif self.signals and self.ended_by == self.signals[-1]:
            self.status = -self.signals[-1]
        if self.status is None:
            raise subprocess.TimeoutExpired("worker", seconds)
        return self.status

    def poll(self) -> int | None:
        return self.status


@contextmanager
def playing() -> Iterator[Worker]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subprocess, "Popen", Process)
        made = Worker("gpugauge.simulator.worker")
    process = played(made)
    yield made
    made._close()
    process.channel.close()
    os.close(process.bell)


@pytest.fixture
def worker() -> Iterator[Worker]:
    with playing() as made:
        yield made


def played(worker: Worker) -> Process:
    process: object = worker._process
    assert isinstance(process, Process)
    return process


def encoded(**message: Any) -> bytes:
    body = json.dumps(message).encode()
    return struct.pack("!I", len(body)) + body


def answer(number: int, index: int) -> bytes:
    return encoded(id=number, op="read", index=index)


def test_the_ends_of_the_process_are_named_on_its_command_line(worker: Worker) -> None:
    # The numbers of the descriptors are those of the daemon: the process inherits them.
    *_, fd, number, bell, other, pulse, memory = played(worker).command

    assert (fd, bell, pulse) == ("--fd", "--bell", "--pulse")
    assert memory.isdigit()
    assert worker._bell.fileno() == int(other) != int(number)
    assert worker.pid == Process.pid


def test_each_request_has_the_next_number(worker: Worker) -> None:
    numbers = [worker.send("open", simulate={"a": 1}), worker.send("close")]

    assert played(worker).requests() == [
        {"id": numbers[0], "op": "open", "simulate": {"a": 1}},
        {"id": numbers[1], "op": "close"},
    ]
    assert numbers[1] == numbers[0] + 1


@seeds(range(20))
def test_drawn_reads_ask_for_each_device_once(seed: int) -> None:
    """The protocol: a read of several GPUs has "indexes", and its replies have the ids from "id" on (worker.py)."""
    chance = random.Random(seed)
    with playing() as worker:
        every: list[list[Group]] = [["fast"], ["static", "fast", "normal"], []]
        asked, taken = [], []
        for _ in range(chance.randint(1, 4)):
            devices = [(index, chance.choice(every)) for index in chance.sample(range(16), chance.randint(0, 8))]
            asked += [(number, *device) for number, device in zip(worker.read(devices), devices, strict=True)]
            taken.append(worker.send("other"))

        understood = [
            (request["id"] + place, index, request["groups"])
            for request in played(worker).requests()
            if request["op"] == "read"
            for place, index in enumerate(request["indexes"])
        ]
        assert understood == asked
        numbers = [number for number, *_ in asked] + taken
        assert sorted(numbers) == list(range(1, len(numbers) + 1))


@seeds(range(20))
def test_replies_that_arrive_in_drawn_parts_are_whole(seed: int) -> None:
    chance = random.Random(seed)
    with playing() as worker:
        numbers = worker.read([(index, ["fast"]) for index in range(8)])
        stream = b"".join(answer(number, number * 10) for number in numbers)
        cuts = sorted(chance.sample(range(1, len(stream)), 5))
        parts = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]

        def play() -> None:
            for part in parts:
                played(worker).channel.sendall(part)
                time.sleep(chance.choice([0, 0.002]))
            os.eventfd_write(played(worker).bell, 1)

        player = threading.Thread(target=play)
        player.start()
        received = [worker.receive(number, 10) for number in numbers]
        player.join()

        assert [(reply.id, reply.index) for reply in received] == [(number, number * 10) for number in numbers]


@pytest.mark.parametrize(
    ("sent", "text"),
    [
        (answer(2, 0), "reply 2 to request 1"),
        (encoded(id=1, op="read", tomorrow=1), "tomorrow"),
        (struct.pack("!I", 1 << 30), "longer than"),
        (struct.pack("!I", 2) + b"{]", "."),
        (struct.pack("!I", 2) + b"[]", "object"),
    ],
)
def test_what_is_no_reply_ends_the_worker(sent: bytes, text: str, worker: Worker) -> None:
    worker.send("open")
    played(worker).channel.sendall(sent)

    with pytest.raises(WorkerGoneError, match=text):
        worker.receive(1, 10)


def test_the_end_of_the_socket_ends_a_wait(worker: Worker) -> None:
    number = worker.send("open")
    played(worker).requests()
    played(worker).channel.shutdown(socket.SHUT_RDWR)

    assert worker.wait_for_reply(60)  # the end is known: `receive` does not block
    with pytest.raises(WorkerGoneError, match="closed"):
        worker.receive(number, 60)
    with pytest.raises(WorkerGoneError):
        worker.send("read")


@pytest.mark.parametrize("begun", [b"", answer(1, 0)[:-1]])
def test_a_reply_that_does_not_come_is_a_hang(begun: bytes, worker: Worker) -> None:
    number = worker.send("read")
    played(worker).channel.sendall(begun)
    started = time.monotonic()

    with pytest.raises(WorkerHangsError, match=r"no reply within 0\.05 s"):
        worker.receive(number, 0.05)

    assert time.monotonic() - started >= 0.05
    played(worker).channel.sendall(answer(1, 0)[len(begun) :])  # the reply comes late
    assert worker.receive(number, 10).index == 0


class Poll:
    """Stands in for `select.poll`: nothing happens. Records for how long it was asked to wait, in milliseconds."""

    def __init__(self, waits: list[float]) -> None:
        self._waits = waits

    def poll(self, milliseconds: float) -> list[tuple[int, int]]:
        self._waits.append(milliseconds)
        return []


@cases("seconds", [-1.0, 0.0, 0.03, 0.1, 0.5, 4.0])
def test_a_wait_is_as_long_as_it_is_told(seconds: float, worker: Worker) -> None:
    waits: list[float] = []
    worker._bell_rung = worker._readable = Poll(waits)  # type: ignore[assignment]  # a stand-in

    assert not worker.wait_for_reply(seconds)
    assert sum(waits) == pytest.approx(1000 * max(0.0, seconds))
    assert min(waits) >= 0  # a negative time would be without an end


def test_a_reply_that_has_arrived_is_not_waited_for(worker: Worker) -> None:
    first, second = worker.send("read"), worker.send("read")
    played(worker).channel.sendall(answer(first, 0) + answer(second, 1))
    os.eventfd_write(played(worker).bell, 1)
    assert worker.wait_for_reply(10)
    worker.receive(first, 10)
    waits: list[float] = []
    worker._bell_rung = worker._readable = Poll(waits)  # type: ignore[assignment]  # a stand-in

    assert worker.wait_for_reply(10)
    assert worker.receive(second, 10).index == 1
    assert waits == []


def test_replies_that_one_receive_does_not_return_are_not_waited_for(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first reading of eight GPUs, and each one of many, is longer; the worker signals it once."""
    monkeypatch.setattr(client, "_BATCH_SECONDS", 5.0)
    numbers = worker.read([(index, ["fast"]) for index in range(8)])
    long = {"normal": {"text": "x" * 20_000}}
    played(worker).channel.sendall(b"".join(encoded(id=n, op="read", index=n, values=long) for n in numbers))
    os.eventfd_write(played(worker).bell, 1)
    began = time.monotonic()

    for number in numbers:
        assert worker.wait_for_reply(10)
        assert worker.receive(number, 10).index == number

    assert time.monotonic() - began < 2.0


def test_the_signal_of_earlier_replies_is_used_up(worker: Worker) -> None:
    """It would make each later wait return at once, so that the daemon wakes up for each reply."""
    number = worker.send("read")
    os.eventfd_write(played(worker).bell, 1)
    played(worker).channel.sendall(answer(number, 0))
    assert worker.wait_for_reply(10)
    worker.receive(number, 10)

    assert not select.select([worker._bell], [], [], 0)[0]


def test_a_long_request_is_sent_whole_to_a_slow_reader(worker: Worker) -> None:
    received = bytearray()

    def play() -> None:
        while len(received) < 3_000_000:
            time.sleep(0.001)
            received.extend(played(worker).channel.recv(1 << 18))

    player = threading.Thread(target=play)
    player.start()
    worker.send("open", text="x" * 3_000_000)
    player.join(10)

    assert json.loads(received[4:]) == {"id": 1, "op": "open", "text": "x" * 3_000_000}


def test_a_worker_that_does_not_read_is_given_up_within_a_second(worker: Worker) -> None:
    waits: list[float] = []
    worker._writable = Poll(waits)  # type: ignore[assignment]  # a stand-in

    with pytest.raises(WorkerHangsError, match="does not read"):
        worker.send("x" * 3_000_000)

    assert sum(waits) <= 1000


# --- the end ---

TERM, KILL = signal.SIGTERM, signal.SIGKILL


@pytest.mark.parametrize(
    ("graceful", "ended_by", "signals"),
    [
        (True, "close", []),
        (True, TERM, [TERM]),
        (True, KILL, [TERM, KILL]),
        (True, None, [TERM, KILL]),
        (False, TERM, [TERM]),
        (False, KILL, [TERM, KILL]),
        (False, None, [TERM, KILL]),
    ],
)
def test_each_signal_follows_only_if_the_one_before_had_no_effect(
    graceful: bool, ended_by: signal.Signals | str | None, signals: list[int], worker: Worker
) -> None:
    process = played(worker)
    process.ended_by = ended_by

    ended = worker.end(graceful=graceful, grace_seconds=2.5)

    assert ended == worker.reaped() == (ended_by is not None)
    assert process.signals == signals
    assert process.waited[:1] == ([2.5] if graceful else process.waited[:1])
    assert len(process.waited) == graceful + len(signals)
    assert sum(process.waited[graceful:]) < 1  # a daemon that stops waits no longer for a call that hangs
    assert [request["op"] for request in process.requests()] == (["close"] if graceful else [])
    assert process.channel.recv(1) == b""  # the end of the socket, which ends `serve` in the worker
    assert worker._channel.fileno() == -1
    assert worker._bell.closed


def test_a_worker_is_asked_to_close_unless_told_otherwise(worker: Worker) -> None:
    process = played(worker)
    process.ended_by = KILL

    assert worker.end()
    assert [request["op"] for request in process.requests()] == ["close"]
    assert sum(process.waited) < 1


def test_a_worker_that_hangs_and_does_not_read_is_ended(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "_WRITE_SECONDS", 0.01)
    with pytest.raises(WorkerHangsError):
        worker.send("x" * 3_000_000)

    assert worker.end()


@cases(
    ("status", "killed", "phrase"),
    [
        (None, False, "does not end"),
        (0, False, "exited with status 0"),
        (1, False, "exited with status 1"),
        (9, False, "exited with status 9"),
        (-1, True, "was ended by signal 1"),
        (-2, True, "was ended by signal 2"),
        (-9, True, "was ended by signal 9"),
        (-15, True, "was ended by signal 15"),
        (-6, False, "was ended by signal 6"),
        (-11, False, "was ended by signal 11"),
    ],
)
def test_how_a_process_ended(status: int | None, killed: bool, phrase: str, worker: Worker) -> None:
    played(worker).status = status

    assert (worker.was_killed(), worker.ending()) == (killed, phrase)
    assert worker.reaped() is (status is not None)


def test_kill_is_a_signal_of_its_own(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    killed = []
    monkeypatch.setattr(Process, "kill", lambda self: killed.append(self.pid), raising=False)

    worker.kill()

    assert killed == [Process.pid]
