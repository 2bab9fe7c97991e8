"""The page's HTML from the facts of /api/v1/status. What is not known is a dash, never 0."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

from gpugauge.verdict.causes import CAUSES
from gpugauge.web.page.draw import ABSENT, bar, duration, of_sizes, of_watts, percent, size, sparkline, text

_MOST_PROCESSES = 32  # shown of one GPU; the metrics have them all
_COLUMNS = ("Workload", "Process id", "GPU memory", "Load over 5 minutes", "Running for", "State")
# How a state looks; a state's name is always written too.
_LOOKS = {"training": "good", "evaluating": "good", "generating": "good", "checkpointing": "good", "unknown": "none"}
_BAD = ("stalled", "training_on_cpu")

Facts = Mapping[str, Any]


def page(head: str, body: str) -> str:
    """Return a whole document; `body` is what the script replaces."""
    return f"{head}<main>\n{body}</main>\n</body>\n</html>\n"


def head(version: str, metrics_path: str) -> str:
    """Return the document up to what changes. Links are relative, so that a proxy may put a path before them."""
    return f"""\
<!DOCTYPE html>
<html lang="en" data-version="{text(version)}">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>gpugauge</title>
<link rel="icon" href="page.svg?{text(version)}">
<link rel="stylesheet" href="page.css?{text(version)}">
<script src="page.js?{text(version)}" defer></script>
<noscript><meta http-equiv="refresh" content="5"></noscript>
</head>
<body>
<header>
<h1><img src="page.svg?{text(version)}" alt="" width="26" height="26">gpugauge</h1>
<nav aria-label="Other views">
<a href=".{text(metrics_path)}">Metrics</a>
<a href="./api/v1/status">JSON</a>
<a href="./-/ready">Ready</a>
<a href="./-/healthy">Health</a>
</nav>
</header>
<p id="lost" class="banner bad" role="status" hidden></p>
"""


def banner(scenario: str | None) -> str:
    """Return the warning that nothing below is of a real GPU."""
    if scenario is None:
        return ""
    return (
        '<p class="banner simulated"><strong>Simulated: these GPUs do not exist.</strong> '
        f"Scenario: {text(scenario)}</p>\n"
    )


def unavailable(reason: str, scenario: str | None) -> str:
    """Return what stands in the place of figures that would be old or missing."""
    return (
        f'{banner(scenario)}<p class="banner bad"><strong>No fresh figures:</strong> {text(reason)}. '
        "The log of the daemon says more.</p>\n"
    )


def content(facts: Facts, scenario: str | None) -> tuple[str, str]:
    """Return what stands before and after the snapshot's age, the one thing that changes from answer to answer."""
    gpus: Sequence[Facts] = facts["gpus"]
    before, after = _exporter(facts)
    parts = [after, _overview(gpus), *(_gpu(gpu, number, facts["timestamp"]) for number, gpu in enumerate(gpus))]
    if not gpus and facts["driver"]["up"]:
        parts.append('<p class="none">No GPU.</p>\n')
    if facts["without_gpu"]:
        parts.append(
            '<section class="gpu none" aria-labelledby="without"><h2 id="without">With torch, on no GPU</h2>\n'
        )
        parts.append(_processes(facts["without_gpu"], "With torch, on no GPU", facts["timestamp"]) + "</section>\n")
    return banner(scenario) + before, "".join(parts)


def _exporter(facts: Facts) -> tuple[str, str]:
    """How the exporter itself is, around the place of the snapshot's age."""
    driver, failing = facts["driver"], facts["failing_collectors"]
    state = _mark("good", "answers") if driver["up"] else _mark("bad", f"not available: {driver['reason']}")
    if driver.get("released_until"):
        until = datetime.fromtimestamp(driver["released_until"], timezone.utc)
        state = _mark("poor", f"released until {until:%Y-%m-%d %H:%M:%S} UTC: the GPUs are not watched")
    collectors = _mark("bad", f"failing: {', '.join(failing)}") if failing else _mark("good", "all well")
    at = datetime.fromtimestamp(facts["timestamp"], timezone.utc)
    before = (
        '<section aria-label="Exporter"><dl class="exporter">\n'
        f"<div><dt>Driver</dt><dd>{state}</dd></div>\n<div><dt>Collectors</dt><dd>{collectors}</dd></div>\n"
        f'<div><dt>Snapshot</dt><dd><time datetime="{at:%Y-%m-%dT%H:%M:%SZ}">{at:%H:%M:%S} UTC</time>, '
    )
    after = f" s old</dd></div>\n<div><dt>Version</dt><dd>{text(facts['version'])}</dd></div>\n</dl></section>\n"
    troubles = {f"Collector {name}:": error for name, error in failing.items() if error}
    if driver.get("advice"):
        troubles = {"Driver:": driver["advice"], **troubles}
    return before, after + "".join(
        f'<p class="banner bad"><strong>{text(what)}</strong> {text(why)}</p>\n' for what, why in troubles.items()
    )


def _overview(gpus: Sequence[Facts]) -> str:
    """The sums of all GPUs; a sum of which a part is not known is not shown."""
    if not gpus:
        return ""
    up = [gpu for gpu in gpus if gpu["up"]]
    lost = len(gpus) - len(up)
    loads = [gpu["load_5m"] if gpu["load_5m"] is not None else gpu["load"] for gpu in up]
    load = sum(loads) / len(loads) if loads and None not in loads else None
    figures = (
        ("GPUs", f"{len(gpus)}{f', {lost} without answer' if lost else ''}", ""),
        ("Mean load", percent(load), bar(load, 1.0)),
        ("Memory", *_pair(up, "memory_used_bytes", "memory_total_bytes", of_sizes)),
        ("Power", *_pair(up, "power_watts", "power_limit_watts", of_watts)),
    )
    cells = "".join(f"<div><dt>{name}</dt><dd>{value}{drawn}</dd></div>\n" for name, value, drawn in figures)
    return f'<section aria-label="All GPUs"><dl class="overview">\n{cells}</dl></section>\n'


def _pair(gpus: Sequence[Facts], used: str, total: str, write: Any) -> tuple[str, str]:
    sums = [
        None if not gpus or any(g[key] is None for g in gpus) else sum(g[key] for g in gpus) for key in (used, total)
    ]
    return write(*sums), bar(*sums)


def _gpu(gpu: Facts, number: int, now: float) -> str:
    title = text((gpu["name"] or "GPU").removeprefix("NVIDIA "))
    index = "?" if gpu["index"] is None else gpu["index"]
    opening = (
        f'<section class="gpu {_look_of(gpu)}" aria-labelledby="gpu{number}">\n'
        f'<h2 id="gpu{number}"><span class="index"><span class="hidden">GPU </span>{index}</span> {title}'
        f"<small>{text(gpu['uuid'])}</small></h2>\n"
    )
    if not gpu["up"]:
        return f'{opening}<p class="gone">{_mark("bad", "does not answer")}</p>\n</section>\n'
    degrees = gpu["temperature_celsius"]
    figures = (
        ("Now", percent(gpu["load"]), ""),
        ("5 min", percent(gpu["load_5m"]), ""),
        (
            "Memory",
            of_sizes(gpu["memory_used_bytes"], gpu["memory_total_bytes"]),
            bar(gpu["memory_used_bytes"], gpu["memory_total_bytes"]),
        ),
        (
            "Power",
            of_watts(gpu["power_watts"], gpu["power_limit_watts"]),
            bar(gpu["power_watts"], gpu["power_limit_watts"]),
        ),
        ("Temp", ABSENT if degrees is None else f"{degrees:.0f} °C", ""),
    )
    cells = "".join(f"<div><dt>{name}</dt><dd>{value}{drawn}</dd></div>" for name, value, drawn in figures)
    return (
        f'{opening}<figure>{sparkline(gpu["load_10m"])}<figcaption aria-hidden="true"><span>10 min ago</span>'
        f"<span>load</span><span>now</span></figcaption></figure>\n<dl>{cells}</dl>\n"
        f"{_users(gpu, index, now)}</section>\n"
    )


def _look_of(gpu: Facts) -> str:
    """How a GPU looks at a glance: the worst of its processes decides."""
    if not gpu["up"]:
        return "bad"
    looks = [_look(process) for process in gpu["processes"]]
    return next((look for look in ("bad", "poor", "good") if look in looks), "none")


def _look(process: Facts) -> str:
    state = process["state"]
    if state is None:
        return "none"
    if state in _BAD:
        return "bad"
    return "poor" if process["limited_by"] else _LOOKS.get(state, "plain")


def _users(gpu: Facts, index: object, now: float) -> str:
    shown = gpu["processes"][:_MOST_PROCESSES]
    more = len(gpu["processes"]) - len(shown) + gpu["processes_hidden"]
    rows = _processes(shown, f"Processes on GPU {index}", now) if shown else ""
    if more:
        rows += f'<p class="users">and {more} more processes</p>\n'
    if rows:
        return rows
    owners = ", ".join(filter(None, map(_who, gpu["allocated_to"])))
    if owners:
        return f'<p class="users">{_mark("poor", "allocated, but without a process:")} {owners}</p>\n'
    return f'<p class="users">{"free" if gpu["allocation"] == "unallocated" else "no process"}</p>\n'


def _processes(processes: Sequence[Facts], caption: str, now: float) -> str:
    names = "".join(f'<th scope="col">{name}</th>' for name in _COLUMNS)
    rows = "".join(_process(process, now) for process in processes)
    return (
        f'<table><caption class="hidden">{caption}</caption>'
        f"<colgroup>{'<col>' * len(_COLUMNS)}</colgroup>"
        f'<thead class="hidden"><tr>{names}</tr></thead>\n<tbody>\n{rows}</tbody></table>\n'
    )


def _process(process: Facts, now: float) -> str:
    who, command = _who(process["workload"]), text(process["command"])
    name = " ".join(part for part in (f"<b>{command}</b>" if command else "", who) if part) or ABSENT
    pid = ABSENT if process["pid"] is None else process["pid"]
    age = ABSENT if process["started"] is None else duration(now - process["started"])
    memory, load = process.get("memory_used_bytes"), process.get("load_5m")
    state = process["state"]
    cells = (
        f'<td><span class="unit">pid</span> {pid}</td>',
        f"<td>{size(memory)}</td>",
        f'<td>{percent(load)} <span class="unit">load</span></td>',
        f'<td><span class="unit">for</span> {age}</td>',
        f"<td>{_mark(_look(process), state.replace('_', ' ')) if state else ABSENT}</td>",
    )
    return f'<tr><th scope="row">{name}</th>{"".join(cells)}</tr>\n{_cause(process)}'


def _cause(process: Facts) -> str:
    """The limiting cause with its share and what to do about it, in a row of its own."""
    name = process["limited_by"]
    if not name:
        return ""
    ratio = process.get("limited_by_ratio")
    share = "" if ratio is None else f", costing {percent(ratio)} of its GPU time"
    cause = CAUSES.get(name)
    advice = f" <span>{text(cause.evidence)}. <b>To do:</b> {text(cause.advice)}</span>" if cause else ""
    return (
        f'<tr class="cause"><td colspan="{len(_COLUMNS)}"><strong>Limited by {text(name).replace("_", " ")}</strong>'
        f"{share}:{advice}</td></tr>\n"
    )


def _who(workload: Mapping[str, str]) -> str:
    """Return whom a process belongs to, by the names that a person recognizes."""
    kind, job = workload.get("kind"), workload.get("job_id", "")
    pod = "/".join(workload[key] for key in ("namespace", "pod", "container") if workload.get(key))
    if kind != "pod":
        pod = f"container {workload['container']}" if workload.get("container") else ""
        job = f"Slurm job {job}" if kind == "slurm" and job else job
    else:
        job = "" if workload.get("pod") else f"pod {job[:8]}"
    user = workload.get("user", "")
    return text(" · ".join(filter(None, (pod, job, f"user {user}" if user else ""))))


def _mark(look: str, words: str) -> str:
    """Words with a colour that repeats what they say."""
    return f'<span class="mark {look}">{text(words)}</span>'
