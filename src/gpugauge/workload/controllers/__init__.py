"""The Kubernetes controller at the top of a pod: from the pod's labels, its environment, or the rule of its name."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from gpugauge.workload.controllers import owners

# Every kind of controller. TrainJob and RayJob have the kinds of what they create: `jobset` and `raycluster`.
CONTROLLERS = (
    *("jobset", "pytorchjob", "mpijob", "tfjob", "jaxjob", "paddlejob", "xgboostjob", "volcano"),
    *("raycluster", "leaderworkerset", "job", "statefulset", "deployment"),
)
_LABELS = (
    ("jobset.sigs.k8s.io/jobset-name", "jobset"),
    ("volcano.sh/job-name", "volcano"),
    ("ray.io/cluster", "raycluster"),
    ("leaderworkerset.sigs.k8s.io/name", "leaderworkerset"),
)
_JOB_LABELS = ("batch.kubernetes.io/job-name", "job-name")
_OPERATORS = {"mpi-operator": "mpijob"} | {f"{kind}-controller": kind for kind in CONTROLLERS if kind.endswith("job")}
# The alphabet of names that Kubernetes makes up, without vowels. The hash of a Deployment's template is a decimal
# number in it, and so has ten of its characters only.
_RANDOM = "[bcdfghjklmnpqrstvwxz2456789]{5}"
_DEPLOYMENT = re.compile(rf"(.+)-[4-9bcdf]{{8,10}}-{_RANDOM}")
_KUBEFLOW = re.compile(r"(.+)-(?:master|worker)-\d+")
_MPI = re.compile(rf"(.+)-(?:worker-\d+|launcher(?:-{_RANDOM})?)")
_NUMBERED = re.compile(r"(.+)-\d+")
_MAX_POD_NAME = 63  # longer names of Jobs are cut in the names of their pods
_LOCAL = frozenset({"localhost", "127.0.0.1"})

Found = tuple[str, str, str]  # kind, name, source


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod, and its labels by `metadata` (the cluster, which knows the owner) or `downward_api` (a sidecar)."""

    namespace: str
    name: str
    uid: str = ""
    labels: Mapping[str, str] = field(default_factory=dict, compare=False)
    source: str = "downward_api"
    owner: owners.OwnerReference | None = None


def controller(pod: Pod, environment: Mapping[str, str]) -> Found | None:
    """Return kind and name of the pod's controller and the source, None without one. A variable of the environment
    counts only if the name of the pod, which its processes cannot change, agrees.
    """
    if pod.source == "metadata":
        owned = owners.controller(pod.owner, pod.labels) if pod.owner else None
        return (*owned, "metadata") if owned else None
    labelled = _by_labels(pod)
    if labelled:
        return (*labelled, pod.source)
    for rule in (_leader_worker_set, _volcano, _kubeflow, _ray, _jobset, _indexed_job, _mpi, _stateful_set):
        found = rule(pod, environment)
        if found:
            return (*found, "environment")
    deployment = _DEPLOYMENT.fullmatch(pod.name)
    return ("deployment", deployment[1], "pod_name") if deployment else None


def _by_labels(pod: Pod) -> tuple[str, str] | None:
    labels = pod.labels
    for label, kind in _LABELS:
        if labels.get(label):
            return kind, labels[label]
    operator = _OPERATORS.get(labels.get("training.kubeflow.org/operator-name", ""))
    if operator and labels.get("training.kubeflow.org/job-name"):
        return operator, labels["training.kubeflow.org/job-name"]
    job = next((labels[label] for label in _JOB_LABELS if labels.get(label)), "")
    if job:
        return "job", job
    stateful = _NUMBERED.fullmatch(labels.get("statefulset.kubernetes.io/pod-name", ""))
    if stateful:
        return "statefulset", stateful[1]
    template = labels.get("pod-template-hash", "")
    deployment = re.fullmatch(rf"(.+)-{re.escape(template)}-{_RANDOM}", pod.name) if template else None
    return ("deployment", deployment[1]) if deployment else None


def spans_hosts(environment: Mapping[str, str]) -> bool:
    """Return whether the ranks are not all children of one launcher, as far as the environment states it."""
    world, local = (number(environment, name) for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"))
    if world is None:
        return any((number(environment, name) or 1) > 1 for name in ("NNODES", "PET_NNODES"))
    return world > (local or 1)


def number(environment: Mapping[str, str], name: str) -> int | None:
    """Return the value of a variable that is a number, None without one."""
    value = environment.get(name, "").strip()
    return int(value) if value.isascii() and value.isdigit() and len(value) <= 20 else None


def _rendezvous(environment: Mapping[str, str], *, spans: bool = True) -> Iterator[tuple[str, str]]:
    """Yield the first two labels of each address at which ranks meet; with `spans`, only if that is of several pods."""
    several = not spans or spans_hosts(environment)
    names = ("PET_MASTER_ADDR", "PET_RDZV_ENDPOINT", *(("MASTER_ADDR",) if several else ()))
    for name in names:
        host, _, domain = environment.get(name, "").partition(":")[0].partition(".")
        if host:
            yield host, domain.partition(".")[0]


def _leader_worker_set(pod: Pod, environment: Mapping[str, str]) -> tuple[str, str] | None:
    # `<set>-<group>.<service>.<namespace>`; the pods are `<set>-<group>` and `<set>-<group>-<worker>`.
    leader = environment.get("LWS_LEADER_ADDRESS", "").partition(".")[0]
    match = _NUMBERED.fullmatch(leader)
    named = re.fullmatch(rf"{re.escape(leader)}(-\d+)?", pod.name)
    return ("leaderworkerset", match[1]) if match and named else None


def _volcano(pod: Pod, environment: Mapping[str, str]) -> tuple[str, str] | None:
    # The plugin `svc` sets VC_<TASK>_HOSTS to `<job>-<task>-0.<job>,…`, the plugin `pytorch` MASTER_ADDR.
    hosts = [v.partition(",")[0] for n, v in environment.items() if n.startswith("VC_") and n.endswith("_HOSTS")]
    addresses = [(host.partition(".")[0], host.partition(".")[2].partition(".")[0]) for host in hosts]
    if environment.keys() & {"VC_TASK_INDEX", "VK_TASK_INDEX"}:
        addresses += _rendezvous(environment)
    for host, job in addresses:
        if job and host.startswith(f"{job}-") and re.fullmatch(rf"{re.escape(job)}-.+-\d+", pod.name):
            return "volcano", job
    return None


def _kubeflow(pod: Pod, environment: Mapping[str, str]) -> tuple[str, str] | None:
    # The pods of a PyTorchJob are `<job>-master-0` and `<job>-worker-<n>`; they meet at one of them, by its name. Older
    # operators give the master `localhost`.
    match = _KUBEFLOW.fullmatch(pod.name)
    if match is None:
        return None
    for host, domain in _rendezvous(environment):
        meets = _KUBEFLOW.fullmatch(host)
        if meets and meets[1] == match[1] and domain in {"", host, pod.namespace}:
            return "pytorchjob", match[1]
    master = pod.name.endswith("-master-0")
    alone = environment.get("MASTER_ADDR") == pod.name and environment.get("WORLD_SIZE") == "1"
    local = environment.get("MASTER_ADDR") in _LOCAL and spans_hosts(environment)
    return ("pytorchjob", match[1]) if master and (alone or local) else None


def _ray(pod: Pod, environment: Mapping[str, str]) -> tuple[str, str] | None:
    # KubeRay sets both variables in every container of a cluster; names of pods may be cut at their beginning.
    cluster = environment.get("RAY_CLUSTER_NAME", "")
    named = re.search(rf"-(?:head|worker)-(?:.+-)?{_RANDOM}$|-(?:head|worker)(?:-\d+)?$", pod.name)
    return ("raycluster", cluster) if cluster and named and "RAY_USAGE_STATS_KUBERAY_IN_USE" in environment else None


def _jobset(pod: Pod, environment: Mapping[str, str]) -> tuple[str, str] | None:
    # The pods of a JobSet are `<set>-<job>-<i>-<index>-<random>`; they meet at `<set>-<job>-0-0.<set>`.
    index = environment.get("JOB_COMPLETION_INDEX", "")
    for host, name in _rendezvous(environment, spans=False) if index else ():
        own = re.fullmatch(rf"{re.escape(name)}-.+-\d+-{re.escape(index)}-{_RANDOM}", pod.name) if name else None
        if own and re.fullmatch(rf"{re.escape(name)}-.+-\d+-\d+", host):
            return "jobset", name
    return None


def _indexed_job(pod: Pod, environment: Mapping[str, str]) -> tuple[str, str] | None:
    # The pods of an Indexed Job are `<job>-<index>-<random>`, their host names `<job>-<index>`.
    index = environment.get("JOB_COMPLETION_INDEX", "")
    match = re.fullmatch(rf"(.+)-{re.escape(index)}-{_RANDOM}", pod.name) if index.isdigit() else None
    if match is None:
        return None
    host, suffix = environment.get("HOSTNAME", ""), f"-{index}"
    if len(pod.name) >= _MAX_POD_NAME and host.startswith(match[1]) and host.endswith(suffix):
        return "job", host.removesuffix(suffix)
    return "job", match[1]


def _mpi(pod: Pod, environment: Mapping[str, str]) -> tuple[str, str] | None:
    # The MPI operator sets K_MPI_JOB_ROLE in its containers, but a rank on a worker is a child of sshd without it.
    size, local = (number(environment, f"OMPI_COMM_WORLD_{name}") or 0 for name in ("SIZE", "LOCAL_SIZE"))
    match = _MPI.fullmatch(pod.name) if "K_MPI_JOB_ROLE" in environment or size > local else None
    return ("mpijob", match[1]) if match else None


def _stateful_set(pod: Pod, environment: Mapping[str, str]) -> tuple[str, str] | None:
    # The pods of a StatefulSet are `<set>-<n>`; they meet at `<set>-0.<service>`. A number alone proves nothing.
    match = _NUMBERED.fullmatch(pod.name)
    for host, service in _rendezvous(environment) if match else ():
        meets = _NUMBERED.fullmatch(host)
        if match and meets and service and meets[1] == match[1]:
            return "statefulset", match[1]
    return None
