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


def slurm(folder: Path, address: tuple[str, int], state: str = "IDLE", *options: str, **doubles: str) -> list[str]:
    """Run the health check as slurmd does, which passes on the name of the node alone; return the changes of nodes that
    it asks for, and what it logs.
    """
    programs, calls = folder / "bin", folder / "calls"
    programs.mkdir(exist_ok=True)
    made = {
        "gpugauge": f'exec {sys.executable} -m gpugauge "$@"',
        "scontrol": f'[ "$2" = show ] && echo "NodeName=n7 State={state} Reason=x" || echo "$*" >>{calls}',
        "logger": f'echo "log $*" >>{calls}',
        **doubles,
    }
    for name, text in made.items():
        (programs / name).write_text(f"#!/bin/sh\n{text}\n")
        (programs / name).chmod(0o755 if text else 0o644)
    calls.write_text("")
    settings = folder / "slurm.env"
    settings.write_text(f"PATH={programs}:$PATH\nNODE_CHECK_URL={address[0]}:{address[1]}\nNODE_CHECK_PAUSE=0\n")
    variables = {"GPUGAUGE_SLURM_ENV": str(settings), "SLURMD_NODENAME": "n7"}
    command = [str(SCRIPTS / "slurm-health-check.sh"), *options]
    done = subprocess.run(command, env=variables, check=False, timeout=60, stdout=subprocess.DEVNULL)
    found = calls.read_text().splitlines()
    assert done.returncode == any(" would drain " in line for line in found)
    return found


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
        dry = slurm(tmp_path, address, "IDLE", "--dry-run")

    assert (done.returncode, b"127.0.0.1:9" in done.stderr, bool(done.stdout)) == (code, code == 2, code != 2)
    reasons = [
        change.partition("Reason=")[2] for change in changes if change.startswith("update NodeName=n7 State=DRAIN")
    ]
    # `sinfo -R` shows 20 characters.
    assert [reason[:20].strip() for reason in reasons] == (["GPU 1 needs recovery"] if reason else [])
    assert all(reason.endswith(" (gpugauge)") for reason in reasons)
    assert [f"log -t gpugauge-check -- drained n7: {reason}" for reason in reasons] == changes[1:] or code == 2
    assert drained == []
    assert dry == ([f"log -t gpugauge-check -- would drain n7: {reasons[0]}"] if reason else [*changes])
    assert found == (code if code < 3 else 0)
    assert message.startswith(reason or ("gpugauge does not answer" if code == 2 else "no GPU needs"))


@cases(
    ("doubles", "why"),
    [
        ({"gpugauge": "echo Traceback >&2; echo KeyError: 1 >&2; exit 1"}, "KeyError: 1"),
        ({"gpugauge": "echo 'GPU 1 needs a reset'; echo KeyError: 1 >&2; exit 1"}, "KeyError: 1"),
        ({"gpugauge": "echo no such option --reason; exit 2"}, "no such option --reason"),
        ({"gpugauge": "exit 124"}, "no answer within 10 s"),
        ({"gpugauge": "kill -KILL $$"}, "no answer within 10 s"),
        ({"gpugauge": "exit 2"}, "the driver is being opened or released"),
        ({"gpugauge": "exit 1"}, "gpugauge says nothing"),
        ({"scontrol": ""}, "no scontrol in "),
        ({}, "127.0.0.1:9"),
    ],
)
def test_what_cannot_be_judged_drains_nothing_and_is_logged(tmp_path: Path, doubles: dict[str, str], why: str) -> None:
    (line,) = slurm(tmp_path, NOWHERE, **doubles)

    assert line.startswith("log -t gpugauge-check -- cannot judge the GPUs of n7: ")
    assert why in line


@cases(
    ("scenario", "asked"),
    [("healthy", False), ("bottlenecks", False), ("failing-card", True), ("", True)],
)
def test_a_node_without_a_fault_needs_no_python(tmp_path: Path, scenario: str, asked: bool) -> None:
    with node(scenario, tmp_path) as address:
        lines = slurm(tmp_path, address, gpugauge="echo asked; exit 2")

    assert ["asked" in line for line in lines] == [True] * asked


def test_a_drain_that_fails_is_logged(tmp_path: Path) -> None:
    refused = '[ "$2" = show ] || { echo slurm_update error: Invalid user id >&2; exit 1; }'

    assert slurm(tmp_path, NOWHERE, gpugauge="echo GPU 0 needs a reset; exit 1", scontrol=refused) == [
        "log -t gpugauge-check -- cannot drain n7: slurm_update error: Invalid user id"
    ]


def test_what_answers_otherwise_is_unknown() -> None:
    with serving({}) as address:
        assert kubernetes(address) == (2, "gpugauge has no status: HTTP/1.1 404 Not Found")


def test_the_detector_runs_the_plugin() -> None:
    config = json.loads((SCRIPTS / "node-problem-detector.json").read_text())
    (condition,), (rule,) = config["conditions"], config["rules"]

    assert (rule["condition"], Path(rule["path"]).name) == (condition["type"], "npd-gpus.sh")
    assert condition["message"] in (SCRIPTS / "npd-gpus.sh").read_text()
