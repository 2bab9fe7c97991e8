"""Drawn clusters: trainings whose pods have owners, users and claims, on nodes with some of the rights, whose sources
are up, down, late or refused, and whose daemons may be restarted. Each has the job of its pods, by what the daemon may
know of them, worked out here.
"""

from __future__ import annotations

import json
import math
import random
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from gpugauge.workload.identity import Workload
from gpugauge.workload.kubernetes import source as kubernetes
from gpugauge.workload.kubernetes.metadata import PodMetadata
from gpugauge.workload.procfs import Procfs
from gpugauge.workload.workloads import Workloads
from qa.worlds.podlists import LWS, SET, reference
from qa.worlds.trees import Made, pod_logs, proc, v2

Identity = tuple[str, str, str]  # namespace, kind, job
SPACES = ("ml", "research")
NONE = ("", "", "")
STEP, SECONDS, SETTLED = 5, 340, 150  # seconds; after SETTLED every source that will ever be up is up
FAILURES = (None, 401, 403, 500, "garbage")  # of a source that is down; None: it refuses the connection
KINDS = (
    *("indexed", "job", "pytorchjob", "statefulset", "deployment", "static", "bare", "daemonset", "jobset", "mpijob"),
    *("volcano", "raycluster", "leaderworkerset", "workflow", "ranks", "pretender"),
)


@dataclass
class Pod:
    """A pod with one process or more. `claims` is their environment, which the user chooses."""

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
    meets: bool = False  # its ranks meet those of other pods, which joins pods without an owner that is a job
    begins: float = 0.0
    hook: float | None = None  # when it connects, after its process was found
    listed_uid: str = ""  # in the API, where it differs
    is_listed: bool = True
    listed_after: float = 0.0  # its begin
    processes: int = 1

    def item(self, *, api: bool) -> dict[str, Any]:
        """Return the pod as a kubelet or the API lists it."""
        metadata: dict[str, Any] = {"name": self.name, "namespace": self.namespace, "labels": dict(self.labels)}
        metadata["uid"] = (self.listed_uid if api else "") or self.uid
        if self.owner and (api or not self.listed_uid):  # the kubelet adds that of a static pod in the API
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
    failure: object = None  # one of FAILURES
    restart: float = 0.0  # of the daemon

    def answers(self) -> bool:
        """Return whether the cluster ever states the pods."""
        return self.asks != "off" and self.pods_down[1] < math.inf

    def tells_names(self) -> bool:
        """Return whether the folders ever do."""
        return self.names and self.logs_down[1] < math.inf


class Clock:
    """A clock of a test."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def trainings(rng: random.Random) -> list[Pod]:
    """Return the pods of several trainings."""
    made: list[Pod] = []
    names: list[tuple[str, str]] = []
    for number in range(rng.randint(2, 5)):
        space, name = rng.choice(SPACES), f"{rng.choice(('train', 'bert', 'llm-7b'))}{rng.choice(('', '-0'))}-n{number}"
        if names and rng.random() < 0.3:  # of another namespace, and perhaps of another kind
            space, name = rng.choice(names)
            space = SPACES[1 - SPACES.index(space)]
        if (space, name) in names:
            continue
        names.append((space, name))
        kind, user = rng.choice(KINDS), rng.choice((0, 1234, 1234, 65534))
        declared, template = rng.choice(("", "", "", "night", "day")), "".join(rng.choices("456789bcdf", k=9))
        late, processes = rng.choice((None, 0.0, 0.0, 0.0, 40.0)), rng.choice((1, 1, 2))
        begins = rng.choice((0.0, 0.0, 0.0, rng.uniform(0, 200)))
        for index in range(rng.randint(1, 4)):
            pod = _pod(rng, kind, space, name, index, template)
            pod.user, pod.processes, pod.begins = user, processes, begins + rng.choice((0.0, 0.0, 7.0))
            pod.hook = late if rng.random() < 0.9 else rng.choice((None, 0.0))
            pod.listed_after = rng.choice((0.0, 0.0, 0.0, 0.0, 8.0, 90.0))
            if declared:
                pod.claims["GPUGAUGE_JOB"] = declared
            made.append(pod)
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
        "jobset": ("Job", "batch/v1", f"{name}-node-0"),
        "mpijob": ("MPIJob", "kubeflow.org/v2beta1", name),
        "volcano": ("Job", "batch.volcano.sh/v1alpha1", name),
        "raycluster": ("RayCluster", "ray.io/v1", name),
        "leaderworkerset": ("StatefulSet", "apps/v1", name),
        "workflow": ("Workflow", "argoproj.io/v1alpha1", name),
    }.get(kind)
    own = {
        "indexed": f"{name}-{index}-{_random_name(rng)}",
        "pytorchjob": f"{name}-worker-{index}",
        "statefulset": f"{name}-{index}",
        "deployment": f"{name}-{template}-{_random_name(rng)}",
        "static": f"{name}-gpu-{index}",
        "jobset": f"{name}-node-0-{index}-{_random_name(rng)}",
        "mpijob": f"{name}-worker-{index}",
        "volcano": f"{name}-task-{index}",
        "raycluster": f"{name}-gpu-worker-{_random_name(rng)}",
        "leaderworkerset": f"{name}-{index}",
        "pretender": f"{name}-{index}-{_random_name(rng)}",
    }.get(kind, f"{name}-{_random_name(rng)}")
    several = {"WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "1"}
    claims = {
        "indexed": {"JOB_COMPLETION_INDEX": str(index)},
        "pytorchjob": {"MASTER_ADDR": f"{name}-worker-0", **several},
        "jobset": {"JOB_COMPLETION_INDEX": str(index), "MASTER_ADDR": f"{name}-node-0-0.{name}"},
        "mpijob": {"K_MPI_JOB_ROLE": "worker"},
        "volcano": {"VC_TASK_INDEX": str(index), "MASTER_ADDR": f"{name}-task-0.{name}", **several},
        "raycluster": {"RAY_CLUSTER_NAME": name, "RAY_USAGE_STATS_KUBERAY_IN_USE": "1"},
        "leaderworkerset": {"LWS_LEADER_ADDRESS": f"{name}-{index}.{name}.{space}"},
        "ranks": {"MASTER_ADDR": f"{name}-svc", "MASTER_PORT": "29500", **several},
        "pretender": {"JOB_COMPLETION_INDEX": str(index)},
    }.get(kind, {})
    labels = {
        "deployment": {"pod-template-hash": template},
        "jobset": {f"{SET}/jobset-name": name, f"{SET}/replicatedjob-name": "node", f"{SET}/job-index": "0"},
        "leaderworkerset": {f"{LWS}/name": name, f"{LWS}/group-index": str(index)},
        "pretender": {"batch.kubernetes.io/job-name": name},
    }.get(kind, {})
    is_job = kind not in {"static", "bare", "daemonset", "workflow", "ranks", "pretender"}
    truth = ({"indexed": "job"}.get(kind, kind), name) if is_job else ("pod", own)
    claimed = {"ranks": ("distributed", f"{name}-svc:29500"), "pretender": ("job", name)}.get(kind, truth)
    pod = Pod(
        *(space, own, uid, 0),
        reference(*controller) if controller else None,
        truth,
        claimed if claims else None,
        truth if kind == "deployment" else None,
        labels,
        claims={**claims, "HOSTNAME": own},
        meets=kind == "ranks",
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
        if not victim.listed_uid:  # nobody knows its UID before it is listed
            victim.listed_after = 0.0
        forged.append(pod)
    return forged


def draw(seed: int, folder: Path) -> list[Node]:
    """Return the nodes of a cluster."""
    rng = random.Random(seed)
    asks, reads_all = rng.choice(("off", "kubelet", "kubelet", "api")), rng.random() < 0.4
    names = asks == "off" or rng.random() < 0.8
    nodes = []
    parts: list[list[Pod]] = [[] for _ in range(rng.randint(1, 3))]
    for pod in trainings(rng):
        rng.choice(parts).append(pod)

    def down(forever: float) -> tuple[float, float]:
        if rng.random() < forever:
            return 0.0, math.inf
        return rng.choice(((0.0, 0.0), (0.0, 0.0), (0.0, rng.uniform(5, SETTLED - 20)), (20.0, 60.0)))

    for number, pods in enumerate(parts):
        forged = forge(rng, pods) if asks == "api" else []
        by_pid = dict(enumerate((pod for pod in pods for _ in range(pod.processes)), 41))
        node = Node(folder / str(number), by_pid, reads_all, asks, names, down(0.1), down(0.05), forged)
        node.failure, node.restart = rng.choice(FAILURES), rng.choice((0.0, 0.0, 100.0, 170.0))
        for pod in forged and pods:
            pod.is_listed = not pod.listed_uid or rng.random() < 0.5
        nodes.append(node)
    return nodes


def final(node: Node, pod: Pod) -> Identity:
    """Return the job of a pod when each source has answered that ever will."""
    is_listed = node.answers() and not _doubted(node, pod)
    if not node.tells_names() and not is_listed:
        return "", "pod", pod.uid
    is_known = node.reads_all or pod.user == 0 or pod.hook is not None
    if is_known and "GPUGAUGE_JOB" in pod.claims:
        user = "root" if pod.user == 0 else str(pod.user)
        return pod.namespace, "declared", f"{user}/{pod.claims['GPUGAUGE_JOB']}"
    if is_listed:
        found: tuple[str, str] | None = pod.by_claims if pod.meets and is_known else pod.by_owner
    else:
        found = (pod.by_claims if is_known else None) or pod.by_name
    return (pod.namespace, *(found or ("pod", pod.name)))


def _doubted(node: Node, pod: Pod) -> bool:
    """Return whether the API cannot prove a pod: others may claim to be a static one, and only the folders tell."""
    return node.asks == "api" and bool(pod.listed_uid) and not node.tells_names()


def late(node: Node, pod: Pod) -> int:
    """Return how often more can become known of a pod after its time: its environment, its name, its owner."""
    first = max(pod.begins, node.restart)

    def after(down: tuple[float, float], since: float) -> float:
        """Return after which time a source is asked and answers; it is asked for the same again after 15 s."""
        return (down[1] if down[0] - 20 <= since < down[1] else since) - first

    is_read = node.reads_all or pod.user == 0
    environment = not is_read and pod.hook is not None and pod.hook > 10
    listed = max(first, pod.begins + pod.listed_after)
    owner = after(node.pods_down, listed) if node.asks != "off" else math.inf
    folders = after(node.logs_down, first) if node.names else math.inf
    name = folders if node.asks == "api" and pod.listed_uid else min(owner, folders)
    return environment + sum(40 < seconds < math.inf for seconds in (owner, name))


@dataclass
class Seen:
    """The jobs that a daemon gave to a process, one after the other, and what it says of itself."""

    jobs: list[Identity] = field(default_factory=list)
    source: str = ""


def live(nodes: list[Node], monkeypatch: pytest.MonkeyPatch) -> tuple[list[dict[int, Seen]], list[Workloads]]:
    """Return what each daemon has seen since its last start, and what it knows after SECONDS."""
    clock, servers = Clock(), {node.folder.name: node for node in nodes}

    def exchange(source: kubernetes.PodSource) -> tuple[int, str]:
        node = servers[source.host]
        begin, end = node.pods_down
        if begin <= clock.now < end:
            if node.failure is None:
                raise ConnectionRefusedError(111, "Connection refused")
            return (node.failure, "") if isinstance(node.failure, int) else (200, '{"items": [')
        there = [pod for pod in node.pods.values() if pod.is_listed and pod.begins + pod.listed_after <= clock.now]
        items = [pod.item(api=node.asks == "api") for pod in (*{id(pod): pod for pod in there}.values(), *node.forged)]
        return 200, json.dumps({"kind": "PodList", "items": items})

    monkeypatch.setattr(kubernetes.PodSource, "_exchange", exchange)
    for node in nodes:
        _make(node)
    running = [_start(node, clock) for node in nodes]
    seen = [{pid: Seen() for pid in node.pods} for node in nodes]
    for second in range(0, SECONDS, STEP):
        clock.now = float(second)
        for number, node in enumerate(nodes):
            if second and second == node.restart:
                running[number], seen[number] = _start(node, clock), {pid: Seen() for pid in node.pods}
            _look(node, running[number], seen[number], clock.now)
            running[number].refresh()
    for workloads in running:
        workloads.version  # noqa: B018  (resolves what waits for it)
    return seen, running


def _make(node: Node) -> None:
    """Write the processes of a node, and the log folders of its pods."""
    made: Made = proc(node.folder / "proc")
    (node.folder / "log").mkdir()
    for pid, pod in node.pods.items():
        first = next(other for other, each in node.pods.items() if each is pod)
        container = f"{first:064x}"
        group = v2(f"/kubepods/burstable/pod{pod.uid}/{container}")
        made.process(pid, cgroup=group, environ=pod.claims, uid=pod.user)
        if not node.reads_all and pod.user:  # like a file of another user, also for root
            (made.root / f"{pid}/environ").unlink()
            (made.root / f"{pid}/environ").mkdir()
        if first == pid:
            pod_logs(node.folder / "log", pod.namespace, pod.name, pod.uid, {"main": container})


def _start(node: Node, clock: Clock) -> Workloads:
    source = {
        "off": None,
        "kubelet": kubernetes.of_kubelet(node.folder.name, "gpu", node.folder, None, verify=True),
        "api": kubernetes.of_api(node.folder.name, 443, "gpu", node.folder),
    }[node.asks]
    metadata = PodMetadata(source, clock) if source else None
    logs = node.folder / "log" if node.names else None
    return Workloads(Procfs(str(node.folder / "proc")), pod_logs=logs, metadata=metadata, clock=clock)


def _look(node: Node, workloads: Workloads, seen: dict[int, Seen], now: float) -> None:
    begin, end = node.logs_down
    logs, hidden = node.folder / "log", node.folder / "away"
    if (begin <= now < end) is logs.exists():
        (logs if logs.exists() else hidden).rename(hidden if logs.exists() else logs)
    for pid, pod in node.pods.items():
        if now < pod.begins:
            continue
        found_at = max(pod.begins, node.restart if now >= node.restart else 0.0)
        connects = pod.hook is not None and now >= found_at + pod.hook
        for sent in (None, {**pod.claims, "command": "train.py"}) if connects else (None,):
            found = workloads.resolve(pid, sent=sent)
            if (found.job_kind, found.job) != (seen[pid].jobs[-1][1:] if seen[pid].jobs else ("", "")):
                seen[pid].jobs.append((found.namespace, found.job_kind, found.job))
            seen[pid].source = found.job_source
    for pod in node.pods.values():  # an allocation to a pod has a job that one of its processes has now
        jobs = {seen[pid].jobs[-1][1:] for pid, each in node.pods.items() if each is pod and seen[pid].jobs}
        held = workloads._holders.job(Workload("pod", pod.namespace, pod.name))
        assert (held.kind, held.name) in jobs | {("", "")}, (pod, held, jobs)
