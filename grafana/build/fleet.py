"""The dashboard of the fleet: the GPUs wasted, by whom, why, and what to do; what is out of order or not seen."""

from __future__ import annotations

from gpugauge.artifacts.rules.promql import JOB_LABELS as JOB_LABELS_OF_RULES
from gpugauge.artifacts.rules.promql import PROCESS_JOB
from gpugauge.artifacts.rules.reasons import REBOOT, WHY
from gpugauge.artifacts.rules.recording import (
    ALIVE,
    ALL_HELD,
    ANSWERING,
    CAUSE_LOST,
    DEVICE_BUSY,
    DOMINANT,
    HELD,
    HOURS_HELD,
    HOURS_LOST,
    IN_USE,
    LOST,
    NOW,
    PROBLEM,
    PROGRAMS,
    SPEEDUP,
    SPEEDUP_BOUND,
)
from gpugauge.artifacts.rules.recording import LOAD as TRAINING_LOAD
from gpugauge.verdict.causes import ON_CPU
from gpugauge.verdict.gain import NARROW
from grafana.build import common, gpus, jobs, words
from grafana.build.layout import Json, Panel, Row
from grafana.build.notifications import LABELS, SEVERITIES, notifications
from grafana.build.notifications import since as notifications_since
from grafana.build.panels import (
    BAD,
    HOT,
    LOAD,
    ONLY_NAME,
    WARN,
    Column,
    Query,
    bars,
    dropped,
    stat,
    table,
    timeseries,
)
from grafana.build.queries import CLUSTER, COUNT, SHARE, Expr, Scope, keys, recorded

# Of a thousand nodes, no more is searched for what a node had when it was seen last.
_S = Scope({"job": "~$job"}, jobs.JOB_MATCHERS, "3h:5m", many=True)
_IDLE = jobs.idle(**jobs.JOB_MATCHERS)
_NO_TRAINING = "no training that is judged"
_NOBODY = "not known"
# The columns that the link to a job needs, by the label of the job.
_OF_LINK = {"Kind": "workload_job_kind", "Namespace": "workload_namespace", "workload": "workload_job"}


def dashboard() -> Json:
    """Return the dashboard."""
    of_cluster = f'{CLUSTER}=~"${CLUSTER}"'
    kinds = f"label_values({PROCESS_JOB}{{{of_cluster}}}, workload_job_kind)"
    namespaces = f'label_values({PROCESS_JOB}{{{of_cluster},workload_job_kind=~"$kind"}}, workload_namespace)'
    return common.make_dashboard(
        common.FLEET,
        "gpugauge / Fleet",
        "Which GPUs are wasted, by whom, why, and what to do. Jobs are judged by the recording rules of "
        "`gpugauge rules`.",
        [
            *common.exporters(),
            common.gone(_S),
            common.Variable("kind", "Kind", kinds),
            common.Variable("namespace", "Namespace", namespaces),
            *common.PRICE,
        ],
        [
            Row("", [*_now(), _wrong(), _by_cause(), _by_user(), _jobs(), _told(), *_nodes()]),
            Row("GPU hours, cost, and GPUs that are given and unused", [*_hours(), _unused()], collapsed=True),
        ],
        common.alerts(severity="~critical|warning"),
        start="now-24h",
    )


def _now() -> list[Panel]:
    all_wasted = jobs.wasted().by()
    hours = jobs.gpu_hours(HOURS_LOST, idle=False).by()
    answering, used = (f"sum ({recorded(name, job='~$job')})" for name in (ANSWERING, IN_USE))
    none = f"0 * {answering}"
    counted = (
        ("held", used),
        ("free", f"{answering} - {used}"),
        ("lost", f"count ({_S.select('gpu_problem', problem='GpuLost')}) or {none}"),
        ("not seen", f"count (group by ({gpus.GPU_KEY}) ({gpus.last(_S, 'gpu_up')})) or {none}"),
    )
    told = notifications()
    ranks = {name: f"count ({{}} == {rank})" for name, (rank, _) in SEVERITIES.items() if name != "info"}
    scraped = f"({_S.scraped('up')} or {_S.select('gpugauge_build_info')})"
    missing = gpus.missing(_S)
    missed, trained = (
        Expr(f"count ({missing}{only}) or 0 * count ({scraped})", COUNT) for only in ("", f" == {words.CRITICAL}")
    )
    idle = Expr(f"sum ({_IDLE}) or 0 * {all_wasted}", COUNT)
    in_all = all_wasted.then(f"({{}} + ({idle}))")
    gained = Expr(f"sum ({_freed()}) or 0 * {all_wasted}", COUNT)
    return [
        stat(
            "GPUs wasted now",
            f"GPU time that trainings held and did not use, {jobs.WINDOW}, as a number of GPUs, and the GPUs of "
            "programs that hold them idle. A training in its first 15 minutes does not count, nor do other processes "
            "without evidence of a training.",
            Query(words.of_trainings(in_all), "in all"),
            Query(all_wasted, "trainings"),
            Query(idle, "held idle"),
            mode="value_and_name",
            decimals=1,
            width=5,
        ),
        stat(
            "GPUs to free",
            "The GPUs that the same work would not need after the changes under Do this, where their gain is known, at "
            "least, and those that are held idle: the sum of Frees in the list of trainings.",
            Query(gained, "at least"),
            mode="value_and_name",
            decimals=1,
            width=3,
            empty_text="not known",
        ),
        stat(
            "Hours wasted",
            "GPU hours that trainings wasted in the time shown, of each from its start, as `gpugauge report` and the "
            "dashboard of the cost count them, and those of programs that hold GPUs idle. A row below has the cost.",
            Query(words.of_trainings(hours).with_unit(COUNT), "trainings"),
            Query(jobs.idle_hours().by().then(f"{{}} or 0 * {words.RULES}", COUNT), "held idle"),
            mode="value_and_name",
            decimals=1,
            width=3,
        ),
        stat(
            "GPUs",
            "The GPUs on which a process holds memory, the others, those that do not answer, and those of nodes that "
            "are not seen, as they were seen last.",
            *(
                Query(words.counted(Expr(text, COUNT)) if name == "held" else Expr(text, COUNT), name)
                for name, text in counted
            ),
            mode="value_and_name",
            colors={"lost": BAD, "not seen": WARN},
        ),
        stat(
            "Out of order",
            "GPUs whose gravest fault must be repaired at once, and those with a warning, as their exporters judge it: "
            "an alert fires about it, or is about to. They are listed below, with what to do.",
            *gpus.counts(_S, (words.NO_REPORT, scraped)),
            **gpus.COUNTED,
            width=3,
        ),
        stat(
            "Notifications",
            "Notifications about firing alerts, grouped and inhibited like those of "
            "deploy/prometheus/alertmanager.yaml. They are listed below.",
            *(Query(words.counted(told.then(text)), name) for name, text in ranks.items()),
            **gpus.COUNTED,
            width=3,
        ),
        stat(
            "Nodes not seen",
            "Nodes about which something is not known now: they are not scraped, their driver does not answer, or a "
            "part of their exporter fails; and those not seen since a training ran on them. They are listed below.",
            Query(words.coded(missed), "all"),
            Query(trained, "with trainings"),
            mode="value_and_name",
            colors={"all": WARN, "with trainings": BAD},
            width=3,
        ),
    ]


def _gain(bound: str = "") -> str:
    """Return the gain of each job without its largest cause, or a bound of it."""
    of = recorded(SPEEDUP_BOUND, **jobs.JOB_MATCHERS, bound=bound) if bound else recorded(SPEEDUP, **jobs.JOB_MATCHERS)
    return f"max by ({jobs.JOB_KEY}) ({of} and on ({jobs.JOB_KEY}, cause) {recorded(DOMINANT)})"


def _freed() -> str:
    """Return the GPUs that the work of each job would not need without its largest cause, and those held idle."""
    return f"({jobs.held()} * on ({jobs.JOB_KEY}) (1 - 1 / {_gain('lower')}) or {_IDLE})"


def _faster() -> str:
    """Return the gain of each job in words, as the label `faster`, of a loader that limits a training on the CPU, too.
    What such a loader gains is not what the advice about the CPU gains.
    """
    on, gains = f"on ({jobs.JOB_KEY})", _S.select("training_loader_expected_speedup_ratio")

    def of(part: str, bound: str = "") -> str:
        loader = _S.select(f"training_loader_expected_speedup{part}_ratio")
        loader = jobs.of_jobs(f"({loader} and on ({jobs.PROCESS_KEY}) {gains} > 1.05)")
        told = recorded(WHY, state="~on_cpu|" + "|".join(ON_CPU))
        return f"({_gain(bound)} or {on} {loader} unless {on} {told})"

    def text(label: str, value: str) -> str:
        return f'count_values by ({jobs.JOB_KEY}) ("{label}", round({value}, 0.1))'

    lower, upper, expected = of("_lower", "lower"), of("", "upper"), of("")
    about = f"{text('faster', f'({expected} and {on} {upper} / {on} {lower} <= {NARROW})')}"
    both = f"{text('faster', lower)} * {on} group_left (upper) {text('upper', upper)}"
    both = f'label_join({both}, "faster", " to ", "faster", "upper")'
    both = f'label_replace({both}, "faster", "up to $1", "faster", "1 to (.*)")'
    shown = f'label_replace(({about} or {on} {both}), "faster", "$1 \u00d7", "faster", "(.*)")'
    return f"group by ({jobs.JOB_KEY}, faster) ({shown})"


def _by_cause() -> Panel:
    # Those of jobs with a fault are not without a cause.
    broken = recorded(WHY, **jobs.JOB_MATCHERS, state=f"~one of its GPUs .*|{REBOOT}")
    held = f"{recorded(HELD, **jobs.JOB_MATCHERS)} and on ({jobs.JOB_KEY}) {broken}"
    unknown = f"sum ({recorded(LOST, cause='unknown', **jobs.JOB_MATCHERS)} * on ({jobs.JOB_KEY}) ({held}))"
    moved = f'label_replace({unknown}, "cause", "{jobs.BROKEN}", "", "")'
    less = f'label_replace(-{unknown}, "cause", "unknown", "", "")'
    by_cause = recorded(CAUSE_LOST, **jobs.JOB_MATCHERS).then(f"({{}} or {moved} or {less})").by("cause")
    by_cause = by_cause.then("{} > 0.001")
    return timeseries(
        "GPUs wasted, by cause",
        "GPU time that trainings wasted, as a number of GPUs, and the GPUs that other programs hold idle; lines: the "
        "GPUs that trainings held, and all that answer. "
        "docs/verdict.md lists the evidence of each cause.",
        Query(recorded(ALL_HELD, **jobs.JOB_MATCHERS).by(), "held by trainings"),
        Query(recorded(ANSWERING, job="~$job").by(), "GPUs that answer"),
        Query(by_cause, "{{cause}}"),
        Query(Expr(f"sum ({_IDLE})", COUNT), "held idle"),
        Query(words.reason("cause").then(f"{ONLY_NAME} + 0 * {{}}", COUNT), "{{cause}}", now=True),
        width=15,
        height=6,
        stack=True,
        names={
            **jobs.CAUSE_COLORS,
            "held by trainings": ("", "white"),
            "GPUs that answer": ("", "dark-blue"),
            "held idle": ("", "dark-purple"),
        },
        lines=("held by trainings", "GPUs that answer"),
        empty_text=_NO_TRAINING,
    )


def _by_user() -> Panel:
    users = jobs.gpu_hours(HOURS_LOST, jobs.by_user).by("workload_user")
    return bars(
        "GPU hours wasted, by user",
        "The hours above, in all. A number in place of a name is a user id that the exporter cannot resolve. "
        "Users share a job in proportion to their processes.",
        Query(_largest(users, "workload_user"), "{{workload_user}}"),
        width=9,
        height=6,
        empty_text="none, or nothing is judged",
    )


def _largest(expr: Expr, label: str) -> Expr:
    named = f'label_replace({{}}, "{label}", "{_NOBODY}", "{label}", "")'
    return words.or_reason(expr.then(f"sort_desc(topk(12, {named} > 0))"), label)


def _of_job(expr: Expr, *labels: str) -> Expr:
    """Return the series of jobs that run."""
    return expr.by(*jobs.JOB_LABELS, *labels, operator="max").then(f"({{}})\nand on ({jobs.JOB_KEY}) {recorded(ALIVE)}")


def _jobs() -> Panel:
    programs = recorded(PROGRAMS, **jobs.JOB_MATCHERS)
    gone = f"last_over_time({recorded(PROGRAMS, **jobs.JOB_MATCHERS, instance='~$gone')}[$__range])"
    whose = f"sum by ({jobs.JOB_KEY}, workload_user, workload_command) ({programs} or {gone})"
    trains = f"({recorded(HELD)} > 0 or on ({jobs.JOB_KEY}) {recorded(NOW)} or on ({jobs.JOB_KEY}) {recorded(PROBLEM)})"
    ran = f"({programs} and on ({jobs.JOB_KEY}) {trains} or {jobs.not_seen()} unless on ({jobs.JOB_KEY}) {programs})"
    places = jobs.places(f"group by ({jobs.JOB_KEY}, instance) ({ran})")
    wasted = _of_job(jobs.wasted()).then(f"{{}}\nor {_IDLE}")
    other = wasted.then(f"({{}}) unless on ({jobs.JOB_KEY}) {recorded(WHY)} == {words.CRITICAL}")
    # What else may help is in the dashboard of the job.
    short = f'label_replace({jobs.why()}, "advice", "$1", "advice", "([^;]*);.*")'
    known = Expr(
        f"{short}\n* on ({jobs.JOB_KEY}) group_left (workload_user, workload_command) "
        f"(topk by ({jobs.JOB_KEY}) (1, {whose}) > bool 0)",
        COUNT,
    )
    return table(
        "Trainings: what is wasted, by whom, why, and what to do",
        f"A line for each training, {jobs.WINDOW}: first those that stall, whose GPU is out of order, or whose node "
        "is not seen now, then the largest waste, at last those that are not judged yet, or well. Job opens all its "
        "causes. Faster: times as many steps a second are expected without the cause. Frees: the GPUs that the same "
        "work would not need then, at least.",
        Column("User", "workload_user", size=60),
        *common.job_columns(size=150),
        Column("Where", "where", link=common.TO_NODE, size=85),
        Column("Node", "instance", hidden=True),
        Column("Wasted", wasted, size=65, decimals=1),
        Column("Load", _of_job(recorded(TRAINING_LOAD, **jobs.JOB_MATCHERS)), steps=LOAD, size=60),
        Column("Why", "state", names={**jobs.WHY_NAMES, **words.REASON_NAMES}, size=190),
        Column("Do this", "advice", names=jobs.ADVICE_NAMES),
        Column("Faster", "faster", size=105),
        Column("Frees", _of_job(Expr(_freed(), COUNT)), size=55, decimals=1),
        Column("Program", "workload_command", size=135),
        *dropped(places, Expr(_faster(), COUNT)),
        Column("other", other, hidden=True),
        Column("level", words.or_reason(jobs.called(common.with_cluster_choice(known)), "state"), hidden=True),
        order=("Where", "other", "level"),
        height=10,
        cells="lg",
        empty_text=_NO_TRAINING,
    )


def _whose() -> Expr:
    """Return the job of each notification, what people call it, and its user: of an alert about a GPU, those of the
    process that holds most of its memory.
    """

    def named(expr: Expr) -> Expr:
        for label in _OF_LINK.values():
            expr = expr.then(f'label_replace({{}}, "of_{label}", "$1", "{label}", "(.*)")')
        return jobs.called(expr)

    programs = recorded(PROGRAMS, workload_user="!")
    user = Expr(f"topk by ({jobs.JOB_KEY}) (1, sum by ({jobs.JOB_KEY}, workload_user) ({programs}))", COUNT)
    of_job = user.then(f"({{}} or on ({jobs.JOB_KEY}) group by ({jobs.JOB_KEY}) ({common.alerts(workload_job='!')}))")
    of_gpu = Expr(gpus.owners(_S, *JOB_LABELS_OF_RULES, "workload_user"), COUNT)
    more = ", ".join((jobs.SHOWN, "workload_user", *(f"of_{label}" for label in _OF_LINK.values())))
    fires = f"group by ({', '.join(LABELS)}) ({common.alerts()})"
    both = " or ".join(
        f"{fires} * on ({by}) group_left ({more}) {named(who)}"
        for by, who in ((gpus.GPU_KEY, of_gpu), (jobs.JOB_KEY, of_job))
    )
    return notifications().then(f"({both})\nand on ({', '.join(LABELS)}) ({{}})")


def _wrong() -> Panel:
    return common.faults(
        _S,
        "Out of order: GPUs, and nodes that are not seen",
        of_fleet=True,
        height=6,
        empty_text="nothing: no GPU has a fault, all exporters are scraped, all drivers answer",
    )


def _told() -> Panel:
    ranks = {str(rank): (severity, color) for severity, (rank, color) in SEVERITIES.items()}
    on = f"on ({jobs.JOB_KEY})"
    places = jobs.places(f"group by ({jobs.JOB_KEY}, instance) ({recorded(PROGRAMS)})")
    places = places.then('label_replace({}, "node", "$1", "instance", "(.*)")')
    others = f"group by ({jobs.JOB_KEY}) ({common.alerts()})"
    fires = notifications().then(f"{{}} * {on} group_left (where, node) ({places} or {on} {others})")
    for label in ("where", "node"):
        fires = fires.then(f'label_replace({{}}, "{label}", "$1", "instance", "(.+)")')
    fires = common.with_cluster_choice(common.with_chapter(fires, "alertname"))
    return table(
        "Notifications about firing alerts",
        "A line for each notification: its most severe alert, and the job that it is about, or that holds the GPU, or "
        "held it before it was lost, with its node. Alert opens the chapter of the runbook.",
        Column("Severity", words.or_reason(fires, "alertname"), names={**ranks, "0": ("-", "")}, size=75),
        Column("Alert", "alertname", size=165, link=common.TO_RUNBOOK),
        Column("Job", jobs.SHOWN, link=common.TO_JOB),
        Column("User", "workload_user", size=70),
        Column("Where", "where", link=common.TO_NODE, size=110),
        Column("Node", "node", hidden=True),
        Column("GPU", "index", size=45),
        Column("Alert since", notifications_since(), size=105),
        Column("Pod", "workload_pod"),
        *(Column(name, f"of_{label}", hidden=True) for name, label in _OF_LINK.items()),
        common.CHAPTER_COLUMN,
        *dropped("instance", "uuid", *JOB_LABELS_OF_RULES, _whose()),
        order=("GPU", "Where", "Severity"),
        height=8,
        empty_text="no alert fires",
    )


def _nodes() -> list[Panel]:
    def of_node(expr: Expr, operator: str = "max") -> Expr:
        return expr.by(gpus.NODE_KEY, operator=operator)

    held = f"group by ({gpus.GPU_KEY}) ({_S.select('gpu_process_memory_used_bytes')})"
    return [
        table(
            "Nodes",
            "The values of each node now: its state, its GPUs, also those that do not answer, and those on which a "
            "process holds memory, the mean share of the time in which a kernel ran, memory, power, and the hottest "
            "GPU.",
            Column("level", common.with_cluster_choice(gpus.node_states(_S)), hidden=True),
            Column("Node", "instance", link=common.TO_NODE, size=110),
            Column("State", "state", names=gpus.NODE_NAMES),
            Column("GPUs", of_node(_S.read("gpu_up"), "count"), size=60),
            Column(
                "Held",
                of_node(Expr(f"{held} or 0 * group by ({gpus.GPU_KEY}) ({_S.select('gpu_up')})", COUNT), "sum"),
                size=60,
            ),
            Column("Busy", of_node(gpus.busy(_S), "avg"), size=65),
            Column("Memory", of_node(gpus.memory(_S), "avg"), size=75),
            Column("Power", of_node(gpus.power(_S), "sum"), size=75),
            Column("Hottest", of_node(_S.read("gpu_temperature_celsius", sensor="gpu")), steps=HOT, size=75),
            order=("Node", "level"),
            empty_text="no exporter is scraped",
        ),
    ]


def _unused() -> Panel:
    labels = ("workload_job_kind", "workload_namespace", "workload_pod", "workload_job", "workload_user")
    uuid = keys("uuid")
    allocated = Expr(_S.select("gpu_allocation_info"), COUNT).by(keys("uuid", *labels), operator="max")
    place = f"topk by ({uuid}) (1, group by ({uuid}, instance, index) ({_S.select('gpu_info')}))"
    unused = allocated.then(
        f"{{}}\n* on ({uuid}) group_left (instance, index) {place}\n"
        f"* on ({uuid}) group_left () ({recorded(DEVICE_BUSY)} < 0.01)",
        SHARE,
    )
    none = Expr(f'label_replace(0 * count ({_S.select("gpu_allocation_state")}), "instance", "none", "", "")', "")
    return table(
        "Given to a job and unused",
        f"GPUs that a scheduler allocated to a job and on which no kernel ran, {jobs.WINDOW}. Ask their owner.",
        Column("Node", "instance", link=common.TO_NODE),
        Column("GPU", "index", size=60),
        Column("User", "workload_user", size=90),
        *common.job_columns(namespace=120),
        Column("Pod", "workload_pod"),
        *dropped(
            "uuid",
            words.or_reason(jobs.called(common.with_cluster_choice(unused)), "instance").then(f"{{}}\nor on () {none}"),
        ),
        empty_text="not known: no scheduler reports which GPUs it gave to whom (docs/attribution.md)",
    )


def _hours() -> list[Panel]:
    runs = Expr(f"max_over_time(timestamp({jobs.held()})[$__range:1m]) * 1000", "dateTimeFromNow")

    held, wasted = jobs.gpu_hours(HOURS_HELD), jobs.gpu_hours(HOURS_LOST)
    by_user = jobs.gpu_hours(HOURS_LOST, jobs.by_user).by("workload_namespace", "workload_user", CLUSTER)
    return [
        table(
            "GPU hours, by job",
            "In the time shown, from the start of each training, also of those that ended; of programs that hold GPUs "
            "idle, that time. Cost: of the wasted hours.",
            *common.job_columns(size=200, namespace=120),
            Column("Held", held, size=90, decimals=1),
            Column(
                "Wasted",
                jobs.called(common.with_cluster_choice(words.or_reason(wasted, "workload_job"))),
                size=90,
                decimals=1,
            ),
            Column("Cost", common.cost(wasted), size=90, decimals=2),
            Column("Judged last", runs.by(*jobs.JOB_LABELS, operator="max"), size=120),
            sort="Wasted",
            width=14,
            empty_text=_NO_TRAINING,
        ),
        table(
            "GPU hours wasted, by namespace and user",
            "In the time shown; the same hours as those by job.",
            Column("Namespace", "workload_namespace"),
            Column("User", "workload_user"),
            Column("Wasted", words.or_reason(by_user, "workload_user"), size=90, decimals=1),
            Column("Cost", common.cost(by_user), size=90, decimals=2),
            sort="Wasted",
            width=10,
            empty_text=_NO_TRAINING,
        ),
    ]
