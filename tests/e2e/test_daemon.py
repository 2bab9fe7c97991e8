"""The life cycle of the daemon: start and stop, a killed worker, a call that hangs, slow clients, bad input."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpugauge.web.connections import HEADER_TIMEOUT_SECONDS
from gpugauge.wire import messages as wire
from tests.e2e.daily import share
from tests.e2e.lifecycle import children, hangs, workers
from tests.e2e.programs import GPUGAUGE, PATIENCE, Daemon, Series, daemon, http, new_pid_namespace, wait_for

pytestmark = pytest.mark.e2e


class Scraper:
    """A thread that scrapes all the time, with a `pause` in seconds."""

    def __init__(self, running: Daemon, pause: float = 0.02) -> None:
        self.running = running
        self._pause = pause
        self.statuses: list[int] = []
        self.seconds: list[float] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while not self._stop.wait(self._pause):
            start = time.monotonic()
            self.statuses.append(http(self.running.url + "/metrics")[0])
            self.seconds.append(time.monotonic() - start)

    def __enter__(self) -> Scraper:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


@contextlib.contextmanager
def simulated(tmp_path: Path, scenario: str, *flags: str) -> Iterator[Daemon]:
    with daemon(tmp_path, f"--simulate={scenario}", *flags) as running:
        yield running


ENERGY = "gpu_energy_joules_total"  # never falls, and is read every 5 s and by every new worker


def energies(running: Daemon, devices: int) -> Series:
    """Wait for readings of `devices` GPUs, and return them."""

    def complete() -> Series | None:
        found = running.series(ENERGY, "uuid")
        return found if len(found) == devices else None

    found: Series = wait_for(complete, 60, f"{devices} GPUs have values")
    return found


def wait_for_newer(running: Daemon, before: Series, devices: int) -> None:
    """Wait for readings of `devices` GPUs that are newer than `before`."""

    def newer() -> bool:
        now = running.series(ENERGY, "uuid")
        return len(now) == devices and all(value > before[device] for device, value in now.items())

    wait_for(newer, 5, f"{devices} GPUs have fresh values")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_stops_and_leaves_no_process(tmp_path: Path, number: int) -> None:
    with simulated(tmp_path, "node") as running:
        every, driver = children(running.process.pid), workers(running)
        code, _ = running.stop(number)

    assert (len(every), len(driver)) == (2, 1)  # the receiver and the worker
    assert code == 0
    assert not [pid for pid in every if Path(f"/proc/{pid}").exists()]
    assert not running.socket.exists()


def test_stops_while_a_call_hangs(tmp_path: Path) -> None:
    scenario = tmp_path / "hang.yaml"
    scenario.write_text(
        "description: a GPU whose power call hangs from the second second on\n"
        "gpus: {model: h100, count: 2}\n"
        "faults: [{call: nvmlDeviceGetUtilizationRates, gpu: 1, start: 2, hang: true}]\n"
    )
    deadline = 60
    with simulated(tmp_path, str(scenario), f"--driver.deadline-seconds={deadline}") as running:
        wait_for(lambda: hangs(running), 60, "the call hangs")
        every = children(running.process.pid)
        code, seconds = running.stop()

    assert (code, seconds < deadline / 2) == (0, True)
    wait_for(lambda: not [pid for pid in every if Path(f"/proc/{pid}").exists()], 10, "no child is left")


def test_stops_as_pid_1(tmp_path: Path) -> None:
    with daemon(tmp_path, "--simulate=node", prefix=new_pid_namespace()) as running:
        (init,) = children(running.process.pid)
        os.kill(init, signal.SIGTERM)

        assert running.process.wait(PATIENCE) == 0


def test_killed_worker_costs_no_scrape(tmp_path: Path) -> None:
    with simulated(tmp_path, "node") as running, Scraper(running) as scraper:
        before = energies(running, devices=8)
        (worker,) = workers(running)
        os.kill(worker, signal.SIGKILL)
        wait_for_newer(running, before, devices=8)
        restarts = running.series("gpugauge_worker_restarts_total")[()]
        ups = running.series("gpu_up", "uuid")

    assert set(scraper.statuses) == {200}
    assert set(ups.values()) == {1}
    assert restarts == 1


def test_hanging_device_is_quarantined_and_the_others_are_read(tmp_path: Path) -> None:
    scenario, switch = tmp_path / "hang.yaml", tmp_path / "hangs"
    scenario.write_text(
        "description: GPU 2 hangs while a file exists\n"
        "gpus: {model: h100, count: 4}\n"
        f"faults: [{{call: nvmlDevice*, gpu: 2, while_exists: {switch}, hang: true}}]\n"
    )
    deadline = 15
    flags = (str(scenario), f"--driver.deadline-seconds={deadline}")
    with simulated(tmp_path, *flags) as running, Scraper(running) as scraper:
        before = energies(running, devices=4)
        switch.touch()
        wait_for(lambda: 0 in running.series("gpu_up", "uuid").values(), 10, "gpu_up is 0")
        wait_for(lambda: list(running.series("gpu_up", "uuid").values()).count(1) == 3, 5, "the neighbours are up")
        wait_for_newer(running, before, devices=3)
        # Until the new worker has read them, the neighbours may be down, too.
        down = {uuid for (uuid,), up in running.series("gpu_up", "uuid").items() if up == 0}
        index = running.series("gpu_info", "uuid", "index")
        restarts = running.series("gpugauge_worker_restarts_total")[()]
        powered = running.series("gpu_power_watts", "uuid")

    assert {uuid for uuid, i in index if i == "2"} == down
    assert restarts == 1
    assert len(powered) == 3
    assert set(scraper.statuses) == {200}
    # A scrape that waits for the driver would take the deadline.
    assert max(scraper.seconds) < deadline / 2


def test_500_slow_connections_delay_no_scrape(tmp_path: Path) -> None:
    with simulated(tmp_path, "node") as running:
        host, port = running.url.removeprefix("http://").split(":")
        slow = []
        for _ in range(500):
            s = socket.create_connection((host, int(port)))
            s.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\nX-Slow: ")
            slow.append(s)
        with Scraper(running) as scraper:
            while len(scraper.seconds) < 20:
                for s in slow[::25]:
                    with contextlib.suppress(OSError):  # evicted to make room
                        s.sendall(b"a")
                time.sleep(0.1)
        for s in slow:
            s.close()

    assert set(scraper.statuses) == {200}
    # A scrape that waits for a slow connection would take the time for which that may send its headers.
    assert max(scraper.seconds) < HEADER_TIMEOUT_SECONDS / 2


def test_watchdog_and_readiness_are_sent_to_the_service_manager(tmp_path: Path) -> None:
    address = tmp_path / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(address))
        manager.settimeout(PATIENCE)
        environment = {"NOTIFY_SOCKET": str(address), "WATCHDOG_USEC": "2000000"}
        with daemon(tmp_path, "--simulate=node", environment=environment) as running:
            received = [manager.recv(4096) for _ in range(3)]
            running.stop()
        manager.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                received.append(manager.recv(4096))

    assert received[0].startswith(b"READY=1")
    assert b"WATCHDOG=1" in received
    assert received[-1].startswith(b"STOPPING=1")


def serve(*arguments: str) -> tuple[int, str]:
    done = subprocess.run(
        [GPUGAUGE, "serve", *arguments], capture_output=True, text=True, check=False, timeout=PATIENCE
    )
    return done.returncode, done.stderr.strip()


def test_port_taken(tmp_path: Path) -> None:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        s.listen()
        port = s.getsockname()[1]
        code, said = serve(f"--web.listen-address=127.0.0.1:{port}", f"--hook.socket={tmp_path}/hook.sock")

    assert code == 1
    assert str(port) in said.splitlines()[-1]
    assert "Traceback" not in said


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("driver: {mode: requred}\n", "required"),
        ("web:\n  listen_adress: ':1'\n", "listen_address"),
        ("sampling: {interval_seconds: fast}\n", "interval_seconds"),
        ("web: [", "1"),
    ],
)
def test_bad_settings_exit_2_and_name_file_line_and_nearest_key(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "gpugauge.yaml"
    path.write_text(text)

    code, said = serve(f"--config.file={path}")

    assert code == 2
    assert str(path) in said
    assert says in said
    assert len(said.splitlines()) == 1


def test_unknown_scenario_ends_with_one_sentence(tmp_path: Path) -> None:
    code, said = serve("--simulate=nod", f"--hook.socket={tmp_path}/hook.sock", "--web.listen-address=127.0.0.1:0")

    assert code == 2
    assert "node" in said
    assert "Traceback" not in said


def test_logs_are_json_lines_when_asked(tmp_path: Path) -> None:
    with simulated(tmp_path, "node", "--log.format=json") as running:
        running.stop()
        lines = [json.loads(line) for line in running.log.read_text().splitlines()]

    assert [line["msg"] for line in lines] == ["serving", "stopping"]


def test_bad_message_on_the_hooks_socket_is_counted_and_its_connection_closed(tmp_path: Path) -> None:
    with daemon(tmp_path, "--driver.mode=off") as running:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as s:
            s.connect(str(running.socket))
            s.settimeout(PATIENCE)
            s.send(b"not json")
            closed = s.recv(10)
        wait_for(
            lambda: running.series("gpugauge_hook_rejected_total", "reason").get(("foreign",)) == 1,
            5,
            "it is counted",
        )
        log = running.log.read_text()

    assert closed == b""
    assert log.count("hook connection closed") == 1


def test_sessions_are_distinct_and_end_with_their_connections(tmp_path: Path) -> None:
    count = share(1000)
    # Without /proc, because all sessions have the same pid here; then the label `process` follows from the session.
    with daemon(
        tmp_path,
        "--driver.mode=off",
        "--path.procfs=/nonexistent",
        "--collector.disable-defaults",
        "--collector.training",
    ) as running:
        clients = []
        for number in range(count):
            client = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            client.connect(str(running.socket))
            session = f"{number:032x}"
            client.send(wire.encode(wire.Hello(session, 1)))
            client.send(wire.encode(wire.Snap(session, 2, steps=wire.Progress(number, 1.0))))
            clients.append(client)
        # A session is connected before its steps are received.
        wait_for(lambda: len(running.series("torch_steps_total", "process")) == count, 60, "all have steps")
        connected = running.series("gpugauge_hook_sessions")[()]
        steps = running.series("torch_steps_total", "process")
        for client in clients:
            client.close()
        wait_for(lambda: running.series("gpugauge_hook_sessions")[()] == 0, 60, "all are gone")
        # Their process continues.
        ended = running.series("gpugauge_trainings_ended_total", "reason")["other",]

    assert connected == count
    assert sorted(steps.values()) == list(range(count))
    assert ended == count
