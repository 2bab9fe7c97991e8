"""Builders for the scenarios and the expectations of stories."""

from __future__ import annotations

from gpugauge.artifacts.rules.load import alert_of_cause
from qa.bench.alerts.record import Planned
from qa.bench.alerts.story import Expectation

ALWAYS = 10_000  # minutes: until the end
_LOAD = r"TrainingLoad(Very)?Low"


def slurm(job: int) -> str:
    """Return the cgroup of a process of a Slurm job."""
    return f"/system.slice/slurmstepd.scope/job_{job}/step_0/user/task_0"


def training(pid: int, gpus: str, job: int, pipeline: str = "{}", **more: object) -> str:
    """Return the line of a training in a scenario; by default it began two hours ago."""
    keys = {"start": -7200, "memory": "20GiB", **more}
    rest = ", ".join(f"{key}: {value}" for key, value in keys.items())
    return f"  - {{pid: {pid}, gpus: {gpus}, cgroup: {slurm(job)}, pipeline: {pipeline}, {rest}}}\n"


def other(pid: int, gpus: str, job: int, load: object = 0, **more: object) -> str:
    """Return the line of a process that is no training, by default a server, or a training without the hook."""
    keys = {"start": -7200, "memory": "20GiB", "command": "vllm serve model", **more}
    rest = ", ".join(f"{key}: {value}" for key, value in keys.items())
    return f"  - {{pid: {pid}, gpus: {gpus}, cgroup: {slurm(job)}, load: {load}, {rest}}}\n"


def machine(*lines: str, count: int = 1, model: str = "h100", faults: str = "", gpus: str = "") -> str:
    """Return a scenario."""
    devices = gpus or f"{{model: {model}, count: {count}}}"
    text = f"gpus: {devices}\n" + ("processes:\n" + "".join(lines) if lines else "")
    return text + (f"faults:\n{faults}" if faults else "")


def job_labels(job: int) -> dict[str, str]:
    return {"workload_job": str(job)}


def low(
    job: int, *causes: str, since: int = 0, until: int = ALWAYS, only_first: bool = True, required: bool = True
) -> Expectation:
    """Return the expectation of the alert about a low load. With `only_first`, it must name the first cause. It is not
    `required` of a load that is exactly the default threshold.
    """
    return Expectation(
        labels=job_labels(job),
        kind="load",
        alerts=(_LOAD,),
        cause_alert=alert_of_cause(causes[0]) if only_first and causes else "",
        since=since,
        until=until,
        required=required,
    )


def expect(
    labels: dict[str, str], kind: str, *alerts: str, since: int = 0, until: int = ALWAYS, required: bool = True
) -> Expectation:
    return Expectation.model_validate(
        {"labels": labels, "kind": kind, "alerts": alerts, "since": since, "until": until, "required": required}
    )


def one_training(
    name: str, what: str, pipeline: str, *expectations: object, more: str = "", **planned: object
) -> Planned:
    """One training on one GPU."""
    text = machine(training(100, "[0]", 501, pipeline), more)
    return Planned(name, what, {"node-1": text}, expectations=expectations, **planned)  # type: ignore[arg-type]  # passed through
