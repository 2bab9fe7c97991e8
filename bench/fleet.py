"""A fleet for a real Prometheus: what it takes to scrape, to judge by our rules and to look at 8,000 GPUs.

`python -m bench.fleet` plays 100 nodes in about 4 minutes and is part of `make bench`,
`python -m bench.fleet --nodes 1000 --interval 30 --evaluations 2` a whole fleet in about 8.
One process plays all nodes: pages of our own simulated daemon, with identities and jobs of each node's own.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import statistics
import time
from pathlib import Path
from typing import Any

from bench.fleet_pages import DEVICES, templates
from bench.fleet_prometheus import Prometheus, prometheus, windows
from bench.fleet_queries import DASHBOARDS, queries, without_recordings
from bench.fleet_server import PAST, Fleet, serve
from bench.report import Report, report, reported, sentence

NODES, INTERVAL = 100, 5.0
EVALUATIONS = 1  # of each group, at least
_TARGET = 0.1  # of its interval, for a group of rules
_RANGE, _STEP = 3600, 60
_PATIENCE = 20.0  # seconds for one query
_BUDGET = 40.0  # seconds of queries for one dashboard, then the rest is not asked
_TOP = 8
_DOCUMENT = Path(__file__).parent.parent / "docs" / "fleet.md"
_BEGIN, _END = "<!-- fleet -->", "<!-- end of fleet -->"
_ASKED = (
    "`now`: values of one moment; `an hour`: curves with a point each minute. What is recorded had only "
    f"begun and is short of points. A query may take {_PATIENCE:g} s, those of a dashboard {_BUDGET:g} s: then "
    "the rest is not asked."
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=NODES)
    parser.add_argument("--interval", type=float, default=INTERVAL, help="seconds between two scrapes of a node")
    parser.add_argument("--evaluations", type=int, default=EVALUATIONS, help="of each group of rules, at least")
    parser.add_argument("--prometheus", default=shutil.which("prometheus") or "", help="the program")
    parser.add_argument("--write", action="store_true", help="put the tables into docs/fleet.md")
    options, _ = parser.parse_known_args()
    if not options.prometheus:
        raise SystemExit("prometheus is not installed: give its path by --prometheus")
    made = templates()
    names = {name for template in made.values() for name in template.families}
    fleet = Fleet(made, options.nodes, options.interval, windows(names))
    size = f"{options.nodes} nodes with {options.nodes * DEVICES} GPUs, scraped each {options.interval:g} s"
    with prometheus(options.prometheus, options.nodes, serve(fleet), options.interval) as running:
        command = f"python -m bench.fleet --nodes {options.nodes} --interval {options.interval:g}"
        command += f" --evaluations {options.evaluations}"
        version = running.ask("/api/v1/status/buildinfo")["version"]
        _live(fleet, options.nodes, options.interval)
        rows = _measure(running, fleet, options.evaluations)
        report(f"Fleet: {size}, in Prometheus {version}", rows, command, _told(options.interval, options.evaluations))
        report("Fleet: evaluations of the rules", _groups(running), command)
        report(f"Fleet: the {_TOP} slowest rules", _rules(running), command)
        report("Fleet: dashboards, one query after the other", _dashboards(running, fleet), command, [_ASKED])
    if options.write:
        _write([made for made in reported if made.title.startswith("Fleet: ")])


def _write(tables: list[Report]) -> None:
    before, begin, rest = _DOCUMENT.read_text().partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not begin or not end:
        raise SystemExit(f"{_DOCUMENT} lacks the lines {_BEGIN} and {_END}: put them where the tables belong")
    told = "\n\n".join([sentence(), *(table.markdown() for table in tables)])
    _DOCUMENT.write_text(f"{before}{_BEGIN}\n\n{told}\n\n{_END}{after}")


def _told(interval: float, evaluations: int) -> list[str]:
    return [
        f"In full course, until each group had been evaluated {evaluations} times or more, after the nodes had told"
        f" their last hour (samples each {interval:g} s of what the rules look back for). Its most memory is that of"
        " the whole run."
    ]


def _live(fleet: Fleet, nodes: int, interval: float) -> None:
    """Wait until each node told its past and twice its present; figures of less would flatter the rules."""
    deadline = time.monotonic() + 2 * (len(PAST) + 2) * interval
    while fleet.alive < nodes:
        if time.monotonic() > deadline:
            raise SystemExit(f"only {fleet.alive} of {nodes} nodes were asked often enough: the machine is too slow")
        time.sleep(1)
    time.sleep(interval)


def _measure(running: Prometheus, fleet: Fleet, evaluations: int) -> list[dict[str, Any]]:
    running.forget()
    before, began, played, (ran, waited) = running.own(), time.monotonic(), _own_cpu(), running.scheduled()
    deadline = began + running.slowest * (evaluations + 1)
    while time.monotonic() < deadline:
        time.sleep(5)
        running.look()
        done = running.evaluated()
        if len(done) == running.groups and all(len(seen) >= evaluations for seen in done.values()):
            break
    after, seconds, (ran_then, waited_then) = running.own(), time.monotonic() - began, running.scheduled()
    cpu = (after["process_cpu_seconds_total"] - before["process_cpu_seconds_total"]) / seconds
    appended = "prometheus_tsdb_head_samples_appended_total"
    up = running.value('sum(up{job="gpugauge"})')
    going = {(job.name, job.nodes.start) for node in range(len(fleet.jobs)) for job in [fleet.job(node, time.time())]}
    facts: dict[str, Any] = {
        "nodes that answer": up,
        # A past that failed to arrive would make the rules light.
        "scrapes that failed, since the start": running.value("sum(count_over_time(up[1h]) - sum_over_time(up[1h]))"),
        "jobs": float(len(going)),
        "series": after["prometheus_tsdb_head_series"],
        "series a node": running.value('avg(scrape_samples_scraped{job="gpugauge"})'),
        "samples a second, taken in": (after[appended] - before[appended]) / seconds,
        "Prometheus: cores busy": cpu,
        "Prometheus: waited for a core / ran": (waited_then - waited) / (ran_then - ran),
        "Prometheus: resident GB": after["process_resident_memory_bytes"] / 1024**3,
        "Prometheus: most resident GB": running.peak_gigabytes(),
        "a scrape, mean s": running.value('avg(scrape_duration_seconds{job="gpugauge"})'),
        "alerts pending or firing": running.value("count(ALERTS)"),
        "all nodes, played: cores busy": (_own_cpu() - played) / seconds,
        "load average": os.getloadavg()[0],
    }
    return [{"what": name, "value": value} for name, value in facts.items()]


def _own_cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _groups(running: Prometheus) -> list[dict[str, Any]]:
    rows = []
    for name, seen in sorted(running.evaluated().items()):
        times = [group["evaluationTime"] for group in seen]
        share = max(times) / seen[0]["interval"]
        rows.append(
            {
                "group": name,
                "rules": len(seen[0]["rules"]),
                "evaluations": len(times),
                "median s": statistics.median(times),
                "most s": max(times),
                "interval s": seen[0]["interval"],
                "most / interval": share,
                "target": f"{'met' if share < _TARGET else 'NOT met'}: under {_TARGET:g}",
            }
        )
    return rows


def _rules(running: Prometheus) -> list[dict[str, Any]]:
    times: dict[str, list[float]] = {}
    for seen in running.evaluated().values():
        for group in seen:
            for rule in group["rules"]:
                told = f"{rule.get('health')}" if rule.get("health") != "ok" else ""
                times.setdefault(f"{rule['name']} {told}".strip(), []).append(rule["evaluationTime"])
    slowest = sorted(times.items(), key=lambda item: -max(item[1]))[:_TOP]
    return [{"rule": name, "median s": statistics.median(took), "most s": max(took)} for name, took in slowest]


def _dashboards(running: Prometheus, fleet: Fleet) -> list[dict[str, Any]]:
    now = time.time()
    largest = max(
        (fleet.job(node, now) for node in range(len(fleet.jobs))),
        key=lambda job: (job.kind in {"data_loading", "waiting"}, len(job.nodes)),
    )
    variables = {"__rate_interval": f"{4 * 15}s", "__range": "1h", "workload": f"{largest.name}-4711"}
    # A job's dashboard chooses the nodes on which the job is.
    instances = {"node": "node-0001", "job": "|".join(f"node-{node:04d}" for node in largest.nodes)}
    rows = []
    for name in DASHBOARDS:
        chosen = variables | {"instance": instances[name]} if name in instances else variables
        rows += [_timed(running, name, chosen, recorded=True)]
        if name == "fleet":
            rows += [_timed(running, name, chosen, recorded=False)]
    return rows


def _timed(running: Prometheus, name: str, variables: dict[str, str], *, recorded: bool) -> dict[str, Any]:
    instants: list[float] = []
    ranges: list[float] = []
    slowest, failed, empty = ("", 0.0), 0, 0
    for query in queries(name, variables):
        if sum(instants) + sum(ranges) > _BUDGET:
            break
        expr = query.expr if recorded else without_recordings(query.expr)
        began = time.monotonic()
        try:
            found = _answer(running, expr, instant=query.instant)
        except OSError:
            failed, found = failed + 1, True
        took = time.monotonic() - began
        empty += not found
        (instants if query.instant else ranges).append(took)
        slowest = max(slowest, (query.panel, took), key=lambda one: one[1])
    return {
        "dashboard": name if recorded else f"{name}, without the recording rules",
        "queries": len(queries(name, variables)),
        "asked": len(instants) + len(ranges),
        "empty": empty,
        f"over {_PATIENCE:g} s": failed,
        "now, all s": sum(instants),
        "an hour, all s": sum(ranges),
        "all s": sum(instants) + sum(ranges),
        "slowest s": slowest[1],
        "slowest panel": slowest[0],
    }


def _answer(running: Prometheus, expr: str, *, instant: bool) -> bool:
    """Return whether there is anything; raises OSError where it takes too long."""
    limit = {"query": expr, "timeout": f"{_PATIENCE:g}s"}
    if instant:
        return bool(running.ask("/api/v1/query", **limit)["result"])
    now = time.time()
    span = {"start": f"{now - _RANGE:.0f}", "end": f"{now:.0f}", "step": str(_STEP)}
    return bool(running.ask("/api/v1/query_range", **limit, **span)["result"])


if __name__ == "__main__":
    main()
