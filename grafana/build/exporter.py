"""The dashboard of the exporters: whether they work, whether they are scraped, and what they cost."""

from __future__ import annotations

from grafana.build import common, gpus, words
from grafana.build.layout import Json, Panel, Row
from grafana.build.panels import BAD, Column, Query, dropped, stat, table, timeseries
from grafana.build.queries import COUNT, SHARE, Expr, Scope, keys

_S = Scope({"job": "~$job", "instance": "~$instance"}, many=True)
_AGE = ((None, "green"), (30, "orange"), (120, "red"))
_ALERTS = "(Driver|Exporter|Attribution).*"


def dashboard() -> Json:
    """Return the dashboard."""
    return common.make_dashboard(
        common.EXPORTER,
        "gpugauge / Exporter",
        "The exporters themselves: whether they read the GPUs, whether they are scraped, and what they cost.",
        [*common.exporters(), common.gone(Scope({"job": "~$job"})), common.node()],
        [
            Row("", [*_now(), common.not_seen("What is wrong", _S, width=12, height=7), _alerting(), _exporters()]),
            Row("All exporters", _all()),
        ],
        common.alerts(instance="~$instance", alertname=f"~{_ALERTS}"),
    )


def _now() -> list[Panel]:
    def count(title: str, text: str, expr: Expr, **options: object) -> Panel:
        known = expr.then(f"{{}} or 0 * count ({_S.scraped('up')} or {_S.select('gpugauge_build_info')})")
        return stat(title, text, Query(words.coded(known)), **options)  # type: ignore[arg-type]  # the options are those of the panel

    broken = Expr(
        f"sum (1 - {_S.select('gpugauge_collector_success')}) + sum ({_S.select('gpugauge_worker_unkillable')}) "
        f"+ sum (1 - {_S.select('gpugauge_config_last_reload_successful')})",
        COUNT,
    )
    return [
        count("Scraped", "Exporters that Prometheus scrapes now.", _S.scraped("up").by()),
        count(
            "Not scraped",
            "Exporters that Prometheus cannot scrape. There is no data about their nodes.",
            _S.scraped("up").then("sum (1 - {})"),
            steps=BAD,
        ),
        count(
            "Blind",
            "Exporters whose driver does not answer. Those that released it on request, or have none, do not count.",
            _S.read("gpugauge_driver_up", reason="!~released|off").then("sum (1 - {})"),
            steps=BAD,
        ),
        count(
            "Failing parts",
            "Collectors whose last run failed, workers that hang inside the kernel and cannot be ended, and exporters "
            "that rejected a reload of their settings and kept the old ones. The log has the reason.",
            broken,
            steps=BAD,
        ),
        stat(
            "Oldest values",
            "Age of the oldest snapshot. If it is more than a scrape interval and a few seconds, an exporter answers "
            "but publishes no new values.",
            Query(words.coded(_S.age("gpugauge_snapshot_timestamp_seconds").by(operator="max"))),
            steps=_AGE,
        ),
        count("Processes connected", "Processes that report through the hook.", _S.read("gpugauge_hook_sessions").by()),
    ]


def _alerting() -> Panel:
    fires = common.with_chapter(common.alerts(instance="~$instance", alertname=f"~{_ALERTS}"), "alertname")
    labels = keys("instance", "alertname", "severity", "chapter")
    return table(
        "Alerts about exporters",
        "Those that fire. Alert opens the chapter of the runbook.",
        Column("Node", "instance", size=150),
        Column("Alert", "alertname", link=common.TO_RUNBOOK),
        Column("Severity", "severity", names={"critical": ("", "red"), "warning": ("", "orange")}, size=90),
        common.CHAPTER_COLUMN,
        *dropped(words.or_reason(fires.by(labels, operator="max"), "alertname")),
        width=12,
        height=7,
        empty_text="no alert about an exporter fires",
    )


def _exporters() -> Panel:
    labels = ("version", "driver_version", "simulated")

    def worst(expr: Expr, *more: str) -> Expr:
        return expr.by(keys("instance", *more), operator="max")

    cpus = _S.rate("gpugauge_cpu_seconds_total").by(gpus.NODE_KEY).with_unit(SHARE)

    # Not of an exporter that is not seen.
    now = f"{{}}\nand on ({gpus.NODE_KEY}) {_S.select('gpugauge_build_info')}"
    restarts = _S.increase("gpugauge_worker_restarts_total", "1h").then(now)

    def resident(part: str) -> Expr:
        return worst(_S.read("gpugauge_resident_memory_bytes", part=part))

    return table(
        "Exporters",
        "Versions and cost: restarts of the worker in an hour, CPU time of both as a share of a core, and the memory "
        "of daemon and worker. Values of simulated exporters are not of real GPUs. Node opens the node.",
        Column("Node", "instance", link=common.TO_NODE),
        Column("Age of values", worst(_S.age("gpugauge_snapshot_timestamp_seconds")), steps=_AGE),
        Column("Restarts", worst(restarts), decimals=0),
        Column("CPU", cpus, decimals=1),
        Column("Daemon", resident("daemon")),
        Column("Worker", resident("worker")),
        Column("Version", "version"),
        Column("Driver", "driver_version"),
        Column("Simulated", "simulated", names={"true": ("yes", "orange"), "false": ("no", "")}),
        *dropped(common.with_cluster_choice(worst(_S.read("gpugauge_build_info"), *labels))),
        sort="Age of values",
        height=9,
        empty_text="no exporter is scraped",
    )


def _all() -> list[Panel]:
    def both(title: str, text: str, expr: Expr) -> Panel:
        worst, middle = expr.by(operator="max"), expr.then("quantile (0.5, {})")
        lines = Query(worst, "largest"), Query(middle, "median")
        return timeseries(title, text, *lines, width=12, empty_text="no exporter is scraped")

    return [
        both(
            "Age of the values",
            "Age of the last snapshot. It rises between two scrapes and falls with each.",
            _S.age("gpugauge_snapshot_timestamp_seconds"),
        ),
        both(
            "Duration of a scrape",
            "As Prometheus measures it. A scrape returns a body that was rendered before, so a slow one is due to the "
            "network or the host.",
            _S.scraped("scrape_duration_seconds"),
        ),
    ]
