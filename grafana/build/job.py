"""The dashboard of a job: its state in words, why it wastes GPU time and what to do, its steps, GPUs and ranks. Only
`Alerts` needs the rules.
"""

from __future__ import annotations

from gpugauge.artifacts.rules import reasons
from gpugauge.artifacts.rules.promql import Selectors
from gpugauge.artifacts.rules.recording import HOURS_LOST, gpu_hours
from gpugauge.faults.repair import REBOOTS
from gpugauge.verdict.loaders import REASONS
from gpugauge.verdict.mistakes import MISTAKES
from gpugauge.verdict.step import LIMITS
from grafana.build import common, gpus, jobs, words
from grafana.build.jobs import INFO
from grafana.build.jobs import JOB_NODES as _S
from grafana.build.layout import Json, Panel, Row
from grafana.build.notifications import STEPS, named
from grafana.build.panels import LOAD, Column, Query, dropped, stat, table, timeseries
from grafana.build.queries import CLOCK, CLUSTER, COUNT, SHARE, Expr, Scope, keys
from grafana.build.words import Line

_SAME_TIME = 120  # seconds
_TIMES = "suffix:\u00d7"
_NO_GAIN = 1000000  # more than any
_NO_GPU = "its processes hold no memory of a GPU, are not seen, or it is not reported"
_OUTSIDE = "needs some minutes and the hook (docs/hook.md), or these processes do not report it"
_UNSEEN = "not known: its node is not seen"
_USED = Expr(f"clamp_min(1 - sum ({jobs.job_wasted()}), 0)", SHARE)
_CHOOSE = "several jobs have this name: choose a cluster, a kind or a namespace"
# What a user can do about a fault; and a time that is not known.
_ASK, _NO_TIME = "save a checkpoint, stop it, and ask the administrators for the repair, $1: $2. $3", "2"
_NONE, _UNKNOWN = "nothing to do", "not known: no process reports through the hook now (docs/hook.md)"


def dashboard() -> Json:
    """Return the dashboard."""
    cluster, *_ = common.exporters()
    infos = '__name__=~"gpu_process_host_info|gpu_process_info|torch_process_info"'
    every = f'{{{infos},{CLUSTER}=~"${CLUSTER}"'
    kind = f'{every},workload_job_kind=~"$kind"'
    job = f'{kind},workload_namespace=~"$namespace",workload_job="$workload"'
    info = Scope(jobs.JOB_MATCHERS).select("gpu_process_host_info", workload_job="!")
    # The job that wastes most now is first: the dashboard opens on it. Ended jobs follow.
    worst = jobs.wasted().by("workload_job", operator="max")
    others = f"0 * count by (workload_job) (last_over_time({info}[$__range]))"
    variables = [
        cluster,
        common.Variable("kind", "Kind", f'label_values({every},workload_job!=""}}, workload_job_kind)'),
        common.Variable("namespace", "Namespace", f'label_values({kind},workload_job!=""}}, workload_namespace)'),
        common.Variable(
            "workload",
            "Job",
            f"query_result(sort_desc({worst} or {others}))",
            '/workload_job="([^"]+)"/',
            multi=False,
            include_all=False,
            sort=common.ORDER_OF_QUERY,
        ),
        # All is the list of the job's nodes, so that no query touches the series of other nodes.
        common.Variable("instance", "Node", f"label_values({job}}}, instance)", all_value=""),
        common.gone(_S, "$__range"),
        *(
            common.Variable(name, name, f"query_result({query})", f'/{name}="([^"]+)"/', False, False, hidden=True)
            for name, query in jobs.hidden()
        ),
        common.Variable(
            "causes", "Causes", f"query_result({jobs.causes()})", '/cause="([^"]+)"/', all_value="", hidden=True
        ),
    ]
    return common.make_dashboard(
        common.JOB,
        "gpugauge / Job",
        "One training job: whether it uses its GPUs, and if not, why, and what to do. Most of the data comes from "
        "inside the process: run it under the hook (docs/hook.md).",
        variables,
        [
            Row(
                "",
                [
                    _header(),
                    *_now(),
                    _what_to_do(),
                    *_time(),
                    *gpus.curves(_S, _on_its_gpus, _NO_GPU, [(12, 7)] * 4),
                    _places(),
                ],
            ),
            Row("Ranks, memory of tensors, and host", _ranks(), collapsed=True),
        ],
        _alerts(_holds()),
    )


def _alerts(held: str) -> Expr:
    """Return the alerts about the job and about the GPUs that it holds that fire."""
    of_job = common.alerts(**jobs.JOB_MATCHERS, workload_job="$workload")
    return common.alerts(uuid="~.+").then(f"{of_job} or {{}} and on ({gpus.GPU_KEY}) {held}")


def _alerts_now() -> Expr:
    """Return the same, those about GPUs that it held before, and those that say that its nodes are not seen."""
    nodes = f"({jobs.job_not_seen()} or {jobs.by_process(_S.read('training_state'), 'instance')})"
    unseen = common.alerts(alertname="~Exporter(Down|Blind)").then(f"{{}} and on ({gpus.NODE_KEY}) {nodes}")
    return _alerts(f"({_holds()} or {_lost()} or {_reboots()})").then(f"{{}} or {unseen}")


def _holds() -> str:
    """Return 1 for each GPU on which a process of the job holds memory."""
    of = jobs.by_process(_S.read("gpu_process_memory_used_bytes"), "instance", "uuid")
    return f"group by ({gpus.GPU_KEY}) ({of})"


def _lost() -> str:
    """Return the GPUs that do not answer and on which it held memory last."""
    before = gpus.before_lost(_S)
    # Until the exporter sees that a GPU is lost, some values of it may be left.
    newest = f"max by ({gpus.GPU_KEY}) ({gpus.newest(_S, gpus.HOLDS)})"
    last = f"{before} > on ({gpus.GPU_KEY}) group_left () ({newest} - {_SAME_TIME})"
    return f"group by ({gpus.GPU_KEY}) ({last} and on ({jobs.PROCESS_KEY}) {jobs.job_processes()})"


def _held() -> str:
    """Return the same, and those on which it held memory when they, or their node, were seen last."""
    last = f"{gpus.last(_S, 'gpu_process_memory_used_bytes')} and on ({jobs.PROCESS_KEY}) {jobs.job_not_seen()}"
    return f"({_holds()} or group by ({gpus.GPU_KEY}) ({last}) or {_lost()})"


def _every() -> str:
    """Return the same, and those that have not answered for hours, of nodes on which it is alone."""
    _, one_job, lost = gpus.alone(_S)
    node = f"on ({gpus.NODE_KEY})"
    return f"({_held()} or group by ({gpus.GPU_KEY}) ({lost} and {node} ({one_job}) and {node} {INFO}))"


def _on_its_gpus(expr: Expr) -> Expr:
    return expr.then(f"{{}}\nand on ({gpus.GPU_KEY}) {_holds()}")


def _one(expr: Expr) -> Expr:
    """Return a value of a job, nothing if there are several of that name."""
    return expr.then(f"({{}}) unless on () {jobs.SEVERAL}")


def _of_gpus(expr: Expr) -> Expr:
    """Return a value of a job that holds GPUs, or why there is none."""
    ended = f"{jobs.last_known()} unless on () {jobs.by_process(_S.read('training_state'))}"
    codes = ((words.NOT_SEEN, jobs.job_not_seen()), (words.ENDED, ended), (words.ON_CPU, _on_cpu()))
    return words.of_one(
        expr,
        (words.SEVERAL_JOBS, jobs.SEVERAL),
        *codes,
        (words.JUDGING, jobs.job_held().text),
        (words.NO_GPU, jobs.last_known()),
    )


def _on_cpu() -> str:
    return jobs.by_process(_S.read("training_state", state="training_on_cpu").then("({} == 1)")).text


def _header() -> Panel:
    def most(label: str) -> Expr:
        return Expr(f"topk by ({jobs.JOB_KEY}) (1, {jobs.last_known(label)})", COUNT)

    start = jobs.by_process(_S.read("training_start_timestamp_seconds")).by(CLUSTER, operator="min")
    since = Expr(f"{start} + on ({CLUSTER}) group_right () 0 * {jobs.last_known()}", "dateTimeFromNow")
    held = Expr(f"0 * {jobs.last_known()} + on ({CLUSTER}) group_left () count by ({CLUSTER}) ({_every()})", COUNT)
    infos = " or ".join(f"timestamp({jobs.CHOSEN.select(name)})" for name in jobs.INFOS[::2])
    end = f"max_over_time(max by ({jobs.JOB_KEY}) ({infos})[{jobs.CHOSEN.past}]) * 1000"
    return table(
        "Job",
        "A fault that must be repaired at once, if any; the state now, the gravest of its processes, whose job "
        "it is, and where it runs. A job whose node is not seen is neither well nor ended.",
        Column("Fault", "cause", names=jobs.FAULT_NAMES, size=210),
        Column("State", "state", names=jobs.JOB_STATE_NAMES, size=200),
        Column("User", "workload_user", size=110),
        Column("Program", "workload_command", size=170),
        Column("Job", jobs.SHOWN),
        Column("Namespace", "workload_namespace", size=140),
        Column("Where", "where", size=110),
        Column("GPUs", held, size=70),
        Column("Trains since", since, size=130),
        Column("Seen last", Expr(end, "dateTimeFromNow"), size=130),
        *dropped(
            jobs.called(jobs.job_states()),
            _one(Expr(f"{jobs.last_known()} * on () group_left (cause) {_fault()}", COUNT)),
            most("workload_user"),
            most("workload_command"),
            jobs.places(jobs.last_known("instance")),
            *("instance", "workload_job", "workload_job_kind"),
        ),
        height=4,
        empty_text="no such job in the time shown",
    )


def _now() -> list[Panel]:
    steps = jobs.by_process(_S.steady("torch_steps_total")).by(operator="avg")
    chosen = jobs.with_idle(HOURS_LOST, workload_job="$workload").by()
    lost = jobs.by_process(_S.steady(jobs.LOST_SECONDS, jobs.RANGE, cause="~$causes"), "cause").by()
    counted = jobs.by_process(_S.increase(jobs.LOST_SECONDS), "cause").by()
    wasted_so_far = Expr(f"{gpu_hours(f'({chosen})', '$__range')}\nor on () {counted} / 3600", "suffix: h")
    expected, lower = (_gain(part).then(f"max ({{}} or {_loader_gain(part)})") for part in ("", "_lower"))
    return [
        stat(
            "Load",
            f"Share of the held GPU time that was used, {jobs.WINDOW}.",
            Query(_of_gpus(_USED)),
            width=2,
            steps=LOAD,
        ),
        stat(
            "GPUs wasted",
            f"GPU time wasted, {jobs.WINDOW}, as a number of GPUs, and GPU hours in the time shown, from the start of "
            "the training on.",
            Query(_of_gpus(lost.then(f"({{}} and on () {jobs.job_held()})", COUNT)), "GPUs now"),
            Query(_one(wasted_so_far), "in range"),
            mode="value_and_name",
            units={"in range": "suffix: h"},
            decimals=1,
        ),
        stat(
            "Why",
            f"A fault that must be repaired at once, or the cause that wasted most GPU time, {jobs.WINDOW}, from 10 % "
            "on; of a training on the CPU, its limit.",
            Query(
                Expr(
                    f'label_replace(0 * {jobs.SEVERAL} - 1, "cause", "several jobs", "", "")\n'
                    f"or on () 2 * {_fault()}\n"
                    f"or on () topk(1, {jobs.job_wasted()} >= 0.1)\nor on () topk(1, {_limits()})\n"
                    f'or on () label_replace(0 * {jobs.job_held()}, "cause", "uses its GPUs", "", "")\n'
                    f'or on () label_replace(0 * {jobs.last_known()} + 2, "cause", "its node is not seen", "", "")',
                    SHARE,
                ),
                "{{cause}}",
            ),
            width=8,
            steps=((None, "text"), (0, "green"), (0.01, "orange"), (2, "red")),
            mode="name",
            names={cause: (text, "") for cause, (text, _) in jobs.CAUSE_NAMES.items()},
            empty_text="not known, or it holds no GPU",
        ),
        stat(
            "Speedup",
            "How many times as many steps a second the best of the changes below gives.",
            Query(_one(expected.then(f"{{}} unless on () {lower}")), "expected"),
            Query(_one(lower.then("{} > 1")), "at least"),
            Query(_one(_gain("_upper", "max").by(operator="max")), "at most"),
            mode="value_and_name",
            width=3,
            decimals=1,
            empty_text="none known",
        ),
        stat(
            "Steps/s",
            "Steps of the optimizer a second, mean over the ranks. It needs the hook.",
            Query(_one(steps)),
            width=2,
            empty_text="not known",
        ),
        stat(
            "Alerts",
            "Of which alerts about this job and about its GPUs people are notified.",
            named(_alerts_now(), ("several jobs", jobs.SEVERAL), ("not known", jobs.job_not_seen())),
            width=5,
            mode="name",
            steps=STEPS,
        ),
    ]


def _limits() -> Expr:
    """Return the causes that limit a training that loses no GPU time, by cause."""
    limited = jobs.by_process(_S.read("training_limited_by").then("({} == 1)"), "cause").by("cause")
    waits = jobs.by_process(_S.read("training_loader_limited_by").then("({} == 1)")).by(operator="count")
    return limited.then(f'({{}} or on () label_replace({waits}, "cause", "data_loading", "", ""))')


def _mean(part: str = "") -> Expr:
    return Expr(f"avg_over_time({_S.select(f'training_expected_speedup{part}_ratio')}[{jobs.RANGE}])", _TIMES)


def _gain(part: str = "", operator: str = "min") -> Expr:
    """Return the gain of the job or a bound of it, by cause: as the rules record it, no more than its share allows."""
    others = 'label_replace(vector(1), "cause", "precision_unused", "", "")'
    most = f'label_replace(1 / (1 - {jobs.job_wasted()}), "of", "share", "", "") unless on (cause) {others}'
    return _gains(part, operator).then(f"(min by (cause) ({{}}\nor {most}) and on (cause) {{}})")


def _gains(part: str = "", operator: str = "min") -> Expr:
    """Return what the processes report of it. Not known where it is not known of a process that the cause
    limits.
    """
    limited = _S.read("training_limited_by").then("({} == 1)")
    pair, unknown = keys("process", "cause"), 0 if operator == "min" else _NO_GAIN
    without = limited.then(f"{unknown} * ({{}} unless on ({pair}) {_mean()})")
    # A job is as fast as its slowest process.
    gain = jobs.by_process(without.then(f"{{}} or on ({pair}) {_mean(part)}", _TIMES), "cause")
    return gain.by("cause", operator=operator).then(f"({{}} > 0 < {_NO_GAIN})")


def _loader_gain(part: str) -> str:
    gain = jobs.by_process(_S.read(f"training_loader_expected_speedup{part}_ratio")).by(operator="min")
    return f'label_replace({gain} > 1.05, "cause", "data_loading", "", "")'


def _next() -> Expr:
    """Return the limit that comes next most often without a cause."""
    counts = Expr(f"count_over_time({_S.select('training_expected_speedup_info')}[{jobs.RANGE}])", COUNT)
    most = jobs.by_process(counts, "cause", "next").by("cause", "next").then("topk by (cause) (1, {})")
    return most.then(f"({{}}) and on (cause) {_gains()}")


def _reboots() -> str:
    """Return the GPUs whose repair ends every program of a node on which it runs."""
    found = _S.select("gpu_problem_info", problem=f"~{gpus.CRITICAL_FAULTS}", command=f"~{REBOOTS}")
    return f"(group by ({gpus.GPU_KEY}) ({found}) and on ({gpus.NODE_KEY}) {INFO})"


def _wasted() -> Expr:
    """Return the share of the GPU time that it holds and wastes, by cause; with a fault it is that one."""
    critical = _S.select("gpu_problem", severity="critical")
    broken = f"group ({critical} and on ({gpus.GPU_KEY}) ({_holds()} or {_reboots()}))"
    told = f'(label_replace({broken}, "told", "{jobs.BROKEN}", "", "") or on () vector(1))'
    found = jobs.job_wasted().then(f'label_join({{}} * on () group_left (told) {told}, "of", "@", "told", "cause")')
    return found.then('label_replace({}, "cause", "$1", "of", "(.+)@unknown")').by("cause")


def _faults(found: str, held: str) -> str:
    """Return the faults of held GPUs, and those for whose repair a node is rebooted, with what and where as `cause`."""
    node = f'label_replace({_reboots()}, "whose", "node", "", "")'
    found = f"{found} * on ({gpus.GPU_KEY}) group_left (whose) ({held} or on ({gpus.GPU_KEY}) {node})"
    found = f'label_replace({found}, "summary", "$1", "summary", "({gpus.SHORT}): .*")'
    found = f'label_join({found}, "cause", " of ", "index", "instance")'
    found = f'label_join({found}, "cause", ": ", "cause", "summary")'
    found = f'label_join({found}, "cause", "@", "whose", "cause")'
    ends = "save a checkpoint: the repair of GPU $1, which $2, ends every program of its node"
    found = f'label_replace({found}, "advice", "{ends}", "cause", "node@(.*): (.*)")'
    found = f'label_replace({found}, "cause", "{reasons.REBOOT}: $1", "cause", "node@[^ ]* of (.*): .*")'
    return f'label_replace({found}, "cause", "GPU $1", "cause", "@(.*)")'


def _fault() -> str:
    """Return a fault that must be repaired at once."""
    return f"topk(1, {_faults(gpus.critical(_S), f'({_holds()} or {_lost()})')})"


def _last_faults() -> Expr:
    """Return the faults that must be repaired at once, of now and those of GPUs when they were seen last, with what the
    user of their programs can do.
    """
    critical = f'label_replace(vector(1), "{gpus.RANK}", "{gpus.CRITICAL_RANK}", "", "")'
    told = reasons.short(f"({gpus.ranked(gpus.listed(_S))} and on ({gpus.RANK}) {critical})", _ASK)
    # What was computed with wrong data is not worth a checkpoint, and what is not seen cannot be stopped.
    for kept in ("save a checkpoint, (.*from a checkpoint.*)", "(?:save .*)?stop it, and (.* the node is back: .*)"):
        told = f'label_replace({told}, "advice", "$1", "advice", "{kept}")'
    return Expr(told, CLOCK)


def _advice() -> str:
    work = _S.rate("torch_local_work_seconds_total", jobs.RANGE)
    return reasons.advice(Selectors(), _S.select, _of_processes, "", str(work))


def _what_to_do() -> Panel:
    """Return the table of causes and known mistakes."""
    mistakes = {each.name: (f"mistake: {each.name.replace('_', ' ')}", "") for each in MISTAKES}
    made = jobs.by_process(_S.read("training_mistake"), "mistake").by("mistake")
    of_mistake = f'label_replace({made} > 0, "cause", "$1", "mistake", "(.*)")'
    causes = f"({_wasted()} >= 0.1 or {_gains()} or {_limits()} or {of_mistake})"
    none = f'label_replace(0 * sum ({made}), "cause", "{_NONE}", "", "")'
    several = f'label_replace(0 * {jobs.SEVERAL}, "cause", "{_CHOOSE}", "", "")'
    unseen = f"max ({gpus.last_seen(_S)} and on ({gpus.NODE_KEY}) {jobs.job_not_seen()})"
    unseen = f'label_replace({unseen}, "cause", "{_UNSEEN}", "", "")'
    unseen = f'label_replace({unseen}, "advice", "{jobs.UNSEEN_ADVICE}", "", "")'
    unknown = f'label_replace(vector(0) unless on () {jobs.job_not_seen()}, "cause", "{_UNKNOWN}", "", "")'
    unknown = f'label_replace({unknown}, "advice", "unknown", "", "")'
    to_do = words.states(
        "cause",
        Line("", 0, f"({_advice()} unless on () {jobs.SEVERAL})", advice="advice"),
        Line("$1", 0, f'label_replace({causes} unless on () {jobs.SEVERAL}, "named", "$1", "cause", "(.*)")', "named"),
    )
    # The lines of faults are those with this value, which is never 0, and first.
    faults = _last_faults().then(f"max by (cause, advice) ({_faults('{}', _held())} + {_NO_TIME})\nor {unseen}")

    def gain(part: str, operator: str = "min") -> Expr:
        return _one(_gain(part, operator).then(f"({{}})\nor on (cause) {_loader_gain(part)}"))

    return table(
        "What to do",
        "The faults of its GPUs, now or when they were seen last; the causes that wasted 10 % or more of its GPU time, "
        f"{jobs.WINDOW}, the largest first, those with a known gain, and the known mistakes of its program. Faster: "
        "how many times as many steps a second are expected without this cause alone, and at least, and the limit that "
        "comes next; - where the evidence does not decide it (docs/verdict.md).",
        Column(
            "What",
            "cause",
            names={**jobs.CAUSE_COLORS, **mistakes, **jobs.FAULT_NAMES, _UNSEEN: ("", "red")},
            size=230,
        ),
        Column("Fault since", faults, names={_NO_TIME: ("-", "")}, size=105),
        Column("Share", _one(_wasted().then("{} >= 0.1")), size=75),
        Column("Faster", gain(""), size=75, decimals=1),
        Column("At least", gain("_lower"), size=75, decimals=1),
        Column(
            "Next limit", "next", names={name: (text, "") for name, text in LIMITS.items()} | jobs.CAUSE_NAMES, size=150
        ),
        Column("Do this", "advice", names=jobs.ADVICE_NAMES),
        Column("Processes", _one(Expr(f"sum by (cause) ({of_mistake})", COUNT)), size=85),
        *dropped(
            to_do.then(f"{{}}\nor on () {several}\nor on () {none}\nor on () {unknown}"),
            _one(_next()),
            "state",
        ),
        order=("Share", "Fault since"),
        height=6,
        cells="lg",
        empty_text=_UNKNOWN,
    )


def _of_processes(expr: str, *labels: str, operator: str = "max") -> str:
    return str(jobs.by_process(Expr(expr, COUNT), *labels).by(*labels, operator=operator))


def _time() -> list[Panel]:
    states_ = jobs.by_process(_S.rate("training_seconds_total").then("{} > 0"), "state").by("state")
    held = jobs.job_held()
    without_gpu = Expr(f"({states_} unless on () {held}) / on () group_left () sum ({states_})", SHARE)
    buckets = jobs.by_process(_S.rate("torch_step_duration_seconds_bucket"), "le").by("le")
    total, number = (jobs.by_process(_S.rate(f"torch_step_duration_seconds_{each}")).by() for each in ("sum", "count"))
    # The upper end of a bucket: where in it the steps are is not known.
    most = f"histogram_quantile(1, {buckets} / on () group_left () ({number} > 0) >= bool 0.99)"
    return [
        timeseries(
            "Where its GPU time goes",
            f"Share of the held GPU time by cause, {jobs.WINDOW}; green is used. Of a job without a GPU: its states.",
            Query(_wasted().then("{} > 0"), "{{cause}}"),
            Query(_USED, "used"),
            Query(without_gpu, "{{state}}"),
            width=12,
            height=7,
            stack=True,
            names={**jobs.STATE_NAMES, **jobs.CAUSE_COLORS, "used": ("", "semi-dark-green")},
            highest=1,
            empty_text="not known in the time shown",
        ),
        timeseries(
            "Steps a second",
            "By rank. Ranks that wait for each other make steps at the same rate: compare their own work.",
            steps := jobs.rank_curves(_S.steady("torch_steps_total")),
            gpus.no_curve(_S, steps.expr),
            width=12,
            height=7,
            empty_text=_OUTSIDE,
        ),
        timeseries(
            "Duration of a step",
            "From one optimizer step to the next, over all ranks, and the power of two that 99 % of the steps do not "
            "exceed. If that is more than twice the mean, some steps are delayed, as by a checkpoint or a slow batch.",
            Query(Expr(f"{total} / ({number} > 0)", "s"), "mean"),
            Query(Expr(most, "s"), "99 % at most"),
            gpus.no_curve(_S, steps.expr),
            width=12,
            height=7,
            empty_text=_OUTSIDE,
        ),
    ]


def _places() -> Panel:
    held = jobs.by_process(_S.read("gpu_process_memory_used_bytes"), "instance", "uuid").by(gpus.GPU_KEY)

    states_ = common.with_cluster_choice(gpus.gpu_states(_S)).then(f"({{}})\nand on ({gpus.GPU_KEY}) {_every()}")
    return table(
        "Its GPUs",
        "The GPUs and MIG devices on which its processes hold memory, or held it when they, or their node, were seen "
        "last, those with a fault first. Node opens the node.",
        Column("Node", "instance", link=common.TO_NODE, size=90),
        Column("GPU", "index", size=45),
        Column("State", "state", names=gpus.GPU_NAMES, size=150),
        Column("level", states_, hidden=True),
        Column("Its memory", held, size=90),
        Column("uuid", "uuid"),
        order=("GPU", "Node", "level"),
        width=12,
        height=7,
        empty_text=_NO_GPU,
    )


def _ranks() -> list[Panel]:
    def ratio(part: str, whole: str) -> Expr:
        return Expr(f"{_S.rate(part)} / {_S.rate(whole)}", "s")

    def of(expr: Expr, *labels: str) -> Expr:
        return common.with_cluster_choice(jobs.by_rank(expr, *labels))

    lost = _S.rate("training_lost_seconds_total", jobs.RANGE).by(jobs.PROCESS_KEY)
    cpus = jobs.by_process(_S.rate("gpu_process_cpu_seconds_total"), "part").by("part")
    run = keys("run_id", "world_size")
    info = _S.select("torch_process_info")
    rank = f"topk by ({jobs.PROCESS_KEY}) (1, group by ({jobs.PROCESS_KEY}, run_id, world_size) ({info}))"
    work, steps = (
        jobs.by_process(expr).then(f"({{}} * on ({jobs.PROCESS_KEY}) group_left (run_id, world_size) {rank})")
        for expr in (_S.rate("torch_local_work_seconds_total", jobs.RANGE), _S.read("torch_steps_total"))
    )
    # Within a run, because only its ranks do the same work.
    relative = Expr(f"{work} / on ({run}) group_left () (quantile by ({run}) (0.5, {work}) > 0)", _TIMES)
    still = _S.read("training_rank_position")
    # Only of ranks that stand still: scrapes of nodes are seconds apart.
    stopped = f"({steps} and on ({jobs.PROCESS_KEY}) {still})"
    behind = Expr(f"max by ({run}) ({stopped}) - on ({run}) group_right () {stopped}", COUNT)
    return [
        table(
            "Ranks",
            "The processes that report through the hook, 50 at most, those that are behind first: where one is that "
            "makes no progress, in which collective it waits, steps behind the furthest rank; duration of a step, own "
            "work in it, also relative to the median rank, waits for data, limit of the loader and the number of "
            "loader workers that helps. The others wait for a rank that is elsewhere, or far above 1: check its node "
            "and its data. The page of the node has the line of the program (docs/hangs.md).",
            Column("Rank", "rank", size=60),
            Column("Node", "instance", link=common.TO_NODE, size=130),
            Column("Where", "position", names={"elsewhere": ("", "red"), "silent": ("", "red")}, size=90),
            Column("Waits in", "function", size=100),
            Column("Phase", "phase", size=100),
            Column("Steps", of(steps.with_unit(COUNT)), size=80),
            Column("Behind by", of(behind), size=80),
            Column(
                "Step time", of(ratio("torch_step_duration_seconds_sum", "torch_step_duration_seconds_count")), size=80
            ),
            Column("Own work", of(ratio("torch_local_work_seconds_total", "torch_steps_total")), size=80),
            Column("Of median", of(relative), size=80, steps=((None, "green"), (1.25, "red")), decimals=2),
            Column("Data wait", of(_S.rate("torch_data_wait_exposed_seconds_total")), size=80),
            Column("Loader", "reason", names={name: (name.replace("_", " "), "") for name in REASONS}, size=130),
            Column("Workers", of(_S.read("training_loader_workers_recommended")), size=80),
            Column("Samples", of(_S.rate("torch_samples_total")), size=80),
            Column("MFU", of(_S.read("training_mfu_ratio")), size=70),
            Column("GPUs wasted", of(lost).with_unit(COUNT), size=80, decimals=2),
            Column("Last step ago", of(_S.age("training_last_step_timestamp_seconds")), size=90),
            *dropped(
                of(_S.read("training_loader_limited_by").then("({} == 1)"), "reason"),
                of(still, "position", "function"),
                of(_S.read("torch_phase").then("({} == 1)"), "phase"),
                "process",
            ),
            order=("Rank", "Of median", "Behind by", "Where"),
            most=50,
            height=9,
            empty_text=_OUTSIDE,
        ),
        timeseries(
            "Memory of tensors",
            "By rank and GPU. The ranks of a data-parallel training should have similar values.",
            jobs.rank_curves(_S.read("torch_memory_allocated_bytes"), "uuid"),
            width=12,
            empty_text=_OUTSIDE,
        ),
        timeseries(
            "CPUs used",
            "By the training threads, the whole processes, and their children, such as loader workers. A training "
            "thread at 1 limits a training that has gaps on the GPU.",
            Query(cpus.with_unit(COUNT), "{{part}}"),
            width=12,
        ),
    ]
