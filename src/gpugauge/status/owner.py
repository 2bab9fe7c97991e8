"""The names by which people recognize a process and its owner."""

from __future__ import annotations

from collections.abc import Mapping

from gpugauge.status.model import GpuStatus, MigStatus, ProcessStatus
from gpugauge.workload import job as jobs

_UNNAMED_JOBS = frozenset({"", "pod", "container", "launch"})  # said by the names of pod, container and user


def job_words(workload: Mapping[str, str]) -> str:
    """Return the job of a workload with its kind; "" without a job, or if it is only a launch, a pod or a container."""
    kind, job = workload.get("job_kind", ""), workload.get("job", "")
    if not job and workload.get("kind") == "slurm":
        kind, job = "slurm", workload.get("job_id", "")
    return "" if not job or kind in _UNNAMED_JOBS else jobs.job_words(kind, job)


def pod_words(workload: Mapping[str, str]) -> str:
    """Return the pod of a workload by its name, or by its uid while that is not known; "" without one."""
    uid = workload.get("job_id", "") if workload.get("kind") == "pod" else ""
    pod = "/".join(workload[key] for key in ("namespace", "pod") if workload.get(key)) or uid
    return jobs.job_words("pod", pod) if pod else ""


def manager(workload: Mapping[str, str]) -> str:
    """Return the kind of what starts and ends a workload."""
    return "slurm" if workload.get("job_kind") == "slurm" else workload.get("kind", "")


def owner_words(workload: Mapping[str, str]) -> str:
    """Return the owner of a process with what each part is, as "pod ml/trainer-0, Slurm job 7, user ann"."""
    container = f"container {workload['container']}" if workload.get("container") else ""
    unit = f"unit {workload['job_id']}" if workload.get("kind") == "systemd" and workload.get("job_id") else ""
    user = f"user {workload['user']}" if workload.get("user") else ""
    return ", ".join(filter(None, (pod_words(workload) or container, job_words(workload) or unit, user)))


def holders(device: GpuStatus | MigStatus) -> str:
    """Return the owners to whom a device is allocated, "" without any that is known."""
    return ", ".join(filter(None, map(owner_words, device.allocated_to)))


def job_key(workload: Mapping[str, str]) -> tuple[str, ...]:
    """Return what distinguishes the jobs of the processes of one program."""
    job = workload.get("job") or workload.get("job_id") or ""
    return workload.get("namespace") or "", workload.get("job_kind") or "", job, workload.get("user") or ""


def names(process: ProcessStatus) -> set[str]:
    """Return what a user may call a process or its job: what any view or alert prints of it, and the labels."""
    workload = {key: value for key, value in process.workload.items() if key != "user"}
    kind, namespace, job = (workload.get(key, "") for key in ("job_kind", "namespace", "job"))
    known = {process.process, str(process.pid), process.command}
    known |= {workload.get(key) for key in ("job_id", "run_id", "pod", "container")}
    known |= {pod_words(workload), job_words(workload), owner_words(workload), owner_words(process.workload)}
    return set(filter(None, known)) | (jobs.called(kind, namespace, job) if job else set())


def name(process: ProcessStatus) -> str:
    """Return the command of a process; if it is unknown, its owner or its pid."""
    pid = "a process" if process.pid is None else f"pid {process.pid}"
    return process.command or owner_words(process.workload) or pid


def who(process: ProcessStatus, *more: str) -> str:
    """Return a process with its pid and its owner, as "train.py (pid 7, user ann)"."""
    pid = f"pid {process.pid}" if process.pid is not None else ""
    known = ", ".join(filter(None, (*((pid, owner_words(process.workload)) if process.command else ()), *more)))
    return name(process) + (f" ({known})" if known else "")
