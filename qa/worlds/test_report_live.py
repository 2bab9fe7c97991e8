"""Reports on two simulated nodes and on real trainings on the CPU, by a real Prometheus, against the counters read
directly: with restarts of exporters, gaps of the server, its intervals, with rules and without, as a seed draws them.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tests.drawn import OF_TESTS, draws
from tests.e2e.programs import GPUGAUGE, free_port, http, listening, prometheus3, wait_for
from tests.needs import need

from gpugauge.cli.main import main

TICK = 5.5  # seconds between two looks of a daemon, and what they take
PIPELINES = (
    "{kernels: 0.1, host: 0.03, load: 0.8, workers: 2}",
    "{kernels: 0.01, host: 0.03, load: 0.01}",
    "{kernels: 0.1, host: 0.03, load: 0.1, workers: 10}",
)
SCENARIO = """description: drawn
gpus: {{model: h100, count: 2}}
processes:
  - {{pid: 71{node}1, gpus: [0], memory: 24GiB, pipeline: {first}, command: python3 train.py, cgroup: {cgroup}{long}}}
  - {{pid: 71{node}5, gpus: [1], memory: 4GiB, pipeline: {second}, end: 25, command: a.py, cgroup: {cgroup}{short}}}
"""
TRAINING = """
import sys, time, torch
from torch.utils.data import DataLoader, TensorDataset
model, end, steps = torch.nn.Linear(8, 8), None, 0
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for batch, in DataLoader(TensorDataset(torch.randn(100_000, 8)), batch_size=2):
    end = end or time.monotonic() + float(sys.argv[2])
    time.sleep(float(sys.argv[1]))
    model(batch).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    steps += 1
    if time.monotonic() > end: break
print(steps, time.monotonic(), flush=True)
"""
_INFO = re.compile(r"^(?:gpu_process_host_info|gpu_process_info|torch_process_info)\{(.*)\} 1", re.MULTILINE)
_COUNTER = re.compile(r"^(training_gpu_held_seconds_total|training_lost_seconds_total)\{(.*)\} (\S+)", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="([^"]*)"')


@dataclass
class Node:
    """A daemon that can be started again; `away` are the times in which it did not run."""

    folder: Path
    flags: tuple[str, ...] = ()
    port: int = field(default_factory=free_port)
    away: list[tuple[float, float]] = field(default_factory=list)

    def start(self) -> None:
        self.folder.mkdir(exist_ok=True)
        address = f"--web.listen-address=127.0.0.1:{self.port}"
        command = [GPUGAUGE, "serve", address, f"--hook.socket={self.folder}/hook/hook.sock", *self.flags]
        variables = {name: value for name, value in os.environ.items() if name not in OF_TESTS}
        with (self.folder / "log").open("ab") as log:
            environment = {**variables, "TMPDIR": str(self.folder)}
            self.process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
        wait_for(lambda: http(f"http://127.0.0.1:{self.port}/-/ready")[0] == 200, 60, "the daemon is ready")

    def restart(self, number: int, pause: float) -> None:
        stopped = time.monotonic()
        self.process.send_signal(number)
        self.process.wait(60)
        time.sleep(pause)
        self.start()
        self.away.append((stopped, time.monotonic()))

    def counters(self) -> Counter[tuple[str, str]]:
        """Return what GPU time each job held, and lost by cause."""
        text = http(f"http://127.0.0.1:{self.port}/metrics")[1].decode()
        infos = [dict(_LABEL.findall(found)) for found in _INFO.findall(text)]
        jobs = {each["process"]: each["workload_job"].rpartition("/")[2] for each in infos if each.get("workload_job")}
        counted = Counter[tuple[str, str]]()
        for _, labels, value in _COUNTER.findall(text):
            of = dict(_LABEL.findall(labels))
            if of["process"] in jobs:
                counted[jobs[of["process"]], of.get("cause", "")] += float(value)  # type: ignore[assignment]  # seconds
        return counted


@pytest.mark.e2e
@pytest.mark.everything
@pytest.mark.torch
@pytest.mark.timeout(3600)
def test_sums_are_those_of_the_counters(tmp_path: Path) -> None:
    for seed in draws(1, 6):
        check(random.Random(seed), tmp_path / str(seed), seed)


def check(draw: random.Random, folder: Path, seed: int) -> None:
    folder.mkdir()
    interval, length, first = draw.choice((1, 2, 5)), draw.randrange(40, 90), 100 * os.getpid() + 10 * seed
    simulated, real = [str(first), str(first + 1)], [str(first + 2), str(first + 3)]
    nodes = [Node(folder / "cpu")]
    for number in range(2):
        text = SCENARIO.format(
            node=number,
            first=draw.choice(PIPELINES),
            second=PIPELINES[0],
            cgroup="/system.slice/slurmstepd.scope/job_",
            long=f"{simulated[0]}/step_0/user/task_0",
            short=f"{simulated[1]}/step_0/user/task_0",
        )
        (folder / f"{number}.yaml").write_text(text)
        nodes.append(Node(folder / str(number), (f"--simulate={folder}/{number}.yaml",)))
    gap = (draw.uniform(0.2, 0.6) * length, float(draw.randrange(8, 25))) if draw.random() < 0.5 else None
    events = [(draw.uniform(0.25, 0.8) * length, "restart", node) for node in nodes if draw.random() < 0.5]
    events += [(gap[0], "gap", nodes[0]), (sum(gap), "on", nodes[0])] if gap else []
    targets = ", ".join(f'"127.0.0.1:{node.port}"' for node in nodes)
    rules = folder / "rules.yaml"
    made = (
        CliRunner().invoke(main, ["rules", "--scrape-interval", "15s"]).output if draw.random() < 0.5 else "groups: []"
    )
    rules.write_text(made)
    config = folder / "prometheus.yml"
    config.write_text(
        f"global: {{scrape_interval: {interval}s, scrape_timeout: {interval}s}}\nrule_files: [{rules}]\n"
        f"scrape_configs: [{{job_name: gpugauge, static_configs: [{{targets: [{targets}]}}]}}]\n"
    )
    program = prometheus3("prometheus") if seed % 2 else need("prometheus")
    command = ("sh", "-c", f'echo $$ >{folder}/pid; exec "$0" "$@"', program)
    with contextlib.ExitStack() as stack:
        for node in nodes:
            node.start()
            stack.callback(lambda node=node: (node.process.kill(), node.process.wait()))  # type: ignore[misc]  # bound
        arguments = (f"--config.file={config}", f"--storage.tsdb.path={folder}/tsdb")
        url = stack.enter_context(listening(folder / "prometheus.log", *command, *arguments))
        server = int((folder / "pid").read_text())
        stack.callback(os.kill, server, signal.SIGCONT)
        begun, truth = time.monotonic(), Counter[tuple[str, str]]()
        trainings = [training(draw, job, nodes[0], draw.uniform(0.3, 0.7) * length) for job in real]
        for moment, what, node in sorted(events, key=lambda event: event[0]):
            time.sleep(max(0.0, begun + moment - time.monotonic()))
            if what == "restart":
                truth += node.counters()
                node.restart(draw.choice((signal.SIGTERM, signal.SIGKILL)), draw.uniform(0, 4))
            else:
                os.kill(server, signal.SIGSTOP if what == "gap" else signal.SIGCONT)
        time.sleep(max(0.0, begun + length - time.monotonic()))
        ends = [tuple(map(float, each.communicate(timeout=300)[0].split())) for each in trainings]
        time.sleep(4 * interval + 16)  # a training without samples runs no more
        asked = time.monotonic()
        for node in nodes:
            truth += node.counters()
            node.process.send_signal(signal.SIGSTOP)  # no more counting
        restarts = sum(len(node.away) for node in nodes)
        slack = 2 * (time.monotonic() - asked) + TICK * (2 + restarts)
        unseen = (interval + TICK) * (2 + restarts) + (gap[1] if gap and restarts else 0.0)
        for job in simulated:
            found = reported(url, job)
            hours = found["gpu_hours"]
            assert hours["held"] == pytest.approx(hours["used"] + sum(hours["lost"].values()))
            missing = {cause: truth[job, cause] - 3600 * hours["lost"].get(cause, 0.0) for _, cause in truth if cause}
            missing[""] = truth[job, ""] - 3600 * hours["held"]
            print(
                f"seed {seed}, interval {interval} s, {restarts} restarts, {gap}, {len(made)} of rules: {job} {missing}"
            )
            assert all(-slack <= seconds <= unseen for seconds in missing.values()), (missing, slack, unseen)
        for job, (steps, end) in zip(real, ends, strict=True):
            found = reported(url, job)
            print(f"    {job}: {found['steps']} of {steps} steps", flush=True)
            if any(stop <= end <= again + 15 for stop, again in nodes[0].away) and found["steps"] != steps:
                assert any("ended is not known" in line for line in found["unknown"]), found["unknown"]
            else:
                assert found["steps"] == pytest.approx(steps, abs=1)


def training(draw: random.Random, job: str, node: Node, seconds: float) -> subprocess.Popen[str]:
    environment = {**os.environ, "SLURM_JOB_ID": job, "GPUGAUGE_HOOK_SOCKET": f"{node.folder}/hook/hook.sock"}
    command = [
        GPUGAUGE,
        "run",
        "--quiet",
        "--",
        sys.executable,
        "-c",
        TRAINING,
        f"{draw.uniform(0.02, 0.1)}",
        f"{seconds}",
    ]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)


def reported(url: str, job: str) -> dict[str, Any]:
    for form in ("text", "html", "json"):
        done = CliRunner().invoke(main, ["report", "--slurm", job, "--prometheus.url", url, "--format", form])
        assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.output)
    return found
