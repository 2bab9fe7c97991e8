"""A simulated fleet for a real Prometheus: the cost of scrapes, of our rules and of the dashboards for 8,000 GPUs.

`python -m qa.bench.fleet` simulates 100 nodes in about 4 minutes and is part of `make bench`,
`python -m qa.bench.fleet --nodes 1000 --interval 30 --evaluations 2` a whole fleet in about 11 minutes.
One process serves all nodes: the bodies of our own simulated daemon, with other GPUs, processes and jobs for each node.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from grafana.build import jobs

from qa.bench import figures
from qa.bench.fleet_bodies import DEVICES, templates
from qa.bench.fleet_prometheus import fleet_prometheus, windows
from qa.bench.fleet_queries import DASHBOARDS, filled, queries
from qa.bench.fleet_server import PAST, Fleet, serve
from qa.bench.prometheus import Prometheus
from qa.bench.report import report

NODES, INTERVAL = 100, 5.0
EVALUATIONS = 1  # of each group, at least
_MAX_EVALUATION_SHARE = 0.1  # of the interval of a group of rules
_RANGE_SECONDS, _STEP_SECONDS = 3600, 60  # of a graph
_QUERY_SECONDS = 20.0  # limit for one query
_CONNECTIONS = 6  # of a browser to one host
_SCREEN_SECONDS = 2.0
_SLOWEST_RULES = 8
_QUERY_NOTE = (
    f"Of what is seen without scrolling, over the last hour. A browser sends {_CONNECTIONS} queries at once, while "
    "Prometheus also scrapes all nodes and evaluates the rules. What is recorded had only begun and is short of points."
)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=NODES)
    parser.add_argument("--interval", type=float, default=INTERVAL, help="seconds between two scrapes of a node")
    parser.add_argument("--evaluations", type=int, default=EVALUATIONS, help="of each group of rules, at least")
    parser.add_argument("--prometheus", default=shutil.which("prometheus") or "", help="path of the program")
    return parser.parse_known_args()[0]


def main() -> None:
    options = _options()
    if not options.prometheus:
        raise SystemExit("prometheus is not installed: set its path with --prometheus")
    made = templates()
    names = {name for template in made.values() for name in template.families}
    fleet = Fleet(made, options.nodes, options.interval, windows(names))
    size = f"{options.nodes} nodes with {options.nodes * DEVICES} GPUs, scraped each {options.interval:g} s"
    with fleet_prometheus(options.prometheus, options.nodes, serve(fleet), options.interval) as running:
        command = f"python -m qa.bench.fleet --nodes {options.nodes} --interval {options.interval:g}"
        command += f" --evaluations {options.evaluations}"
        version = running.ask("/api/v1/status/buildinfo")["version"]
        _wait_for_past(fleet, options.nodes, options.interval)
        _settled(running)
        rows = _measure(running, fleet, options.evaluations)
        report(f"Fleet: {size}, in Prometheus {version}", rows, command, _note(options.interval, options.evaluations))
        groups = _groups(running)
        report("Fleet: evaluations of the rules", groups, command, figures=_figures(rows, groups))
        report(f"Fleet: the {_SLOWEST_RULES} slowest rules", _rules(running), command)
        report("Fleet: the first screens of the dashboards", _dashboards(running, fleet), command, [_QUERY_NOTE])


def _figures(rows: list[dict[str, Any]], groups: list[dict[str, Any]]) -> dict[str, str]:
    """Return the figures of the text in docs/fleet.md and docs/proof/performance.md."""
    values = {row["what"]: row["value"] for row in rows}
    most = {group["group"]: group["most s"] for group in groups}
    jobs = most.pop("gpugauge-jobs")
    return {
        "series": f"{values['series'] / 1e6:.1f}",  # millions
        "samples": f"{values['samples a second, taken in']:,.0f}",
        "cores": f"{values['Prometheus: cores busy']:.2f}",
        "memory": f"{values['Prometheus: most resident GB']:.1f}",
        "jobs": f"{jobs:.1f}",  # seconds
        "others": f"{max(most.values()):.1f}",
    }


def _note(interval: float, evaluations: int) -> list[str]:
    return [
        f"In steady operation, until each group had been evaluated {evaluations} times or more, after the nodes had"
        f" reported their last hour (samples each {interval:g} s of what the rules look back for). Its most memory is"
        " that of the whole run."
    ]


def _wait_for_past(fleet: Fleet, nodes: int, interval: float) -> None:
    """Wait until each node has served its past and the present; with fewer samples the rules would cost too little."""
    deadline = time.monotonic() + 2 * (len(PAST) + 2) * interval
    while fleet.alive < nodes:
        if time.monotonic() > deadline:
            raise SystemExit(f"only {fleet.alive} of {nodes} nodes were scraped often enough: the machine is too slow")
        time.sleep(1)
    time.sleep(interval)


def _settled(running: Prometheus) -> None:
    """Wait until each group has been evaluated with nothing else to do: the first ones take turns with the past."""
    running.reset_evaluations()
    deadline = time.monotonic() + 2 * running.longest_interval
    while time.monotonic() < deadline and len(running.evaluated()) < running.groups:
        time.sleep(5)
        running.record_evaluations()
    time.sleep(running.longest_interval)


def _measure(running: Prometheus, fleet: Fleet, evaluations: int) -> list[dict[str, Any]]:
    running.reset_evaluations()
    before, began, played, (ran, waited) = running.own(), time.monotonic(), _own_cpu(), running.scheduled()
    deadline = began + running.longest_interval * (evaluations + 1)
    while time.monotonic() < deadline:
        time.sleep(5)
        running.record_evaluations()
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
        # Without the past the rules would cost too little.
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
                "target": f"{'met' if share < _MAX_EVALUATION_SHARE else 'NOT met'}: under {_MAX_EVALUATION_SHARE:g}",
            }
        )
    return rows


def _rules(running: Prometheus) -> list[dict[str, Any]]:
    times: dict[str, list[float]] = {}
    for seen in running.evaluated().values():
        for group in seen:
            for rule in group["rules"]:
                health = f"{rule.get('health')}" if rule.get("health") != "ok" else ""
                times.setdefault(f"{rule['name']} {health}".strip(), []).append(rule["evaluationTime"])
    slowest = sorted(times.items(), key=lambda item: -max(item[1]))[:_SLOWEST_RULES]
    return [{"rule": name, "median s": statistics.median(took), "most s": max(took)} for name, took in slowest]


def _dashboards(running: Prometheus, fleet: Fleet) -> list[dict[str, Any]]:
    now = time.time()
    largest = max(
        (fleet.job(node, now) for node in range(len(fleet.jobs))),
        key=lambda job: (job.kind in {"data_loading", "waiting"}, len(job.nodes)),
    )
    variables = {"gone": "()", "__rate_interval": f"{4 * 15}s", "__range": "1h", "workload": f"{largest.name}-4711"}
    # The variable of the job's dashboard has the nodes of the job as its values.
    instances = {"node": "node-0001", "job": "|".join(f"node-{node:04d}" for node in largest.nodes)}
    rows = []
    for name in DASHBOARDS:
        chosen = variables | {"instance": instances[name]} if name in instances else variables
        if name == "job":
            found = running.ask("/api/v1/query", query=filled(jobs.causes(), chosen))["result"]
            chosen["causes"] = "|".join(series["metric"]["cause"] for series in found)
            for variable, query in jobs.hidden():
                (found,) = running.ask("/api/v1/query", query=filled(query, chosen))["result"]
                chosen[variable] = found["metric"][variable]
        rows += [_timed(running, name, chosen)]
    return rows


def _timed(running: Prometheus, name: str, variables: dict[str, str]) -> dict[str, Any]:
    """Return what the first screen of a dashboard takes, its queries one by one, and as a browser sends them."""
    asked = queries(name, variables)
    took: list[float] = []
    empty = failed = 0
    for query in asked:
        began = time.monotonic()
        try:
            empty += not _answer(running, query.expr, instant=query.instant)
        except OSError:
            failed += 1
        took.append(time.monotonic() - began)
    began = time.monotonic()
    with ThreadPoolExecutor(_CONNECTIONS) as browser:
        list(browser.map(lambda query: _answer(running, query.expr, instant=query.instant), asked))
    screen, slowest = time.monotonic() - began, max(range(len(asked)), key=took.__getitem__)
    return {
        "dashboard": name,
        "queries": len(asked),
        "empty": empty,
        "failed": failed,
        "one by one s": sum(took),
        "first screen s": screen,
        "target": f"{'met' if screen <= _SCREEN_SECONDS else 'NOT met'}: {_SCREEN_SECONDS:g} s or less",
        "slowest s": took[slowest],
        "slowest panel": asked[slowest].panel,
    }


def _answer(running: Prometheus, expr: str, *, instant: bool) -> bool:
    """Return whether the result has series. Raises OSError after the time limit."""
    limit = {"query": expr, "timeout": f"{_QUERY_SECONDS:g}s"}
    if instant:
        return bool(running.ask("/api/v1/query", **limit)["result"])
    now = time.time()
    span = {"start": f"{now - _RANGE_SECONDS:.0f}", "end": f"{now:.0f}", "step": str(_STEP_SECONDS)}
    return bool(running.ask("/api/v1/query_range", **limit, **span)["result"])


if __name__ == "__main__":
    # A fleet of another size than that of `make bench` has a result of its own.
    nodes = _options().nodes
    figures.run("fleet" if nodes == NODES else f"fleet-{nodes}", main)
