"""The golden files: /metrics of a scenario at one time, rendered without processes, threads or a clock."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from gpugauge.base import guard
from gpugauge.catalog import create_collectors
from gpugauge.collectors.base import Sources
from gpugauge.collectors.exporter.exporter import ExporterCollector
from gpugauge.daemon.sampler import Sampler
from gpugauge.driver.api import RELEASED, DriverFacts, DriverView, Group, Reply
from gpugauge.driver.inventory import Inventory
from gpugauge.driver.recycling import RECYCLES
from gpugauge.driver.worker import Service
from gpugauge.exposition.render import Exposition
from gpugauge.sessions.listener import Sessions
from gpugauge.sessions.session import Counters, Session, ThreadTime
from gpugauge.simulator.host.procfs import ProcTree
from gpugauge.simulator.scenario.load import Scenario, load_scenario, parse_scenario
from gpugauge.simulator.worker import service as simulated_service
from gpugauge.snapshot import LastReload
from gpugauge.wire import messages as wire
from gpugauge.wire.record import SharedRecord
from gpugauge.workload.intime import InTime
from gpugauge.workload.procfs import Procfs
from gpugauge.workload.workloads import Workloads
from tests.collectors.proctree import CUDA

H100 = "NVIDIA H100 80GB HBM3"
START = 1_790_000_010.0  # Unix time
GROUPS: tuple[Group, ...] = ("static", "fast", "samples", "profiling", "normal", "slow", "processes", "mig")
# Always wait for work in the background.
guard.START_WAIT_SECONDS = 60.0
LIMITS: dict[Group, float] = dict.fromkeys(GROUPS, 60.0)
OPENMETRICS = "application/openmetrics-text;version=1.0.0"
# Values that depend on the machine that runs the test.
_VARYING = (
    (re.compile(r"(gpugauge_(?:collector_duration|driver_call_longest)_seconds\{[^}]*\}) .*"), r"\1 0.001"),
    (re.compile(r"(gpu_reading_(?:seconds|failed_since_timestamp_seconds)\{[^}]*\}) .*"), r"\1 0.001"),
    (re.compile(r'(gpu_problem_since_timestamp_seconds\{[^}]*problem="GpuReadingFailed"[^}]*\}) .*'), r"\1 0.001"),
    (re.compile(r"(gpugauge_driver_call_seconds_total\{[^}]*\}) .*"), r"\1 0.001"),
    (re.compile(r"(?m)^(gpugauge_host_scan_cpu_seconds_total) .*"), r"\1 0.001"),
    (re.compile(r"(gpugauge_(?:cpu|resident|open|start)_?[a-z_]*\{[^}]*\}) .*"), r"\1 1.0"),
    (re.compile(r'python="[^"]*"'), 'python="3.x"'),
    (re.compile(r'revision="[^"]*"'), 'revision="1a2b3c4"'),
)


class FreeOfCost(Procfs):
    """A proc file system whose scans take no CPU time, and whose reads do not hang. The real time of a scan, which
    includes collections of garbage, would delay the next scan in simulated time.
    """

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self._in_time = InTime(60.0)

    def cpu_seconds(self) -> float:
        return 0.0


class FixedSessions(Sessions):
    """Fixed sessions at the time `second`."""

    def __init__(self, *trainings: Callable[[float], Session]) -> None:
        self._trainings = trainings
        self._fixed_counters = Counters({"malformed": 1, "rate": 0}, {"finished": 1}, replaced_at=START - 20)
        self.second = 0.0

    def view(self) -> tuple[Session, ...]:
        return tuple(training(self.second) for training in self._trainings)

    def counters(self) -> Counters:
        return self._fixed_counters


def rank(number: int, second: float, ended_at: float | None = None) -> Session:
    """Return a rank of a job with ten steps per second; the model of rank 1 is on the CPU."""
    steps, session = 500 + int(10 * second), f"{number:032x}"
    log2 = tuple(steps - 20 if i == 16 else 20 if i == 17 else 0 for i in range(wire.LOG2_BUCKETS))
    last = START + second
    facts = {"command": "train.py", "python": "3.11.7", "torch": "2.13.0", "cuda": "12.8"}
    facts |= {"rank": str(number), "local_rank": str(number), "world_size": "2", "run_id": "night-42"}
    later = {"build": "cuda", "architectures": "sm_80 sm_90", "driver_cuda": "12.8", "cudnn": "90800"}
    later |= {
        "matmul_dtype": "bfloat16",
        "tf32_matmul": "no",
        "loader_workers": "4",
        "loader_batch_size": "32",
        "loader_pin_memory": "yes",
    }
    later |= {"autocast": "yes", "deterministic": "no", "allocator": "native", "current_device": str(number)}
    later |= {"backend": "nccl", "parallel": "ddp", "wandb_run": "abc123", "cpus": "8", "ranks_on_cpus": "2"}
    # Rank 1 makes a known mistake.
    later |= {"profiler": "yes"} if number == 1 else {}
    weights = (
        wire.Parameters("cpu" if number == 1 else f"cuda:{number}", "torch.bfloat16", 148, 124_439_808, 248_879_616),
    )
    uuid = f"GPU-{number}"
    figures = (3 << 30, 5 << 30, 6 << 30, 3 << 30, 1 << 28)
    snap = wire.Snap(
        session,
        7,
        steps=wire.Progress(steps, steps * 0.08, last, log2),
        batches=wire.Progress(steps + 1, steps * 0.006, last + 0.05, log2),
        parameters=weights,
        devices=(
            wire.Device(
                number, uuid, *figures, 0, number, H100, "9.0", 120, 20, step_allocated=2 << 30, limit=80 << 30
            ),
        ),
        errors=0,
        facts=later,
        step_source="optimizer",
        optimizer_state=weights,
        exposed_wait_seconds=steps * 0.005,
        local_work_seconds=steps * 0.07,
        compilations=1,
        waits={"training": steps * 0.005, "evaluating": steps * 0.001},
        samples=32 * steps,
        tokens=32_768 * steps,
        flops={"parameters": 6.0 * 124_439_808 * 32_768 * steps},
    )
    loader = wire.Loader(
        batches=steps + 1,
        measured=steps - 7,
        cpu_seconds=steps * 0.05,
        threads_seconds=steps * 0.005,
        queued_seconds=steps * 0.002,
        storage_seconds=steps * 0.03,
        blocked_seconds=steps * 0.01,
        epochs=2,
        starts=2,
        start_seconds=1.5,
        slowest=0.97,
        worker_bytes=1 << 28,
        process_cpu_seconds=steps * 0.09,
        thread_queued_seconds=steps * 0.001,
    )
    snap = replace(snap, loader=loader)
    record = SharedRecord("training", START - 40, steps, steps + 1, {"starting": 9.0, "training": 31.0 + second})
    hello = wire.Hello(session, 1, 40 + number, 4026531836, START - 50, facts)
    ended = "finished" if ended_at else ""
    thread = {"starting": ThreadTime(7.0, 0.5, 1.5), "training": ThreadTime(0.75 * second, 0.0, 0.25 * second)}
    return Session(hello, 0, 1000, snap, ended_at=ended_at, end_reason=ended, record=record, thread=thread)


def metrics(
    scenario: Scenario,
    folder: Path,
    seconds: int,
    *trainings: Callable[[float], Session],
    visible_pids: tuple[int, ...] = (),
    released: bool = False,
) -> dict[str, str]:
    """Return /metrics by format, `seconds` after the start of the scenario. With `visible_pids`, these processes have
    all files in /proc, and GPU 0 is assigned to a Slurm job. With `released`, the driver is released for ten minutes.
    """
    now = 0.0
    scenario._start |= {"monotonic": 0.0, "unix": START}
    service, inventory = simulated_service(lambda: now), Inventory(LIMITS)
    facts = DriverFacts(**_answer(service, "open", simulate=scenario.simulation()).values["driver"])
    tree = ProcTree(folder, scenario)
    tree.update(0.0)
    node = FreeOfCost(str(folder))
    for pid in visible_pids:
        _write_visible(folder, pid)
    workloads = Workloads(
        node,
        cgroup_root=folder / "cgroup",
        job_mapping_dir=_write_jobs(folder / "jobs", visible_pids),
        pod_logs=tree.pod_logs,
        clock=lambda: now,
    )
    workloads.refresh()
    exposition = Exposition(stale_after=1e9)
    replies: list[Reply] = []

    def news() -> tuple[DriverView, tuple[Reply, ...]]:
        received, replies[:] = tuple(replies), []
        view = DriverView(True, "ok", facts, inventory.devices(now), 1, worker_recycles=dict.fromkeys(RECYCLES, 0))
        if released and now > seconds:
            view = replace(view, up=False, reason=RELEASED, facts=None, simulated=True, released_until=START + 600)
        return view, received

    sessions = FixedSessions(*trainings)
    exporter = ExporterCollector(lambda: LastReload(True, START), lambda: LastReload(True, START))
    collectors = create_collectors(Sources(node, workloads, sessions))
    sampler = Sampler(collectors, news, exposition.publish, 1.0, exporter=exporter)
    while now <= seconds:
        tree.update(now)
        workloads.refresh()
        sessions.second = now
        for index in range(facts.device_count):
            reply = _answer(service, "read", index=index, groups=list(GROUPS))
            inventory.apply(reply, now)
            replies.append(replace(reply, uuid=inventory.uuid(index) or "", received=now))
        sampler.tick(START + now, now)
        now += 2.0
    service.close()
    if released:
        inventory.release()
        sampler.tick(START + now, now)
    formats = {"text": None, "openmetrics": OPENMETRICS}
    return {name: _stable(exposition.respond(accept, None, now).body.decode()) for name, accept in formats.items()}


def _write_visible(root: Path, pid: int) -> None:
    """Add files of a process and of its cgroup that the simulator does not write."""
    folder = root / str(pid)
    (folder / "maps").write_text(CUDA)
    (folder / "io").write_text("rchar: 1\nread_bytes: 4096\nwrite_bytes: 8192\n")
    (folder / "environ").write_bytes(b"CUDA_VISIBLE_DEVICES=0\0")
    with (folder / "status").open("a") as status:
        status.write("Cpus_allowed:\tff\nCpus_allowed_list:\t0-7\n")
    (folder / f"task/{pid}").mkdir(parents=True)
    (folder / f"task/{pid}/stat").write_text((folder / "stat").read_text())
    (folder / "statm").write_text("3000 1000 400 1 0 900 0\n")
    (folder / "fd").mkdir()
    (folder / "fd/3").symlink_to("/dev/nvidia0")
    group = root / "cgroup" / (folder / "cgroup").read_text().strip().rpartition(":")[2][1:]
    group.mkdir(parents=True, exist_ok=True)
    (group / "cpu.stat").write_text("usage_usec 9\nthrottled_usec 1500000\n")
    (group / "cpu.max").write_text("400000 100000\n")
    (group / "memory.stat").write_text("anon 4000000\nfile 9000000\nshmem 96000\n")
    (group / "memory.max").write_text("8589934592\n")
    (group / "memory.current").write_text("4294967296\n")
    for resource in ("cpu", "io", "memory"):
        (group / f"{resource}.pressure").write_text("some avg10=0.00 avg60=0.00 avg300=0.00 total=250000\n")


def _write_jobs(folder: Path, visible_pids: tuple[int, ...]) -> Path | None:
    """Return the folder of a Slurm prolog, in which GPU 0 is assigned to a job."""
    if not visible_pids:
        return None
    folder.mkdir()
    (folder / "0").write_text("88123\n")
    return folder


def _answer(service: Service, op: str, **arguments: Any) -> Reply:
    reply = service.answer({"id": 1, "op": op, **arguments})
    assert reply.failed is None or op == "read", reply
    return reply


def _stable(text: str) -> str:
    for pattern, replacement in _VARYING:
        text = pattern.sub(replacement, text)
    return text


FOLDER = Path(__file__).parent / "golden"
# Shipped scenarios, and the second at which they are rendered.
SHIPPED = {
    "a100-mig": 30,
    "workstation": 10,
    "h200-gpm": 20,
    "b200": 10,
    "geforce": 10,
    "mi300x": 60,
    "mi300x-cpx": 60,
    "amd-workstation": 20,
    "absent-links": 20,
    "failing-card": 40,
    "card-lost-shift": 40,
    "counters-reset": 40,
    "garbage": 40,
    "driver-470": 10,
    "driver-r570": 30,
    "driver-r575": 30,
    "driver-r580": 30,
}


def _own(name: str) -> Scenario:
    path = FOLDER / f"{name}.yaml"
    return parse_scenario(path.read_text(), str(path), name)


def _node(folder: Path) -> dict[str, str]:
    sessions = (partial(rank, 0), partial(rank, 1), partial(rank, 2, ended_at=1_790_000_015.0))
    return metrics(_own("node"), folder, 30, *sessions, visible_pids=(4001,))


# Functions from a temporary folder to the texts by format.
GOLDENS: dict[str, Callable[[Path], dict[str, str]]] = {
    "node": _node,
    "h100-mig": lambda folder: metrics(_own("h100-mig"), folder, 10),
    "desktop": lambda folder: metrics(_own("desktop"), folder, 10),
    "released": lambda folder: metrics(load_scenario("workstation"), folder, 10, released=True),
    **{
        name: lambda folder, name=name, second=second: metrics(load_scenario(name), folder, second)  # type: ignore[misc]  # defaults
        for name, second in SHIPPED.items()
    },
}


def forms(name: str) -> tuple[str, ...]:
    """Return the formats of a golden file."""
    return ("text", "openmetrics") if name == "node" else ("text",)
