"""HTML of the page from the data of /api/v1/status. An unknown value is a dash, never 0."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

from gpugauge.status.down import down_phrase
from gpugauge.status.steps import loader_advice, step_sentence
from gpugauge.verdict.causes import CAUSES
from gpugauge.web.page.draw import ABSENT, bar, duration, of_sizes, of_watts, percent, size, sparkline, text

_MAX_PROCESSES_PER_GPU = 32  # the metrics have all
_COLUMNS = ("Workload", "Process id", "GPU memory", "Load over 5 minutes", "Running for", "State")
# CSS classes of states. The name of the state is always shown, too.
_STATE_CLASSES = {
    "training": "good",
    "evaluating": "good",
    "generating": "good",
    "checkpointing": "good",
    "unknown": "none",
    "stalled": "bad",
    "training_on_cpu": "bad",
}

Facts = Mapping[str, Any]


def page(head: str, body: str) -> str:
    """Return the whole document. The script replaces `body`."""
    return f"{head}<main>\n{body}</main>\n</body>\n</html>\n"


def head(version: str, metrics_path: str) -> str:
    """Return the constant start of the document. Links are relative, so that a proxy may add a path prefix."""
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
    """Return the warning that the GPUs are simulated, "" without a scenario."""
    if scenario is None:
        return ""
    return (
        '<p class="banner simulated"><strong>Simulated: these GPUs do not exist.</strong> '
        f"Scenario: {text(scenario)}</p>\n"
    )


def unavailable(reason: str, scenario: str | None) -> str:
    """Return the message that replaces stale or missing values."""
    return (
        f'{banner(scenario)}<p class="banner bad"><strong>No current values:</strong> {text(reason)}. '
        "See the log of the daemon.</p>\n"
    )


def content(facts: Facts, scenario: str | None) -> tuple[str, str]:
    """Return the HTML before and after the age of the snapshot, which changes from reply to reply."""
    gpus: Sequence[Facts] = facts["gpus"]
    before, after = _exporter(facts)
    parts = [after, _overview(gpus), *(_gpu(gpu, number, facts["timestamp"]) for number, gpu in enumerate(gpus))]
    if not gpus and facts["driver"]["up"]:
        parts.append('<p class="none">No GPU.</p>\n')
    if facts["without_gpu"]:
        title = "Processes with torch that use no GPU"
        parts.append(f'<section class="gpu none" aria-labelledby="without"><h2 id="without">{title}</h2>\n')
        parts.append(_processes(facts["without_gpu"], title, facts["timestamp"]) + "</section>\n")
    return banner(scenario) + before, "".join(parts)


def _exporter(facts: Facts) -> tuple[str, str]:
    """Return the state of the exporter, before and after the age of the snapshot."""
    driver, failing = facts["driver"], facts["failing_collectors"]
    state = _mark("good", "up") if driver["up"] else _mark("bad", f"not available: {driver['reason']}")
    if driver.get("released_until"):
        until = datetime.fromtimestamp(driver["released_until"], timezone.utc)
        state = _mark("poor", f"released until {until:%Y-%m-%d %H:%M:%S} UTC: the GPUs are not watched")
    collectors = _mark("bad", f"failing: {', '.join(failing)}") if failing else _mark("good", "ok")
    at = datetime.fromtimestamp(facts["timestamp"], timezone.utc)
    before = (
        '<section aria-label="Exporter"><dl class="exporter">\n'
        f"<div><dt>Driver</dt><dd>{state}</dd></div>\n<div><dt>Collectors</dt><dd>{collectors}</dd></div>\n"
        f'<div><dt>Snapshot</dt><dd><time datetime="{at:%Y-%m-%dT%H:%M:%SZ}">{at:%H:%M:%S} UTC</time>, '
    )
    after = f" s old</dd></div>\n<div><dt>Version</dt><dd>{text(facts['version'])}</dd></div>\n</dl></section>\n"
    problems = {f"Collector {name}:": error for name, error in failing.items() if error}
    if driver.get("advice"):
        problems = {"Driver:": driver["advice"], **problems}
    if facts.get("hook"):
        problems["Hook:"] = facts["hook"]
    return before, after + "".join(
        f'<p class="banner bad"><strong>{text(part)}</strong> {text(problem)}</p>\n'
        for part, problem in problems.items()
    )


def _overview(gpus: Sequence[Facts]) -> str:
    """Return the totals of all GPUs. A total with an unknown part is a dash."""
    if not gpus:
        return ""
    up = [gpu for gpu in gpus if gpu["up"]]
    lost = len(gpus) - len(up)
    loads = [gpu["load_5m"] if gpu["load_5m"] is not None else gpu["load"] for gpu in up]
    load = sum(loads) / len(loads) if loads and None not in loads else None
    figures = (
        ("GPUs", f"{len(gpus)}{f', {lost} down' if lost else ''}", ""),
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
        f'<section class="gpu {_gpu_class(gpu)}" aria-labelledby="gpu{number}">\n'
        f'<h2 id="gpu{number}"><span class="index"><span class="hidden">GPU </span>{index}</span> {title}'
        f"<small>{text(gpu['uuid'])}</small></h2>\n"
    )
    if not gpu["up"]:
        return f'{opening}<p class="gone">{_mark("bad", down_phrase(gpu["down_reason"]))}</p>\n</section>\n'
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


def _gpu_class(gpu: Facts) -> str:
    """Return the CSS class of a GPU: that of the worst of its processes."""
    if not gpu["up"]:
        return "bad"
    classes = [_process_class(process) for process in gpu["processes"]]
    return next((name for name in ("bad", "poor", "good") if name in classes), "none")


def _process_class(process: Facts) -> str:
    state = process["state"]
    if state is None:
        return "none"
    state_class = _STATE_CLASSES.get(state, "plain")
    return "poor" if process["limited_by"] and state_class != "bad" else state_class


def _users(gpu: Facts, index: object, now: float) -> str:
    shown = gpu["processes"][:_MAX_PROCESSES_PER_GPU]
    more = len(gpu["processes"]) - len(shown) + gpu["processes_hidden"]
    rows = _processes(shown, f"Processes on GPU {index}", now) if shown else ""
    if more:
        rows += f'<p class="users">and {more} more processes</p>\n'
    if rows:
        return rows
    owners = ", ".join(filter(None, map(_owner, gpu["allocated_to"])))
    if owners:
        return f'<p class="users">{_mark("poor", "allocated, but no process uses it:")} {owners}</p>\n'
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
    owner, command = _owner(process["workload"]), text(process["command"])
    name = " ".join(part for part in (f"<b>{command}</b>" if command else "", owner) if part) or ABSENT
    pid = ABSENT if process["pid"] is None else process["pid"]
    age = ABSENT if process["started"] is None else duration(now - process["started"])
    memory, load = process.get("memory_used_bytes"), process.get("load_5m")
    state = process["state"]
    cells = (
        f'<td><span class="unit">pid</span> {pid}</td>',
        f"<td>{size(memory)}</td>",
        f'<td>{percent(load)} <span class="unit">load</span></td>',
        f'<td><span class="unit">for</span> {age}</td>',
        f"<td>{_mark(_process_class(process), state.replace('_', ' ')) if state else ABSENT}</td>",
    )
    return f'<tr><th scope="row">{name}</th>{"".join(cells)}</tr>\n{_cause(process)}{_steps(process)}'


def _cause(process: Facts) -> str:
    """Return a table row with the limiting cause, its share and its advice."""
    name = process["limited_by"]
    if not name:
        return ""
    ratio = process.get("limited_by_ratio")
    # Without a GPU in use no GPU time is lost.
    lost = ratio is not None and process["state"] != "training_on_cpu"
    share = f", which costs {percent(ratio)} of its GPU time" if lost else ""
    cause = CAUSES.get(name)
    advice = f" <span>{text(cause.evidence)}. <b>Advice:</b> {text(cause.advice)}</span>" if cause else ""
    return (
        f'<tr class="cause"><td colspan="{len(_COLUMNS)}"><strong>Limited by {text(name).replace("_", " ")}</strong>'
        f"{share}:{advice}</td></tr>\n"
    )


def _steps(process: Facts) -> str:
    """Return a table row with the parts of the steps of a training on the CPU, and with unknown waits for batches."""
    on_cpu = process["state"] == "training_on_cpu"
    parts = [("Last minute:", step_sentence(process["step_shares"] or {}) if on_cpu else "")]
    parts.append(("Not decided:", loader_advice(process["undecidable"] or ())))
    notes = [f"<strong>{name}</strong> <span>{text(words)}.</span>" for name, words in parts if words]
    return f'<tr class="cause"><td colspan="{len(_COLUMNS)}">{" ".join(notes)}</td></tr>\n' if notes else ""


def _owner(workload: Mapping[str, str]) -> str:
    """Return the owner of a process by names: pod or container, job, user."""
    kind, job = workload.get("kind"), workload.get("job_id", "")
    pod = "/".join(workload[key] for key in ("namespace", "pod", "container") if workload.get(key))
    if kind != "pod":
        pod = f"container {workload['container']}" if workload.get("container") else ""
        job = f"Slurm job {job}" if kind == "slurm" and job else job
    else:
        job = "" if workload.get("pod") else f"pod {job[:8]}"
    user = workload.get("user", "")
    return text(" · ".join(filter(None, (pod, job, f"user {user}" if user else ""))))


def _mark(css_class: str, words: str) -> str:
    """Return text with a coloured mark. The text alone is sufficient without the colour."""
    return f'<span class="mark {css_class}">{text(words)}</span>'
