"""The dashboard of the exporters: whether they work, whether they are scraped, and what they cost."""

from __future__ import annotations

from gpugauge.artifacts.dashboards.common import EXPORTER, Variable, alerts, exporter_job, make_dashboard
from gpugauge.artifacts.dashboards.panels import BAD, GOOD, Json, Panel, Query, Row, stat, timeseries
from gpugauge.artifacts.dashboards.queries import COUNT, Expr, Scope, share
from gpugauge.artifacts.dashboards.tables import Column, table

_S = Scope({"job": "~$job", "instance": "~$instance"})
_NODE = "{{instance}}"
_PART = "{{instance}} · {{part}}"
_AGE = ((None, "green"), (30, "orange"), (120, "red"))


def _worst(expr: Expr) -> Expr:
    return expr.by("instance", operator="max")


def dashboard() -> Json:
    """Return the dashboard."""
    variables = [
        exporter_job(),
        Variable("instance", "Node", 'label_values(gpugauge_build_info{job=~"$job"}, instance)'),
    ]
    return make_dashboard(
        EXPORTER,
        "gpugauge / Exporter",
        "The exporters themselves: whether they read the GPUs, whether they are scraped, and what they cost.",
        variables,
        [
            Row("Now", _now()),
            Row("Collection", _collection()),
            Row("Scrapes and cost", _cost()),
            Row("Driver and hook", _driver()),
        ],
        alerts(instance="~$instance", alertname="~(Driver|Exporter).*"),
    )


def _now() -> list[Panel]:
    blind = _S.read("gpugauge_driver_up", reason="!released").then("sum (1 - {})")
    failing = _S.read("gpugauge_collector_success").then("sum (1 - {})")
    refused = _S.read("gpugauge_config_last_reload_successful").then("sum (1 - {})")
    return [
        stat("Scraped", "Exporters that Prometheus scrapes now.", Query(_S.scraped("up").by()), width=3),
        stat(
            "Not scraped",
            "Exporters that Prometheus cannot scrape. There is no data about their nodes.",
            Query(_S.scraped("up").then("sum (1 - {})")),
            width=3,
            steps=BAD,
        ),
        stat(
            "Blind",
            "Exporters whose driver does not answer; the reason is in the table. Exporters that released the driver "
            "on request are not counted.",
            Query(blind),
            width=3,
            steps=BAD,
        ),
        stat(
            "Released",
            "Exporters that released the driver on request, for a reset or an update. They attach again by themselves.",
            Query(_S.read("gpugauge_driver_released").by()),
            width=3,
        ),
        stat(
            "Oldest values",
            "Age of the oldest snapshot. If it is more than a scrape interval and a few seconds, an exporter answers "
            "but publishes no new values.",
            Query(_S.age("gpugauge_snapshot_timestamp_seconds").by(operator="max")),
            width=3,
            steps=_AGE,
        ),
        stat(
            "Failing collectors",
            "Collectors whose last run failed. Their metrics are absent; the reason is in the log.",
            Query(failing),
            width=3,
            steps=BAD,
        ),
        stat(
            "Stuck workers",
            "Former workers that hang inside the kernel and that no signal can end. The node needs a reboot.",
            Query(_S.read("gpugauge_worker_unkillable").by()),
            width=3,
            steps=BAD,
        ),
        stat(
            "Settings refused",
            "Exporters that rejected a reload of their settings and kept the old ones. The log has file and line.",
            Query(refused),
            width=3,
            steps=BAD,
        ),
        table(
            "Exporters",
            "Versions, and whether the driver answers. The reason is `ok`, the name of the failure, or `released`. "
            "Values of simulated exporters are not of real GPUs.",
            Column("Node", "instance"),
            Column(
                "Driver answers", _S.read("gpugauge_driver_up").by("instance", "reason", operator="max"), steps=GOOD
            ),
            Column("Why", "reason"),
            Column("Age of values", _worst(_S.age("gpugauge_snapshot_timestamp_seconds")), steps=_AGE),
            Column("Worker restarts", _worst(_S.increase("gpugauge_worker_restarts_total"))),
            Column("Version", "version"),
            Column("Driver", "driver_version"),
            Column("Python", "python"),
            Column("Simulated", "simulated"),
            Column(
                "",
                _S.read("gpugauge_build_info").by(
                    "instance", "version", "driver_version", "python", "simulated", operator="max"
                ),
                hidden=True,
            ),
        ),
    ]


def _collection() -> list[Panel]:
    unobserved, observed = (_S.rate(f"gpu_{kind}_seconds_total", engine="gpu") for kind in ("unobserved", "observed"))
    both = Expr(f"({unobserved} + {observed})", unobserved.unit)
    last = _S.age("gpugauge_collector_last_success_timestamp_seconds")
    return [
        timeseries(
            "Age of the values",
            "Age of the last snapshot, in seconds. It rises between two scrapes and falls with each.",
            Query(_worst(_S.age("gpugauge_snapshot_timestamp_seconds")), _NODE),
        ),
        timeseries(
            "Unobserved time of the GPUs",
            "Share of the time without samples, because samples were overwritten or a GPU did not answer. "
            "Above a few percent, the node is too busy or the driver is slow.",
            Query(share(unobserved, both, "instance"), _NODE),
            highest=1,
        ),
        timeseries(
            "Time since the last successful run, by collector",
            "A collector whose line rises fails; the reason is in the log.",
            Query(last.by("collector", operator="max"), "{{collector}}"),
        ),
        timeseries(
            "Duration of a run, by collector",
            "The longest among the chosen exporters.",
            Query(_S.read("gpugauge_collector_duration_seconds").by("collector", operator="max"), "{{collector}}"),
        ),
        timeseries(
            "Sources of events and labels",
            "Sources of Xid errors and of workload labels: 1 if the source works in all chosen exporters, otherwise 0.",
            Query(_S.read("gpugauge_event_source_up").by("source", operator="min"), "Xid · {{source}}"),
            Query(_S.read("gpugauge_attribution_source_up").by("source", operator="min"), "labels · {{source}}"),
            highest=1,
        ),
        timeseries(
            "Worker restarts",
            "Workers replaced because they ended or did not answer in time, in each step of the graph. Occasional "
            "restarts indicate a slow driver, frequent ones a faulty GPU.",
            Query(_worst(_S.increase("gpugauge_worker_restarts_total", "$__rate_interval")), _NODE),
            bars=True,
        ),
    ]


def _cost() -> list[Panel]:
    return [
        timeseries(
            "Duration of a scrape",
            "As Prometheus measures it. A scrape returns a body that was rendered before, so a slow one is due to the "
            "network or the host.",
            Query(_S.scraped("scrape_duration_seconds"), _NODE),
        ),
        timeseries(
            "Samples in a scrape",
            "The number grows with GPUs and processes. Limit it with process.max_per_device and the choice of "
            "collectors (docs/settings.md).",
            Query(_S.scraped("scrape_samples_scraped"), _NODE),
        ),
        timeseries(
            "CPUs used",
            "By the daemon and by its worker, the only process that calls the driver.",
            Query(_S.rate("gpugauge_cpu_seconds_total").by("instance", "part").with_unit(COUNT), _PART),
        ),
        timeseries(
            "Memory",
            "Resident memory of the daemon and of its worker.",
            Query(_S.read("gpugauge_resident_memory_bytes").by("instance", "part"), _PART),
        ),
        timeseries(
            "Open files",
            "File descriptors; a steady rise is a leak to report.",
            Query(_S.read("gpugauge_open_fds").by("instance", "part"), _PART),
        ),
        timeseries(
            "CPUs used to read /proc",
            "The part of the daemon's CPU time that it spends on the scan of processes.",
            Query(_S.rate("gpugauge_host_scan_cpu_seconds_total").by("instance").with_unit(COUNT), _NODE),
        ),
    ]


def _driver() -> list[Panel]:
    return [
        timeseries(
            "Time in the driver, by call",
            "Share of the time; the ten calls that take most.",
            Query(_S.rate("gpugauge_driver_call_seconds_total").by("call").then("topk(10, {})"), "{{call}}"),
        ),
        timeseries(
            "Longest call since the start",
            "The worker is replaced if a call exceeds the deadline (docs/settings.md).",
            Query(
                _S.read("gpugauge_driver_call_longest_seconds").by("call", operator="max").then("topk(10, {})"),
                "{{call}}",
            ),
        ),
        timeseries(
            "Failed readings",
            "Per second, by reading and the driver's error code. Readings that a GPU does not support are not counted.",
            Query(_S.rate("gpugauge_driver_errors_total").by("reading", "code"), "{{reading}} · {{code}}"),
        ),
        timeseries(
            "Trainings connected",
            "Training processes that report through the hook.",
            Query(_S.read("gpugauge_hook_sessions").by("instance"), _NODE),
        ),
        timeseries(
            "Trainings that ended",
            "By reason, in each step of the graph. `killed`: the process ended without a final message, by a signal, "
            "a crash or the out-of-memory killer.",
            Query(_S.increase("gpugauge_trainings_ended_total", "$__rate_interval").by("reason"), "{{reason}}"),
            bars=True,
        ),
        timeseries(
            "Errors of the hook",
            "Refused connections, and errors of the hook inside the training processes, per second.",
            Query(_S.rate("gpugauge_hook_rejected_total").by("reason"), "refused · {{reason}}"),
            Query(_S.rate("gpugauge_hook_errors_total").by("instance"), "errors · {{instance}}"),
        ),
        timeseries(
            "Attribution problems",
            "Names cut or cleaned, and sources missing, in the attribution of processes to jobs, per second.",
            Query(_S.rate("gpugauge_attribution_problems_total").by("kind"), "{{kind}}"),
        ),
        timeseries(
            "Processes not scanned",
            "`denied`: reading them needs root or CAP_SYS_PTRACE. `left out`: beyond the limit on their number.",
            Query(_S.read("gpugauge_host_processes_denied").by("instance"), _NODE + " · denied"),
            Query(_S.read("gpugauge_host_processes_left_out").by("instance"), _NODE + " · left out"),
        ),
    ]
