"""The firing alerts as deploy/prometheus/alertmanager.yaml notifies about them: inhibited and grouped."""

from __future__ import annotations

from typing import NamedTuple

from gpugauge.faults.table import FAULTS
from grafana.build.common import JOB_LABELS, alerts
from grafana.build.queries import COUNT, Expr, keys

_LOW = "TrainingLoad(Very)?Low"
_GPU, _JOB = keys("instance", "uuid"), ", ".join(JOB_LABELS)


class Inhibition(NamedTuple):
    """Alerts that are not notified while another one with equal labels fires."""

    source: str
    target: str
    equal: str


# A test compares them with deploy/prometheus/alertmanager.yaml.
INHIBITIONS = (
    *(Inhibition(fault.name, "|".join(fault.explains), _GPU) for fault in FAULTS.values() if fault.explains),
    Inhibition("TrainingOutOfMemory", f"TrainingStalled|TrainingOnCpu|GpuHeldIdle|{_LOW}", _JOB),
    Inhibition("TrainingStalled", f"TrainingOnCpu|GpuHeldIdle|{_LOW}", _JOB),
    Inhibition("TrainingOnCpu|GpuHeldIdle", _LOW, _JOB),
    Inhibition("TrainingLoadVeryLow", "TrainingLoadLow", _JOB),
    Inhibition(_LOW, "AllocatedGpuUnused|TorchCpuBuildBusy", _JOB),
    Inhibition("TrainingLimitedBy.*|TrainingStraggler", "TrainingLoadLow", _JOB),
    Inhibition("TrainingStraggler", "TrainingLimitedByWaitingForPeers", _JOB),
)
# By severity: its rank, the value of the series below, and its colour.
SEVERITIES = {"critical": (3, "red"), "warning": (2, "orange"), "info": (1, "blue")}
_LABELS = ("alertname", *JOB_LABELS, "workload_pod", "instance", "uuid", "index")
# The labels of a notification, by the alerts that it is about: critical ones go to another receiver, the others are
# about a job, about an exporter, or about a GPU.
_BY_NAME = f"alertname, {_JOB}"
_GROUPS = (
    (_BY_NAME, ("critical",), ".*"),
    (_BY_NAME, ("warning", "info"), ""),
    (_GPU, ("warning", "info"), ".+"),
)


def notifications() -> Expr:
    """Return a series for each notification: its most severe alert, with the rank of the severity as value."""
    inhibited = "\n    or ".join(
        f"{alerts(alertname=f'~{rule.target}')} and on ({rule.equal}) {alerts(alertname=f'~{rule.source}')}"
        for rule in INHIBITIONS
    )
    groups = []
    for labels, severities, uuid in _GROUPS:
        ranked = " or ".join(
            f"{SEVERITIES[severity][0]} * {alerts(severity=severity, uuid=f'~{uuid}')}" for severity in severities
        )
        groups.append(f"topk by ({labels}) (1, (\n    {ranked}\n  ) unless (\n    {inhibited}\n  ))")
    every = "\n  or ".join(groups)
    return Expr(f"max by ({', '.join(_LABELS)}) (\n  {every}\n)", COUNT)
