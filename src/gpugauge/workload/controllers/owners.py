"""The controller at the top of a pod, from the controller that owns it and the labels that controllers set."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class OwnerReference(NamedTuple):
    """The owner of a pod that is its controller: `group` is that of the API, without the version."""

    group: str
    kind: str
    name: str


# Owners that are jobs themselves, by group and kind, and their kind of job.
_JOBS = {
    ("batch", "Job"): "job",
    ("apps", "StatefulSet"): "statefulset",
    ("kubeflow.org", "PyTorchJob"): "pytorchjob",
    ("kubeflow.org", "MPIJob"): "mpijob",
    ("kubeflow.org", "TFJob"): "tfjob",
    ("kubeflow.org", "JAXJob"): "jaxjob",
    ("kubeflow.org", "PaddleJob"): "paddlejob",
    ("kubeflow.org", "XGBoostJob"): "xgboostjob",
    ("batch.volcano.sh", "Job"): "volcano",
    ("ray.io", "RayCluster"): "raycluster",
}
# Owners whose pods are no job together.
_NO_JOBS = frozenset({("apps", "DaemonSet"), ("apps", "ReplicaSet"), ("", "ReplicationController"), ("", "Node")})


class _Above(NamedTuple):
    """A controller above the owner: the owner's name is that of the controller and `suffix`, with the values of
    `labels` in it. If `name` is set, that label must be the controller's name.
    """

    group: str
    owner: str
    kind: str
    name: str
    suffix: str
    labels: tuple[str, ...] = ()


_JOBSET, _LWS = "jobset.sigs.k8s.io", "leaderworkerset.sigs.k8s.io"
_ABOVE = (
    _Above(
        *("batch", "Job", "jobset", f"{_JOBSET}/jobset-name", "-{}-{}"),
        (f"{_JOBSET}/replicatedjob-name", f"{_JOBSET}/job-index"),
    ),
    _Above("batch", "Job", "mpijob", "training.kubeflow.org/job-name", "-launcher"),
    _Above("apps", "StatefulSet", "leaderworkerset", f"{_LWS}/name", ""),
    _Above("apps", "StatefulSet", "leaderworkerset", f"{_LWS}/name", "-{}", (f"{_LWS}/group-index",)),
    _Above("apps", "ReplicaSet", "deployment", "", "-{}", ("pod-template-hash",)),
)
# Every label that the rules read.
LABELS = frozenset(label for row in _ABOVE for label in (row.name, *row.labels) if label)


def controller(owner: OwnerReference, labels: Mapping[str, str]) -> tuple[str, str] | None:
    """Return kind and name of the job of a pod, None without one. Users set labels: the owner's name must agree."""
    for row in _ABOVE:
        if (row.group, row.owner) != (owner.group, owner.kind) or not all(labels.get(label) for label in row.labels):
            continue
        name = owner.name.removesuffix(row.suffix.format(*(labels[label] for label in row.labels)))
        if name and (name != owner.name or not row.suffix) and (not row.name or labels.get(row.name) == name):
            return row.kind, name
    kind = _JOBS.get((owner.group, owner.kind))
    return (kind, owner.name) if kind else None


def is_known(owner: OwnerReference) -> bool:
    """Return whether a rule names this kind of owner."""
    return (owner.group, owner.kind) in _JOBS.keys() | _NO_JOBS
