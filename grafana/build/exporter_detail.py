"""The rows of the exporters' dashboard about one exporter."""

from __future__ import annotations

from functools import partial

from grafana.build.layout import Panel
from grafana.build.panels import Query, timeseries
from grafana.build.queries import COUNT, Expr, Scope, share

# Panels that read many series of an exporter show one exporter: for a thousand they would load millions of samples.
_ONE = Scope({"job": "~$job", "instance": "$detail"})
_PART = "{{part}}"
_graph = partial(timeseries, empty_text="not reported by this exporter in the time shown")


def collection() -> list[Panel]:
    """Return the panels about the collection of values."""
    unobserved, observed = (_ONE.rate(f"gpu_{kind}_seconds_total", engine="gpu") for kind in ("unobserved", "observed"))
    both = Expr(f"({unobserved} + {observed})", unobserved.unit)
    last = _ONE.age("gpugauge_collector_last_success_timestamp_seconds")
    return [
        _graph(
            "Age of the values",
            "Age of the last snapshot, in seconds. It rises between two scrapes and falls with each.",
            Query(_ONE.age("gpugauge_snapshot_timestamp_seconds")),
        ),
        _graph(
            "Unobserved time of the GPUs",
            "Share of the time without samples, because samples were overwritten or a GPU did not answer. "
            "Above a few percent, the node is too busy or the driver is slow.",
            Query(share(unobserved, both)),
            highest=1,
        ),
        _graph(
            "Time since the last successful run, by collector",
            "A collector whose line rises fails; the reason is in the log.",
            Query(last.by("collector", operator="max"), "{{collector}}"),
        ),
        _graph(
            "Duration of a run, by collector",
            "The longest among the chosen exporters.",
            Query(_ONE.read("gpugauge_collector_duration_seconds").by("collector", operator="max"), "{{collector}}"),
        ),
        _graph(
            "Sources of events and labels",
            "Sources of Xid errors and of workload labels: 1 if the source works in all chosen exporters, otherwise 0.",
            Query(_ONE.read("gpugauge_event_source_up").by("source", operator="min"), "Xid · {{source}}"),
            Query(_ONE.read("gpugauge_attribution_source_up").by("source", operator="min"), "labels · {{source}}"),
            highest=1,
        ),
        _graph(
            "Worker restarts",
            "Workers replaced because they ended or did not answer in time, in each step of the graph. Occasional "
            "restarts indicate a slow driver, frequent ones a faulty GPU.",
            Query(_ONE.increase("gpugauge_worker_restarts_total", "$__rate_interval")),
            bars=True,
        ),
    ]


def cost() -> list[Panel]:
    """Return the panels about scrapes and cost."""
    return [
        _graph(
            "Duration of a scrape",
            "As Prometheus measures it. A scrape returns a body that was rendered before, so a slow one is due to the "
            "network or the host.",
            Query(_ONE.scraped("scrape_duration_seconds")),
        ),
        _graph(
            "Samples in a scrape",
            "The number grows with GPUs and processes. Limit it with process.max_per_device and the choice of "
            "collectors (docs/settings.md).",
            Query(_ONE.scraped("scrape_samples_scraped")),
        ),
        _graph(
            "CPUs used",
            "By the daemon and by its worker, the only process that calls the driver.",
            Query(_ONE.rate("gpugauge_cpu_seconds_total").by("part").with_unit(COUNT), _PART),
        ),
        _graph(
            "Memory",
            "Resident memory of the daemon and of its worker.",
            Query(_ONE.read("gpugauge_resident_memory_bytes").by("part"), _PART),
        ),
        _graph(
            "Open files",
            "File descriptors; a steady rise is a leak to report.",
            Query(_ONE.read("gpugauge_open_fds").by("part"), _PART),
        ),
        _graph(
            "CPUs used to read /proc",
            "The part of the daemon's CPU time that it spends on the scan of processes.",
            Query(_ONE.rate("gpugauge_host_scan_cpu_seconds_total").by().with_unit(COUNT)),
        ),
    ]


def driver() -> list[Panel]:
    """Return the panels about the driver and the hook."""
    return [
        _graph(
            "Time in the driver, by call",
            "Share of the time; the ten calls that take most.",
            Query(_ONE.rate("gpugauge_driver_call_seconds_total").by("call").then("topk(10, {})"), "{{call}}"),
        ),
        _graph(
            "Longest call since the start",
            "The worker is replaced if a call exceeds the deadline (docs/settings.md).",
            Query(
                _ONE.read("gpugauge_driver_call_longest_seconds").by("call", operator="max").then("topk(10, {})"),
                "{{call}}",
            ),
        ),
        _graph(
            "Failed readings",
            "Per second, by reading and the driver's error code. Readings that a GPU does not support are not counted.",
            Query(_ONE.rate("gpugauge_driver_errors_total").by("reading", "code"), "{{reading}} · {{code}}"),
        ),
        _graph(
            "Trainings connected",
            "Training processes that report through the hook.",
            Query(_ONE.read("gpugauge_hook_sessions").by()),
        ),
        _graph(
            "Trainings that ended",
            "By reason, in each step of the graph. `killed`: the process ended without a final message, by a signal, "
            "a crash or the out-of-memory killer.",
            Query(_ONE.increase("gpugauge_trainings_ended_total", "$__rate_interval").by("reason"), "{{reason}}"),
            bars=True,
        ),
        _graph(
            "Errors of the hook",
            "Refused connections, and errors of the hook inside the training processes, per second.",
            Query(_ONE.rate("gpugauge_hook_rejected_total").by("reason"), "refused · {{reason}}"),
            Query(_ONE.rate("gpugauge_hook_errors_total").by(), "errors"),
        ),
        _graph(
            "Attribution problems",
            "Names cut or cleaned, and sources missing, in the attribution of processes to jobs, per second.",
            Query(_ONE.rate("gpugauge_attribution_problems_total").by("kind"), "{{kind}}"),
        ),
        _graph(
            "Processes not scanned",
            "`denied`: reading them needs root or CAP_SYS_PTRACE. `left out`: beyond the limit on their number.",
            Query(_ONE.read("gpugauge_host_processes_denied").by(), "denied"),
            Query(_ONE.read("gpugauge_host_processes_left_out").by(), "left out"),
        ),
    ]
