"""The dashboard of the exporters: do they see, are they scraped, and what do they cost."""

from __future__ import annotations

from gpugauge.artifacts.dashboards.board import EXPORTER, Variable, alerts, board, exporters
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
    variables = [exporters(), Variable("instance", "Node", 'label_values(gpugauge_build_info{job=~"$job"}, instance)')]
    return board(
        EXPORTER,
        "gpugauge / Exporter",
        "The exporters themselves: do they see the GPUs, are they scraped, and what do they cost.",
        variables,
        [
            Row("Now", _now()),
            Row("Sight", _sight()),
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
        stat("Scraped", "Exporters that Prometheus can scrape now.", Query(_S.scraped("up").by()), width=3),
        stat(
            "Not scraped",
            "Exporters that it cannot: nothing is known of their nodes.",
            Query(_S.scraped("up").then("sum (1 - {})")),
            width=3,
            steps=BAD,
        ),
        stat(
            "Blind",
            "Exporters whose driver does not answer; the reason is in the table. Those that released it on request "
            "do not count.",
            Query(blind),
            width=3,
            steps=BAD,
        ),
        stat(
            "Released",
            "Exporters that gave the driver back on request, for a reset or an update; they take it again by "
            "themselves.",
            Query(_S.read("gpugauge_driver_released").by()),
            width=3,
        ),
        stat(
            "Oldest values",
            "Age of the oldest snapshot. More than some seconds and a scrape interval: an exporter no longer puts "
            "values together, though it "
            "answers.",
            Query(_S.age("gpugauge_snapshot_timestamp_seconds").by(operator="max")),
            width=3,
            steps=_AGE,
        ),
        stat(
            "Failing collectors",
            "Collectors whose last run failed; their metrics are absent. The log tells why.",
            Query(failing),
            width=3,
            steps=BAD,
        ),
        stat(
            "Stuck workers",
            "Former workers that hang inside the kernel and that no signal ends: the node needs a reboot.",
            Query(_S.read("gpugauge_worker_unkillable").by()),
            width=3,
            steps=BAD,
        ),
        stat(
            "Settings refused",
            "Exporters that read their settings again, found a mistake and kept the old ones; the log names file "
            "and line.",
            Query(refused),
            width=3,
            steps=BAD,
        ),
        table(
            "Exporters",
            "Versions, and whether the driver answers (`ok`, or what is missing; `released`: it was let go on "
            "request). Simulated exporters do "
            "not tell of real GPUs.",
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


def _sight() -> list[Panel]:
    unseen, seen = (_S.rate(f"gpu_{what}_seconds_total", engine="gpu") for what in ("unobserved", "observed"))
    both = Expr(f"({unseen} + {seen})", unseen.unit)
    last = _S.age("gpugauge_collector_last_success_timestamp_seconds")
    return [
        timeseries(
            "Age of the values",
            "Seconds between putting the values together and now; it rises between two scrapes and falls with each.",
            Query(_worst(_S.age("gpugauge_snapshot_timestamp_seconds")), _NODE),
        ),
        timeseries(
            "Time of the GPUs that nobody saw",
            "Share of time of which no sample is known, because samples were overwritten or a GPU did not answer. "
            "Above a few percent: the node is too "
            "busy, or the driver is slow.",
            Query(share(unseen, both, "instance"), _NODE),
            highest=1,
        ),
        timeseries(
            "Since the last good run, by collector",
            "A line that rises is a collector that fails; its log line tells why.",
            Query(last.by("collector", operator="max"), "{{collector}}"),
        ),
        timeseries(
            "Duration of a run, by collector",
            "The longest of the exporters chosen.",
            Query(_S.read("gpugauge_collector_duration_seconds").by("collector", operator="max"), "{{collector}}"),
        ),
        timeseries(
            "Sources that work",
            "Sources of Xid errors and of workload labels: 1 while they work, in the exporter where they work worst.",
            Query(_S.read("gpugauge_event_source_up").by("source", operator="min"), "Xid · {{source}}"),
            Query(_S.read("gpugauge_attribution_source_up").by("source", operator="min"), "labels · {{source}}"),
            highest=1,
        ),
        timeseries(
            "Worker restarts",
            "Workers that ended or did not answer in time and were replaced, in each step of the graph. Now and "
            "then is a slow driver; steadily is a GPU to look at.",
            Query(_worst(_S.increase("gpugauge_worker_restarts_total", "$__rate_interval")), _NODE),
            bars=True,
        ),
    ]


def _cost() -> list[Panel]:
    return [
        timeseries(
            "Duration of a scrape",
            "As Prometheus saw it. A scrape waits for nothing: slow ones are the network's or the host's.",
            Query(_S.scraped("scrape_duration_seconds"), _NODE),
        ),
        timeseries(
            "Samples in a scrape",
            "They grow with GPUs and processes; process.max_per_device and the choice of collectors bound them "
            "(docs/settings.md).",
            Query(_S.scraped("scrape_samples_scraped"), _NODE),
        ),
        timeseries(
            "CPUs used",
            "By the daemon and by its worker, which alone talks to the driver.",
            Query(_S.rate("gpugauge_cpu_seconds_total").by("instance", "part").measured(COUNT), _PART),
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
            "CPUs used to look at processes",
            "The part of the daemon's CPU time that goes into /proc.",
            Query(_S.rate("gpugauge_host_scan_cpu_seconds_total").by("instance").measured(COUNT), _NODE),
        ),
    ]


def _driver() -> list[Panel]:
    return [
        timeseries(
            "Time in the driver, by call",
            "Share of time; the ten calls that take most.",
            Query(_S.rate("gpugauge_driver_call_seconds_total").by("call").then("topk(10, {})"), "{{call}}"),
        ),
        timeseries(
            "Longest call since the start",
            "Calls near the deadline end the worker: docs/settings.md has the deadline.",
            Query(
                _S.read("gpugauge_driver_call_longest_seconds").by("call", operator="max").then("topk(10, {})"),
                "{{call}}",
            ),
        ),
        timeseries(
            "Readings that failed",
            "A second, by reading and the driver's code; what a GPU does not support is not counted.",
            Query(_S.rate("gpugauge_driver_errors_total").by("reading", "code"), "{{reading}} · {{code}}"),
        ),
        timeseries(
            "Trainings connected",
            "Training processes that report through the hook.",
            Query(_S.read("gpugauge_hook_sessions").by("instance"), _NODE),
        ),
        timeseries(
            "Trainings that ended",
            "By reason, in each step of the graph; `killed` is without a goodbye: a signal, a crash, or memory.",
            Query(_S.increase("gpugauge_trainings_ended_total", "$__rate_interval").by("reason"), "{{reason}}"),
            bars=True,
        ),
        timeseries(
            "Trouble with the hook",
            "Connections refused and errors of the hook inside the training processes, a second.",
            Query(_S.rate("gpugauge_hook_rejected_total").by("reason"), "refused · {{reason}}"),
            Query(_S.rate("gpugauge_hook_errors_total").by("instance"), "errors · {{instance}}"),
        ),
        timeseries(
            "Attribution problems",
            "What attribution of processes to jobs had to cut, to clean or to do without, a second.",
            Query(_S.rate("gpugauge_attribution_problems_total").by("kind"), "{{kind}}"),
        ),
        timeseries(
            "Processes not looked into",
            "Denied (that needs root or CAP_SYS_PTRACE) and left out for being too many.",
            Query(_S.read("gpugauge_host_processes_denied").by("instance"), _NODE + " · denied"),
            Query(_S.read("gpugauge_host_processes_left_out").by("instance"), _NODE + " · left out"),
        ),
    ]
