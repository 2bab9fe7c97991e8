"""The nodes of the simulated fleet, and the jobs on them."""

from __future__ import annotations

import hashlib
import random
import re
from dataclasses import dataclass

from qa.bench.fleet_bodies import DEVICES

_IDENTITY = re.compile(rb'\b(uuid|serial|process|rank|world_size|workload_[a-z_]+)="([^"]*)"')
_SIZES = (1, 1, 1, 1, 2, 2, 4, 8, 16, 32)  # nodes of a job


@dataclass(frozen=True)
class Job:
    """A job on some nodes; times are seconds since the epoch."""

    name: str
    kind: str
    nodes: range
    start: float
    end: float

    def template(self, node: int) -> str:
        """Return the template of a node; in a job that waits for a slow rank, the first node has this rank."""
        return "slow_rank" if self.kind == "waiting" and node == self.nodes.start else self.kind


def jobs(nodes: int, since: float, until: float, hours: float = 3.0) -> list[list[Job]]:
    """Return the jobs of each node in this time, one after the other; `hours` is the median of their durations."""
    chance = random.Random(8000)
    plan: list[list[Job]] = []
    while len(plan) < nodes:
        size = min(chance.choice(_SIZES), max(1, nodes // 16), nodes - len(plan))
        block, start = range(len(plan), len(plan) + size), since
        made: list[Job] = []
        while start < until:
            life = max(600.0, chance.lognormvariate(0, 1) * hours * 3600)
            begun = start - chance.random() * life if start == since else start
            kinds = ["healthy"] * 5 + ["data_loading", "host_bound", "waiting", "held"]
            kinds += ["outside", "bottlenecks", "node", "idle"] if size == 1 else []
            name = f"{40000 + len(plan)}{len(made):02d}"
            made.append(Job(name, chance.choice(kinds), block, begun, begun + life))
            start = begun + life
        plan += [made] * size
    return plan


def identified(text: bytes, node: int, job: Job) -> bytes:
    """Return the template's text with the GPUs of this node and the processes of the job."""
    first = DEVICES * (node - job.nodes.start)
    team = f"team-{int(job.name) % 23:02d}"

    def made(found: re.Match[bytes]) -> bytes:
        label, value = found[1], found[2]
        if label in (b"uuid", b"serial"):
            new = {b"uuid": b"GPU-", b"serial": b""}[label] + _digest(f"GPU {node} {int(value)}".encode())
        elif label == b"process":
            new = _digest(f"{job.name} {node} ".encode() + value)[:12]
        elif label == b"rank" and value:
            new = b"%d" % (first + int(value))
        elif label == b"world_size" and value:
            new = b"%d" % (DEVICES * len(job.nodes))
        elif label in (b"workload_job_id", b"workload_job") and value:
            new = f"{job.name}-".encode() + value
        elif label == b"workload_namespace":
            new = team.encode()
        elif label == b"workload_user" and value:
            new = f"user-{int(job.name) % 97:02d}".encode()
        else:
            return found[0]
        return label + b'="' + new + b'"'

    return _IDENTITY.sub(made, text)


def _digest(text: bytes) -> bytes:
    return hashlib.sha1(text).hexdigest()[:32].encode()
