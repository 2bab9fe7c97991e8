"""Planted bottlenecks: real programs on the CPU under the real hook, and simulated trainings on simulated GPUs, with a
real daemon. Prints the planted and the reported causes.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import pytest

from tests.e2e.daily import EVERYTHING, seed
from tests.e2e.programs import GPUGAUGE, PATIENCE, Daemon, daemon, wait_for

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).parents[2]
# Seconds without a step until a training without a GPU is stalled, in place of 5 minutes.
STALLED = 15
# Seconds for which the states are watched, also when all are right.
SETTLED = STALLED + 25.0 if EVERYTHING else 5.0


@dataclass(frozen=True)
class Shown:
    """The metrics of one process; figures are shares of the time since its begin."""

    state: str | None
    cause: str | None
    figures: Mapping[str, float]

    def __str__(self) -> str:
        verdict = [self.state or "no state", self.cause or "no cause"]
        return ", ".join(verdict + [f"{name} {value:.0%}" for name, value in self.figures.items()])


@dataclass(frozen=True)
class Plant:
    """A planted fault: the program, and the expected metrics. Without a GPU no GPU time is lost and no cause is
    reported; then the `figure` of the fault must be `above`.
    """

    name: str
    state: str | None
    cause: str | None = None
    module: str = ""  # of the workloads; a simulated training has none
    pid: int = 0  # of a simulated training
    figure: str = ""
    above: float = 0.0
    below: float = 1.0
    gpu: bool = False  # whether the machine has one, simulated
    environment: Mapping[str, str] = field(default_factory=dict)

    def right(self, shown: Shown) -> bool:
        measured = shown.figures.get(self.figure, 0.0)
        return (shown.state, shown.cause) == (self.state, self.cause) and self.above <= measured <= self.below


ON_CPU = "training_on_cpu"
REAL = [
    Plant("healthy, no GPU in the machine", ON_CPU, module="loop", figure="data wait", below=0.2),
    Plant("CPU-only build, GPU there", ON_CPU, "no_cuda_build", "loop", gpu=True),
    Plant("model left on the CPU", ON_CPU, "model_on_cpu", "model_on_cpu", gpu=True),
    Plant(
        "devices hidden",
        ON_CPU,
        "no_visible_device",
        "model_on_cpu",
        gpu=True,
        environment={"CUDA_VISIBLE_DEVICES": ""},
    ),
    Plant("slow loader", ON_CPU, module="slow_loader", figure="data wait", above=0.7),
    Plant("tiny batches", ON_CPU, module="tiny_batches", figure="data wait", below=0.5),
    Plant("stall in the loop", "stalled", module="stall"),
    Plant("long evaluation", "evaluating", module="evaluation"),
    Plant("long checkpoint", "checkpointing", module="checkpoint", gpu=True),
    Plant("inference server", "not_training", module="server"),
    Plant("rank that waits for a slow one", ON_CPU, module="slow_rank", figure="waiting for ranks", above=0.6),
    Plant("out of memory, caught", ON_CPU, module="out_of_memory", figure="data wait", below=0.2),
]
SIMULATED: dict[str, tuple[str, str]] = {
    # The pipeline, and another process on the GPU.
    "healthy": ("{}", ""),
    "data_loading": ("{load: 2.0}", ""),
    "host_bound": ("{kernels: 0.01, host: 0.03, load: 0.01}", ""),
    "transfer": ("{copy: 0.12, pinned: false}", ""),
    "underfilled": ("{fill: 0.2}", ""),
    "precision_unused": ("{precision_unused: true, tensor: 0.0}", ""),
    "waiting_for_peers": ("{peer: 0.3, world_size: 8}", ""),
    "throttled": ("{clock: 0.5}", ""),
    "contention": ("{other: 0.5}", "memory: 2GiB, load: 0.5"),
    "cpu_limited": ("{cpu_quota: 0.1, load: 0.3}", ""),
    "memory_swap_io": ("{paging: 0.9, load: 0.3}", ""),
    "memory_pressure": ("{retries: 1.0}", ""),
}


def scenario(folder: Path) -> tuple[Path, list[Plant]]:
    """Write a machine with a GPU for each of SIMULATED and an idle notebook without the hook; return its plants."""
    lines = ["description: planted bottlenecks", f"gpus: {{model: h100, count: {len(SIMULATED) + 1}}}", "processes:"]
    plants = []
    # Pids that no process of this machine has.
    for number, (name, (pipeline, neighbour)) in enumerate(SIMULATED.items()):
        pid = (1 << 22) - 200 + number
        lines.append(f"  - {{pid: {pid}, gpus: [{number}], memory: 9GiB, cgroup: /job{number}, pipeline: {pipeline}}}")
        if neighbour:
            lines.append(f"  - {{pid: {pid + 100}, gpus: [{number}], {neighbour}}}")
        plants.append(Plant(f"{name} (simulated)", "training", None if name == "healthy" else name, pid=pid, gpu=True))
    pid = (1 << 22) - 50
    lines.append(f"  - {{pid: {pid}, gpus: [{len(SIMULATED)}], memory: 30GiB, command: python -m ipykernel_launcher}}")
    plants.append(Plant("idle notebook on a GPU (simulated)", "held_idle", "unused_gpus", pid=pid, gpu=True))
    path = folder / "planted.yaml"
    path.write_text("\n".join(lines))
    return path, plants


def read(running: Daemon) -> dict[int, Shown]:
    """Return the metrics by pid."""
    info = {
        **running.series("gpu_process_info", "process", "pid"),
        **running.series("torch_process_info", "process", "pid"),
    }
    steps = running.series("torch_step_duration_seconds_sum", "process")
    local = running.series("torch_local_work_seconds_total", "process")
    by_phase = running.series("torch_data_wait_seconds_total", "process", "phase")
    waits = {(process,): seconds for (process, phase), seconds in by_phase.items() if phase == "training"}
    throttled = running.series("gpu_process_cgroup_throttled_seconds_total", "process")
    started = running.series("training_start_timestamp_seconds", "process")
    states = {p: s for (p, s), value in running.series("training_state", "process", "state").items() if value == 1}
    causes = dict(running.series("training_limited_by", "process", "cause"))
    found = {}
    for process, pid in info:
        key = (process,)
        figures = {}
        if steps.get(key) and key in waits:
            figures["data wait"] = min(1.0, waits[key] / steps[key])
        if steps.get(key) and key in local:
            figures["waiting for ranks"] = 1.0 - min(1.0, local[key] / steps[key])
        if throttled.get(key) and key in started:
            figures["throttled by the cgroup"] = min(1.0, throttled[key] / (time.time() - started[key]))
        named = next((cause for p, cause in causes if p == process), None)
        found[int(pid)] = Shown(states.get(process), named, figures)
    return found


@dataclass
class Program:
    """A running workload and the plant that it is."""

    plant: Plant
    process: subprocess.Popen[bytes]
    log: Path

    @property
    def pid(self) -> int:
        return self.plant.pid or self.process.pid

    def begun(self) -> bool:
        assert self.process.poll() is None, self.log.read_text()[-2000:]
        return self.log.with_suffix(".begun").exists()


@contextlib.contextmanager
def started(plant: Plant, running: Daemon, folder: Path, *prefix: str) -> Iterator[Program]:
    """Run a workload under the hook until the end of the context."""
    run = [GPUGAUGE, "run", "--"]
    command = [*prefix, *run, sys.executable, "-m", f"tests.e2e.workloads.{plant.module}"]
    if plant.module == "cell":
        line = "--IPKernelApp.exec_lines=['import tests.e2e.workloads.cell']"
        kernel = ["ipykernel_launcher", "-f", str(folder / "kernel.json"), line]
        command = [*run, sys.executable, "-m", *kernel]
    environment = {**os.environ, "GPUGAUGE_HOOK_SOCKET": str(running.socket), "OMP_NUM_THREADS": "1"}
    log = folder / f"{plant.name}.log".replace(" ", "-")
    with contextlib.ExitStack() as stack, log.open("wb") as out:
        processes = []
        for rank in range(2 if plant.module == "slow_rank" else 1):
            own = {**environment, **plant.environment, "RANK": str(rank)}
            own |= {"MEETING": str(folder / "meeting"), "BEGUN": str(log.with_suffix(".begun"))}
            process = subprocess.Popen(command, cwd=ROOT, env=own, stdout=out, stderr=out)
            processes.append(process)
            stack.callback(process.wait, PATIENCE)
            stack.callback(process.kill)
        yield Program(plant, processes[0], log)


@contextlib.contextmanager
def cgroup(quota: float, name: str = "") -> Iterator[Path | None]:
    """Create a cgroup with a quota in CPUs, and yield the file of its pids; None where it is not allowed."""
    v1, v2 = Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup")
    root, files = (v1, ("cpu.cfs_quota_us",)) if v1.is_dir() else (v2, ("cpu.max",))
    folder = root / f"gpugauge-test-{os.getpid()}{name}"
    try:
        folder.mkdir()
    except OSError:
        yield None
        return
    try:
        (folder / files[0]).write_text(f"{round(100_000 * quota)}")
    except OSError:
        folder.rmdir()
        yield None
        return
    try:
        yield folder / "cgroup.procs"
    finally:
        wait_for(lambda: not (folder / "cgroup.procs").read_text(), 10, "the cgroup is empty")
        folder.rmdir()


def test_planted_causes_are_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, simulated = scenario(tmp_path)
    (tmp_path / "with").mkdir()
    (tmp_path / "without").mkdir()
    with contextlib.ExitStack() as stack:
        with_gpu = stack.enter_context(daemon(tmp_path / "with", f"--simulate={path}"))
        flags = ("--driver.mode=off", f"--verdict.stalled-seconds={STALLED}")
        without = stack.enter_context(daemon(tmp_path / "without", *flags))
        limited = stack.enter_context(cgroup(0.2))
        programs = []
        for plant in _real(limited is not None):
            inside = ("/bin/sh", "-c", f'echo $$ > {limited} && exec "$@"', "sh")
            prefix = inside if limited and plant.module == "held_back" else ()
            running = with_gpu if plant.gpu else without
            programs.append(stack.enter_context(started(plant, running, tmp_path, *prefix)))
        for program in programs:
            wait_for(program.begun, PATIENCE, f"{program.plant.name} has begun")
        plants = {program.pid: program.plant for program in programs} | {plant.pid: plant for plant in simulated}
        rows, false_causes = _watch(lambda: {**read(with_gpu), **read(without)}, plants)
        alive = [p.begun() for p in programs]

    assert all(alive)
    table = [f"{'ok   ' if p.right(s) else 'WRONG'}  {p.name:36} -> {s}" for p, s in rows]
    with capsys.disabled():
        print("\n" + "\n".join(table))
    wrong = [line for line in table if line.startswith("WRONG")]
    assert len(wrong) <= len(rows) // 20, wrong
    assert false_causes == []


def _real(limits: bool) -> list[Plant]:
    if not EVERYTHING:
        return [REAL[0], *Random(seed()).sample(REAL[1:], 2)]
    plants = list(REAL)
    if limits:
        figure = "throttled by the cgroup"
        plants.append(Plant("a fifth of a CPU by cgroup", ON_CPU, module="held_back", figure=figure, above=0.3))
    if importlib.util.find_spec("ipykernel"):
        plants.append(Plant("idle notebook", "not_training", module="cell"))
    return plants


def _watch(
    read_all: Callable[[], dict[int, Shown]], plants: Mapping[int, Plant]
) -> tuple[list[tuple[Plant, Shown]], list[tuple[str, str]]]:
    """Read the metrics for SETTLED seconds and until all are right; return the last ones of each plant, and each
    healthy program for which a cause was reported, with the cause.
    """
    healthy = {pid: plant.name for pid, plant in plants.items() if plant.name.startswith("healthy")}
    assert healthy
    found, begin = [], time.monotonic()
    while True:
        shown = read_all()
        rows = [(plant, shown.get(pid, Shown(None, None, {}))) for pid, plant in plants.items()]
        found += [(name, cause) for pid, name in healthy.items() if pid in shown and (cause := shown[pid].cause)]
        passed = time.monotonic() - begin
        if passed > SETTLED and (all(plant.right(each) for plant, each in rows) or passed > PATIENCE):
            return rows, found
        time.sleep(1)
