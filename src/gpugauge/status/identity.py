"""Who a process is: what the driver's lists, the host and the hook say, before anything is judged."""

from __future__ import annotations

from collections.abc import Collection

from gpugauge.base.text import whole
from gpugauge.node.node import Node
from gpugauge.status.model import ProcessStatus
from gpugauge.workload.identity import JOB_LABELS, LABELS, Workload

_PREFIX = "workload_"


def identities(node: Node, among: Collection[str]) -> dict[str, ProcessStatus]:
    """Return those of `among` of which a source knows more than the label; `hook`: started with the hook."""
    named = {**node.sessions, **node.hosts, **node.identities}
    return {process: _identity(process, node) for process in named if process in among}


def _identity(process: str, node: Node) -> ProcessStatus:
    on_gpu, host, session = node.identities.get(process), node.hosts.get(process), node.sessions.get(process)
    facts = session.facts if session else {}
    labels = dict(zip(JOB_LABELS, session.owner, strict=True)) if session else {}
    known = {name.removeprefix(_PREFIX): value for name, value in labels.items() if value}
    for source in (host, on_gpu):  # the driver's lists take precedence
        known |= workload(source.workload) if source else {}
    return ProcessStatus(
        process=process,
        pid=(on_gpu and on_gpu.pid) or (host and host.pid) or (session and max(0, session.peer_pid)) or None,
        command=known.get("command") or facts.get("command") or None,
        workload=known,
        kind=(on_gpu and on_gpu.kind) or None,
        torch_build=(host and host.torch) or None,
        hook=bool(host and host.hook),
        started=on_gpu.started if on_gpu else None,
        rank=whole(facts.get("rank")),
        world_size=whole(facts.get("world_size")),
    )


def workload(known: Workload) -> dict[str, str]:
    """Return what is known of a workload."""
    return {name.removeprefix(_PREFIX): value for name, value in zip(LABELS, known, strict=True) if value}
