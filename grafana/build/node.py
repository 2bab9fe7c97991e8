"""The dashboard of a node: its state and that of each GPU in words, their curves, and the processes on them."""

from __future__ import annotations

from functools import partial

from gpugauge.artifacts.rules.promql import JOB_LABELS as JOB_LABELS_OF_RULES
from grafana.build import common, gpus, jobs, words
from grafana.build.layout import Json, Panel, Row
from grafana.build.notifications import STEPS, named
from grafana.build.panels import BAD, Column, Query, dropped, stat, table, timeseries
from grafana.build.queries import CLOCK, CLUSTER, COUNT, SHARE, Expr, Scope, keys, share

NODE = Scope({"job": "~$job", "instance": "~$instance"})
DEVICES = NODE.with_labels(uuid="~$uuid")
# All reasons but those of an idle GPU and of clocks that were set on request.
_SLOWDOWN = "!~gpu_idle|low_utilization|applications_clocks_setting|display_clock_setting"
_ON_CPU = f"{NODE.select('training_state', state='training_on_cpu')} == 1"
# Two clusters may have nodes of one name.
_SEVERAL = (
    words.SEVERAL_NODES,
    f"(count by (instance) (group by ({gpus.NODE_KEY}) ({NODE.scraped('up')})) > 1)",
)
_HELD = DEVICES.select("gpu_process_memory_used_bytes")
_INFOS = ("gpu_process_host_info", "gpu_process_info")
_LABELS = (*JOB_LABELS_OF_RULES, "workload_user")


def dashboard() -> Json:
    """Return the dashboard."""
    seen = f"last_over_time({NODE.select('gpu_info')}[$__range])"
    known = f"topk by ({gpus.GPU_KEY}) (1, max by ({gpus.GPU_KEY}, index) ({seen}))"
    variables = [
        *common.exporters(),
        common.node(include_all=False, multi=False),
        common.Variable(
            "uuid",
            "GPU",
            f"query_result({known})",
            all_value=".+",
            regex='/index="(?<text>[^"]+).*uuid="(?<value>[^"]+)/',
        ),
    ]
    busy, *others = gpus.curves(DEVICES, where=f"{{{{{CLUSTER}}}}} ")
    return common.make_dashboard(
        common.NODE,
        "gpugauge / Node",
        "One node: its state and that of each GPU, and the processes on them.",
        variables,
        [
            Row("", [*_now(), _faults(), _gpus(), busy, _repair(), *others, _processes()]),
            Row("Errors and links", [_errors()], collapsed=True),
            Row("Inside the GPUs", _inside(), collapsed=True),
        ],
        _alerts(),
    )


def _alerts() -> Expr:
    """Return the alerts about the node, its GPUs, and the jobs with processes on it that fire."""
    here = f"{{}} and on ({jobs.JOB_KEY}) ({' or '.join(map(NODE.select, _INFOS))})"
    return common.alerts(workload_job="~.+").then(f"{here} or {common.alerts(instance='~$instance')}")


def _now() -> list[Panel]:
    answers = DEVICES.read("gpu_up")
    # Why there is no value: the node is not seen, or its exporter reports none.
    down = (words.NOT_SEEN, NODE.scraped("up").then("{} == 0").text)
    blind = (words.NO_REPORT, NODE.select("gpugauge_build_info"))
    lost = NODE.rate("training_lost_seconds_total", jobs.RANGE).by(keys("process", "cause"), operator="max")
    wasted = jobs.of_judged(lost).by().then(f"({{}} unless on () {_SEVERAL[1]})")
    # The rest of the text is in the tables.
    shown = gpus.node_states(NODE).then('label_replace({}, "state", "$1", "state", "(.*not seen for [0-9]+ min):.*")')
    return [
        table(
            "State",
            "What is wrong with the node, the gravest first: it is not seen, its driver does not answer, a part of its "
            "exporter fails, or GPUs are out of order.",
            Column("Node", "instance", size=100),
            Column("State", "state", names=gpus.NODE_NAMES, filled=True),
            *dropped(shown.then("sort_desc({})")),
            width=7,
            height=3,
            header=False,
            empty_text="not known: it was not scraped in the time shown",
        ),
        stat(
            "GPUs up",
            "The number of GPUs that answer, and of those that the exporter knows.",
            Query(words.of_one(answers.by(), _SEVERAL, down, blind), "answer"),
            Query(Expr(f"count ({gpus.known(DEVICES, 'gpu_up')}) unless on () {_SEVERAL[1]}", COUNT), "of"),
            mode="value_and_name",
            width=3,
        ),
        stat(
            "Out of order",
            "GPUs whose gravest fault must be repaired at once, and those with a warning. The table below says which, "
            "and what to do.",
            *gpus.counts(DEVICES, _SEVERAL, down, blind, known=words.of_one),
            **gpus.COUNTED,
            width=3,
        ),
        stat(
            "GPUs wasted",
            f"GPU time that trainings on this node held and did not use, {jobs.WINDOW}, as a number of GPUs. Beside it "
            "the GPUs of programs that hold them idle.",
            Query(words.of_trainings(wasted, _SEVERAL, down, (words.ON_CPU, _ON_CPU)), "trainings"),
            Query(
                Expr(f"sum ({jobs.idle(instance='~$instance')}) or 0 * {words.RULES} unless on () {down[1]}", COUNT),
                "held idle",
            ),
            mode="value_and_name",
            width=3,
            decimals=1,
        ),
        stat(
            "Power now",
            "Mean power of its GPUs, from the energy counters.",
            Query(words.of_one(gpus.power(DEVICES).by(), _SEVERAL, down, blind)),
            width=3,
        ),
        stat(
            "Alerts",
            "Of which alerts about this node, its GPUs, and the jobs with processes on it people are notified.",
            named(_alerts(), ("choose a cluster", _SEVERAL[1])),
            mode="name",
            width=5,
            steps=STEPS,
        ),
    ]


def _faults() -> Panel:
    title = "Faults of GPUs, and what to do first: all steps of the repair are below"
    return common.faults(DEVICES, title, of_fleet=False, height=7, empty_text="no GPU that reports has a fault")


def _repair() -> Panel:
    plan = f"topk by ({gpus.NODE_KEY}) (1, {gpus.gravest(partial(gpus.known, DEVICES, command='!'))})"
    gone = f"{plan} * on ({gpus.NODE_KEY}) group_left (minutes) {gpus.not_seen(DEVICES)}"
    gone = f'label_join({gone}, "of", "@", "minutes", "advice")'
    was = "the last plan, for when the node is back: it is not seen for $1 min.\\n$2"
    gone = f'label_replace({gone}, "advice", "{was}", "of", "([0-9]+)@((?s:.*))")'
    gone = f'label_replace({gone}, "advice", "$1$2", "advice", "((?s:.*)), now((?s:, in this order.*))")'
    every = Expr(f"{gone}\nor on ({gpus.NODE_KEY}) {plan}", COUNT)
    return table(
        "Repair, step by step",
        "One plan for all GPUs of the node, in this order, as `gpugauge status` and the alerts have it. Of a node that "
        "is not seen: the last one, for when it is back.",
        Column("Do this", "advice"),
        *dropped(every, "instance", "uuid", "problem", "summary", "minutes", "of"),
        height=9,
        header=False,
        empty_text="no GPU needs a repair, as far as known",
    )


def _gpus() -> Panel:
    def of(expr: Expr) -> Expr:
        return gpus.by_device(DEVICES, expr)

    owner = gpus.owners(DEVICES, *_LABELS)
    holder = f"topk by ({gpus.GPU_KEY}) (1, max by ({keys('instance', 'uuid', 'process')}) ({_HELD}))"
    cause = f"{holder} * on ({keys('instance', 'process')}) group_left (cause) {_main()}"
    why = jobs.why_of(owner, gpus.GPU_KEY, f"group by ({gpus.GPU_KEY}, cause) ({cause})")
    holds = Expr(f"{owner}\n* on ({gpus.GPU_KEY}) group_left (index) {gpus.seen(DEVICES)}", "bytes")

    return table(
        "GPUs",
        "A line for each GPU, those with a fault first, then the wasted ones, those in use, and the free ones: its "
        "state, whose process holds most of its memory, and why its job wastes GPU time. Of a node that is not "
        "seen: what was known last. Busy: share of the time in which a kernel ran. -: not reported.",
        Column("GPU", "index", size=40),
        Column("State", "state", names=gpus.GPU_NAMES),
        Column("level", common.with_cluster_choice(gpus.gpu_states(DEVICES)), hidden=True),
        Column("Why", "cause", names=jobs.WHY_NAMES),
        Column("User", "workload_user", size=60),
        *common.job_columns(size=150),
        Column("Busy", of(gpus.busy(DEVICES)), size=60),
        *dropped(
            why,
            jobs.called(holds),
            *("instance", "uuid", "process"),
        ),
        order=("GPU", "level"),
        width=15,
        height=11,
        empty_text="no GPU was seen in the time shown",
    )


def _profiled(what: str) -> Expr:
    """Return the mean from the integral, because the ratio is a sample that misses short changes."""
    active = DEVICES.rate(f"gpu_{what}_active_seconds_total")
    return share(active, DEVICES.rate("gpu_profiled_seconds_total"), gpus.GPU_KEY)


def _main() -> str:
    """Return the cause of the largest loss of each process, from 10 % of the GPU time that it holds on."""
    one = keys("instance", "process")
    held = NODE.rate("training_gpu_held_seconds_total", jobs.RANGE).by(one)
    lost = NODE.rate("training_lost_seconds_total", jobs.RANGE).by(one, "cause")
    return f"(topk by ({one}) (1, {lost} >= on ({one}) group_left () (0.1 * {held} > 0)))"


def _processes() -> Panel:
    # Divided by the observed time, as for the GPU, so that the shares of the processes add up to that of the GPU.
    pair = keys("instance", "uuid", "process")
    used = DEVICES.rate("gpu_process_busy_seconds_total").by(pair, operator="max")
    seen = DEVICES.rate("gpu_observed_seconds_total", engine="gpu").by(gpus.GPU_KEY)
    shares = used.then(f"clamp_max({{}}\n/ on ({gpus.GPU_KEY}) group_left () ({seen} > 0), 1)", SHARE)
    on_devices = DEVICES.read("gpu_process_memory_used_bytes").by(pair, operator="max")

    def on_device(expr: Expr) -> Expr:
        return expr.then(f"{{}}\n* on ({gpus.GPU_KEY}) group_left (index) {gpus.devices(DEVICES)}")

    labels = ("pid", *JOB_LABELS_OF_RULES, "workload_user", "workload_command")
    one = keys("instance", "process")
    held = NODE.rate("training_gpu_held_seconds_total", jobs.RANGE).by(one)
    lost = NODE.rate("training_lost_seconds_total", jobs.RANGE).by(one, "cause")
    load = Expr(f"clamp_min(1 - {lost.by(one)} / ({held} > 0), 0)", SHARE)
    limit = f"({NODE.select('training_limited_by')} == 1 and on ({one}) {_ON_CPU})"
    # Trainings on the CPU have no memory on a GPU.
    trains = f"group by ({jobs.PROCESS_KEY}) ({NODE.select('training_state', state='!not_training')} == 1)"
    by = keys("instance", "process", *labels)
    who = f"group by ({by}) ({' or '.join(map(NODE.select, _INFOS))})"
    wasted = jobs.of_judged(lost.by(one)).then(f"({{}} or {jobs.idle_by_process(_HELD, instance='~$instance')})")
    known = f"({who} and on ({jobs.PROCESS_KEY}) ({trains} or {_HELD}))"
    gone = f"group by ({by}) ({gpus.last(NODE, *_INFOS)})"
    last = gpus.last(DEVICES, "gpu_process_memory_used_bytes")
    held_last = f"({gone} and on ({jobs.PROCESS_KEY}) ({last} or {gpus.last(NODE, 'training_state')}))"
    not_seen = f'label_replace({held_last}, "unseen", "not seen; this was its last", "", "")'
    return table(
        "Processes",
        "The processes on the GPUs, and the trainings on the CPU: what they do, the GPUs that they waste, the share of "
        "their GPU time that they use, and why their job wastes GPU time; the last ones of a node not "
        "seen now. Job opens the job.",
        Column("GPU", "index", size=45, empty="CPU"),
        Column("User", "workload_user", size=65),
        *common.job_columns(),
        Column("Program", "workload_command", size=165),
        Column("Node seen", "unseen", size=200, empty="now", names={"~not seen.*": ("", words.GREY)}),
        Column("State", "state", names=jobs.STATE_NAMES, size=200),
        Column("Wasted", wasted.then(f"{{}} and on ({jobs.PROCESS_KEY}) {known}"), size=65, decimals=1),
        Column("Load", load, size=65),
        Column("Why", "cause", names=jobs.WHY_NAMES, size=300),
        Column("Memory", on_device(on_devices), size=75),
        Column("Busy", on_device(shares), size=65),
        Column("pid", "pid", size=60),
        *dropped(
            jobs.called(common.with_cluster_choice(Expr(f"{known}\nor {not_seen}", COUNT))),
            NODE.read("training_state").by(one, "state", operator="max").then("{} == 1"),
            jobs.why_of(known, one, f"group by ({one}, cause) ({_main()} or on ({one}) {limit})"),
            *("instance", "uuid", "process"),
        ),
        sort="Wasted",
        height=10,
        empty_text="no process on these GPUs, and no training on the CPU",
    )


def _errors() -> Panel:
    def of(expr: Expr, operator: str = "max") -> Expr:
        return gpus.by_device(DEVICES, expr, operator=operator)

    def last(name: str, **labels: str) -> str:
        return f"last_over_time({DEVICES.select(name, **labels)}[$__range])"

    xids = f"1000 * {last('gpu_xid_last_timestamp_seconds', **{'class': '!ignorable'})}"
    xid = Expr(f"topk by ({gpus.GPU_KEY}) (1, max by ({gpus.GPU_KEY}, xid) ({xids}))", CLOCK)
    model = Expr(f"topk by ({gpus.GPU_KEY}) (1, group by ({gpus.GPU_KEY}, name) ({last('gpu_info')}))", COUNT)
    model = model.then('label_replace({}, "name", "$1", "name", "NVIDIA (.*)")')
    ecc = of(DEVICES.read("gpu_ecc_errors_total", type="uncorrected", scope="volatile"), "sum")
    current, most = (DEVICES.read("gpu_pcie_width", when=when).by(gpus.GPU_KEY) for when in ("current", "max"))
    return table(
        "Errors and links",
        "The newest Xid error in the time shown; since the driver was loaded, memory errors, memory rows that wait for "
        "a reset or could not be replaced, errors of PCIe and NVLink, and the share of their lanes and links in use. "
        "-: not reported.",
        Column("GPU", "index", size=55),
        Column("Model", "name"),
        Column("Xid", "xid", size=50),
        Column("Xid at", xid, size=105),
        Column("Uncorrected", ecc, steps=BAD),
        Column("Corrected", of(DEVICES.read("gpu_ecc_errors_total", type="corrected", scope="volatile"), "sum")),
        Column("Rows pending", of(DEVICES.read("gpu_remapped_rows_pending")), steps=BAD),
        Column("Rows failed", of(DEVICES.read("gpu_remapped_rows_failure")), steps=BAD),
        Column("PCIe replays", of(DEVICES.read("gpu_pcie_replays_total"))),
        Column("PCIe lanes", of(Expr(f"{current} / {most}", SHARE))),
        Column("NVLink errors", of(DEVICES.read("gpu_nvlink_errors_total"), "sum")),
        Column("NVLinks up", of(DEVICES.read("gpu_nvlink_active"), "avg").with_unit(SHARE)),
        *dropped(model, "instance", "uuid"),
        sort="GPU",
        ascending=True,
    )


def _inside() -> list[Panel]:
    def of_mig(expr: str) -> Query:
        info = f"max by ({gpus.GPU_KEY}, parent_uuid, profile) ({NODE.select('gpu_mig_info', parent_uuid='~$uuid')})"
        joined = f"max by ({gpus.GPU_KEY}) ({expr})\n* on ({gpus.GPU_KEY}) group_left (parent_uuid, profile) {info}"
        return Query(Expr(joined, SHARE), "{{cluster}} {{instance}} MIG {{profile}} {{uuid}}")

    def inside(what: str) -> Expr:
        return gpus.by_device(DEVICES, _profiled(what))

    active = f"avg_over_time({DEVICES.select('gpu_clocks_event_active', reason=_SLOWDOWN)}[$__rate_interval])"
    lowered = gpus.by_device(DEVICES, Expr(f"({active} > 0)", SHARE), "reason")
    none = f'label_replace(0 * max by ({gpus.NODE_KEY}) ({active}), "reason", "none of the others", "", "")'
    ways = {
        f"{kind} {way}": DEVICES.rate(f"gpu_{kind.lower()}_{name}_bytes_total").by(gpus.NODE_KEY)
        for kind in ("PCIe", "NVLink")
        for way, name in (("out", "transmitted"), ("in", "received"))
    }
    return [
        timeseries(
            "Multiprocessors and tensor cores active",
            "Share of the multiprocessors with work, also of MIG devices: if the GPU is busy and it is low, the "
            "kernels are small. Share of the time in which the tensor cores worked: near 0 in a training that fills "
            "the GPU, it computes with 32 bits. Hopper and newer.",
            Query(inside("sm"), "GPU {{index}}"),
            Query(inside("tensor"), "GPU {{index}} tensor cores"),
            of_mig(NODE.select("gpu_mig_sm_active_ratio")),
            gpus.no_curve(DEVICES, inside("sm")),
            width=8,
            highest=1,
            empty_text=gpus.UNSUPPORTED,
        ),
        timeseries(
            "Reasons for lowered clocks",
            "Share of the scrapes at which a reason was active, without idle GPUs and clocks set on request. Thermal: "
            "check the cooling; power cap: the power limit; brake: the power supply.",
            Query(lowered, "GPU {{index}} {{reason}}"),
            Query(Expr(none, SHARE), "{{instance}} {{reason}}"),
            gpus.no_curve(DEVICES, Expr(none, SHARE)),
            width=8,
            highest=1,
            empty_text=gpus.UNSUPPORTED,
        ),
        timeseries(
            "PCIe and NVLink traffic",
            "Bytes over the links of all GPUs of a node. High PCIe traffic while the GPUs have gaps means that they "
            "wait for copies: use pinned memory.",
            *(Query(expr, f"{{{{instance}}}} {way}") for way, expr in ways.items()),
            gpus.no_curve(DEVICES, ways["PCIe out"]),
            width=8,
            empty_text=gpus.UNSUPPORTED,
        ),
    ]
