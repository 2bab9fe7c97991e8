"""The dashboard of the exporters: whether they work, whether they are scraped, and what they cost."""

from __future__ import annotations

from functools import partial

from grafana.build.common import (
    CLUSTER_CHOICE,
    EXPORTER,
    NODE,
    Variable,
    alerts,
    exporters,
    link,
    make_dashboard,
    node,
    with_cluster_choice,
)
from grafana.build.exporter_detail import collection, cost, driver
from grafana.build.fleet_nodes import EXPORTER as UP
from grafana.build.layout import Json, Panel, Row
from grafana.build.panels import BAD, GOOD, Query, stat, timeseries
from grafana.build.queries import CLUSTER, COUNT, Expr, Scope, keys
from grafana.build.tables import Column, dropped, table

_S = Scope({"job": "~$job", "instance": "~$instance"})
_ANSWERS = {"0": "no", "1": "yes"}
_AGE = ((None, "green"), (30, "orange"), (120, "red"))
_graph = partial(timeseries, empty_text="no exporter is scraped")


def dashboard() -> Json:
    """Return the dashboard."""
    known = f'label_values(gpugauge_build_info{{{CLUSTER}=~"${CLUSTER}",job=~"$job",instance=~"$instance"}}, instance)'
    variables = [
        *exporters(),
        node(),
        Variable("detail", "Exporter in detail", known, multi=False, include_all=False),
    ]
    return make_dashboard(
        EXPORTER,
        "gpugauge / Exporter",
        "The exporters themselves: whether they read the GPUs, whether they are scraped, and what they cost.",
        variables,
        [
            Row("", [*_now(), _exporters()]),
            Row("All exporters", _all(), collapsed=True),
            Row("Collection of $detail", collection(), collapsed=True),
            Row("Cost of $detail", cost(), collapsed=True),
            Row("Driver and hook of $detail", driver(), collapsed=True),
        ],
        alerts(instance="~$instance", alertname="~(Driver|Exporter).*"),
    )


def _counted(expr: Expr) -> Expr:
    """Return a count, and a key of missing.TEXTS if no exporter is scraped."""
    return expr.then(f"{{}} or 0 * count ({_S.select('gpugauge_build_info')}) or vector(-2)")


def _now() -> list[Panel]:
    blind = _S.read("gpugauge_driver_up", reason="!released").then("sum (1 - {})")
    failing = _S.read("gpugauge_collector_success").then("sum (1 - {})")
    refused = _S.read("gpugauge_config_last_reload_successful").then("sum (1 - {})")
    return [
        stat("Scraped", "Exporters that Prometheus scrapes now.", Query(_counted(_S.scraped("up").by())), width=3),
        stat(
            "Not scraped",
            "Exporters that Prometheus cannot scrape. There is no data about their nodes.",
            Query(_counted(_S.scraped("up").then("sum (1 - {})"))),
            width=3,
            steps=BAD,
        ),
        stat(
            "Blind",
            "Exporters whose driver does not answer; the reason is in the table. Exporters that released the driver "
            "on request are not counted.",
            Query(_counted(blind)),
            width=3,
            steps=BAD,
        ),
        stat(
            "Released",
            "Exporters that released the driver on request, for a reset or an update. They attach again by themselves.",
            Query(_counted(_S.read("gpugauge_driver_released").by())),
            width=3,
        ),
        stat(
            "Oldest values",
            "Age of the oldest snapshot. If it is more than a scrape interval and a few seconds, an exporter answers "
            "but publishes no new values.",
            Query(_S.age("gpugauge_snapshot_timestamp_seconds").by(operator="max")),
            width=3,
            steps=_AGE,
            empty_text="no data",
        ),
        stat(
            "Failing collectors",
            "Collectors whose last run failed. Their metrics are absent; the reason is in the log.",
            Query(_counted(failing)),
            width=3,
            steps=BAD,
        ),
        stat(
            "Stuck workers",
            "Former workers that hang inside the kernel and that no signal can end. The node needs a reboot.",
            Query(_counted(_S.read("gpugauge_worker_unkillable").by())),
            width=3,
            steps=BAD,
        ),
        stat(
            "Settings refused",
            "Exporters that rejected a reload of their settings and kept the old ones. The log has file and line.",
            Query(_counted(refused)),
            width=3,
            steps=BAD,
        ),
    ]


def _exporters() -> Panel:
    labels = ("version", "driver_version", "python", "simulated")

    def worst(expr: Expr, *more: str) -> Expr:
        return with_cluster_choice(expr.by(keys("instance", *more), operator="max"))

    cpus = _S.rate("gpugauge_cpu_seconds_total").by(keys("instance")).with_unit(COUNT)
    memory = _S.read("gpugauge_resident_memory_bytes").by(keys("instance"))
    return table(
        "Exporters",
        "Versions, cost, and whether the driver answers. The reason is `ok`, the name of the failure, or `released`. "
        "Values of simulated exporters are not of real GPUs. Node opens the node.",
        Column("Node", "instance", link=link("Open the node", NODE, instance="Node")),
        Column("Exporter", worst(_S.scraped("up")), steps=GOOD, texts=UP, size=80),
        Column("Driver answers", worst(_S.read("gpugauge_driver_up"), "reason"), steps=GOOD, texts=_ANSWERS),
        Column("Why", "reason"),
        Column("Age of values", worst(_S.age("gpugauge_snapshot_timestamp_seconds")), steps=_AGE),
        Column("Worker restarts", worst(_S.increase("gpugauge_worker_restarts_total", "1h"))),
        Column("CPUs", with_cluster_choice(cpus)),
        Column("Memory", with_cluster_choice(memory)),
        Column("Version", "version"),
        Column("Driver", "driver_version"),
        Column("Python", "python"),
        Column("Simulated", "simulated"),
        Column(CLUSTER_CHOICE, CLUSTER_CHOICE, hidden=True),
        *dropped(CLUSTER, worst(_S.read("gpugauge_build_info"), *labels)),
        sort="Driver answers",
        ascending=True,
        height=11,
        empty_text="no exporter is scraped",
    )


def _all() -> list[Panel]:
    def both(title: str, text: str, expr: Expr) -> Panel:
        worst, middle = expr.by(operator="max"), expr.then("quantile (0.5, {})")
        return _graph(title, text, Query(worst, "largest"), Query(middle, "median"), width=8)

    return [
        both(
            "Age of the values, all exporters",
            "Age of the last snapshot. It rises between two scrapes and falls with each.",
            _S.age("gpugauge_snapshot_timestamp_seconds"),
        ),
        both(
            "Duration of a scrape, all exporters",
            "As Prometheus measures it. A scrape returns a body that was rendered before, so a slow one is due to the "
            "network or the host.",
            _S.scraped("scrape_duration_seconds"),
        ),
        both(
            "Samples in a scrape, all exporters",
            "The number grows with GPUs and processes. Limit it with process.max_per_device and the choice of "
            "collectors (docs/settings.md).",
            _S.scraped("scrape_samples_scraped"),
        ),
        _graph(
            "Exporters that are scraped",
            "A fall is a part of the fleet that is not seen.",
            Query(_S.scraped("up").by()),
            width=8,
        ),
        both(
            "Memory of a daemon, all exporters",
            "Resident memory of the daemon.",
            _S.read("gpugauge_resident_memory_bytes", part="daemon"),
        ),
        _graph(
            "Trainings connected, all exporters",
            "Training processes that report through the hook.",
            Query(_S.read("gpugauge_hook_sessions").by()),
            width=8,
        ),
    ]
