"""The unit's rights, folders and limits, seen from a booted machine, with a simulated driver that has a worker."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.documents import ROOT, blocks
from tests.e2e.programs import wait_for

from qa.deploy.machine import Machine, boot
from qa.deploy.test_systemd import DOCUMENT

pytestmark = pytest.mark.deploy

LINGERING = Path(__file__).with_name("lingering.py")
GPUS = 8  # of the scenario
# As the unit starts it, but for the driver. A simulated one has a state file only where it is named.
SIMULATED = """
[Service]
ExecStart=
ExecStart=/opt/gpugauge/bin/gpugauge serve --simulate=node --driver.state-file=${STATE_DIRECTORY}/gpus.json
"""


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """Return a machine with the service installed."""
    with boot(tmp_path_factory.mktemp("limits")) as booted:
        booted.run("chmod 755 /root")
        booted.run(f"cd /source\n{blocks(DOCUMENT, 'Install')[0]}")
        place = "/run/systemd/system/gpugauge.service.d"
        booted.run(f"mkdir -p {place}; cat > {place}/simulated.conf <<'END'{SIMULATED}END")
        booted.run("systemctl daemon-reload")
        yield booted


@pytest.fixture
def running(machine: Machine) -> Machine:
    """Return the machine with the service started anew."""
    machine.run("systemctl reset-failed; systemctl start gpugauge.socket; systemctl restart gpugauge.service")
    return machine


def children(machine: Machine) -> dict[str, int]:
    """Return the pids of the daemon's child processes, by name."""
    daemon = machine.show("gpugauge", "MainPID")
    found = {}
    for line in machine.run(f"ps --ppid {daemon} -o pid= -o args=").splitlines():
        pid, command = line.split(maxsplit=1)
        found["receiver" if "gpugauge.sessions.receiver" in command else "worker"] = int(pid)
    return found


def test_no_child_process_has_a_capability(running: Machine) -> None:
    pids = children(running)
    assert set(pids) == {"worker", "receiver"}
    for name, pid in pids.items():
        status = running.run(f"cat /proc/{pid}/status")
        masks = dict(re.findall(r"^(Cap\w+|NoNewPrivs):\s+(\w+)$", status, re.MULTILINE))
        # The inheritable set stays: only capset could clear it, which the unit refuses. Without capabilities of files,
        # which no_new_privs ignores, it has no effect.
        held = {kind: int(masks[kind], 16) for kind in ("CapPrm", "CapEff", "CapAmb")}
        assert set(held.values()) == {0}, (name, held)
        assert masks["NoNewPrivs"] == "1"


def test_the_state_folder_is_written_by_the_service_only(running: Machine) -> None:
    file = "/var/lib/gpugauge/gpus.json"
    wait_for(lambda: running.run(f"test -e {file} && echo there || true"), 20, "the GPUs are remembered")

    assert running.run("stat -c '%U %G %a' /var/lib/gpugauge").split() == ["gpugauge", "gpugauge", "750"]
    assert len(json.loads(running.run(f"cat {file}"))["gpus"]) == GPUS
    running.fails(f"cat {file}", "nobody")


@pytest.mark.parametrize("users", [12, 40])
def test_tasks_and_stop_while_users_hand_over_descriptors_whose_close_blocks(running: Machine, users: int) -> None:
    """The receiver has 16 threads for closes. With more users than that it is replaced; otherwise they block it still
    at the stop.
    """
    place = f"/source/{LINGERING.relative_to(ROOT)}"
    attack = f"PYTHONPATH=/source/src:/source python3 {place} /run/gpugauge/hook.sock 20000 {users}"
    tasks = [count(running)]
    with running.popen(attack) as attackers:
        try:
            end = time.monotonic() + 60
            # Not of each user: the first count may have a task that ends, and a hand-over may come too late.
            expected = tasks[0] + min(users, 16) // 2
            while not counted(running, "gpugauge_hook_bans") or max(tasks) < expected or len(tasks) < 30:
                tasks.append(count(running))
                assert time.monotonic() < end, f"few closes block: {tasks}"
            log = running.run("journalctl --unit=gpugauge --no-pager --boot")
            seconds = stopped(running)
        finally:
            attackers.kill()

    print(f"{users} users: tasks {tasks}; stopped in {seconds:.1f} s")
    assert "can't start new thread" not in log
    assert max(tasks) <= int(running.show("gpugauge", "TasksMax")) / 2


def count(machine: Machine) -> int:
    """Return the number of tasks of the service. TasksCurrent= is not set in a container without the controller."""
    return len(machine.run("ps -L -u gpugauge -o lwp=").split())


def test_stops_in_time_while_the_receiver_hangs(running: Machine) -> None:
    running.run(f"kill -STOP {children(running)['receiver']}")

    stopped(running)


def counted(machine: Machine, name: str) -> float:
    """Return the sum of a metric without labels."""
    text = machine.run("curl --silent --fail --max-time 5 http://127.0.0.1:10478/metrics")
    return sum(float(value) for value in re.findall(rf"^{name} (\S+)$", text, re.MULTILINE))


def stopped(machine: Machine) -> float:
    """Stop the service, and return the seconds that it took. Fails if systemd had to kill it, or something is left."""
    limit = float(machine.show("gpugauge", "TimeoutStopUSec").removesuffix("s"))
    began = time.monotonic()
    machine.run("systemctl stop gpugauge.socket gpugauge.service")
    seconds = time.monotonic() - began
    assert machine.show("gpugauge", "Result") == "success"
    assert machine.show("gpugauge", "ExecMainStatus") == "0"
    assert seconds < limit
    assert machine.run("ps -u gpugauge -o pid= || true") == ""
    return seconds
