"""Stories that a generator draws: jobs with and without the hook, in Slurm, pods and containers, servers, two nodes.

The truth is that of the simulator: the load that a pipeline leaves of a healthy one, and the cause whose removal speeds
it up most. They are kept apart from the development of the rules. Loads near the threshold are not drawn.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from gpugauge.artifacts.rules.load import alert_of_cause
from gpugauge.artifacts.rules.options import Parameters
from gpugauge.simulator.device.pipeline import Pipeline, observe
from qa.bench.alerts.builders import ALWAYS, machine, slurm
from qa.bench.alerts.record import Planned
from qa.bench.alerts.story import Expectation
from qa.worlds.truth import true_cause

COUNT = 60
_MINUTES = 60  # every fault is there from the first one on
_GPUS = 4  # of a node
_MARGIN = 0.12  # between a load and the threshold
_THRESHOLD = Parameters().threshold
_LOADERS = ("python3 train.py", "python3 -m finetune.main", "python3 -u run_clm.py --lr 1e-4")
_SERVERS = ("vllm serve m", "VLLM::EngineCore", "tritonserver --x", "python3 -m sglang.launch_server", "ollama runner")
_NOTEBOOK = "python3 -m ipykernel_launcher"


@dataclass(frozen=True)
class _Job:
    lines: dict[str, list[str]]  # by node
    expectation: Expectation | None


def _pipeline(draw: random.Random) -> dict[str, Any]:
    """Return a pipeline with at most one fault."""
    faults: list[dict[str, Any]] = [
        {"load": round(draw.uniform(0.05, 3.0), 3)},
        {"host": round(draw.uniform(0.02, 0.5), 3), "synchronises": draw.random() < 0.5},
        {"copy": round(draw.uniform(0.01, 0.5), 3), "pinned": False},
        {"cpu_quota": round(draw.uniform(0.05, 1.0), 3), "load": 0.3},
        {"paging": round(draw.uniform(0.0, 0.95), 3), "load": 0.3},
        {},
    ]
    return draw.choice(faults)


def _load(made: Pipeline, *, hook: bool) -> float:
    """Return the load: with the hook the speed relative to a healthy step, without it the time that the GPU is busy."""
    return Pipeline().step / made.step if hook else observe(made).own_busy


def _flow(keys: dict[str, Any]) -> str:
    return ", ".join(
        f"{key}: {str(value).lower() if isinstance(value, bool) else value}" for key, value in keys.items()
    )


def _place(draw: random.Random, number: int) -> tuple[str, dict[str, str], int]:
    """Return the keys of the place of a job in a scenario, its labels, and its largest number of nodes."""
    kind = draw.choice(("slurm", "slurm", "pod", "container"))
    if kind == "slurm":
        job = 4000 + number
        return f"cgroup: {slurm(job)}", {"workload_job_kind": "slurm", "workload_job": str(job)}, 2
    if kind == "pod":
        # The same name in several namespaces.
        namespace = f"team-{number}"
        return f"pod: {namespace}/trainer", {"workload_namespace": namespace, "workload_job": "trainer"}, 1
    cgroup = f"/system.slice/docker-{draw.getrandbits(256):064x}.scope"
    return f"cgroup: {cgroup}", {"workload_job_kind": "container"}, 1


def _training(draw: random.Random, number: int, pid: int, gpus: dict[str, list[int]]) -> _Job:
    place, labels, most = _place(draw, number)
    nodes = draw.sample(sorted(gpus), min(most, draw.randint(1, len(gpus))))
    hook = draw.random() < 0.6
    while True:
        keys = _pipeline(draw)
        load = _load(made := Pipeline(**keys), hook=hook)
        if abs(load - _THRESHOLD) > _MARGIN:
            break
    lines = {
        node: [
            f"  - {{pid: {pid + place_of}, gpus: [{gpus[node].pop()}], {place}, start: -7200, memory: 20GiB, "
            f'command: "{draw.choice(_LOADERS)}", hook: {str(hook).lower()}, pipeline: {{{_flow(keys)}}}}}\n'
        ]
        for place_of, node in enumerate(nodes)
    }
    if load > _THRESHOLD:
        return _Job(lines, None)
    cause = true_cause(made) if hook else None
    alert = alert_of_cause(cause) if cause else ""
    expected = Expectation(
        labels=labels, kind="load", alerts=("TrainingLoadLow",), cause_alert=alert, since=0, until=ALWAYS
    )
    return _Job(lines, expected)


def _other(draw: random.Random, number: int, pid: int, gpus: dict[str, list[int]]) -> _Job:
    """Return a server, or a notebook that somebody left."""
    place, labels, _ = _place(draw, number)
    node = draw.choice(sorted(gpus))
    forgotten = draw.random() < 0.3
    command = _NOTEBOOK if forgotten else draw.choice(_SERVERS)
    load = 0.0 if forgotten else round(draw.uniform(0.08, 0.9), 2)
    line = (
        f"  - {{pid: {pid}, gpus: [{gpus[node].pop()}], {place}, start: -7200, memory: 20GiB, "
        f'command: "{command}", load: {load}}}\n'
    )
    expected = Expectation(labels=labels, kind="idle", alerts=("GpuHeldIdle",), since=0, until=ALWAYS)
    return _Job({node: [line]}, expected if forgotten else None)


def draw_story(seed: int) -> Planned:
    """Return the story of a seed."""
    draw = random.Random(seed)
    gpus = {f"node-{number + 1}": list(range(_GPUS)) for number in range(draw.randint(1, 2))}
    jobs: list[_Job] = []
    containers = 0
    for number in range(draw.randint(1, 3)):
        make = _training if draw.random() < 0.7 else _other
        job = make(draw, 10 * seed + number, 100 + 10 * number, gpus)
        is_container = any("docker-" in line for lines in job.lines.values() for line in lines)
        # The name of a container's job has the host in it; one of a story is known by its kind.
        if is_container and containers:
            continue
        containers += is_container
        jobs.append(job)
    machines = {
        node: machine(*(line for job in jobs for line in job.lines.get(node, ())), count=_GPUS) for node in gpus
    }
    return Planned(
        f"drawn-{seed:02d}",
        f"{len(jobs)} drawn job{'s' * (len(jobs) != 1)} on {len(gpus)} node{'s' * (len(gpus) != 1)}",
        machines,
        _MINUTES,
        expectations=tuple(job.expectation for job in jobs if job.expectation),
    )


STORIES = tuple(draw_story(seed) for seed in range(COUNT))
