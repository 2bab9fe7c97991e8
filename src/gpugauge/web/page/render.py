"""HTML of the page from the data of /api/v1/status. An unknown value is a dash, never 0."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

from gpugauge.status.details import last_use
from gpugauge.status.down import down_phrase
from gpugauge.web.page.draw import ABSENT, bar, mark, of_sizes, of_watts, percent, sparkline, text
from gpugauge.web.page.process import owner, process_table

_MAX_PROCESSES_PER_GPU = 32  # the metrics have all
_MAX_PROBLEMS = 32  # the API has all
Facts = Mapping[str, Any]


def page(head: str, body: str) -> str:
    """Return the whole document. The script replaces `body`."""
    return f"{head}<main>\n{body}</main>\n</body>\n</html>\n"


def head(version: str, metrics_path: str, host: str) -> str:
    """Return the constant start of the document. Links are relative, so that a proxy may add a path prefix."""
    return f"""\
<!DOCTYPE html>
<html lang="en" data-version="{text(version)}">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{text(host)} · gpugauge</title>
<link rel="icon" href="page.svg?{text(version)}">
<link rel="stylesheet" href="page.css?{text(version)}">
<script src="page.js?{text(version)}" defer></script>
<noscript><meta http-equiv="refresh" content="5"></noscript>
</head>
<body>
<header>
<h1><img src="page.svg?{text(version)}" alt="" width="26" height="26">{text(host)}<small>gpugauge</small></h1>
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
        parts.append(process_table(facts["without_gpu"], title, facts["timestamp"]) + "</section>\n")
    return banner(scenario) + _answer(facts) + before, "".join(parts)


def _exporter(facts: Facts) -> tuple[str, str]:
    """Return the state of the exporter, before and after the age of the snapshot."""
    driver, failing = facts["driver"], facts["failing_collectors"]
    state = mark("good", "up") if driver["up"] else mark("bad", f"not available: {driver['reason']}")
    if driver.get("released_until"):
        until = datetime.fromtimestamp(driver["released_until"], timezone.utc)
        state = mark("poor", f"released until {until:%Y-%m-%d %H:%M:%S} UTC: the GPUs are not watched")
    collectors = mark("bad", f"failing: {', '.join(failing)}") if failing else mark("good", "ok")
    at = datetime.fromtimestamp(facts["timestamp"], timezone.utc)
    before = (
        '<section aria-label="Exporter"><dl class="exporter">\n'
        f"<div><dt>Driver</dt><dd>{state}</dd></div>\n<div><dt>Collectors</dt><dd>{collectors}</dd></div>\n"
        f'<div><dt>Snapshot</dt><dd><time datetime="{at:%Y-%m-%dT%H:%M:%SZ}">{at:%H:%M:%S} UTC</time>, '
    )
    after = f" s old</dd></div>\n<div><dt>Version</dt><dd>{text(facts['version'])}</dd></div>\n</dl></section>\n"
    return before, after


def _answer(facts: Facts) -> str:
    """Return the answer line and the problems."""
    problems: Sequence[Facts] = facts["problems"]
    level = "bad" if any(problem["grave"] for problem in problems) else "poor" if problems else "good"
    items = "".join(map(_problem, problems[:_MAX_PROBLEMS]))
    if len(problems) > _MAX_PROBLEMS:
        items += f"<li>and {len(problems) - _MAX_PROBLEMS} more</li>\n"
    listed = f'<ul class="problems">\n{items}</ul>\n' if items else ""
    answer = mark(level, facts["answer"])
    return f'<section aria-label="Answer"><p class="answer">{answer}</p>\n{listed}</section>\n'


def _problem(problem: Facts) -> str:
    colon = "" if problem["processes"] else ":"
    words = f"<strong>{text(problem['subject'])}{colon}</strong> {text(problem['text'])}"
    detail = f" <small>({text(problem['detail'])})</small>" if problem["detail"] else ""
    advice = f" <span><b>Advice:</b> {text(problem['advice'])}</span>" if problem["advice"] else ""
    return f'<li class="{"bad" if problem["grave"] else "poor"}">{words}{detail}{advice}</li>\n'


def _overview(gpus: Sequence[Facts]) -> str:
    """Return the totals of all GPUs. A total with an unknown part is a dash."""
    if not gpus:
        return ""
    up = [gpu for gpu in gpus if gpu["up"]]
    lost = len(gpus) - len(up)
    loads = [gpu["load_5m"] if gpu["load_5m"] is not None else gpu["load"] for gpu in up]
    known = [load for load in loads if load is not None]
    load = sum(known) / len(known) if known else None
    some = f" <small>of {len(known)} GPUs</small>" if 0 < len(known) < len(up) else ""
    figures = (
        ("GPUs", f"{len(gpus)}{f', {lost} down' if lost else ''}", ""),
        ("Mean load", percent(load) + some, bar(load, 1.0)),
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
        f'<section class="gpu {gpu["level"]}" aria-labelledby="gpu{number}">\n'
        f'<h2 id="gpu{number}"><span class="index"><span class="hidden">GPU </span>{index}</span> {title}'
        f"<small>{text(gpu['uuid'])}</small></h2>\n"
    )
    if not gpu["up"]:
        gone = f'<p class="gone">{mark("bad", down_phrase(gpu["down_reason"]))} {text(last_use(gpu))}</p>\n'
        rows = process_table(gpu["processes"], f"Processes on GPU {index}", now) if gpu["processes"] else ""
        return f"{opening}{gone}{_health(gpu)}{rows}</section>\n"
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
        f"{_health(gpu)}{''.join(map(_mig, gpu['mig']))}{_users(gpu, index, now)}</section>\n"
    )


def _health(gpu: Facts) -> str:
    """Return the errors, lowered clocks and Xid errors of a GPU."""
    marks = [mark("bad" if ailment["grave"] else "poor", ailment["text"]) for ailment in gpu["health"]]
    marks += [mark("poor", f"clocks lowered: {reason}") for reason in gpu["slowed_by"]]
    marks += [mark("poor" if xid["advice"] else "none", xid["text"]) for xid in gpu["xids"]]
    return f'<p class="users">{" ".join(marks)}</p>\n' if marks else ""


def _mig(device: Facts) -> str:
    memory = of_sizes(device["memory_used_bytes"], device["memory_total_bytes"])
    holders = ", ".join(filter(None, map(owner, device["allocated_to"])))
    name = text(device["profile"] or device["uuid"])
    return f'<p class="users">MIG <b>{name}</b> load {percent(device["load"])}, memory {memory} {holders}</p>\n'


def _users(gpu: Facts, index: object, now: float) -> str:
    shown = gpu["processes"][:_MAX_PROCESSES_PER_GPU]
    more = len(gpu["processes"]) - len(shown) + gpu["processes_hidden"]
    rows = process_table(shown, f"Processes on GPU {index}", now) if shown else ""
    if more:
        rows += f'<p class="users">and {more} more processes</p>\n'
    if rows:
        return rows
    owners = ", ".join(filter(None, map(owner, gpu["allocated_to"])))
    if owners:
        return f'<p class="users">{mark("poor", "allocated, but no process uses it:")} {owners}</p>\n'
    return f'<p class="users">{"free" if gpu["allocation"] == "unallocated" else "no process"}</p>\n'
