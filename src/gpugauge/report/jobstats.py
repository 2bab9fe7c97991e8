"""The summary of a Slurm job as Jobstats writes it into AdminComment, so that `jobstats` and `reportseff` read it."""

from __future__ import annotations

import base64
import gzip
import json
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from gpugauge.base.text import cpu_set
from gpugauge.exposition.trainings import CPU, CPUS, HOST_LIMIT, HOST_MEMORY, MEMORY
from gpugauge.report.counters import Facts
from gpugauge.report.jobs import Found
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
    limit, used = (
        max((value for each in facts for points in each.of(name).values() for _, value in points), default=None)
        for name in (HOST_LIMIT, HOST_MEMORY)
    )
    # Readers divide the one by the other of each pair.
    node: dict[str, Any] = {"cpus": len(cpus), "total_time": round(seconds, 1)} if cpus and any(spent) else {}
    node |= {"total_memory": limit, "used_memory": used} if limit and used is not None else {}
    gpus: defaultdict[str, dict[str, float]] = defaultdict(dict)
    ours: defaultdict[tuple[str, str], list[Facts]] = defaultdict(list)
    for process in processes:
        for place in found.of(process):
            ours[place].append(found.facts[process])
    for place, users in sorted(ours.items()):
        device = found.devices[place]
        busy = device.busy(min(each.begin for each in users), max(each.end for each in users))
        held = sum(max(value for _, value in each.of(MEMORY)[place[1:]]) for each in users)
        of_gpu = {
            "gpu_total_memory": device.memory,
            "gpu_used_memory": held if device.memory is None else min(held, device.memory),
            "gpu_utilization": None if busy is None else round(100 * busy, 1),
        }
        for key, value in of_gpu.items():
            if value is not None:
                gpus[key][device.index or place[1]] = value
    return node | gpus
