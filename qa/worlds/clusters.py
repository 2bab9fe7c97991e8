"""Drawn clusters: trainings whose pods have owners, users and claims, on nodes with some of the rights, whose sources
are up, down or late. Each has the job of its pods, by what the daemon may know of them, worked out here.
"""

from __future__ import annotations

import json
import random
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from gpugauge.workload.kubernetes import source as kubernetes
from gpugauge.workload.kubernetes.metadata import PodMetadata
from gpugauge.workload.procfs import Procfs
from gpugauge.workload.workloads import Workloads
from qa.worlds.podlists import reference
from qa.worlds.trees import Made, pod_logs, proc, v2

Identity = tuple[str, str, str]  # namespace, kind, job
SPACES = ("ml", "research")
NONE = ("", "", "")
STEP, SECONDS, SETTLED = 5, 300, 150  # seconds; after SETTLED every source that will ever be up is up


@dataclass
class Pod:
    """A pod with one process. `claims` is its environment, which its user chooses."""

    namespace: str
    name: str
    uid: str  # on the node
    user: int
    owner: dict[str, object] | None
    by_owner: tuple[str, str]  # kind and job; the pod itself if its owner is no job
    by_claims: tuple[str, str] | None  # by its environment and its name
    by_name: tuple[str, str] | None
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    claims: dict[str, str] = field(default_factory=dict)
    hook: float | None = None  # when it connects, after its process was found
    listed_uid: str = ""  # in the API, where it differs
    is_listed: bool = True

    def item(self, *, api: bool) -> dict[str, Any]:
        """Return the pod as a kubelet or the API lists it."""
        metadata: dict[str, Any] = {"name": self.name, "namespace": self.namespace, "labels": dict(self.labels)}
        metadata["uid"] = (self.listed_uid if api else "") or self.uid
        if self.owner:
            metadata["ownerReferences"] = [self.owner]
        if self.annotations and (api or not self.listed_uid):
            metadata["annotations"] = dict(self.annotations)
        return {"metadata": metadata}


@dataclass
class Node:
    """A node: its pods, the rights of its daemon, and the seconds during which its sources are down."""

    folder: Path
    pods: dict[int, Pod]  # by pid
    reads_all: bool  # environments of every user
    asks: str  # off, kubelet or api
    names: bool  # whether the folders of pod logs are mounted
    pods_down: tuple[float, float]
    logs_down: tuple[float, float]
    forged: list[Pod]  # listed, but without a process


class Clock:
    """A clock of a test."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def trainings(rng: random.Random) -> list[Pod]:
    """Return the pods of several trainings."""
    made: list[Pod] = []
    for number in range(rng.randint(2, 5)):
        space, name = rng.choice(SPACES), f"{rng.choice(('train', 'bert', 'llm-7b'))}{rng.choice(('', '-0'))}-n{number}"
        kind = rng.choice(("indexed", "job", "pytorchjob", "statefulset", "deployment", "static", "bare", "daemonset"))
        user = rng.choice((0, 1234, 1234, 65534))
        declared = rng.choice(("", "", "", "night", "day"))
        template = "".join(rng.choice("456789bcdf") for _ in range(9))
        for index in range(rng.randint(1, 4)):
            pod = _pod(rng, kind, space, name, index, template)
            pod.user = user
            if declared:
                pod.claims["GPUGAUGE_JOB"] = declared
            made.append(pod)
        late = rng.choice((None, 0.0, 0.0, 0.0, 40.0))
        for pod in made[-4:]:
            pod.hook = late if pod.name.startswith(name) else pod.hook
    return made


def _pod(rng: random.Random, kind: str, space: str, name: str, index: int, template: str) -> Pod:
    uid = str(uuid.UUID(int=rng.getrandbits(128)))
    controller = {
        "indexed": ("Job", "batch/v1", name),
        "job": ("Job", "batch/v1", name),
        "pytorchjob": ("PyTorchJob", "kubeflow.org/v1", name),
        "statefulset": ("StatefulSet", "apps/v1", name),
        "deployment": ("ReplicaSet", "apps/v1", f"{name}-{template}"),
        "daemonset": ("DaemonSet", "apps/v1", name),
        "static": ("Node", "v1", "gpu-1"),
    }.get(kind)
    own = {
        "indexed": f"{name}-{index}-{_random_name(rng)}",
        "pytorchjob": f"{name}-worker-{index}",
        "statefulset": f"{name}-{index}",
        "deployment": f"{name}-{template}-{_random_name(rng)}",
        "static": f"{name}-gpu-{index}",
    }.get(kind, f"{name}-{_random_name(rng)}")
    claims = {
        "indexed": {"JOB_COMPLETION_INDEX": str(index)},
        "pytorchjob": {"MASTER_ADDR": f"{name}-worker-0", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "1"},
    }.get(kind, {})
    is_job = kind not in {"static", "bare", "daemonset"}
    truth = ({"indexed": "job"}.get(kind, kind), name) if is_job else ("pod", own)
    pod = Pod(
        *(space, own, uid, 0),
        reference(*controller) if controller else None,
        truth,
        truth if kind in {"indexed", "pytorchjob"} else None,
        truth if kind == "deployment" else None,
        {"pod-template-hash": template} if kind == "deployment" else {},
        claims={**claims, "HOSTNAME": own},
    )
    if kind == "static":
        pod.uid, pod.listed_uid = f"{rng.getrandbits(128):032x}", uid
        pod.annotations = {"kubernetes.io/config.mirror": pod.uid}
    return pod


def _random_name(rng: random.Random) -> str:
    return "".join(rng.choice("bcdfghjklmnpqrstvwxz2456789") for _ in range(5))


def forge(rng: random.Random, victims: list[Pod]) -> list[Pod]:
    """Return pods of another namespace that claim to be others by the annotation of a static pod."""
    forged = []
    static = [pod for pod in victims if pod.listed_uid]
    victims = static if static and rng.random() < 0.7 else victims
    for victim in rng.sample(victims, min(len(victims), rng.randint(0, 2))):
        owner = reference("Node", "v1", "gpu-1", controller=rng.choice((True, True, True, "true", False)))
        pod = Pod(
            "evil", f"x-{_random_name(rng)}", str(uuid.UUID(int=rng.getrandbits(128))), 0, owner, NONE[:2], None, None
        )
        pod.annotations = {"kubernetes.io/config.mirror": victim.uid}
        pod.listed_uid = pod.uid
        forged.append(pod)
    return forged


def draw(seed: int, folder: Path) -> list[Node]:
    """Return the nodes of a cluster."""
    rng = random.Random(seed)
    asks, reads_all = rng.choice(("off", "kubelet", "kubelet", "api")), rng.random() < 0.4
    names = asks == "off" or rng.random() < 0.8
    nodes = []
    parts: list[dict[int, Pod]] = [{} for _ in range(rng.randint(1, 3))]
    for pid, pod in enumerate(trainings(rng), 41):
        rng.choice(parts)[pid] = pod

    def down() -> tuple[float, float]:
        return rng.choice(((0.0, 0.0), (0.0, 0.0), (0.0, rng.uniform(5, SETTLED - 20)), (20.0, 60.0)))

    for number, pods in enumerate(parts):
        forged = forge(rng, list(pods.values())) if asks == "api" else []
        node = Node(folder / str(number), pods, reads_all, asks, names, down(), down(), forged)
        if names and not node.logs_down[1]:  # the folders tell the pod, and so that another one is not meant
            for pod in forged and pods.values():
                pod.is_listed = not pod.listed_uid or rng.random() < 0.2
        nodes.append(node)
    return nodes


def final(node: Node, pod: Pod) -> Identity:
    """Return the job of a pod when each source has answered that ever will."""
    is_asked = node.asks != "off"
    # Two pods claim the UID of a static pod, and only the folders of the node can tell which it is.
    contested = bool(pod.listed_uid) and any(
        each.annotations["kubernetes.io/config.mirror"] == pod.uid and each.owner and each.owner["controller"] is True
        for each in node.forged
    )
    if not node.names and (not is_asked or contested):
        return "", "pod", pod.uid
    is_known = node.reads_all or pod.user == 0 or pod.hook is not None
    if is_known and "GPUGAUGE_JOB" in pod.claims:
        user = "root" if pod.user == 0 else str(pod.user)
        return pod.namespace, "declared", f"{user}/{pod.claims['GPUGAUGE_JOB']}"
    if is_asked and not contested:
        found: tuple[str, str] | None = pod.by_owner
    else:
        found = (pod.by_claims if is_known else None) or pod.by_name
    return (pod.namespace, *(found or ("pod", pod.name)))


def late(node: Node, pod: Pod) -> int:
    """Return how often more can become known of a pod after its time: its environment, its name, its owner."""
    is_read = node.reads_all or pod.user == 0
    environment = not is_read and pod.hook is not None and pod.hook > 10
    sources = [node.pods_down] if node.asks != "off" else []
    sources += [node.logs_down] if node.names else []
    return environment + 2 * any(end > begin for begin, end in sources)


@dataclass
class Seen:
    """The jobs that a daemon gave to a process, one after the other, and what it says of itself."""

    jobs: list[Identity] = field(default_factory=list)
    source: str = ""


def live(nodes: list[Node], monkeypatch: pytest.MonkeyPatch) -> tuple[list[dict[int, Seen]], list[int]]:
    """Return what each daemon has seen in SECONDS, and its number of changed jobs."""
    clock, servers = Clock(), {node.folder.name: node for node in nodes}

    def exchange(source: kubernetes.PodSource) -> tuple[int, str]:
        node = servers[source.host]
        begin, end = node.pods_down
        if begin <= clock.now < end:
            raise ConnectionRefusedError(111, "Connection refused")
        listed = [pod for pod in (*node.pods.values(), *node.forged) if pod.is_listed]
        return 200, json.dumps({"kind": "PodList", "items": [each.item(api=node.asks == "api") for each in listed]})

    monkeypatch.setattr(kubernetes.PodSource, "_exchange", exchange)
    running = [_start(node, clock) for node in nodes]
    seen = [{pid: Seen() for pid in node.pods} for node in nodes]
    for second in range(0, SECONDS, STEP):
        clock.now = float(second)
        for node, workloads, each in zip(nodes, running, seen, strict=True):
            _look(node, workloads, each, clock.now)
            workloads.refresh()
    for workloads in running:
        workloads.version  # noqa: B018  (resolves what waits for it)
    return seen, [workloads.counters()["jobs_changed"] for workloads in running]


def _start(node: Node, clock: Clock) -> Workloads:
    made: Made = proc(node.folder / "proc")
    (node.folder / "log").mkdir()
    for pid, pod in node.pods.items():
        container = f"{pid:064x}"
        group = v2(f"/kubepods/burstable/pod{pod.uid}/{container}")
        made.process(pid, cgroup=group, environ=pod.claims, uid=pod.user)
        if not node.reads_all and pod.user:  # like a file of another user, also for root
            (made.root / f"{pid}/environ").unlink()
            (made.root / f"{pid}/environ").mkdir()
        pod_logs(node.folder / "log", pod.namespace, pod.name, pod.uid, {"main": container})
    source = {
        "off": None,
        "kubelet": kubernetes.of_kubelet(node.folder.name, "gpu", node.folder, None, verify=True),
        "api": kubernetes.of_api(node.folder.name, 443, "gpu", node.folder),
    }[node.asks]
    metadata = PodMetadata(source, clock) if source else None
    logs = node.folder / "log" if node.names else None
    return Workloads(Procfs(str(made.root)), pod_logs=logs, metadata=metadata, clock=clock)


def _look(node: Node, workloads: Workloads, seen: dict[int, Seen], now: float) -> None:
    begin, end = node.logs_down
    logs, hidden = node.folder / "log", node.folder / "away"
    if (begin <= now < end) is logs.exists():
        (logs if logs.exists() else hidden).rename(hidden if logs.exists() else logs)
    for pid, pod in node.pods.items():
        connects = pod.hook is not None and now >= pod.hook
        for sent in (None, {**pod.claims, "command": "train.py"}) if connects else (None,):
            found = workloads.resolve(pid, sent=sent)
            if (found.job_kind, found.job) != (seen[pid].jobs[-1][1:] if seen[pid].jobs else ("", "")):
                seen[pid].jobs.append((found.namespace, found.job_kind, found.job))
            seen[pid].source = found.job_source
