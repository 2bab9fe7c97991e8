"""Machines that run one job of each kind; every rank waits for its data. For rules that report once for a job."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from bench.alerts.builders import machine, slurm

STARVING, FED = "{kernels: 1.0, load: 9.0, workers: 0}", "{kernels: 0.4, host: 0.1, load: 0.3}"
# The job of each story, as kind, name and namespace; None where the name has parts of the host.
EXPECTED: Mapping[str, tuple[str, str, str]] = {
    "pytorchjob": ("pytorchjob", "bert", "ml"),
    "jobset": ("jobset", "llm", "ml"),
    "job": ("job", "sweep", "ml"),
    "slurm": ("slurm", "88_3", ""),
    "distributed": ("distributed", "1000/exp@10.0.0.7:29500", ""),
}


def one_job(kind: str) -> dict[str, str]:
    """Return the scenarios of two nodes with two GPUs each, by instance. They run four ranks of one job, in four pods
    if the kind is one of Kubernetes.
    """
    lines: dict[str, list[str]] = {"node-1": [], "node-2": []}
    for rank in range(4):
        node = "node-1" if rank < 2 else "node-2"
        lines[node].append(_rank(200 + 10 * rank, rank % 2, _PLACES[kind](rank)))
    return {node: machine(*found, count=2) for node, found in lines.items()}


def five_containers() -> dict[str, str]:
    """Return a host with five containers of one user, each with a training of its own; only the third one starves."""
    lines = []
    for number in range(5):
        identity = hashlib.sha256(f"container {number}".encode()).hexdigest()
        pipeline = STARVING if number == 2 else FED
        lines.append(_rank(200 + 10 * number, number, f"cgroup: /system.slice/docker-{identity}.scope", pipeline))
    return {"host-1": machine(*lines, count=5)}


def desktop() -> dict[str, str]:
    """Return a workstation with a display server on the GPU of a training that starves."""
    xorg = (
        "  - {pid: 90, gpus: [0], kind: graphics, memory: 400MiB, load: 0.02, uid: 0, start: -86400, "
        'command: "/usr/lib/xorg/Xorg :0", cgroup: /system.slice/gdm.service}\n'
    )
    return {"desk-1": machine(xorg, _rank(200, 0, "uid: 1000", STARVING))}


def _rank(pid: int, gpu: int, place: str, pipeline: str = STARVING) -> str:
    return f"  - {{pid: {pid}, gpus: [{gpu}], start: -7200, memory: 20GiB, pipeline: {pipeline}, {place}}}\n"


def _pytorchjob(rank: int) -> str:
    pod = f"bert-worker-{rank - 1}" if rank else "bert-master-0"
    environment = f'MASTER_ADDR: bert-master-0, MASTER_PORT: "23456", WORLD_SIZE: "4", RANK: "{rank}"'
    return f"pod: ml/{pod}, environment: {{{environment}}}"


def _jobset(rank: int) -> str:
    environment = f'PET_MASTER_ADDR: llm-node-0-0.llm, JOB_COMPLETION_INDEX: "{rank}", HOSTNAME: llm-node-0-{rank}'
    return f"pod: ml/llm-node-0-{rank}-x7k2{'bcdf'[rank]}, environment: {{{environment}}}"


def _indexed_job(rank: int) -> str:
    environment = f'JOB_COMPLETION_INDEX: "{rank}", HOSTNAME: sweep-{rank}'
    return f"pod: ml/sweep-{rank}-x7k2{'bcdf'[rank]}, environment: {{{environment}}}"


def _slurm(_: int) -> str:
    environment = 'SLURM_JOB_ID: "91", SLURM_ARRAY_JOB_ID: "88", SLURM_ARRAY_TASK_ID: "3"'
    return f"cgroup: {slurm(91)}, environment: {{{environment}}}"


def _torchrun(rank: int) -> str:
    world = 'WORLD_SIZE: "4", LOCAL_WORLD_SIZE: "2", TORCHELASTIC_RUN_ID: exp'
    return f'environment: {{MASTER_ADDR: 10.0.0.7, MASTER_PORT: "29500", RANK: "{rank}", {world}}}'


_PLACES = {
    "pytorchjob": _pytorchjob,
    "jobset": _jobset,
    "job": _indexed_job,
    "slurm": _slurm,
    "distributed": _torchrun,
}
