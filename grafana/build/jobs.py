"""Jobs: their identity, which is that of the rules, their state in words, causes and advice, and queries about them.

Those about all jobs read recorded series, those about one job do not.
"""

from __future__ import annotations

from collections.abc import Callable

from gpugauge.artifacts.rules import recording as rules
from gpugauge.artifacts.rules.promql import JOB_LABELS as JOB_LABELS_OF_RULES
from gpugauge.artifacts.rules.promql import PROCESS_JOB, Selectors
from gpugauge.artifacts.rules.reasons import CPU, FINE, IDLE, REBOOT, WHY, YOUNG, judged
from gpugauge.artifacts.rules.recording import (
    ARMED,
    HELD,
    HOURS_LOST,
    LOST_GPUS,
    NOW,
    PROBLEM,
    PROGRAMS,
    TRAINING,
)
from gpugauge.artifacts.rules.states import ADVICE, CRITICAL, GOOD, STATE, UNKNOWN, WARNING, Line
from gpugauge.status.words import _STATES, HOOK_COMMAND, IDLE_ADVICE
from gpugauge.verdict.causes import CAUSES
from gpugauge.verdict.mistakes import MISTAKES
from gpugauge.workload.job import UNIQUE, WORDS
from grafana.build import gpus
from grafana.build.gpus import NODE_KEY
from grafana.build.panels import Query
from grafana.build.queries import CLUSTER, COUNT, SHARE, Expr, Scope, keys, recorded
from grafana.build.words import GREY, states

JOB_LABELS = (CLUSTER, *JOB_LABELS_OF_RULES)
JOB_KEY, PROCESS_KEY = gpus.JOB_KEY, keys("process")
_JUDGED = judged(Selectors())
# The window of the rules, and the same for descriptions of panels.
RANGE = "15m"
WINDOW = "over the last 15 minutes"
SHOWN = "shown"
"""The label with what people call a job."""
# The nodes of the chosen job.
JOB_NODES = Scope({"instance": "~$instance"}, gone=True)
JOB_MATCHERS = {"workload_job_kind": "~$kind", "workload_namespace": "~$namespace"}
CHOSEN = JOB_NODES.with_labels(**JOB_MATCHERS, workload_job="$workload")
# Each has the labels of the job; in a sidecar there is only that of the hook.
INFOS = ("gpu_process_host_info", "gpu_process_info", "torch_process_info")
# In place of three selectors, because most queries about a job have it: the first alone where it has all processes.
INFO = CHOSEN.select(INFOS[0]).replace(f"{INFOS[0]}{{", '{__name__=~"$infos",')
# In several clusters, namespaces or of several kinds.
SEVERAL = "(vector($several) > 1)"
# Grafana's names of colours, for states of a process. Unknown: grey.
STATE_COLORS = {
    "training": "green",
    "evaluating": "super-light-green",
    "checkpointing": "dark-green",
    "generating": "light-green",
    "starting": "super-light-blue",
    "compiling": "blue",
    "not_training": "dark-blue",
    "unknown": GREY,
    "stalled": "red",
    "held_idle": "orange",
    "training_on_cpu": "dark-orange",
}
CAUSE_NAMES = {cause.name: (cause.phrase, cause.colour) for cause in CAUSES.values()}
# In place of the cause that is not known, of a job whose GPU has a critical fault.
BROKEN = "not explained: a GPU is out of order"
CAUSE_COLORS = {**CAUSE_NAMES, BROKEN: ("", "light-red")}
_STATE_WORDS = _STATES | {"unknown": "runs without the hook", "held_idle": "holds GPUs, idle"}
STATE_NAMES = {state: (_STATE_WORDS[state], color) for state, color in STATE_COLORS.items()}
_PROBLEMS = {
    "stalled": ("does not advance", "find where it waits: py-spy dump --pid PID, on its node"),
    "out_of_memory": ("ran out of GPU memory", CAUSES["memory_pressure"].advice),
    "held_idle": (CAUSES["unused_gpus"].phrase, IDLE_ADVICE),
    "on_cpu": ("trains on the CPU of a machine with a GPU", CAUSES["model_on_cpu"].advice),
}
_NOT_SEEN = "not known: $1 min"
UNSEEN_ADVICE = (
    "ask the administrators about the node: if it is down, start the job elsewhere from its last checkpoint, or "
    "the last one before memory errors of its GPUs"
)
_UNSEEN_NAMES = {"~not known: .* is not seen .*": ("", "red"), "~not known.*": ("", GREY)}
_RESTARTED = "not known: gpugauge on $1 has just started"
# By the labels `why` and `advice` of a job.
WHY_NAMES = {
    FINE: ("", "green"),
    CPU: ("", GREY),
    YOUNG: ("", GREY),
    **{name: (words, "orange" if name in {"held_idle", "on_cpu"} else "red") for name, (words, _) in _PROBLEMS.items()},
    "~one of its GPUs .*|its node .*": ("", "red"),
    **{cause.name: (cause.phrase, "orange" if cause.name != "unknown" else GREY) for cause in CAUSES.values()},
    **_UNSEEN_NAMES,
}
ADVICE_NAMES = {
    **dict.fromkeys((FINE, CPU, YOUNG), ("-", "")),
    **{name: (text, "") for name, (_, text) in _PROBLEMS.items()},
    **{cause.name: (cause.advice, "") for cause in CAUSES.values()},
    BROKEN: ("repair the GPU first", ""),
    "unknown": (f"start it under the hook: {HOOK_COMMAND}", ""),
    **{mistake.name: (mistake.change, "") for mistake in MISTAKES},
}
ENDED_TEXT = "ended"
# States of processes by the level of a job with one of them, the gravest first.
_BY_LEVEL = (
    (CRITICAL, "stalled"),
    (WARNING, "training_on_cpu"),
    (GOOD, "training"),
    (GOOD, "~evaluating|checkpointing|generating|compiling|starting"),
    (WARNING, "held_idle"),
    (UNKNOWN, "~not_training|unknown"),
)


def called(expr: Expr) -> Expr:
    """Return the series of jobs with what people call them as the label SHOWN, as alerts and page call them."""
    text = 'label_join({}, "job_of_kind", "/", "workload_job_kind", "workload_job")'
    # Host and user in a name only make it unique.
    unique, rows = "(?:[^/]*/)?(.*)", [("[^/]*", "$1 $2", "(?:[^/]*/)?(.*)")]
    for kind, (words, pattern, shown) in WORDS.items():
        plain = unique if pattern == UNIQUE else "(.*)"
        rows += [(kind, f"{words}$2", plain), (kind, words + shown.replace("$1", "$2"), pattern[1:-1])][
            : 1 + bool(shown)
        ]
    for kind, words, pattern in rows:
        text = f'label_replace({text}, "{SHOWN}", "{words}", "job_of_kind", "({kind})/{pattern}")'
    return expr.then(f'label_replace({text}, "job_of_kind", "", "", "")')


def places(of_jobs: str) -> Expr:
    """Return the jobs with a node, and with the label `where`: the node, or the number of their nodes, of series by job
    and node.
    """
    number = f'count_values by ({JOB_KEY}) ("where", count by ({JOB_KEY}) ({of_jobs}))'
    found = f"topk by ({JOB_KEY}) (1, {of_jobs}) * on ({JOB_KEY}) group_left (where) {number}"
    found = f'label_join(label_replace({found}, "where", "$1 nodes", "where", "(.*)"), "one", "@", "where", "instance")'
    found = f'label_replace({found}, "where", "$1", "one", "1 nodes@(.*)")'
    return Expr(f"(group by ({JOB_KEY}, instance, where) ({found}))", COUNT)


def _of_judged(name: str) -> Expr:
    return recorded(name, **JOB_MATCHERS).then(f"({{}} and on ({JOB_KEY}) {_JUDGED})")


def wasted() -> Expr:
    """Return the number of GPUs that each job with evidence of a training wastes."""
    return _of_judged(LOST_GPUS)


def held() -> Expr:
    """Return the number of GPUs that each job with evidence of a training holds."""
    return _of_judged(HELD)


def idle(**node: str) -> str:
    """Return the number of GPUs that each job holds idle that is no training: the waste of trainings has them."""
    trains = f"({recorded(LOST_GPUS)} and on ({JOB_KEY}) {_JUDGED})"
    return f"(sum by ({JOB_KEY}) ({recorded(IDLE, **node)}) unless on ({JOB_KEY}) {trains})"


def idle_by_process(holds: str, **node: str) -> str:
    """Return the same by process, of series of those that hold memory: the processes of a job on a node share it."""
    node_key = f"{JOB_KEY}, instance"
    jobs_of = f"* on ({PROCESS_KEY}) group_left ({', '.join(JOB_LABELS_OF_RULES)}) {recorded(PROCESS_JOB)}"
    held_ = f"group by ({node_key}, process) ({holds} {jobs_of})"
    idle_ = f"{recorded(IDLE, **node)} / on ({node_key}) count by ({node_key}) ({held_})"
    return f"sum by ({keys('instance', 'process')}) ({held_} * on ({node_key}) group_left () ({idle_}))"


def by_user(of_jobs: Expr) -> Expr:
    """Return the values of jobs by job and user: users share a job in proportion to their processes."""
    processes = recorded(PROGRAMS, **JOB_MATCHERS)
    part, whole = (f"sum by ({by}) ({processes})" for by in (f"{JOB_KEY}, workload_user", JOB_KEY))
    share = f"{part} / on ({JOB_KEY}) group_left () {whole}"
    return of_jobs.then(f"({share} * on ({JOB_KEY}) group_left () {{}} or on ({JOB_KEY}) {{}})")


def with_idle(name: str, **of: str) -> Expr:
    """Return HOURS_LOST or HOURS_HELD, and the GPUs that other programs hold idle, by job."""
    every, idle_ = (recorded(each, **JOB_MATCHERS, **of) for each in (name, IDLE))
    return every.then(f"({{}} or {idle_.by(*JOB_LABELS)})")


def gpu_hours(name: str, of: Callable[[Expr], Expr] = lambda expr: expr, *, idle: bool = True) -> Expr:
    """Return the GPU hours of HOURS_LOST or HOURS_HELD in the time shown, by job and what `of` adds: from the start of
    each training that has given evidence of one by now, and of programs that hold GPUs idle.
    """
    found = rules.gpu_hours(f"({of(with_idle(name) if idle else recorded(name, **JOB_MATCHERS))})", "$__range")
    evidence = (recorded(ARMED), recorded(PROBLEM), recorded(NOW, hook="true"))
    trained = " or ".join(f"last_over_time({each}[$__range])" for each in evidence)
    return Expr(f"({found} and on ({JOB_KEY}) group by ({JOB_KEY}) ({trained}))", "suffix: h")


def idle_hours() -> Expr:
    """Return those of programs that hold GPUs idle alone."""
    lost, idle_ = (recorded(name, **JOB_MATCHERS) for name in (HOURS_LOST, IDLE))
    return Expr(rules.gpu_hours(f"({idle_.by(*JOB_LABELS)} unless on ({JOB_KEY}) {lost})", "$__range"), "suffix: h")


def of_jobs(expr: str, *labels: str, operator: str = "max") -> str:
    """Return series of processes by job and the labels; only of jobs that the variables select."""
    matched = recorded(PROCESS_JOB, **JOB_MATCHERS)
    return (
        f"{operator} by ({', '.join((JOB_KEY, *labels))}) ({expr}\n  * on ({PROCESS_KEY}) group_left "
        f"({', '.join(JOB_LABELS_OF_RULES)}) {matched})"
    )


def of_judged(expr: Expr) -> Expr:
    """Return the series of the trainings of judged jobs."""
    judged_ = f"{recorded(PROCESS_JOB)} and on ({PROCESS_KEY}) {recorded(TRAINING)} and on ({JOB_KEY}) {_JUDGED}"
    return expr.then(f"({{}}\nand on ({PROCESS_KEY}) ({judged_}))", COUNT)


def _unseen(jobs: str, scope: Scope) -> str:
    """Return jobs by node with the label `who`: the node, and for how long it has not been seen."""
    since = f"{jobs} * on ({NODE_KEY}) group_left (minutes) {gpus.not_seen(scope)}"
    return f'label_join({since}, "who", " is not seen for ", "instance", "minutes")'


def not_seen() -> str:
    """Return the trainings that ran on a node when it was seen last, by job and node."""
    return gpus.trainings(Scope(past="$__range:5m", many=True), **JOB_MATCHERS)


def why() -> str:
    """Return why each training wastes GPUs, or what else is known of it, and what to do: labels STATE and ADVICE."""
    unseen = states(JOB_KEY, Line(_NOT_SEEN, CRITICAL, _unseen(not_seen(), Scope(many=True)), "who"))
    unseen = unseen.then(f'label_replace({{}}, "{ADVICE}", "{UNSEEN_ADVICE}", "", "")')
    return f"({unseen} or on ({JOB_KEY}) {recorded(WHY, **JOB_MATCHERS)})"


def why_of(of_jobs: str, by: str, otherwise: str) -> Expr:
    """Return why the job of each of some series wastes GPUs, as in the fleet, by `by` and the label `cause`; without
    the rules, `otherwise`.
    """
    every = f'label_replace({recorded(WHY)}, "cause", "$1", "{STATE}", "(.*)")'
    found = f"group by ({by}, cause) ({of_jobs} * on ({JOB_KEY}) group_left (cause) {every})"
    return Expr(f"({found}\nor on ({by}) {otherwise})", COUNT)


# --- The chosen job, whose queries need no rules ---


LOST_SECONDS = "training_lost_seconds_total"


def causes() -> str:
    """Return the causes by which the processes on the nodes of the chosen job lost time in the time shown: most of the
    series of LOST_SECONDS stay at 0. The unknown one is there always, so that what is 0 is not missing.
    """
    lost = f"max_over_time({JOB_NODES.select(LOST_SECONDS)}[$__range:5m]) > 0"
    return f"count by (cause) ({lost} or {JOB_NODES.select(LOST_SECONDS, cause='unknown')})"


def by_process(expr: Expr, *labels: str) -> Expr:
    """Return the series of the processes of the chosen job, by process and the labels; `and` costs less than a join."""
    return expr.then(f"(({{}})\nand on ({PROCESS_KEY}) {INFO})").by(PROCESS_KEY, *labels, operator="max")


def by_rank(expr: Expr, *labels: str) -> Expr:
    """Return the same for processes with the hook, with their node and rank."""
    info = JOB_NODES.select("torch_process_info")
    rank = f"topk by ({PROCESS_KEY}) (1, group by ({PROCESS_KEY}, instance, rank) ({info}))"
    return by_process(expr, *labels).then(f"{{}}\n* on ({PROCESS_KEY}) group_left (instance, rank) {rank}")


def rank_curves(expr: Expr, *labels: str) -> Query:
    """Return a curve for each rank."""
    named = by_rank(expr, *labels).then('label_replace({}, "rank", " rank $1", "rank", "(.+)")')
    return Query(named, f"{{{{{CLUSTER}}}}} {{{{instance}}}}{{{{rank}}}}")


def job_held() -> Expr:
    """Return the number of GPUs that the chosen job holds, nothing if it holds none."""
    return by_process(JOB_NODES.rate("training_gpu_held_seconds_total", RANGE)).by().then("({} > 0)", COUNT)


def job_wasted() -> Expr:
    """Return the share of the GPU time that the chosen job holds and wastes, by cause."""
    lost = by_process(JOB_NODES.rate(LOST_SECONDS, RANGE, cause="~$causes"), "cause").by("cause")
    return lost.then(f"{{}}\n/ on () group_left () {job_held()}", SHARE)


def hidden() -> list[tuple[str, str]]:
    """Return what most queries about the chosen job need, by name of a variable, as a label: the metrics with its
    processes in the time shown, and the number of jobs of that name.
    """
    host, *others = (f"sum by ({PROCESS_KEY}) (count_over_time({CHOSEN.select(name)}[$__range]))" for name in INFOS)
    more = " or ".join(f"({each} unless on ({PROCESS_KEY}) {each} <= on ({PROCESS_KEY}) {host})" for each in others)
    every, first = (
        f'label_replace({found}, "infos", "{names}", "", "")'
        for found, names in ((f"count ({more})", "|".join(INFOS)), ("vector(0)", INFOS[0]))
    )
    number = f"count ({last_known()}) or vector(0)"
    return [("infos", f"topk(1, {every} or {first})"), ("several", f'count_values("several", {number})')]


def last_known(*labels: str) -> str:
    """Return the newest facts of the chosen job in the time shown, also after its end: a series by the labels."""
    return f"group by ({', '.join((JOB_KEY, *labels))}) (last_over_time({INFO}[$__range]))"


def job_processes() -> str:
    """Return the processes of the chosen job in the time shown."""
    return f"group by ({PROCESS_KEY}) (last_over_time({INFO}[$__range]))"


def job_not_seen() -> str:
    """Return the processes that ran on a node when it was seen last, if it is not seen now."""
    return f"max by ({JOB_KEY}, instance, process) ({gpus.last(CHOSEN, *INFOS[::2])})"


def job_states() -> Expr:
    """Return the state of the chosen job in words: the gravest of its processes."""
    jobs = f"topk by ({PROCESS_KEY}) (1, group by ({keys('process', *JOB_LABELS_OF_RULES)}) ({INFO}))"

    def those(only: str) -> str:
        state = JOB_NODES.read("training_state", state=only).by(PROCESS_KEY, "state", operator="max")
        return f"({state} == 1) * on ({PROCESS_KEY}) group_left ({', '.join(JOB_LABELS_OF_RULES)}) {jobs}"

    return states(
        JOB_KEY,
        Line(_NOT_SEEN, UNKNOWN, _unseen(job_not_seen(), JOB_NODES), "who"),
        *(Line("$1", level, those(only), "state") for level, only in _BY_LEVEL),
        Line(_RESTARTED, UNKNOWN, f"{last_known('instance')} and on ({NODE_KEY}) {gpus.young(JOB_NODES)}", "instance"),
        Line(ENDED_TEXT, UNKNOWN, last_known()),
    )


FAULT_NAMES = {"~GPU .*: last known: .*": ("", "orange"), f"~GPU .*|{REBOOT}.*": ("", "red")}
JOB_STATE_NAMES = {**STATE_NAMES, ENDED_TEXT: ("", GREY), **_UNSEEN_NAMES}
