"""The words that stories are told in."""

from __future__ import annotations

from bench.alerts.record import Planned
from bench.alerts.story import Tell
from gpugauge.artifacts.rules.jobs import alert_of_cause

ALWAYS = 10_000  # minutes: until the end
_LOAD = r"TrainingLoad(Very)?Low"


def slurm(job: int) -> str:
    """The cgroup of a process of a Slurm job."""
    return f"/system.slice/slurmstepd.scope/job_{job}/step_0/user/task_0"


def training(pid: int, gpus: str, job: int, pipeline: str = "{}", **more: object) -> str:
    """A line of a scenario: a training that began long ago, unless `start` says otherwise."""
    told = {"start": -7200, "memory": "20GiB", **more}
    rest = ", ".join(f"{key}: {value}" for key, value in told.items())
    return f"  - {{pid: {pid}, gpus: {gpus}, cgroup: {slurm(job)}, pipeline: {pipeline}, {rest}}}\n"


def other(pid: int, gpus: str, job: int, load: object = 0, **more: object) -> str:
    """A line of a scenario: a process that is no training, or one without the hook."""
    told = {"start": -7200, "memory": "20GiB", **more}
    rest = ", ".join(f"{key}: {value}" for key, value in told.items())
    return f"  - {{pid: {pid}, gpus: {gpus}, cgroup: {slurm(job)}, load: {load}, {rest}}}\n"


def machine(*lines: str, count: int = 1, model: str = "h100", faults: str = "", gpus: str = "") -> str:
    """A scenario."""
    devices = gpus or f"{{model: {model}, count: {count}}}"
    text = f"gpus: {devices}\n" + ("processes:\n" + "".join(lines) if lines else "")
    return text + (f"faults:\n{faults}" if faults else "")


def about(job: int) -> dict[str, str]:
    return {"workload_job_id": str(job)}


def low(
    job: int, *causes: str, since: int = 0, until: int = ALWAYS, best: bool = True, also: tuple[str, ...] = ()
) -> Tell:
    """Somebody should be told of a low load; of `causes` each is right to name, and `best` wants the first named."""
    names = tuple(map(alert_of_cause, causes))
    return Tell(
        who=about(job),
        kind="load",
        alerts=(_LOAD, *names, *also),
        best=names[0] if best and names else "",
        since=since,
        until=until,
    )


def tell(
    who: dict[str, str], kind: str, *alerts: str, since: int = 0, until: int = ALWAYS, required: bool = True
) -> Tell:
    return Tell.model_validate(
        {"who": who, "kind": kind, "alerts": alerts, "since": since, "until": until, "required": required}
    )


def one_training(name: str, what: str, pipeline: str, *tells: object, more: str = "", **planned: object) -> Planned:
    """One training on one GPU."""
    text = machine(training(100, "[0]", 501, pipeline), more)
    return Planned(name, what, {"node-1": text}, tells=tells, **planned)  # type: ignore[arg-type]  # passed through
