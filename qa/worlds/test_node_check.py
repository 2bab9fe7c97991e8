"""The node checks of deploy/node-check on simulated nodes: Slurm drains, and Kubernetes marks, only what is broken."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.drawn import cases
from tests.serving import serving
from tests.simulation import status
from tests.virtual import VirtualDaemon

from gpugauge.simulator.scenario.load import load_scenario
from gpugauge.web.page.routes import PATH, status_route

SCRIPTS = Path(__file__).parents[2] / "deploy/node-check"
NOWHERE = ("127.0.0.1", 9)
SECONDS = {"failing-card": 62}


@contextmanager
def node(scenario: str, folder: Path) -> Iterator[tuple[str, int]]:
    """Serve the status of a scenario when all is known; the address of nothing without one."""
    if not scenario:
        yield NOWHERE
        return
    daemon = VirtualDaemon(load_scenario(scenario), folder / "proc")
    for _ in range(SECONDS.get(scenario, 30)):
        snapshot = daemon.second()
    daemon.close()
    with serving({PATH: status_route(lambda: snapshot, lambda found: status(found, daemon.history))}) as address:
        yield address


def slurm(folder: Path, address: tuple[str, int], state: str = "IDLE", gpugauge: str = "") -> list[str]:
    """Run the health check of a node in a state, and return the changes of nodes that it asks for."""
    programs, calls = folder / "bin", folder / "calls"
    programs.mkdir(exist_ok=True)
    made = {
        "gpugauge": gpugauge or f'exec {sys.executable} -m gpugauge "$@"',
        "scontrol": f'[ "$2" = show ] && echo "NodeName=n7 State={state} Reason=x" || echo "$*" >>{calls}',
    }
    for name, text in made.items():
        (programs / name).write_text(f"#!/bin/sh\n{text}\n")
        (programs / name).chmod(0o755)
    calls.write_text("")
    variables = {"PATH": f"{programs}:/usr/bin:/bin", "SLURMD_NODENAME": "n7", "NODE_CHECK_PAUSE": "0"}
    variables |= {"NODE_CHECK_URL": "{}:{}".format(*address)}
    subprocess.run([SCRIPTS / "slurm-health-check.sh"], env=variables, check=True, timeout=60)
    return calls.read_text().splitlines()


def kubernetes(address: tuple[str, int]) -> tuple[int, str]:
    """Run the plugin, and return its exit status and its message."""
    variables = {"NODE_CHECK_HOST": address[0], "NODE_CHECK_PORT": str(address[1])}
    done = subprocess.run(
        [SCRIPTS / "npd-gpus.sh"], env=variables, check=False, timeout=60, capture_output=True, text=True
    )
    assert done.stderr == ""
    return done.returncode, done.stdout.rstrip("\n")


FAULT = "1 of 2 GPUs with faults, GPU 1: the driver requires a reset of the GPU after an error"


@cases(
    ("scenario", "code", "reason"),
    [("healthy", 0, ""), ("failing-card", 1, FAULT), ("bottlenecks", 3, ""), ("", 2, "")],
)
def test_a_node_is_drained_only_for_a_gpu_that_is_broken(tmp_path: Path, scenario: str, code: int, reason: str) -> None:
    with node(scenario, tmp_path) as address:
        command = [sys.executable, "-m", "gpugauge", "status", "--url", "{}:{}".format(*address)]
        done = subprocess.run(command, check=False, capture_output=True, timeout=60)
        changes, (found, message) = slurm(tmp_path, address), kubernetes(address)
        drained = slurm(tmp_path, address, "IDLE+DRAIN") if reason else []

    assert (done.returncode, b"127.0.0.1:9" in done.stderr, bool(done.stdout)) == (code, code == 2, code != 2)
    assert [change.partition(": ")[0] for change in changes] == (
        ["update NodeName=n7 State=DRAIN Reason=gpugauge"] if reason else []
    )
    assert all(reason in change for change in changes)
    assert drained == []
    assert found == (code if code < 3 else 0)
    assert message.startswith(reason or ("gpugauge does not answer" if code == 2 else "no GPU needs"))


def test_a_command_that_crashes_drains_nothing(tmp_path: Path) -> None:
    assert slurm(tmp_path, NOWHERE, gpugauge="echo Traceback >&2; exit 1") == []
    assert len(slurm(tmp_path, NOWHERE, gpugauge="echo 'n7: 1 of 8 GPUs down'; exit 1")) == 1


def test_what_answers_otherwise_is_unknown() -> None:
    with serving({}) as address:
        assert kubernetes(address) == (2, "gpugauge has no status: HTTP/1.1 404 Not Found")


def test_the_detector_runs_the_plugin() -> None:
    config = json.loads((SCRIPTS / "node-problem-detector.json").read_text())
    (condition,), (rule,) = config["conditions"], config["rules"]

    assert (rule["condition"], Path(rule["path"]).name) == (condition["type"], "npd-gpus.sh")
    assert condition["message"] in (SCRIPTS / "npd-gpus.sh").read_text()
