"""Jobs from environments, labels and names as schedulers, controllers and launchers make them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from gpugauge.workload.controllers import CONTROLLERS, Pod
from gpugauge.workload.job import KINDS, MAX_NAME_BYTES, SOURCES, Job, JobFacts, bounded, resolve

Environment = Mapping[str, str]
HOST, OTHER = "gpu07-3fa29c", "gpu08-1b2c3d"
ID = "4f3c2b1a" * 8


def torchrun(master: str, world: int = 16, local: int = 8, run: str = "none", port: int = 29500) -> dict[str, str]:
    """Return what torchrun sets in each rank."""
    ranks = {"WORLD_SIZE": str(world), "LOCAL_WORLD_SIZE": str(local), "RANK": "3", "LOCAL_RANK": "3"}
    return {"MASTER_ADDR": master, "MASTER_PORT": str(port), "TORCHELASTIC_RUN_ID": run, **ranks}


def kubeflow(job: str, rank: int = 1) -> dict[str, str]:
    """Return what the Kubeflow training operator sets in the pods of a PyTorchJob with a master."""
    ranks = {"WORLD_SIZE": "4", "RANK": str(rank), "PYTHONUNBUFFERED": "1"}
    torch = {"PET_MASTER_ADDR": f"{job}-master-0", "PET_MASTER_PORT": "23456", "PET_NNODES": "4"}
    return {"MASTER_ADDR": f"{job}-master-0", "MASTER_PORT": "23456", **ranks, **torch}


def trainjob(job: str, index: int = 1) -> dict[str, str]:
    """Return what Kubeflow Trainer, the JobSet and the Job controller set in the pods of a TrainJob."""
    torch = {"PET_NNODES": "4", "PET_NPROC_PER_NODE": "1", "PET_NODE_RANK": str(index), "PET_MASTER_PORT": "29400"}
    own = {"HOSTNAME": f"{job}-node-0-{index}", "JOB_COMPLETION_INDEX": str(index)}
    return {"PET_MASTER_ADDR": f"{job}-node-0-0.{job}", **torch, **own}


PODS: list[tuple[str, str, Environment, Mapping[str, str], tuple[str, str, str]]] = [
    # What is tested, name of the pod, environment, labels, and kind, name and source of the job.
    ("PyTorchJob, worker", "bert-worker-1", kubeflow("bert"), {}, ("pytorchjob", "bert", "environment")),
    ("PyTorchJob, master", "bert-master-0", kubeflow("bert", 0), {}, ("pytorchjob", "bert", "environment")),
    (
        "PyTorchJob, master of an old operator",
        "bert-master-0",
        kubeflow("bert", 0) | {"MASTER_ADDR": "localhost", "PET_MASTER_ADDR": ""},
        {},
        ("pytorchjob", "bert", "environment"),
    ),
    (
        "PyTorchJob, elastic",
        "bert-worker-2",
        torchrun("bert-worker-0.bert-worker-0.ml.svc.cluster.local") | {"PET_RDZV_ENDPOINT": "bert-worker-0:23456"},
        {},
        ("pytorchjob", "bert", "environment"),
    ),
    ("TrainJob", "llm-node-0-1-x7k2p", trainjob("llm"), {}, ("jobset", "llm", "environment")),
    (
        "TrainJob, below torchrun",
        "llm-node-0-1-x7k2p",
        trainjob("llm") | torchrun("llm-node-0-0.llm"),
        {},
        ("jobset", "llm", "environment"),
    ),
    (
        "JobSet with two hyphens",
        "big-run-workers-1-0-bcdfg",
        {
            "JOB_COMPLETION_INDEX": "0",
            "MASTER_ADDR": "big-run-workers-0-0.big-run",
            "WORLD_SIZE": "4",
            "HOSTNAME": "big-run-workers-1-0",
        },
        {},
        ("jobset", "big-run", "environment"),
    ),
    (
        "JobSet, labels of the sidecar",
        "llm-node-0-1-x7k2p",
        {},
        {
            "jobset.sigs.k8s.io/jobset-name": "llm",
            "job-name": "llm-node-0",
            "batch.kubernetes.io/job-name": "llm-node-0",
        },
        ("jobset", "llm", "downward_api"),
    ),
    (
        "JobSet that meets at an address",
        "llm-node-0-1-x7k2p",
        {"JOB_COMPLETION_INDEX": "1", "MASTER_ADDR": "10.1.2.3", "HOSTNAME": "llm-node-0-1"},
        {},
        ("job", "llm-node-0", "environment"),
    ),
    (
        "Indexed Job",
        "sweep-12-m9qzt",
        {"JOB_COMPLETION_INDEX": "12", "HOSTNAME": "sweep-12", "MASTER_ADDR": "sweep-0.sweep"},
        {},
        ("job", "sweep", "environment"),
    ),
    (
        "Indexed Job with a long name",
        f"{'a' * 54}-7-m9qzt",
        {"JOB_COMPLETION_INDEX": "7", "HOSTNAME": f"{'a' * 61}-7"},
        {},
        ("job", "a" * 54, "environment"),  # 62 characters: not cut
    ),
    (
        "Indexed Job with a name that is cut",
        f"{'a' * 55}-7-m9qzt",
        {"JOB_COMPLETION_INDEX": "7", "HOSTNAME": f"{'a' * 61}-7"},
        {},
        ("job", "a" * 61, "environment"),
    ),
    ("Job, labels", "train-x7k2p", {}, {"batch.kubernetes.io/job-name": "train"}, ("job", "train", "downward_api")),
    ("Job of an older cluster", "train-x7k2p", {}, {"job-name": "train"}, ("job", "train", "downward_api")),
    ("Job, name only", "train-x7k2p", {}, {}, ("pod", "train-x7k2p", "pod")),
    (
        "MPIJob, rank on a worker",
        "horovod-worker-3",
        {"OMPI_COMM_WORLD_SIZE": "4", "OMPI_MCA_orte_hnp_uri": "1531576320.0;tcp://10.96.0.1,10.148.0.1:34911"},
        {},
        ("mpijob", "horovod", "environment"),
    ),
    (
        "MPIJob, launcher",
        "horovod-launcher-x7k2p",
        {"K_MPI_JOB_ROLE": "launcher"},
        {},
        ("mpijob", "horovod", "environment"),
    ),
    (
        "MPIJob, labels",
        "horovod-worker-3",
        {},
        {"training.kubeflow.org/job-name": "horovod", "training.kubeflow.org/operator-name": "mpi-operator"},
        ("mpijob", "horovod", "downward_api"),
    ),
    (
        "PyTorchJob, labels",
        "bert-worker-1",
        {},
        {
            "training.kubeflow.org/job-name": "bert",
            "training.kubeflow.org/operator-name": "pytorchjob-controller",
            "training.kubeflow.org/replica-type": "worker",
        },
        ("pytorchjob", "bert", "downward_api"),
    ),
    (
        "Volcano, plugin svc",
        "vj-worker-1",
        {"VC_WORKER_HOSTS": "vj-worker-0.vj,vj-worker-1.vj", "VC_WORKER_NUM": "2", "VC_TASK_INDEX": "1"},
        {},
        ("volcano", "vj", "environment"),
    ),
    (
        "Volcano, plugin pytorch",
        "vj-worker-1",
        {"VC_TASK_INDEX": "1", "MASTER_ADDR": "vj-master-0.vj", "MASTER_PORT": "23456", "WORLD_SIZE": "3"},
        {},
        ("volcano", "vj", "environment"),
    ),
    ("Volcano, labels", "vj-worker-1", {}, {"volcano.sh/job-name": "vj"}, ("volcano", "vj", "downward_api")),
    (
        "RayCluster",
        "raycluster-a-gpu-worker-x7k2p",
        {"RAY_CLUSTER_NAME": "raycluster-a", "RAY_USAGE_STATS_KUBERAY_IN_USE": "1"},
        {},
        ("raycluster", "raycluster-a", "environment"),
    ),
    (
        "RayCluster, a variable of the user",
        "server-0",
        {"RAY_CLUSTER_NAME": "vllm-cluster"},
        {},
        ("pod", "server-0", "pod"),
    ),
    (
        "LeaderWorkerSet, leader",
        "lws-2",
        {"LWS_LEADER_ADDRESS": "lws-2.lws.ml", "LWS_GROUP_SIZE": "3", "LWS_WORKER_INDEX": "0"},
        {},
        ("leaderworkerset", "lws", "environment"),
    ),
    (
        "LeaderWorkerSet, worker",
        "lws-2-1",
        {"LWS_LEADER_ADDRESS": "lws-2.lws.ml", "LWS_GROUP_SIZE": "3", "LWS_WORKER_INDEX": "1"},
        {},
        ("leaderworkerset", "lws", "environment"),
    ),
    (
        "LeaderWorkerSet, labels",
        "lws-2-1",
        {},
        {"leaderworkerset.sigs.k8s.io/name": "lws", "statefulset.kubernetes.io/pod-name": "lws-2-1"},
        ("leaderworkerset", "lws", "downward_api"),
    ),
    (
        "StatefulSet that meets at its first pod",
        "trainer-3",
        {"MASTER_ADDR": "trainer-0.trainer", "MASTER_PORT": "29500", "WORLD_SIZE": "4"},
        {},
        ("statefulset", "trainer", "environment"),
    ),
    (
        "StatefulSet, labels",
        "trainer-3",
        {},
        {"statefulset.kubernetes.io/pod-name": "trainer-3", "apps.kubernetes.io/pod-index": "3"},
        ("statefulset", "trainer", "downward_api"),
    ),
    ("numbered pods", "trainer-3", {}, {}, ("pod", "trainer-3", "pod")),
    ("Deployment", "api-6b474476c4-x7k2p", {}, {}, ("deployment", "api", "pod_name")),
    ("Deployment, labels", "api-6b4-x7k2p", {}, {"pod-template-hash": "6b4"}, ("deployment", "api", "downward_api")),
    ("a name with a word of the length of a hash", "api-training-x7k2p", {}, {}, ("pod", "api-training-x7k2p", "pod")),
    (
        "pods of no controller that meet",
        "alice-node-a",
        torchrun("alice-node-b"),
        {},
        ("distributed", "alice-node-b:29500", "rendezvous"),
    ),
    (
        "a pod with torchrun --standalone",
        "alice-node-a",
        torchrun("alice-node-a", world=8),
        {},
        ("pod", "alice-node-a", "pod"),
    ),
    (
        "another's Job in the environment",
        "mallory",
        {
            "JOB_COMPLETION_INDEX": "0",
            "HOSTNAME": "sweep-0",
            "MASTER_ADDR": "bert-master-0",
            "K_MPI_JOB_ROLE": "worker",
        },
        {},
        ("pod", "mallory", "pod"),
    ),
    (
        "a controller that nobody knows",
        "thing-abc",
        {"THING_NAME": "thing"},
        {"thing.example.com/name": "thing"},
        ("pod", "thing-abc", "pod"),
    ),
    (
        "declared in a pod",
        "bert-worker-1",
        kubeflow("bert") | {"GPUGAUGE_JOB": "night"},
        {},
        ("declared", "1000/night", "declared"),
    ),
]


def test_pods() -> None:
    found = {
        what: resolve(JobFacts(environment, user="1000", host=HOST, pod_uid="uid", pod=Pod("ml", pod, "uid", labels)))
        for what, pod, environment, labels, _ in PODS
    }

    assert found == {what: Job(kind, name, "ml", source) for what, *_, (kind, name, source) in PODS}


def test_a_pod_whose_names_are_not_known_is_its_uid() -> None:
    """Without the namespace, the name of the controller could be that of another one."""
    assert resolve(JobFacts(kubeflow("bert"), host=HOST, pod_uid="uid")) == Job("pod", "uid", "", "unknown")


HOSTS: list[tuple[str, JobFacts, tuple[str, str, str]]] = [
    ("Slurm", JobFacts({"SLURM_JOB_ID": "71"}, slurm_job="71"), ("slurm", "71", "slurm")),
    (
        "Slurm, task of an array",
        JobFacts(
            {"SLURM_JOB_ID": "71", "SLURM_ARRAY_JOB_ID": "64", "SLURM_ARRAY_TASK_ID": "7"}, user="ann", slurm_job="71"
        ),
        ("slurm", "71", "slurm"),
    ),
    (
        "Slurm, part of a heterogeneous job",
        JobFacts({"SLURM_JOB_ID": "71", "SLURM_JOB_ID_HET_GROUP_0": "71"}, user="ann", slurm_job="72"),
        ("slurm", "ann/71", "slurm"),
    ),
    (
        "Slurm, leader of a heterogeneous job before 20.02",
        JobFacts({"SLURM_JOB_ID": "71", "SLURM_JOB_ID_PACK_GROUP_0": "71"}, user="ann", slurm_job="71"),
        ("slurm", "ann/71", "slurm"),
    ),
    (
        "Slurm, submitted from within a heterogeneous job",
        JobFacts({"SLURM_JOB_ID": "90", "SLURM_JOB_ID_HET_GROUP_0": "71"}, user="ann", slurm_job="90"),
        ("slurm", "90", "slurm"),
    ),
    ("Slurm without cgroups", JobFacts({"SLURM_JOB_ID": "71"}, user="ann"), ("slurm", "ann/71", "environment")),
    (
        "Slurm without cgroups, task of an array",
        JobFacts({"SLURM_JOB_ID": "71", "SLURM_ARRAY_JOB_ID": "64", "SLURM_ARRAY_TASK_ID": "7"}, user="ann"),
        ("slurm", "ann/71", "environment"),
    ),
    (
        "Slurm, the environment of another job",
        JobFacts({"SLURM_JOB_ID": "9", "SLURM_ARRAY_JOB_ID": "8", "SLURM_ARRAY_TASK_ID": "1"}, slurm_job="71"),
        ("slurm", "71", "slurm"),
    ),
    ("Slurm, the name of a display server", JobFacts({}, slurm_job="71", display=True), ("slurm", "71", "slurm")),
    ("Slurm in a container", JobFacts({}, slurm_job="71", container_id=ID), ("slurm", "71", "slurm")),
    (
        "declared in Slurm",
        JobFacts({"GPUGAUGE_JOB": " night "}, user="ann", slurm_job="71"),
        ("declared", "ann/night", "declared"),
    ),
    (
        "torchrun on two hosts",
        JobFacts(torchrun("gpu07.example.com", run="exp"), user="ann", host=HOST, launch="torchrun-1"),
        ("distributed", "ann/exp@gpu07.example.com:29500", "rendezvous"),
    ),
    (
        "torchrun on two hosts without an id",
        JobFacts(torchrun("10.0.0.7", port=4711), user="ann", host=HOST, launch="torchrun-1"),
        ("distributed", "ann/10.0.0.7:4711", "rendezvous"),
    ),
    (
        "torchrun on one host",
        JobFacts(torchrun("gpu07", world=8, run="exp"), user="ann", host=HOST, launch="torchrun-1"),
        ("launch", f"{HOST}/ann/torchrun-1", "ancestry"),
    ),
    (
        "one rank on each host, without a launcher",
        JobFacts(
            {"MASTER_ADDR": "gpu07", "MASTER_PORT": "29500", "WORLD_SIZE": "2", "RANK": "1"}, user="bob", host=HOST
        ),
        ("distributed", "bob/gpu07:29500", "rendezvous"),
    ),
    (
        "Lightning on two hosts",
        JobFacts({"MASTER_ADDR": "gpu07", "MASTER_PORT": "29500", "NNODES": "2"}, user="ann", host=HOST),
        ("distributed", "ann/gpu07:29500", "rendezvous"),
    ),
    *(
        (
            f"several ranks that meet at {master}",
            JobFacts(
                {"MASTER_ADDR": master, "MASTER_PORT": "29500", "WORLD_SIZE": "8"}, user="ann", host=HOST, launch="a-1"
            ),
            ("launch", f"{HOST}/ann/a-1", "ancestry"),
        )
        for master in ("localhost", "127.0.0.1", "127.1.2.3", "::1", "0.0.0.0", "localhost.localdomain", "")
    ),
    (
        "variables of a shell profile",
        JobFacts({"MASTER_ADDR": "10.0.0.7", "MASTER_PORT": "29500"}, user="ann", host=HOST, launch="a-1"),
        ("launch", f"{HOST}/ann/a-1", "ancestry"),
    ),
    (
        "services of a Compose project that meet",
        JobFacts(torchrun("trainer-0"), user="root", host=HOST, container_id=ID, host_network=False),
        ("distributed", f"{HOST}/root/trainer-0:29500", "rendezvous"),
    ),
    (
        "Open MPI 4",
        JobFacts(
            {"OMPI_COMM_WORLD_SIZE": "8", "OMPI_MCA_orte_hnp_uri": "153157632.0;tcp://10.0.0.7,192.168.1.7:34911"},
            user="ann",
        ),
        ("mpi", "ann/153157632@10.0.0.7:34911", "rendezvous"),
    ),
    (
        "Open MPI 5",
        JobFacts({"OMPI_COMM_WORLD_SIZE": "8", "PMIX_NAMESPACE": "prterun-gpu07-4711@1"}, user="ann"),
        ("mpi", "ann/gpu07-4711@1", "rendezvous"),
    ),
    (
        "Ray",
        JobFacts(
            {"RAY_JOB_ID": "02000000"}, user="root", raylet="session_2026-01-02_03-04-05_678901_23", container_id=ID
        ),
        ("ray", "root/session_2026-01-02_03-04-05_678901_23/02000000", "ancestry"),
    ),
    (
        "Compose",
        JobFacts(host=HOST, container_id=ID, compose="shop/trainer"),
        ("compose", f"{HOST}/shop/trainer", "cgroup"),
    ),
    ("Docker", JobFacts(host=HOST, container_id=ID), ("container", f"{HOST}/{ID[:12]}", "cgroup")),
    (
        "Podman without root",
        JobFacts(host=HOST, user="ann", container_id=ID, rootless=True),
        ("container", f"{HOST}/ann/{ID[:12]}", "cgroup"),
    ),
    (
        "a service",
        JobFacts(host=HOST, user="ann", unit="train.service"),
        ("unit", f"{HOST}/ann/train.service", "cgroup"),
    ),
    *(
        (
            f"{unit} starts it",
            JobFacts(host=HOST, user="ann", unit=unit, launch="a-1"),
            ("launch", f"{HOST}/ann/a-1", "ancestry"),
        )
        for unit in ("cron.service", "ssh.service", "slurmd.service", "jupyterhub.service", "ssh@7.service")
    ),
    (
        "a launch",
        JobFacts(host=HOST, user="ann", launch="train.py-1"),
        ("launch", f"{HOST}/ann/train.py-1", "ancestry"),
    ),
    ("Xorg", JobFacts(host=HOST, user="root", unit="gdm.service", launch="Xorg-1", display=True), ("", "", "")),
    ("nothing is known", JobFacts(host=HOST), ("", "", "")),
]


def test_hosts() -> None:
    found = {what: resolve(facts) for what, facts, _ in HOSTS}

    assert found == {what: Job(kind, name, "", source) for what, _, (kind, name, source) in HOSTS}


def test_kinds_and_sources_are_closed_and_all_tested() -> None:
    rows = [*(row[-1] for row in PODS), *(row[-1] for row in HOSTS)]
    expected = {(kind, source) for kind, _, source in rows} - {("", "")}

    assert {kind for kind, _ in expected} == set(KINDS) - {"tfjob", "jaxjob", "paddlejob", "xgboostjob"}
    # `metadata`, `hook` and `unknown` replace other sources, see below.
    assert {source for _, source in expected} == set(SOURCES) - {"metadata", "hook", "unknown"}


@pytest.mark.parametrize(
    "kind", [kind for kind in CONTROLLERS if kind in {"tfjob", "jaxjob", "paddlejob", "xgboostjob"}]
)
def test_the_other_kinds_of_the_training_operator(kind: str) -> None:
    operator = {"training.kubeflow.org/operator-name": f"{kind}-controller", "training.kubeflow.org/job-name": "a"}
    pod = Pod("ml", "a-worker-0", "uid", operator)

    assert resolve(JobFacts(pod=pod, pod_uid="uid")) == Job(kind, "a", "ml", "downward_api")
    # The cluster knows the owner, and labels alone prove nothing.
    listed = replace(pod, source="metadata")
    assert resolve(JobFacts(pod=listed, pod_uid="uid")) == Job("pod", "a-worker-0", "ml", "pod")


@pytest.mark.parametrize(
    ("pod", "environment", "expected"),
    [
        (None, {"GPUGAUGE_JOB": "night"}, Job("declared", "1000/night", "", "hook")),
        (None, torchrun("gpu07"), Job("distributed", "1000/gpu07:29500", "", "hook")),
        (Pod("ml", "bert-worker-1"), kubeflow("bert"), Job("pytorchjob", "bert", "ml", "hook")),
        (Pod("ml", "a-0", "", {"job-name": "a"}), kubeflow("b"), Job("job", "a", "ml", "downward_api")),
        (Pod("ml", "a-0"), {}, Job("pod", "a-0", "ml", "pod")),
    ],
)
def test_the_word_of_the_hook_is_marked(pod: Pod | None, environment: Environment, expected: Job) -> None:
    assert resolve(JobFacts(environment, claimed=True, user="1000", host=HOST, pod=pod)) == expected


def test_the_same_work_on_two_hosts_is_two_jobs() -> None:
    facts = [
        {"container_id": ID},
        {"container_id": ID, "compose": "shop/trainer"},
        {"unit": "train.service"},
        {"launch": "train.py-1"},
        {"container_id": ID, "host_network": False, "environment": torchrun("trainer-0")},
    ]
    for each in facts:
        here, there = (resolve(JobFacts(host=host, user="ann", **each)) for host in (HOST, OTHER))  # type: ignore[arg-type]  # fields by name
        assert here.kind == there.kind
        assert here.name != there.name


def test_names_are_bounded_and_stay_different() -> None:
    first, second = ("x" * 200 + end for end in "ab")

    assert bounded(first) != bounded(second)
    assert len(bounded("ä" * 100).encode()) <= MAX_NAME_BYTES
    assert bounded("x" * MAX_NAME_BYTES) == "x" * MAX_NAME_BYTES
    declared = resolve(JobFacts({"GPUGAUGE_JOB": "a\nb\x1b[2J" + "x" * 300}, user="ann"))
    assert declared.name.isprintable()
    assert len(declared.name.encode()) <= MAX_NAME_BYTES
