"""HTML of the page from the data of /api/v1/status, with the ranks of distributed trainings: a roll call of those that
make no progress, and a table of all. An unknown value is a dash, never 0.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone

from gpugauge.driver.advice import NO_GPU_ADVICE
from gpugauge.status.model import WASTE, Problem, ProcessStatus, Status, Totals
from gpugauge.status.owner import job_key, owner_words
from gpugauge.status.standstill import own_work, place, roll_call
from gpugauge.status.use import is_without_gpu, on_gpus, unhooked
from gpugauge.status.words import HEADS, HOOK_COMMAND, duration, percent, plural
from gpugauge.web.page.draw import ABSENT, bar, copy_button, mark, name, of_sizes, of_watts, text
from gpugauge.web.page.gpus import gpu_table
from gpugauge.web.page.links import Links
from gpugauge.web.page.process import advice_words

_MAX_RANKS = 16  # of a job; the API has all
_HEADINGS = ("Rank", "Step", "Own work", "Phase", "Waits in", "At", "No progress for", "Behind by")


def ranks(status: Status) -> str:
    """Return the ranks by job, "" without a distributed training."""
    jobs: dict[tuple[str, ...], dict[str, ProcessStatus]] = {}
    for p in (*(p for gpu in status.gpus for p in gpu.processes), *status.without_gpu, *status.ended):
        if p.rank is not None and (p.world_size or 1) > 1 and (p.ended is None or p.standstill):
            jobs.setdefault((*job_key(p.workload), str(p.world_size)), {})[p.process] = p
    return "".join(_job([*found.values()], status.timestamp) for found in jobs.values())


def _job(found: Sequence[ProcessStatus], now: float) -> str:
    lines = roll_call(found).items()
    items = "".join(f'<li class="{"bad" if behind else "poor"}">{text(line)}</li>\n' for line, behind in lines)
    longer = {p.process: p.slowness for p in found if p.slowness and not lines}
    furthest = max((p.steps for p in found if p.steps is not None), default=0)

    def steps_behind(p: ProcessStatus) -> float:
        return furthest - p.steps if p.standstill and p.steps is not None else 0

    def order(p: ProcessStatus) -> tuple[bool, float, float, int]:
        late = p.standstill is not None and p.standstill.behind
        return not late, -longer.get(p.process, 0.0), -steps_behind(p), p.rank or 0

    def row(p: ProcessStatus) -> str:
        still, step, times = p.standstill, steps_behind(p), longer.get(p.process)
        behind = [mark("bad", "the others wait for it")] if still and still.behind else []
        behind += [mark("poor", f"works {times:.1f} times as long as the median")] if times else []
        behind += [plural(round(step), "step")] if step else []
        cells = (
            *(ABSENT if p.steps is None else f"{p.steps:.0f}", percent(own_work(p)), text(p.phase) or ABSENT),
            name(still.function) if still and still.function else ABSENT,
            (name(place(still)) if still else "") or ABSENT,
            *(duration(max(0.0, now - still.since)) if still else ABSENT, ", ".join(behind) or ABSENT),
        )
        return f'<tr><th scope="row">{p.rank}</th>{"".join(f"<td>{cell}</td>" for cell in cells)}</tr>\n'

    shown = sorted(found, key=order)
    called = f'<ul class="problems">\n{items}</ul>\n' if items else ""
    heading = "".join(f'<th scope="col">{each}</th>' for each in _HEADINGS)
    whose, more = owner_words(shown[0].workload), len(shown) - _MAX_RANKS
    count = (
        f"{len(shown)} of {plural(shown[0].world_size or 0, 'rank')} here{f', {more} not shown' if more > 0 else ''}"
    )
    return (
        f'<section aria-label="Ranks">\n{called}<details{" open" if lines or longer else ""}>'
        f"<summary>{name(whose) if whose else 'Training'}: {count}</summary>\n"
        f'<table class="ranks"><thead><tr>{heading}</tr></thead>\n'
        f"<tbody>\n{''.join(map(row, shown[:_MAX_RANKS]))}</tbody></table></details>\n</section>\n"
    )


_MAX_NAMED = 100  # characters of the subjects of those that are folded
_MAX_LISTED_PROBLEMS = 5  # of the others, those that only waste time are folded, on GPUs without faults
_MAX_PROBLEMS = 200  # the API has all
# Shown only where scripts run.
_TOOLS = """\
<search class="tools">
<label>Filter <input type="search" id="filter" placeholder="program, user, job, GPU" autocomplete="off"></label>
<label><input type="checkbox" id="only"> with problems only</label>
<output id="found"></output>
<button type="button" id="fold">Fold all</button>
<button type="button" id="pause" aria-pressed="false">Pause</button>
</search>
"""
# Of the words that the page uses, those that a new reader may not know.
_WORDS = """\
<footer><details class="words"><summary>What the words mean</summary>
<dl>
<dt>Busy</dt><dd>the share of the time in which a kernel ran on the GPU; it does not say how well</dd>
<dt>Hook</dt><dd>the part of gpugauge inside a training program: it reports steps, waits and memory</dd>
<dt>Wasted, slowed</dt><dd>a program is stalled, idle for 30 minutes, or loses half of its GPU time; it loses less</dd>
<dt>GPU time lost</dt><dd>the share of the last minute in which the GPU did nothing for the program, or was slow</dd>
<dt>Waiting for data, the rest</dt><dd>shares of the last minute since the first step, whatever the GPU does</dd>
<dt>Own code, asleep</dt><dd>the rest: its thread is on a CPU, or waits for storage, a lock, the GPU, a program</dd>
<dt>Expected</dt><dd>how fast steps would be without the cause, with bounds, and what would limit them then</dd>
<dt>MFU</dt><dd>the arithmetic of the model, by what the GPU can do at most (model FLOPs utilization)</dd>
<dt>MIG, GI, CI</dt><dd>a part of a GPU with its own memory; the numbers that nvidia-smi -L gives it</dd>
</dl></details></footer>
"""


def page(head: str, body: str) -> str:
    """Return the whole document. The script updates the body."""
    return f"{head}<main>\n{body}</main>\n{_WORDS}</body>\n</html>\n"


def head(version: str, metrics_path: str, host: str, links: Links) -> str:
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
<h1><img src="page.svg?{text(version)}" alt="" width="26" height="26">{name(host)}<small>gpugauge</small></h1>
<nav aria-label="Other views">
{links.fleet()}<a href=".{text(metrics_path)}">Metrics</a>
<a href="./api/v1/status">JSON</a>
<a href="./-/ready">Ready</a>
<a href="./-/healthy">Health</a>
</nav>
<p id="lost" class="banner bad" role="status" hidden></p>
<p id="said" class="hidden" role="status"></p>
</header>
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


def content(status: Status, scenario: str | None, links: Links) -> tuple[str, str]:
    """Return the HTML before and after the age of the snapshot, which changes from reply to reply."""
    shown = enumerate(status.problems[:_MAX_PROBLEMS])
    listed = {(key, p.advice): f"#problem-{number}" for number, p in shown for key in p.processes or p.gpus}
    # The details of what a fault slows have no advice either.
    listed |= {
        (key, None): listed[key, p.advice] for p in status.problems[:_MAX_PROBLEMS] if p.of_fault for key in p.processes
    }
    links = replace(links, listed=listed, daemon=None if status.simulated else links.daemon)
    table = gpu_table(status, links)
    tools = _TOOLS if table else ""
    before, after = _exporter(status)
    answer = _answer(status, links) + ranks(status) + _no_hook(status)
    if is_without_gpu(status):
        answer += f'<p class="hint"><b>No GPU:</b> {links.advice(NO_GPU_ADVICE, None)}</p>\n'
    return f"{banner(scenario)}{answer}{_overview(status.totals)}{tools}{table}{before}", after


def _answer(status: Status, links: Links) -> str:
    problems, pids = status.problems, _pids(status)
    items = [_problem(*one, links, pids) for one in enumerate(problems[:_MAX_PROBLEMS])]
    faulty = {uuid for problem in problems if problem.kind not in WASTE for uuid in problem.gpus}
    first = [n for n in range(len(items)) if n < _MAX_LISTED_PROBLEMS or _is_faulty(problems[n], faulty)]
    faults, waste = ([n for n in first if (problems[n].kind in WASTE) == wasted] for wasted in (False, True))
    heads = [f"<h2>{words}</h2>\n" if faults and waste else "" for words in HEADS]
    late = [n for n in waste if n >= _MAX_LISTED_PROBLEMS]  # behind the folded ones, in their order
    listed = heads[0] + _list(items[n] for n in faults) + heads[1] + _list(items[n] for n in waste if n not in late)
    if len(problems) > len(first):
        more, rest = [item for n, item in enumerate(items) if n not in first], len(problems) - _MAX_PROBLEMS
        end = f'<p>and {rest} others, see <a href="./api/v1/status">JSON</a></p>\n' if rest > 0 else ""
        count = plural(len(problems) - len(first), "more problem")
        named = ", ".join(dict.fromkeys(problems[n].subject for n in range(len(items)) if n not in first))
        count += f": {text(named)}" if len(named) <= _MAX_NAMED else ""
        listed += f"<details><summary>{count}</summary>\n{_list(more)}{end}</details>\n"
    listed += _list(items[n] for n in late)
    answer = mark(status.tone, status.answer)
    return f'<section aria-label="Answer">\n<p class="answer">{answer}</p>\n{listed}</section>\n'


def _is_faulty(problem: Problem, uuids: Collection[str]) -> bool:
    """Return whether a problem is a fault, or on a GPU with one."""
    return problem.kind not in WASTE or not set(uuids).isdisjoint(problem.gpus)


def _list(items: Iterable[str]) -> str:
    found = "".join(items)
    return f'<ul class="problems">\n{found}</ul>\n' if found else ""


def _problem(number: int, problem: Problem, links: Links, pids: Mapping[str, int]) -> str:
    colon = "" if problem.processes else ":"
    words = f"<strong>{name(problem.subject)}{colon}</strong> {text(problem.text)}"
    words += f", {text(problem.since_words)}" if problem.since_words else ""
    detail = f"; <small>{text(problem.detail)}</small>" if problem.detail else ""
    advice = advice_words(problem, links)
    advice = f" <span>{advice}</span>" if advice else ""
    advice += "".join(f" <span>{n}. {links.advice(step, None)}</span>" for n, step in enumerate(problem.steps, 1))
    doctor = links.doctor(next((pids[process] for process in problem.processes if process in pids), None))
    shown = f"<span>{words}{detail}{advice}</span>{f' {doctor}' if doctor else ''}"
    anchor = "no-hook" if problem.kind == "unjudged" else f"problem-{number}"
    subjects = text(" ".join(problem.processes or problem.gpus))
    return f'<li id="{anchor}" class="{problem.tone}" data-of="{subjects}">{shown}</li>\n'


def _pids(status: Status) -> dict[str, int]:
    everywhere = [*(p for gpu in status.gpus for p in gpu.processes), *status.without_gpu]
    return {process.process: process.pid for process in everywhere if process.pid is not None}


def _no_hook(status: Status) -> str:
    """Return how to learn more of the processes that run without the hook."""
    count = len(unhooked([*on_gpus(status.gpus), *status.without_gpu]))
    # A low load has the same advice.
    if not count or any(problem.kind == "unjudged" for problem in status.problems[:_MAX_PROBLEMS]):
        return ""
    who, them = plural(count, "process", "es"), "If it is a training, start it" if count == 1 else "Start trainings"
    return (
        f'<p id="no-hook" class="hint"><b>No hook:</b> the state of {who} is not known. {them} under the hook the '
        f"next time: {copy_button(HOOK_COMMAND)}</p>\n"
    )


def _overview(totals: Totals) -> str:
    if not totals.gpus:
        return ""
    down = totals.gpus - totals.up
    some = f" <small>of {plural(totals.load_gpus, 'GPU')}</small>" if 0 < totals.load_gpus < totals.up else ""
    mig = f" <small>{plural(totals.mig_devices, 'MIG device')}</small>" if totals.mig_devices else ""
    figures = [("GPUs", f"{totals.gpus}{f', {down} down' if down else ''}{mig}", "")]
    figures.append(("Busy, mean", percent(totals.load) + some, bar(totals.load, 1.0)))
    if totals.mig_load is not None:
        figures.append(("MIG devices busy, mean", percent(totals.mig_load), bar(totals.mig_load, 1.0)))
    memory = totals.memory_used_bytes, totals.memory_total_bytes
    power = totals.power_watts, totals.power_limit_watts
    figures.append(("Memory", of_sizes(*memory), bar(*memory)))
    figures.append(("Power", of_watts(*power), bar(*power)))
    cells = "".join(f"<div><dt>{heading}</dt><dd>{value}{drawn}</dd></div>\n" for heading, value, drawn in figures)
    return f'<section aria-label="All GPUs"><dl class="overview">\n{cells}</dl></section>\n'


def _exporter(status: Status) -> tuple[str, str]:
    driver, failing = status.driver, status.failing_collectors
    quiet = not driver.needed or driver.reason in {"off", "starting"}
    state = mark("good" if driver.up else "none" if quiet else "bad", driver.state_words)
    if driver.released_until:
        until = datetime.fromtimestamp(driver.released_until, timezone.utc)
        state = mark("poor", f"released until {until:%Y-%m-%d %H:%M:%S} UTC: the GPUs are not watched")
    collectors = mark("bad", f"failing: {', '.join(failing)}") if failing else mark("good", "ok")
    at = datetime.fromtimestamp(status.timestamp, timezone.utc)
    before = (
        '<section aria-label="Exporter"><dl class="exporter">\n'
        f"<div><dt>Driver</dt><dd>{state}</dd></div>\n<div><dt>Collectors</dt><dd>{collectors}</dd></div>\n"
        f'<div><dt>Snapshot</dt><dd><time datetime="{at:%Y-%m-%dT%H:%M:%SZ}">{at:%H:%M:%S} UTC</time>, '
    )
    after = f" s old</dd></div>\n<div><dt>Version</dt><dd>{text(status.version)}</dd></div>\n</dl></section>\n"
    return before, after
