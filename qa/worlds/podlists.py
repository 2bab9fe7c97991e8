"""Lists of pods as a kubelet or the API gives them, drawn at random, each pod with the job that it was drawn for."""

from __future__ import annotations

import json
import random
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

NAMES = ("train", "train-0", "train-launcher", "bert", "bert-master", "a", "llm-7b-v2")
NAMESPACES = ("ml", "research")
_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"
SET, LWS = "jobset.sigs.k8s.io", "leaderworkerset.sigs.k8s.io"
_KUBEFLOW = {"PyTorchJob": "pytorchjob", "MPIJob": "mpijob", "TFJob": "tfjob", "XGBoostJob": "xgboostjob"}

Identity = tuple[str, str, str]  # namespace, kind, job


@dataclass
class Drawn:
    """Pods of the lists; `truth` has the job of each by its UID on the node."""

    random: random.Random
    items: list[Any] = field(default_factory=list)
    truth: dict[str, Identity] = field(default_factory=dict)
    named: set[tuple[str, str]] = field(default_factory=set)  # namespace and pod
    owners: set[tuple[str, str, str]] = field(default_factory=set)

    def body(self) -> str:
        """Return the list, in one of the layouts of JSON."""
        self.random.shuffle(self.items)
        parts = [("kind", "PodList"), ("metadata", {"resourceVersion": "7"}), ("items", self.items)]
        self.random.shuffle(parts)
        return json.dumps(dict(parts), indent=self.random.choice((None, 1)))


def draw(seed: int, jobs: int = 40) -> Drawn:
    """Return the pods of jobs of every controller, with pods that pretend to, and entries that are none."""
    drawn = Drawn(random.Random(seed))
    makers = [*_MAKERS] * (jobs // len(_MAKERS) + 1)
    drawn.random.shuffle(makers)
    for maker in makers[:jobs]:
        maker(drawn)
    for _ in range(jobs // 4):
        _forge(drawn)
    drawn.items += drawn.random.sample(GARBAGE, 6)
    return drawn


def reference(kind: str, api: str, name: str, *, controller: object = True) -> dict[str, object]:
    return {"apiVersion": api, "kind": kind, "name": name, "uid": str(uuid.uuid4()), "controller": controller}


def add(
    drawn: Drawn, namespace: str, name: str, owners: list[Any], labels: Mapping[str, object], truth: tuple[str, str]
) -> None:
    """Add a pod, with fields that no rule reads. The job of a pod without a truth is the pod itself."""
    if (namespace, name) in drawn.named:
        return
    drawn.named.add((namespace, name))
    uid = str(uuid.UUID(int=drawn.random.getrandbits(128)))
    metadata: dict[str, object] = {"name": name, "namespace": namespace, "uid": uid, "labels": {"app": "x", **labels}}
    if owners or drawn.random.random() < 0.5:
        noise = [reference("Workload", "kueue.x-k8s.io/v1beta1", "other", controller=False)]
        metadata["ownerReferences"] = [*(noise if drawn.random.random() < 0.3 else []), *owners]
    mirror = f"{drawn.random.getrandbits(128):032x}"
    if owners and owners[0]["kind"] == "Node" and owners[0]["controller"] is True:  # a static pod, seen through the API
        metadata["annotations"] = {"kubernetes.io/config.mirror": mirror}
        uid = mirror
    elif drawn.random.random() < 0.1:  # a pod that claims to be a static one, or another
        claimed = drawn.random.choice([mirror, *drawn.truth])
        metadata["annotations"] = {"kubernetes.io/config.mirror": claimed}
    drawn.items.append({"metadata": metadata, "spec": {"containers": [{"name": '}],"items":['}]}, "status": {}})
    drawn.truth[uid] = (namespace, *(truth if any(truth) else ("pod", name)))


def _name(drawn: Drawn, kind: str) -> tuple[str, str]:
    free = [(s, n) for s in NAMESPACES for n in NAMES if (kind, s, n) not in drawn.owners]
    namespace, name = drawn.random.choice(free)
    drawn.owners.add((kind, namespace, name))
    return namespace, name


def _random(drawn: Drawn) -> str:
    return "".join(drawn.random.choice(_ALPHABET) for _ in range(5))


def _job(drawn: Drawn) -> None:
    namespace, name = _name(drawn, "Job")
    labels = {"batch.kubernetes.io/job-name": name, "job-name": name}
    for index in range(drawn.random.randint(1, 4)):
        pod = f"{name}-{index}-{_random(drawn)}"
        add(drawn, namespace, pod, [reference("Job", "batch/v1", name)], labels, ("job", name))


def _jobset(drawn: Drawn) -> None:
    namespace, name = _name(drawn, "JobSet")
    part = drawn.random.choice(("node", "workers-0"))
    for replica in range(2):
        labels = {f"{SET}/jobset-name": name, f"{SET}/replicatedjob-name": part, f"{SET}/job-index": str(replica)}
        owner = reference("Job", "batch/v1", f"{name}-{part}-{replica}")
        add(drawn, namespace, f"{owner['name']}-0-{_random(drawn)}", [owner], labels, ("jobset", name))


def _kubeflow(drawn: Drawn) -> None:
    kind = drawn.random.choice([*_KUBEFLOW])
    namespace, name = _name(drawn, kind)
    for role in ("master-0", "worker-0", "worker-1"):
        owner = reference(kind, "kubeflow.org/v1", name)
        add(drawn, namespace, f"{name}-{role}", [owner], {}, (_KUBEFLOW[kind], name))
    if kind == "MPIJob":
        labels = {"training.kubeflow.org/job-name": name, "training.kubeflow.org/operator-name": "mpi-operator"}
        owner = reference("Job", "batch/v1", f"{name}-launcher")
        add(drawn, namespace, f"{name}-launcher-{_random(drawn)}", [owner], labels, ("mpijob", name))


def _volcano(drawn: Drawn) -> None:
    namespace, name = _name(drawn, "VolcanoJob")
    for index in range(2):
        owner = reference("Job", "batch.volcano.sh/v1alpha1", name)
        add(drawn, namespace, f"{name}-task-{index}", [owner], {"volcano.sh/job-name": name}, ("volcano", name))


def _ray(drawn: Drawn) -> None:
    namespace, name = _name(drawn, "RayCluster")
    for role in ("head", "gpu-worker"):
        owner = reference("RayCluster", "ray.io/v1", name)
        add(
            drawn, namespace, f"{name}-{role}-{_random(drawn)}", [owner], {"ray.io/cluster": name}, ("raycluster", name)
        )


def _leader_worker_set(drawn: Drawn) -> None:
    namespace, name = _name(drawn, "StatefulSet")
    for group in ("0", "1"):
        labels = {f"{LWS}/name": name, f"{LWS}/group-index": group}
        leader, worker = (reference("StatefulSet", "apps/v1", owner) for owner in (name, f"{name}-{group}"))
        add(drawn, namespace, f"{name}-{group}", [leader], labels, ("leaderworkerset", name))
        add(drawn, namespace, f"{name}-{group}-1", [worker], labels, ("leaderworkerset", name))


def _stateful_set(drawn: Drawn) -> None:
    namespace, name = _name(drawn, "StatefulSet")
    for index in range(2):
        owner = reference("StatefulSet", "apps/v1", name)
        add(drawn, namespace, f"{name}-{index}", [owner], {}, ("statefulset", name))


def _deployment(drawn: Drawn) -> None:
    namespace, name = _name(drawn, "Deployment")
    template = "".join(drawn.random.choice("456789bcdf") for _ in range(9))
    for _ in range(2):
        owner = reference("ReplicaSet", "apps/v1", f"{name}-{template}")
        pod = f"{name}-{template}-{_random(drawn)}"
        add(drawn, namespace, pod, [owner], {"pod-template-hash": template}, ("deployment", name))


def _without_rule(drawn: Drawn) -> None:
    """Add pods of controllers whose pods are no job, or that nobody knows."""
    kind, api = drawn.random.choice(
        (
            *(("DaemonSet", "apps/v1"), ("ReplicaSet", "apps/v1"), ("Node", "v1"), ("Job", "example.org/v1")),
            *(("Workflow", "argoproj.io/v1alpha1"), ("Job", "batch"), ("StatefulSet", "v1")),
        )
    )
    namespace, name = drawn.random.choice(NAMESPACES), drawn.random.choice(NAMES)
    add(drawn, namespace, f"{name}-{_random(drawn)}", [reference(kind, api, name)], {}, ("", ""))


def _forge(drawn: Drawn) -> None:
    """Add a pod with the name and the labels of a pod of a job, without its controller."""
    template = drawn.random.choice([item["metadata"] for item in drawn.items if isinstance(item, dict)])
    name = f"{template['name'][:-5]}{_random(drawn)}"
    owners = [
        [],
        [
            reference(o["kind"], o["apiVersion"], o["name"], controller=False)
            for o in template.get("ownerReferences", ())
        ],
        [reference("Pod", "v1", "driver")],
        [reference("Job", "batch/v1", "", controller=True)],
        [reference("Job", "batch/v1", "train", controller="true")],
    ]
    namespace = drawn.random.choice((template["namespace"], "another"))
    add(drawn, namespace, name, drawn.random.choice(owners), template["labels"], ("", ""))


_MAKERS: tuple[Callable[[Drawn], None], ...] = (
    *(_job, _jobset, _kubeflow, _volcano, _ray, _leader_worker_set, _stateful_set, _deployment, _without_rule),
)
GARBAGE: list[Any] = [
    *(None, 7, "pod", [], {}, {"metadata": None}, {"metadata": {"name": "x", "namespace": "ml"}}),
    {"metadata": {"name": 7, "namespace": "ml", "uid": "u"}},
    {"metadata": {"name": "x", "namespace": "", "uid": "u"}},
    {"metadata": {"name": "x", "namespace": "ml", "uid": ["u"]}},
]
