"""GPUs and nodes: their states in words, their faults as the exporter judges them, and the curves of GPUs. Of it only
the owners of faulty GPUs of many nodes need the rules.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from gpugauge.artifacts.rules import reasons
from gpugauge.artifacts.rules.promql import Selectors
from gpugauge.artifacts.rules.reasons import OWNER, TIERS
from gpugauge.artifacts.rules.recording import HELD, NOW, PROBLEM, PROGRAMS
from gpugauge.artifacts.rules.states import CRITICAL, GOOD, UNKNOWN, UNSEEN, USED, WARNING, Line
from gpugauge.driver.advice import WITHOUT_GPU
from gpugauge.driver.advice import words as driver_words
from gpugauge.driver.codes import CODES
from gpugauge.faults.table import FAULTS
from grafana.build.layout import Panel
from grafana.build.panels import HOT, ONLY_NAME, Query, timeseries
from grafana.build.queries import CLOCK, CLUSTER, COUNT, SHARE, Expr, Scope, keys, recorded, share
from grafana.build.words import GREY, coded, names, states

NODE_KEY, GPU_KEY = keys("instance"), keys("instance", "uuid")
JOB_KEY = Selectors().job
UNSUPPORTED = "not reported by these GPUs"
SEVERITIES = {"critical": "red", "warning": "orange", "info": "blue"}
_EXPLAINING = "|".join(fault.name for fault in FAULTS.values() if fault.explains)
CRITICAL_FAULTS, _FOR_INFORMATION = (
    "|".join(fault.name for fault in FAULTS.values() if fault.severity == severity) for severity in ("critical", "info")
)
# Seconds without a new snapshot after which an exporter that is scraped counts as stuck.
_STUCK = 120


_SNAPSHOT = "gpugauge_snapshot_timestamp_seconds"
# The rate of a counter needs some minutes.
_YOUNG_SECONDS = 300


def of_down(scope: Scope) -> str:
    """Return when each node was seen last whose exporter cannot be scraped."""
    seen_last = f"max by ({NODE_KEY}) ({newest(scope, _SNAPSHOT)})"
    return f"({seen_last} and on ({NODE_KEY}) ({scope.scraped('up')} == 0))"


def newest(scope: Scope, name: str, **labels: str) -> str:
    """Return when each series was seen last."""
    return f"max_over_time(timestamp({scope.missed.select(name, **labels)})[{scope.past}])"


def last(scope: Scope, *names_: str, **labels: str) -> str:
    """Return the series that nodes had when they were seen last, of those that are not seen now; the value is when."""
    every = " or ".join(newest(scope, name, **labels) for name in names_)
    return f"(({every}) >= on ({NODE_KEY}) group_left () {of_down(scope)})"


def window(scope: Scope) -> str:
    """Return the time in which what is not seen now is searched for."""
    return scope.past.partition(":")[0]


def known(scope: Scope, name: str, **labels: str) -> str:
    """Return the series of now, and the last ones of nodes that are not seen."""
    return f"({scope.select(name, **labels)} or {last(scope, name, **labels)})"


def not_seen(scope: Scope) -> str:
    """Return the nodes that were seen in the time shown and are not scraped now, with the label `minutes`."""
    ago = f"(time() - max by ({NODE_KEY}) (last_over_time({scope.back.select(_SNAPSHOT)}[$__range])))"
    down = f"({ago} and on ({NODE_KEY}) ({scope.scraped('up')} == 0))"
    return f'count_values by ({NODE_KEY}) ("minutes", floor({down} / 60))'


def trainings(scope: Scope, *evidence: str, by: str = "instance", **of: str) -> str:
    """Return the trainings that ran on a node when it was seen last, by job and node or `by`: what the rules recorded,
    by default any `evidence` of one.
    """
    where = {name: value for name, value in scope.back.scrape.items() if name == "instance"}
    recorded_last = f"max_over_time(timestamp({recorded(PROGRAMS, **of, **where)})[{scope.past}])"
    trains = (f"last_over_time({recorded(name)}[{window(scope)}])" for name in evidence or (HELD, NOW, PROBLEM))
    # The rules record what was scraped up to two minutes before.
    seen_ = f"max by ({JOB_KEY}, {by}) ({recorded_last}) + 120 >= on ({NODE_KEY}) group_left () {of_down(scope)}"
    return f"({seen_} and on ({JOB_KEY}) ({' or '.join(trains)}))"


def _last_trainings(scope: Scope) -> str:
    """Return the training that ran on each node when it was seen last, with its user; of several, the number as if it
    were the kind of one, for what they are called.
    """
    ran = trainings(scope, HELD, NOW, by="instance, workload_user")
    number = f"count by ({NODE_KEY}) (group by ({JOB_KEY}, instance) ({ran})) > 1"
    number = f'count_values by ({NODE_KEY}) ("workload_job_kind", {number})'
    number = f'label_replace({number}, "workload_job", "jobs", "", "")'
    return f"({number} or on ({NODE_KEY}) topk by ({NODE_KEY}) (1, {ran}))"


def young(scope: Scope) -> str:
    """Return 1 for each node whose exporter answers for some minutes only, or started again."""
    up, since = scope.scraped("up"), f"{_YOUNG_SECONDS}s"
    steady = f"(min_over_time({up}[{since}]) == 1 and {up} offset {since})"
    started = f"time() - {scope.select('gpugauge_start_timestamp_seconds', part='daemon')} < {_YOUNG_SECONDS}"
    return f"group by ({NODE_KEY}) (({up} == 1 unless {steady}) or {started})"


def devices(scope: Scope) -> str:
    """Return 1 for each GPU, with its index. One that was lost before the start of the exporter has none."""
    index = f"topk by ({GPU_KEY}) (1, max by ({GPU_KEY}, index) ({scope.select('gpu_info')}))"
    return f"({index} or on ({GPU_KEY}) group by ({GPU_KEY}) ({scope.select('gpu_up')}))"


def by_device(scope: Scope, expr: Expr, *labels: str, operator: str = "max") -> Expr:
    """Return the aggregation to GPUs and the labels, with the index that legends need."""
    one = expr.by(keys("instance", "uuid", *labels), operator=operator)
    return one.then(f"{{}}\n* on ({GPU_KEY}) group_left (index) {devices(scope)}")


def busy(scope: Scope) -> Expr:
    """Return the share of the time in which a kernel ran, for each GPU."""
    part, whole = (scope.rate(f"gpu_{what}_seconds_total", engine="gpu") for what in ("busy", "observed"))
    return share(part, whole, GPU_KEY).then(f"({{}}\nand on ({GPU_KEY}) {answers(scope)})")


def answers(scope: Scope) -> str:
    """Return the GPUs that answer: the rate over a window goes on after the last of its samples."""
    down = scope.scraped("up").then("{} == 0")
    return f"({scope.select('gpu_up')} == 1 unless on ({NODE_KEY}) {down})"


HOLDS = "gpu_process_memory_used_bytes"


def before_lost(scope: Scope) -> str:
    """Return the processes that held memory of GPUs that did not answer when they were seen last; the value is when."""
    return f"({newest(scope, HOLDS)} and on ({GPU_KEY}) {_lately(scope, 'gpu_up')} == 0)"


def owners(scope: Scope, *labels: str) -> str:
    """Return whose process holds most memory of each GPU, by these labels; of a GPU that is lost, or whose node is not
    seen, held it last; of a GPU that has not answered for hours, which only a reboot may repair, the only job of the
    node. Of many nodes, the owners of GPUs with a fault or an alert, and those of nodes that are not seen.
    """
    process, names_ = keys("process"), ", ".join(labels)
    holders = f"{last(scope, HOLDS) if scope.many else known(scope, HOLDS)} or {before_lost(scope)}"
    one = f"topk by ({GPU_KEY}) (1, max by ({GPU_KEY}, process) ({holders}))"
    # Also of a process that has ended, the labels that it had for most of the time.
    every, by = replace(scope, own={}), keys("process", *labels)
    seen_ = f"count_over_time({every.back.select('gpu_process_info')}[{window(scope)}])"
    found = f"{one} * on ({process}) group_left ({names_}) topk by ({process}) (1, sum by ({by}) ({seen_}))"
    jobs, one_job, lost = alone(every)
    only = f"topk by ({NODE_KEY}) (1, group by ({keys('instance', *labels)}) ({jobs})) and on ({NODE_KEY}) {one_job}"
    lost = f"group by ({GPU_KEY}) ({lost}) * on ({NODE_KEY}) group_left ({names_}) ({only})"
    if not scope.many:
        return f"({found} or on ({GPU_KEY}) {lost})"
    return f"({recorded(OWNER)} or on ({GPU_KEY}) {found} or on ({GPU_KEY}) {lost} or {_last_trainings(scope)})"


def alone(scope: Scope) -> tuple[str, str, str]:
    """Return the processes with a job, 1 for each node with a single job, and the GPUs that have not answered in the
    window, which a job that is alone on a node may have held.
    """
    jobs = scope.select("gpu_process_info", workload_job="!")
    one_job = f"count by ({NODE_KEY}) (group by ({JOB_KEY}, instance) ({jobs})) == 1"
    return jobs, one_job, f"max_over_time({scope.back.select('gpu_up')}[{window(scope)}]) == 0"


def memory(scope: Scope) -> Expr:
    """Return the share of the memory that is used, for each GPU."""
    used, total = (scope.read(f"gpu_memory_{what}_bytes").by(GPU_KEY) for what in ("used", "total"))
    return Expr(f"{used} / {total}", SHARE)


def power(scope: Scope) -> Expr:
    """Return the power of each GPU, from its energy: a reading in each scrape misses what is between. GPUs without a
    counter of energy, and those that are seen for some minutes only, have the reading alone.
    """
    energy, reading = scope.steady("gpu_energy_joules_total").by(GPU_KEY), scope.read("gpu_power_watts").by(GPU_KEY)
    return energy.then(f"(({{}}\nor on ({GPU_KEY}) {reading}) and on ({GPU_KEY}) {answers(scope)})")


def curves(
    scope: Scope,
    of: Callable[[Expr], Expr] = lambda expr: expr,
    empty_text: str = UNSUPPORTED,
    sizes: Sequence[tuple[int, int]] = ((9, 11), (8, 8), (8, 8), (8, 8)),
    where: str = f"{{{{{CLUSTER}}}}} {{{{instance}}}} ",
) -> list[Panel]:
    """Return the graphs of busy time, memory, power and temperature with a line for each GPU."""
    left = iter(sizes)

    def graph(title: str, text: str, expr: Expr, **options: Any) -> Panel:
        shown = by_device(scope, of(expr))
        lines, (width, height) = (Query(shown, where + "GPU {{index}}"), no_curve(scope, shown, where)), next(left)
        return timeseries(title, text, *lines, width=width, height=height, empty_text=empty_text, **options)

    temperature = scope.read("gpu_temperature_celsius", sensor="gpu").by(GPU_KEY, operator="max")
    return [
        graph(
            "Busy",
            "Share of the time in which a kernel of any process ran, from every sample that the driver kept. A "
            "collective that waits keeps a GPU busy, too.",
            busy(scope),
            highest=1,
        ),
        graph(
            "Memory used",
            "Share of the device memory. PyTorch keeps the memory that it once allocated, so a full GPU is no error.",
            memory(scope),
            highest=1,
        ),
        graph(
            "Power",
            "Mean power, from the energy counters. A busy GPU far below its limit waits for data, memory or peers.",
            power(scope),
        ),
        graph("Temperature", "Of the GPU itself. Dashed: 80 and 90 °C.", temperature, steps=HOT),
    ]


def no_curve(scope: Scope, expr: Expr, where: str = "{{instance}} ") -> Query:
    """Return the reasons for which nodes have no curve now, though nothing is wrong with their GPUs."""
    reasons = states(NODE_KEY, Line("not seen", 0, not_seen(scope)), Line("just started", 0, young(scope)))
    return Query(
        Expr(f"{ONLY_NAME} + 0 * ({reasons}\nunless on ({NODE_KEY}) ({expr}))", ""),
        where + "{{state}}",
        now=True,
    )


def out_of_order(scope: Scope, severity: str) -> Expr:
    """Return 1 for each GPU whose gravest fault now is of that severity."""
    grave, other = (f"group by ({GPU_KEY}) ({scope.select('gpu_problem', severity=each)})" for each in _GRAVE)
    return Expr(grave if severity == _GRAVE[0] else f"({other} unless on ({GPU_KEY}) {grave})", COUNT)


def listed(scope: Scope) -> Expr:
    """Return a series for each fault of a GPU, of many nodes for the gravest of each, with its words and the index of
    the GPU. Of a node that is not seen, for those that it had, with words that say so. The value is since when.
    """
    fault = keys("instance", "uuid", "problem")
    labels = f"{fault}, index, summary, advice, when, command, note"
    words = Expr(f"group by ({labels}) ({known(scope, 'gpu_problem_info')})", COUNT)
    grave = f"group by ({fault}) ({known(scope, 'gpu_problem', severity='!info')})"
    if scope.many:
        first, others = (f"group by ({fault}) ({known(scope, 'gpu_problem', problem=each)})" for each in TIERS)
        grave = f"topk by ({GPU_KEY}) (1, 3 * {first} or 2 * {others} or {grave})"
    seen_ = f"group by ({NODE_KEY}) ({scope.select('gpugauge_build_info')})"
    gone = f'label_replace({not_seen(scope)}, "{HAD}", "{_LAST}", "", "")'
    found = words.then(
        f"{{}}\n* on ({fault}) group_left () {since(scope, grave, fault)}\n"
        f"* on ({NODE_KEY}) group_left ({HAD}) ({gone} or on ({NODE_KEY}) {seen_})",
        CLOCK,
    )
    found = found.then(f'label_join({{}}, "of", ": ", "{HAD}", "summary")')
    found = found.then(f'label_replace({{}}, "summary", "$1", "of", "({_LAST}: .*)")')
    return found.then(f'label_replace({{}}, "when", "when the node is back", "{HAD}", ".+")')


def critical(scope: Scope) -> str:
    """Return the gravest fault of each GPU that must be repaired at once, as the rules' function of that name."""
    return reasons.critical(Selectors(), scope.select)


def since(scope: Scope, faults: str, by: str) -> str:
    """Return since when faults are there, in milliseconds, by labels, or else since when the alert is active, as in its
    text; 0 if neither is known.
    """
    name = "gpu_problem_since_timestamp_seconds"
    had = f"1000 * ({_lately(scope, name)} and on ({NODE_KEY}) {of_down(scope)})"
    known_ = f"min by ({by}) ({scope.read(name)} or {had})"
    active = f'label_replace(ALERTS_FOR_STATE{{{CLUSTER}=~"${CLUSTER}"}}, "problem", "$1", "alertname", "(.*)")'
    first = f"({known_} or on ({by}) 1000 * min by ({by}) ({active}))"
    return f"({first} and on ({by}) {faults} or on ({by}) 0 * {faults})"


NO_TIME = {"0": ("-", "")}
"""How a time is shown that is not known."""


def counts(scope: Scope, *codes: tuple[str, str], known: Callable[..., Expr] = coded) -> list[Query]:
    """Return the numbers of GPUs out of order, by severity; the codes say why there is none."""
    judges = f"{scope.select('gpugauge_collector_success', collector='faults')} == 1"  # one for each node
    judged = f"0 * count ({judges if scope.many else scope.select('gpu_problems')})"
    of = {each: f"count ({out_of_order(scope, each)}) or {judged}" for each in _GRAVE}
    return [Query(known(Expr(text, COUNT), *codes), each) for each, text in of.items()]


_GRAVE = ("critical", "warning")
COUNTED: dict[str, Any] = {
    "mode": "value_and_name",
    "colors": {each: ((None, "text"), (0, "green"), (1, SEVERITIES[each])) for each in _GRAVE},
}
"""How numbers by severity are shown."""
HAD = "had"
"""The label of faults that a node had when it was seen last, with the words before them."""
_LAST = "last known"
# Those words are shorter than a fault.
SHORT = f"(?:{_LAST}: )?[^:]{{{len(_LAST) + 1},}}"
"""The words of a fault without what is behind them, as a regular expression."""
RANK, CRITICAL_RANK = "rank", "2"
"""The label with the order of faults, and its value for those that must be repaired at once."""


def ranked(expr: Expr) -> Expr:
    """Return faults with the label RANK: after nodes that are not seen (common.faults) critical ones are first, then
    those that explain others.
    """
    for rank, problems in (("4", ".*"), ("3", _EXPLAINING), (CRITICAL_RANK, CRITICAL_FAULTS)):
        expr = expr.then(f'label_replace({{}}, "{RANK}", "{rank}", "problem", "{problems}")')
    return expr


def seen(scope: Scope) -> str:
    """Return 1 for each GPU that was seen in the time shown, with its last index."""
    info = f"count_over_time({scope.back.select('gpu_info')}[{window(scope)}])"
    index = f"topk by ({GPU_KEY}) (1, sum by ({GPU_KEY}, index) ({info})) > bool 0"
    return f"({index} or on ({GPU_KEY}) group by ({GPU_KEY}) ({scope.select('gpu_up')}))"


def gravest(read: Callable[..., str], only: str = "") -> str:
    """Return the gravest fault of each GPU in few words; one that explains others is graver than these. `read` returns
    the series of a metric, and `only` selects faults.
    """
    fault = keys("instance", "uuid", "problem")
    names_ = (f"~{CRITICAL_FAULTS}", "!") if only else (*TIERS, f"~{_EXPLAINING}", f"!~{_FOR_INFORMATION}")
    ranked = " or ".join(
        f"{weight} * group by ({fault}, summary, advice) ({read('gpu_problem_info', problem=each)})"
        for weight, each in zip(range(len(names_), 0, -1), names_, strict=True)
    )
    found = f"topk by ({GPU_KEY}) (1, ({ranked}){f' and on ({fault}) {only}' if only else ''})"
    return f'label_replace({found}, "summary", "$1", "summary", "({SHORT}): .*")'


def _lately(scope: Scope, name: str, **labels: str) -> str:
    return f"last_over_time({scope.back.select(name, **labels)}[{window(scope)}])"


_OK = Line("no fault", GOOD, "")
_NOT_JUDGED = "its faults are not judged"
_WASTED, _USED, _FREE = "wasted", "in use", "free"
NODE_ADVICE = "is it up (ping, ssh, kubectl get node)? If not: its console; if so: the log of gpugauge on it"


def gpu_states(scope: Scope) -> Expr:
    """Return the state of each GPU in words, with its index: its gravest fault, or its use. One that loses half of the
    time of a training is wasted. Of a node that is not seen: what was known last.
    """
    up, listed_ = scope.select("gpu_up"), _lately(scope, "gpu_up")
    had = gravest(partial(_lately, scope), last(scope, "gpu_problem", severity="!info"))
    had, unseen = (f"{of} * on ({NODE_KEY}) group_left (minutes) {not_seen(scope)}" for of in (had, listed_))
    had = f'label_join({had}, "had", " min, {_LAST}: ", "minutes", "summary")'
    lost, held = (scope.rate(f"training_{part}_seconds_total", "15m") for part in ("lost", "gpu_held"))
    held = held.then(f"({{}} and {scope.select('training_gpu_held_seconds_total')} offset 15m)")
    lost, held = (each.by(keys("process")) for each in (lost, held))
    uses = f"max by ({keys('instance', 'uuid', 'process')}) ({scope.select('gpu_process_memory_used_bytes')})"
    wasted = f"({uses} and on ({keys('process')}) {lost} >= 0.5 * ({held} > 0))"
    mig = f'label_replace({scope.select("gpu_mig_info")}, "uuid", "$1", "parent_uuid", "(.*)")'
    found = states(
        GPU_KEY,
        Line("not seen for $1", UNSEEN, had, "had"),
        Line("not seen for $1 min", UNKNOWN, unseen, "minutes"),
        Line("$1", CRITICAL, gravest(scope.select), "summary"),
        Line("does not answer", CRITICAL, f"{up} == 0"),
        Line(_WASTED, WARNING, f"{up} and on ({GPU_KEY}) {wasted}"),
        Line(_NOT_JUDGED, UNKNOWN, f"{up} unless on ({GPU_KEY}) {scope.select('gpu_problems')}"),
        Line(_USED, USED, f"{up} and on ({GPU_KEY}) ({uses} or {mig})"),
        Line(_FREE, GOOD, up),
        Line("not listed any more", UNKNOWN, listed_),
    )
    return found.then(f"({{}})\n* on ({GPU_KEY}) group_left (index) {seen(scope)}")


GPU_NAMES = {
    f"~(not seen.*, )?{_LAST}: .*": ("", "orange"),
    **dict.fromkeys((_USED, _FREE), ("", "green")),
    _WASTED: ("", "orange"),
    **dict.fromkeys(("~not seen.*", "not listed any more", _NOT_JUDGED), ("", GREY)),
    # Some have more words behind, and some begin as others do.
    **{
        f"~{fault.summary}.*": ("", SEVERITIES[fault.severity])
        for fault in sorted(FAULTS.values(), key=lambda fault: -len(fault.summary))
        if "Xid" not in fault.name
    },
    "~had Xid.*": ("", "red"),
}


_GONE = "not seen for $1 min: the node is down, or its exporter"


def _node_lines(s: Scope) -> list[Line]:
    """Return what an exporter may not see, the gravest first."""
    down = s.scraped("up").then("({} == 0)")
    judged = s.select("gpugauge_collector_success", collector="faults")
    # A machine without a GPU, for which no alert fires.
    without = f"{s.select('gpugauge_driver_up', reason='~off|' + '|'.join(sorted(WITHOUT_GPU)))} == 0"
    had = f"last_over_time({s.back.select('gpugauge_driver_up', reason='ok')}[$__range])"
    gone = not_seen(s)
    trained = f"{gone} and on ({NODE_KEY}) {trainings(s, HELD, NOW)}"
    return [
        Line(f"trainings {_GONE}", CRITICAL, trained, "minutes"),
        Line(_GONE, UNSEEN, gone, "minutes"),
        Line("never seen in the time shown: the node is down, or its exporter", UNSEEN, down),
        Line("sees no GPU: driver $1", UNKNOWN, f"({without} unless on ({NODE_KEY}) {had})", "reason"),
        Line(
            "blind: driver $1",
            UNSEEN,
            s.read("gpugauge_driver_up", reason="!~released|off").then("({} == 0)"),
            "reason",
        ),
        Line("the driver is released on request", UNKNOWN, f"{s.select('gpugauge_driver_released')} == 1"),
        Line("no new values", UNSEEN, f"{s.age('gpugauge_snapshot_timestamp_seconds')} > {_STUCK}"),
        Line("the collector $1 fails", WARNING, f"{s.select('gpugauge_collector_success')} == 0", "collector"),
        Line(
            "too old to judge the faults of its GPUs",
            WARNING,
            f"({s.select('gpugauge_driver_up', reason='ok')} unless on ({NODE_KEY}) {judged})",
        ),
    ]


def missing(scope: Scope) -> Expr:
    """Return what is not seen of each node, in words."""
    return states(NODE_KEY, *_node_lines(scope))


def _with_gpus(s: Scope) -> list[Line]:
    critical, warning = (
        f'count_values by ({NODE_KEY}) ("number", count by ({NODE_KEY}) ({out_of_order(s, severity)}))'
        for severity in ("critical", "warning")
    )
    return [
        *_node_lines(s),
        Line("GPUs out of order: $1", CRITICAL, critical, "number"),
        Line("GPUs with a warning: $1", WARNING, warning, "number"),
        _OK._replace(when=f"{s.scraped('up')} or {s.select('gpugauge_build_info')}"),
    ]


def node_states(scope: Scope) -> Expr:
    """Return the state of each node in words."""
    return states(NODE_KEY, *_with_gpus(scope))


def last_seen(scope: Scope) -> Expr:
    """Return when values of each node were seen last in the time shown, by its newest sample."""
    newest = f"last_over_time({scope.back.select(_SNAPSHOT)}[$__range])"
    return Expr(f"max by ({NODE_KEY}) ({newest}) * 1000", "dateTimeFromNow")


# The reasons of a driver in words.
_REASONS = {
    code: driver_words(code) for code in sorted({*CODES, "off", "starting", "worker_unkillable", "failed", "stuck"})
}
NODE_NAMES = (
    {
        f"{state}: driver {code}": (f"{state}: driver {words}", color)
        for state, color in (("blind", "orange"), ("sees no GPU", GREY))
        for code, words in _REASONS.items()
        if not words.endswith(code)
    }
    | {"~trainings not seen for .*": ("", "red"), "~not seen for .*": ("", "orange")}
    | names(*_with_gpus(Scope()))
)
