"""Machines that run jobs of each kind; every rank waits for its data. For rules that report once for a job."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from qa.bench.alerts.builders import machine, slurm

STARVING, FED = "{load: 1.2, workers: 2}", "{kernels: 0.4, host: 0.1, load: 0.3}"
# The job of each kind, as kind, name and namespace; None where the name has parts of the host.
EXPECTED: Mapping[str, tuple[str, str, str]] = {
    "pytorchjob": ("pytorchjob", "bert", "ml"),
    "jobset": ("jobset", "llm", "ml"),
    "job": ("job", "sweep", "ml"),
    "slurm": ("slurm", "91", ""),
    "distributed": ("distributed", "1000/exp@10.0.0.7:29500", ""),
}
_XORG = (
    "  - {pid: 90, gpus: [0], kind: graphics, memory: 400MiB, load: 0.02, uid: 0, start: -86400, "
    'command: "/usr/lib/xorg/Xorg :0", cgroup: /system.slice/gdm.service}\n'
)


def two_nodes(*kinds: str) -> dict[str, str]:
    """Return the scenarios of two nodes with two GPUs for each kind, by instance. They run four ranks of each job, in
    four pods if the kind is one of Kubernetes.
    """
    lines: dict[str, list[str]] = {"node-1": [], "node-2": []}
    for number, kind in enumerate(kinds):
        for rank in range(4):
            node = "node-1" if rank < 2 else "node-2"
            gpu = 2 * number + rank % 2
            lines[node].append(_rank(200 + 100 * number + 10 * rank, gpu, _PLACES[kind](rank)))
    return {node: machine(*found, count=2 * len(kinds)) for node, found in lines.items()}


def slurm_job() -> dict[str, str]:
    """Return a node with one rank of the Slurm job of EXPECTED."""
    return {"node-1": machine(_rank(200, 0, _PLACES["slurm"](0)))}


def sidecar() -> dict[str, str]:
    """Return what the sidecar of a pod sees: the pod's rank."""
    return {"pod": machine(_rank(20, 0, "uid: 1000"))}


def without_hook() -> dict[str, str]:
    """Return a machine with two trainings without the hook, servers, a notebook and a display server, all of which use
    their GPUs a little.
    """
    commands = ("vllm serve m", "tritonserver", "python3 -m sglang.launch_server", "python3 -m ipykernel_launcher")
    lines = [_rank(200 + 10 * gpu, gpu, "hook: false", STARVING) for gpu in range(2)]
    lines += [
        f'  - {{pid: {300 + gpu}, gpus: [{gpu}], start: -7200, memory: 8GiB, load: 0.15, command: "{command}"}}\n'
        for gpu, command in enumerate(commands, 2)
    ]
    return {"desk-2": machine(_XORG, *lines, count=6)}


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
    return {"desk-1": machine(_XORG, _rank(200, 0, "uid: 1000", STARVING))}


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
