"""The firing alerts as deploy/prometheus/alertmanager.yaml notifies about them: inhibited and grouped."""

from __future__ import annotations

from typing import NamedTuple

from gpugauge.faults.table import FAULTS
from grafana.build.common import alerts
from grafana.build.jobs import JOB_LABELS
from grafana.build.panels import Query, Steps
from grafana.build.queries import CLOCK, CLUSTER, COUNT, Expr, braced, keys
from grafana.build.words import RULES, or_reason

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
    Inhibition("TrainingOutOfMemory", f"Training(Stalled|RankBehind|OnCpu)|GpuHeldIdle|{_LOW}", _JOB),
    Inhibition("TrainingRankBehind", "TrainingStalled", _JOB),
    Inhibition("TrainingStalled|TrainingRankBehind", f"TrainingOnCpu|GpuHeldIdle|{_LOW}", _JOB),
    Inhibition("TrainingOnCpu|GpuHeldIdle", _LOW, _JOB),
    Inhibition("TrainingLoadVeryLow", "TrainingLoadLow", _JOB),
    Inhibition(_LOW, "AllocatedGpuUnused|TorchCpuBuildBusy", _JOB),
    Inhibition("TrainingLimitedBy.*", "TrainingLoadLow", _JOB),
)
# By severity: its rank, the value of the series below, and its colour.
SEVERITIES = {"critical": (3, "red"), "warning": (2, "orange"), "info": (1, "blue")}
LABELS = ("alertname", *JOB_LABELS, "workload_pod", "instance", "uuid", "index")


def notifications(about: Expr | None = None) -> Expr:
    """Return a series for each notification: its most severe alert, with the rank of the severity as value; of those
    `about` something, that one of these.
    """

    # Without the chosen clusters, which those that are told have: their names are in the query a few times only.
    def fires(names: str) -> str:
        return f'ALERTS{{alertstate="firing",alertname=~"{names}"}}'

    inhibited = "\n    or ".join(
        f"{fires(rule.target)} and on ({rule.equal}) {fires(rule.source)}" for rule in INHIBITIONS
    )
    ranked = "\n    or ".join(f"{rank} * {alerts(severity=severity)}" for severity, (rank, _) in SEVERITIES.items())
    told = f"(\n    {ranked}\n  ) unless (\n    {inhibited}\n  )"
    told = f"({told}) and on ({', '.join(LABELS)}) ({about})" if about else told
    # A notification is about the alerts of one name and job, or about all alerts of a GPU of one receiver.
    named = f'label_replace({told}, "group", "$1", "alertname", "(.*)")'
    keyed = f'label_join({named}, "key", " ", "severity", "instance", "uuid")'
    grouped = f'label_replace({keyed}, "group", "$1", "key", "(critical [^ ]+ [^ ]+)")'
    grouped = f'label_replace({grouped}, "group", "$1", "key", "(?:warning|info) ([^ ]+ [^ ]+)")'
    return Expr(f"max by ({', '.join(LABELS)}) (topk by (group, {_JOB}) (1, {grouped}))", COUNT)


def named(about: Expr, *others: tuple[str, str]) -> Query:
    """Return the names of the alerts of which people are notified, of those `about` something; `others` are texts in
    their place, with the series that they are for.
    """
    known = f"max by (alertname) ({notifications(about)})"
    texts = "".join(
        f'\nor on () label_replace(0 * count ({when}) - {missing}, "alertname", "{text}", "", "")'
        for text, when, missing in (*((text, when, 1) for text, when in others), ("none", RULES, 0))
    )
    unless = f" unless on () ({others[0][1]})" if others else ""
    return Query(or_reason(Expr(f"({known}{unless}){texts}", COUNT), "alertname"), "{{alertname}}")


STEPS: Steps = ((None, "text"), (0, "green"), *((rank, color) for rank, color in sorted(SEVERITIES.values())))


def since() -> Expr:
    """Return since when the most severe alert of each notification fires."""
    labels = ", ".join(LABELS)
    begin = f"min by ({labels}) (ALERTS_FOR_STATE{braced({CLUSTER: f'~${CLUSTER}'})})"
    return Expr(f"({begin}\nand on ({labels}) ({notifications()})) * 1000", CLOCK)
