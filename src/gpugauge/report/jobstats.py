"""The summary of a Slurm job as Jobstats writes it into AdminComment, so that `jobstats` and `reportseff` read it."""

from __future__ import annotations

import base64
import gzip
import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from gpugauge.base.text import cpu_set
from gpugauge.exposition.trainings import CPU, CPUS, HOST_LIMIT, HOST_MEMORY, MEMORY
from gpugauge.report.facts import Facts
from gpugauge.report.jobs import Device, Found
from gpugauge.report.model import Report

NONE, _SHORT = "JS1:None", "JS1:Short"
_SHORTEST_SECONDS = 60.0


def comment(report: Report, found: Found) -> str:
    """Return the comment. What is not known of a node or a GPU is left out."""
    seconds = report.end - report.begin
    if seconds < _SHORTEST_SECONDS and not report.running:
        return _SHORT
    of_node: defaultdict[str, list[str]] = defaultdict(list)
    for process in found.facts:
        of_node[found.owners[process].node].append(process)
    nodes = {name.rpartition(":")[0] or name: _node(found, each) for name, each in sorted(of_node.items())}
    document = {"nodes": nodes, "total_time": round(seconds), "gpus": report.devices}
    packed = gzip.compress(json.dumps(document, separators=(",", ":")).encode(), mtime=0)
    return f"JS1:{base64.b64encode(packed).decode()}"


def _node(found: Found, processes: Sequence[str]) -> dict[str, Any]:
    """Return what a node has of the job: CPUs and memory of the host, and its GPUs by index."""
    facts = [found.facts[process] for process in processes]
    cpus = {cpu for each in facts for (text,) in each.of(CPUS) for cpu in cpu_set(text)}
    spent = [each.by(CPU) for each in facts]
    seconds = sum(parts.get("process", 0.0) + parts.get("children", 0.0) for parts in spent)
    limit, used = _largest(facts, HOST_LIMIT), _largest(facts, HOST_MEMORY)
    # Readers divide the one by the other of each pair.
    node: dict[str, Any] = {"cpus": len(cpus), "total_time": round(seconds, 1)} if cpus and any(spent) else {}
    node |= {"total_memory": limit, "used_memory": used} if limit and used is not None else {}
    gpus: defaultdict[str, dict[str, float]] = defaultdict(dict)
    ours: defaultdict[tuple[str, str], list[Facts]] = defaultdict(list)
    for process in processes:
        for place in found.of(process):
            ours[place].append(found.facts[process])
    for place, each in sorted(ours.items()):
        device = found.devices[place]
        for key, value in _gpu(device, place[1], each).items():
            if value is not None:
                gpus[key][device.index or place[1]] = value
    return node | gpus


def _gpu(device: Device, uuid: str, facts: Sequence[Facts]) -> dict[str, float | None]:
    """Return the memory of a GPU, and the share of time in which kernels ran, by its exact counters."""
    busy = device.busy(min(each.begin for each in facts), max(each.end for each in facts))
    used = [max(value for _, value in each.of(MEMORY)[(uuid,)]) for each in facts]
    return {
        "gpu_total_memory": device.memory,
        "gpu_used_memory": sum(used) if device.memory is None else min(sum(used), device.memory),
        "gpu_utilization": None if busy is None else round(100 * busy, 1),
    }


def _largest(facts: Iterable[Facts], name: str) -> float | None:
    return max((value for each in facts for points in each.of(name).values() for _, value in points), default=None)
