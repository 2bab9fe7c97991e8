"""Why each training wastes GPUs, or what else is known of it, and what to do; and whose are the GPUs with a fault. The
dashboards of a fleet read these series: joined in each of their queries, they took seconds with a thousand nodes.
"""

from __future__ import annotations

from collections.abc import Callable

from gpugauge.artifacts.rules.health import IDENTITY
from gpugauge.artifacts.rules.promql import JOB_LABELS, Selectors
from gpugauge.artifacts.rules.recording import (
    ALIVE,
    ARMED,
    DEVICE_BUSY,
    DEVICES,
    DOMINANT,
    HELD,
    NOW,
    PROBLEM,
    PROGRAMS,
    Recording,
)
from gpugauge.artifacts.rules.states import ADVICE, CRITICAL, GOOD, UNKNOWN, WARNING, Line, states
from gpugauge.faults.repair import REBOOTS
from gpugauge.faults.table import FAULTS
from gpugauge.verdict.causes import ON_CPU

WHY = "gpugauge:job_why:level"
OWNER = "gpugauge:gpu_owner:info"
OWNER_LABELS = (*JOB_LABELS, "workload_user")
IDLE = "gpugauge:job_idle:gpus"
FINE, CPU, REBOOT = "uses its GPUs", "trains on the CPU", "its node must be rebooted"
YOUNG = "being judged: 15 minutes of training are needed"
ENDS = "the repair of GPU $1 ends every program of its node"
# Faults that must be repaired at once: first those that explain others.
TIERS = [
    "~"
    + "|".join(
        fault.name for fault in FAULTS.values() if fault.severity == "critical" and bool(fault.explains) == explains
    )
    for explains in (True, False)
]
_SLOWEST = "find what limits rank $1: it does most work of its own, and the others wait for it"
_SHORT = "$1: ask the owners to end its programs, then $2. $3"

Select = Callable[..., str]
"""Returns a selector of a metric with labels."""


def short(faults: str, words: str = _SHORT) -> str:
    """Return faults with `words` about what repairs them in place of all steps, which are in the dashboard of the node:
    when, by which command, and what else is to do.
    """
    found = f'label_join({faults}, "parts", "@", "when", "command", "note")'
    found = f'label_replace({found}, "{ADVICE}", "{words}", "parts", "([^@]+)@([^@]+)@(.*)")'
    # Nothing else is to do about some.
    return f'label_replace({found}, "{ADVICE}", "$1", "{ADVICE}", "(.*)[.] ")'


def critical(s: Selectors, select: Select, **labels: str) -> str:
    """Return the gravest fault of each GPU that must be repaired at once: index, summary and advice are labels."""
    first, others = (select("gpu_problem_info", problem=each, **labels) for each in TIERS)
    one = short(f"topk by ({s.gpu}) (1, 2 * {first} or {others})")
    return f"group by ({s.gpu}, index, summary, {ADVICE}) ({one})"


def reboots(s: Selectors, select: Select) -> str:
    """Return the critical faults whose repair ends every program of the node, in the form of `critical`."""
    found = critical(s, select, command=f"~{REBOOTS}")
    return f'label_replace({found}, "{ADVICE}", "save a checkpoint: {ENDS}", "index", "(.*)")'


def advice(s: Selectors, select: Select, of: Callable[..., str], by: str, work: str) -> str:
    """Return what most processes were advised to do about each cause, by `by`, cause and advice. `of` returns series of
    processes by labels, `work` is the time that each rank works.
    """
    every, peers, process = ", ".join(filter(None, (by, "cause"))), "waiting_for_peers", s.keys("process")
    texts = of(select("training_advice_info"), "cause", ADVICE, operator="count")
    # No daemon knows the ranks of other nodes.
    ranks = f"topk by ({process}) (1, group by ({process}, rank) ({select('torch_process_info')}))"
    worked = f"{work} * on ({process}) group_left (rank) {ranks}"
    slowest = f"topk by ({by}) (1, {of(worked, 'rank', 'instance')})"
    slowest = f'label_join({slowest}, "{ADVICE}", " on ", "rank", "instance")'
    slowest = f'label_replace({slowest}, "{ADVICE}", "{_SLOWEST}", "{ADVICE}", "(.*)")'
    waits = of(select("training_advice_info", cause=peers), "cause")
    return f"(({waits} * on ({by}) group_right (cause) {slowest})\nor on ({every}) topk by ({every}) (1, {texts}))"


def judged(s: Selectors) -> str:
    """Return 1 for each job with evidence of a training: its load is judged, or it has a problem of its own."""
    return f"(max by ({s.job}) ({ARMED}) or max by ({s.job}) ({PROBLEM}))"


def recordings(s: Selectors) -> list[Recording]:
    """Return the rules."""
    return [Recording(IDLE, _idle(s)), Recording(WHY, _why(s)), Recording(OWNER, _owners(s))]


def _idle(s: Selectors) -> str:
    """Return the number of GPUs that each job holds idle on a node, of those whose problem it is."""
    unused = f"({IDENTITY} and on ({s.keys('uuid')}) {DEVICE_BUSY} < 0.01)"
    held = f"({DEVICES} and on ({s.keys('instance', 'index')}) {unused})"
    return f'count by ({s.job}, instance) ({held}) and on ({s.job}) {PROBLEM}{{problem="held_idle"}}'


def _why(s: Selectors) -> str:
    def select(name: str, **labels: str) -> str:
        return s(name, None, **labels)

    def of(expr: str, *labels: str, operator: str = "max") -> str:
        return s.by_job(operator, expr, *labels)

    process = s.keys("process")
    on_cpu = of(f"({select('training_limited_by', cause='~' + '|'.join(ON_CPU))} == 1)", "cause")
    # The lean preset has the seconds only.
    trains_there = f"({s.rate('training_seconds_total', 300, state='training_on_cpu')} > 0.5)"
    loading = of(f"({trains_there} and on ({process}) {select('training_loader_limited_by')} == 1)")
    dominant = f"({DOMINANT} and on ({s.job}) {judged(s)})"
    main = f'({dominant} or on ({s.job}) label_replace({loading}, "cause", "data_loading", "", ""))'
    work = s.rate("torch_local_work_seconds_total", s.patience)
    to_do = f"({advice(s, select, of, s.job, work)} and on ({s.job}, cause) {main})"
    faulty = f"{DEVICES} * on ({s.keys('instance', 'index')}) group_left (summary, {ADVICE}) {critical(s, select)}"
    faulty = f'label_replace({faulty}, "fault", "$1", "summary", "([^:]*).*")'
    node = s.keys("instance")
    rebooted = f"{PROGRAMS} * on ({node}) group_left ({ADVICE}) topk by ({node}) (1, {reboots(s, select)})"
    return states(
        s.job,
        Line("one of its GPUs $1", CRITICAL, faulty, "fault", ADVICE),
        Line(REBOOT, CRITICAL, rebooted, advice=ADVICE),
        Line("$1", CRITICAL, f'{PROBLEM}{{problem=~"stalled|out_of_memory"}}', "problem"),
        Line("$1", WARNING, on_cpu, "cause"),
        Line("$1", WARNING, PROBLEM, "problem"),
        Line("$1", WARNING, to_do, "cause", ADVICE),
        Line("$1", WARNING, main, "cause"),
        Line(FINE, GOOD, ARMED),
        Line(YOUNG, UNKNOWN, f"({HELD} > 0 or {NOW}) and on ({s.job}) {ALIVE}"),
        Line(CPU, GOOD, of(trains_there)),
    )


def _owners(s: Selectors) -> str:
    """Return 1 for each GPU with a fault or an alert, with the job and user of the process that holds most of it."""
    process, labels = s.keys("process"), ", ".join(OWNER_LABELS)
    fires = 'ALERTS{alertstate="firing",uuid!=""}'
    found = f"{s('gpu_problem', None, severity='!info')} or {s('gpu_up')} == 0 or {fires}"
    held = f"{s('gpu_process_memory_used_bytes')} and on ({s.gpu}) ({found})"
    one = f"topk by ({s.gpu}) (1, max by ({s.gpu}, process) ({held}))"
    infos = f"{s('gpu_process_info')} and on ({process}) ({held})"
    info = f"topk by ({process}) (1, group by ({process}, {labels}) ({infos}))"
    return f"{one} * on ({process}) group_left ({labels}) {info} > bool -1"
