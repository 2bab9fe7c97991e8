"""The rows of the fleet's dashboard about nodes and the health of their GPUs. They need no rules."""

from __future__ import annotations

from grafana.build.common import CLUSTER_CHOICE, NODE, link, with_cluster_choice
from grafana.build.health import faults as listed
from grafana.build.layout import Panel
from grafana.build.missing import raw_number, reason
from grafana.build.panels import BAD, GOOD, HOT, LOAD, Query, stat, status_history, timeseries
from grafana.build.queries import CLUSTER, SHARE, Expr, Scope, keys, share
from grafana.build.tables import Column, dropped, table
from grafana.build.workloads import JOB_MATCHERS

FLEET_SCOPE = Scope({"job": "~$job"}, JOB_MATCHERS)
_S = FLEET_SCOPE
_NODE, _GPU = keys("instance"), keys("instance", "uuid")
# Seconds without a new snapshot after which an exporter that is scraped counts as stuck.
_STUCK = 120
_CHOICE = Column(CLUSTER_CHOICE, CLUSTER_CHOICE, hidden=True)
_TO_NODE = link("Open the node", NODE, instance="Node")
EXPORTER = {"0": "down", "1": "up"}


def missing_data() -> Expr:
    """Return a series for each thing that is missing, with its name in the label `gap`; the value is the time at which
    the node's values were last seen, milliseconds, or 0 if that was not in the time shown.
    """
    stuck = _S.age("gpugauge_snapshot_timestamp_seconds").then(f"({{}} > {_STUCK})")
    failing = _S.read("gpugauge_collector_success").then("({} == 0)")
    blind = _S.read("gpugauge_driver_up", reason="!released").then("({} == 0)")
    released = _S.read("gpugauge_driver_released").then("({} == 1)")
    judged = _S.select("gpugauge_collector_success", collector="faults")
    unjudged = _S.read("gpu_up").then(f"({{}} unless on ({keys('instance')}) {judged})")
    gaps = (
        _gap(_S.scraped("up").then("({} == 0)"), "the node is down, or its exporter is not scraped"),
        _gap(blind, "no driver: $1", "reason"),
        _gap(released, "the driver is released on request"),
        _gap(failing, "the collector $1 fails", "collector"),
        _gap(stuck, "the exporter publishes no new values"),
        _gap(unjudged, "the exporter is too old to judge the faults of its GPUs"),
    )
    every = "\n  or ".join(gaps)
    seen = f"max by ({_NODE}) (max_over_time({_S.select('gpugauge_snapshot_timestamp_seconds')}[$__range:5m])) * 1000"
    since = f"({seen} or 0 * max by ({_NODE}) ({_S.scraped('up')}))"
    nothing = f'label_replace(vector(0) unless on () {_S.scraped("up")}, "gap", "no exporter is scraped", "", "")'
    known = f"0 * (\n  {every}\n)\n+ on ({_NODE}) group_left () {since}"
    found = Expr(f"{known}\nor {nothing}\nor {reason('gap')}", "dateTimeFromNow")
    return with_cluster_choice(found)


def _gap(expr: Expr, text: str, label: str = "") -> str:
    by = keys("instance", *([label] if label else []))
    named = f'label_replace(max by ({by}) ({expr}), "gap", "{text}", "{label}", "(.*)")'
    return f"max by ({keys('instance', 'gap')}) ({named})"


# By heading: a description, and the faults.
HEADINGS = {
    "Do not answer": (
        "The GPU is lost, its calls hang, the driver does not list it, or a part of it cannot be read.",
        "GpuLost|GpuReadingFailed",
    ),
    "Need a reset": ("The driver requests it, or faulty memory waits for it.", "GpuNeedsReset"),
    "To be replaced": ("Faulty memory could not be replaced by spare memory.", "GpuRowRemapFailed"),
    "Uncorrected ECC": ("Memory errors since the last reset that ECC could not correct.", "GpuUncorrectedEcc"),
    "Xid errors": ("Those that last until the GPU is reset or repaired.", "GpuXid(Reset|Workflow|Node)"),
    "Links": ("NVLinks with errors, and PCIe links with fewer lanes under load.", "GpuNvlinkErrors|GpuPcieDegraded"),
    "Hot or slowed": ("Nearly too hot, or with clocks lowered by heat or a power brake.", "GpuHot|GpuThrottled"),
}


def faults() -> Expr:
    """Return a series for each fault of a GPU, as its exporter judges it."""
    return _S.read("gpu_problem", severity="!info")


def nodes() -> list[Panel]:
    """Return the table of nodes, and their load over time."""

    def of_node(expr: Expr, operator: str = "max", *labels: str) -> Expr:
        return with_cluster_choice(expr.by(_NODE, *labels, operator=operator))

    memory = share(_S.read("gpu_memory_used_bytes"), _S.read("gpu_memory_total_bytes"), _NODE)
    part, whole = (_S.rate(f"gpu_{kind}_seconds_total", engine="gpu") for kind in ("busy", "observed"))
    busy = share(part, whole, _NODE)
    used = _S.read("gpu_utilization_ratio").by(_NODE, operator="avg")
    at_end = f"avg by ({_NODE}) ({_S.select('gpu_utilization_ratio')} @ end())"
    faulty = faults().by(_GPU, operator="count").by(_NODE, operator="count")
    return [
        table(
            "Nodes",
            "The values of each node now: its exporter and driver, its GPUs and those with a fault, the mean share of "
            "the time in which a kernel ran, memory, power, and the hottest GPU.",
            Column("Node", "instance", link=_TO_NODE, size=170),
            Column("Exporter", of_node(_S.scraped("up")), steps=GOOD, texts=EXPORTER, size=80),
            Column("Driver", "reason", size=110),
            Column("Age of values", of_node(_S.age("gpugauge_snapshot_timestamp_seconds")), size=110),
            Column("GPUs", of_node(_S.read("gpu_up").then("({} > bool -1)"), "sum"), size=60),
            Column("With a fault", with_cluster_choice(faulty), steps=BAD, size=100),
            Column("Busy", with_cluster_choice(busy), bar=True, size=150),
            Column("Memory", with_cluster_choice(memory), bar=True, size=150),
            Column("Power", of_node(_S.read("gpu_power_watts"), "sum"), size=90),
            Column("Hottest", of_node(_S.read("gpu_temperature_celsius", sensor="gpu")), steps=HOT, size=90),
            Column("Cluster", CLUSTER),
            Column("driver up", of_node(_S.read("gpugauge_driver_up"), "max", "reason"), hidden=True),
            _CHOICE,
            sort="Busy",
            ascending=True,
            height=9,
            empty_text="no exporter is scraped",
        ),
        status_history(
            "Busy GPUs of the least busy nodes",
            "The share of the time in which a kernel ran, mean over the GPUs of a node at each scrape, for the 30 "
            "nodes with the least at the end of the time shown. Red: idle.",
            Query(
                used.then(f"{{}}\nand on ({_NODE}) bottomk(30, {at_end})"),
                "{{instance}}",
            ),
            steps=LOAD,
            empty_text="no GPU reports its utilization (with MIG, see the node)",
        ),
    ]


def _number(problem: str) -> Expr:
    return _S.read("gpu_problem", problem=f"~{problem}").by(_GPU).by(operator="count")


def health() -> list[Panel]:
    """Return the faults of GPUs: the number of GPUs by fault, and their list."""
    return [
        *(
            stat(
                title,
                f"The number of GPUs. {text}",
                Query(raw_number(_number(found), _S, "gpu_problems")),
                width=3,
                steps=BAD,
            )
            for title, (text, found) in HEADINGS.items()
        ),
        stat("GPUs", "GPUs that answer.", Query(raw_number(_S.read("gpu_up").by(), _S)), width=3),
        table(
            "GPUs with a fault",
            "A line for each fault, as the exporter judges it. docs/runbook.md says more.",
            Column("Node", "instance", link=_TO_NODE, size=200),
            Column("GPU", "index", size=60),
            Column("Fault", "summary"),
            Column("Do this", "advice"),
            Column("uuid", "uuid"),
            _CHOICE,
            Column("count", with_cluster_choice(listed(_S)), dropped=True),
            *dropped(CLUSTER),
            sort="Node",
            ascending=True,
            empty_text="no GPU that reports has a fault",
        ),
    ]


def heat() -> list[Panel]:
    """Return memory, power and temperature of the fleet over time."""
    memory = Expr(f"sum ({_S.select('gpu_memory_used_bytes')}) / sum ({_S.select('gpu_memory_total_bytes')})", SHARE)
    temperature = _S.read("gpu_temperature_celsius", sensor="gpu")
    return [
        timeseries("Memory used", "Share of the memory of all GPUs.", Query(memory), width=8, highest=1),
        timeseries(
            "Power",
            "Board power of all GPUs. Multiply by hours and the price of energy.",
            Query(_S.read("gpu_power_watts").by()),
            width=8,
        ),
        timeseries(
            "Temperature",
            "The hottest GPU, and the median.",
            Query(temperature.by(operator="max"), "hottest"),
            Query(temperature.then("quantile (0.5, {})"), "median"),
            width=8,
            steps=HOT,
        ),
    ]
