"""The dashboard of a node: the load and the health of each GPU, and the processes on it."""

from __future__ import annotations

from functools import partial

from gpugauge.artifacts.rules.promql import JOB_LABELS as JOB_LABELS_OF_RULES
from grafana.build.common import (
    CLUSTER_CHOICE,
    JOB,
    Variable,
    alerts,
    exporters,
    link,
    make_dashboard,
    node,
    with_cluster_choice,
)
from grafana.build.common import NODE as UID
from grafana.build.fleet_nodes import EXPORTER
from grafana.build.health import DEVICES, NODE, UNSUPPORTED, by_chosen_device, health, links
from grafana.build.heat import heat, mig
from grafana.build.layout import Json, Panel, Row
from grafana.build.panels import GOOD, HOT, Query, timeseries
from grafana.build.queries import (
    CLUSTER,
    DEVICE_LEGEND,
    SHARE,
    Expr,
    Scope,
    devices,
    keys,
    share,
)
from grafana.build.tables import Column, dropped, table

_ON_DEVICE = keys("instance", "uuid")


def _busy(scope: Scope = DEVICES) -> Expr:
    part, whole = (scope.rate(f"gpu_{what}_seconds_total", engine="gpu") for what in ("busy", "observed"))
    return share(part, whole, _ON_DEVICE)


def _profiled(what: str) -> Expr:
    """Return the mean from the integral, because the ratio is a sample that misses short changes."""
    active = DEVICES.rate(f"gpu_{what}_active_seconds_total")
    return share(active, DEVICES.rate("gpu_profiled_seconds_total"), _ON_DEVICE)


def _memory() -> Expr:
    return Expr(f"{DEVICES.select('gpu_memory_used_bytes')} / {DEVICES.select('gpu_memory_total_bytes')}", SHARE)


_ANSWERS = {"0": "no", "1": "yes"}
_graph = partial(timeseries, legend=False, empty_text=UNSUPPORTED)


def dashboard() -> Json:
    """Return the dashboard."""
    chosen, device = NODE.select("gpu_info"), keys("instance", "uuid")
    known = f"topk by ({device}) (1, max by ({device}, index) (max_over_time({chosen}[$__range:5m])))"
    variables = [
        *exporters(),
        node(include_all=False),
        Variable(
            "uuid",
            "GPU",
            # A GPU of several nodes is shown with its node: two nodes have a GPU 0.
            f'query_result(label_join({known}, "shown", " ", "instance", "index"))',
            all_value=".+",
            regex='/shown="(?<text>[^"]+).*uuid="(?<value>[^"]+)/',
        ),
    ]
    return make_dashboard(
        UID,
        "gpugauge / Node",
        "Each GPU of one or more nodes: its load, its health, and the processes on it.",
        variables,
        [
            Row("", [_exporter(), *_now()]),
            Row("Work", _work(), collapsed=True),
            Row("MIG devices", mig(), collapsed=True),
            Row("Power, heat and clocks", heat(), collapsed=True),
            Row("Health", health(), collapsed=True),
            Row("Links", links(), collapsed=True),
        ],
        alerts(uuid="~$uuid").then(
            f"{{}} and on ({keys('uuid')}) {DEVICES.select('gpu_up')} or {alerts(instance='~$instance')}"
        ),
    )


def _exporter() -> Panel:
    one = keys("instance")

    def of_node(expr: Expr, *labels: str) -> Expr:
        return expr.by(one, *labels, operator="max")

    seen = of_node(NODE.read("gpugauge_snapshot_timestamp_seconds").then("max_over_time(({})[$__range:5m])"))
    return table(
        "Exporter",
        "Whether the exporter is scraped and the driver answers, when its values were seen last, and its versions. "
        "Without them the panels below are empty.",
        Column("Node", "instance"),
        Column("Exporter", of_node(NODE.scraped("up")), steps=GOOD, texts=EXPORTER),
        Column("Driver answers", of_node(NODE.read("gpugauge_driver_up"), "reason"), steps=GOOD, texts=_ANSWERS),
        Column("Why", "reason"),
        Column("Last values", seen),
        Column("GPUs that answer", NODE.read("gpu_up").by(one)),
        Column("Version", "version"),
        Column("Driver", "driver_version"),
        Column("Simulated", "simulated"),
        *dropped(CLUSTER, of_node(NODE.read("gpugauge_build_info"), "version", "driver_version", "simulated")),
        height=4,
        empty_text="no exporter of this name was scraped in the time shown",
    )


def _now() -> list[Panel]:
    device, one = keys("instance", "uuid"), keys("process")
    on_devices = DEVICES.read("gpu_process_memory_used_bytes").by(keys("instance", "uuid", "process"), operator="max")
    # Divided by the observed time, as for the GPU, so that the shares of the processes add up to that of the GPU.
    used = DEVICES.rate("gpu_process_busy_seconds_total").by(keys("instance", "uuid", "process"), operator="max")
    seen = DEVICES.rate("gpu_observed_seconds_total", engine="gpu").by(device)
    shares = used.then(f"{{}}\n/ on ({device}) group_left () ({seen} > 0)")
    labels = ("pid", *JOB_LABELS_OF_RULES, "workload_user", "workload_pod", "workload_command")
    names = f"topk by ({one}) (1, max by ({one}, {', '.join(labels)}) ({NODE.select('gpu_process_info')}))"

    def process(expr: Expr) -> Expr:
        on_device = f"{{}}\n* on ({device}) group_left (index) {devices(DEVICES)}"
        return with_cluster_choice(expr.then(f"{on_device}\n* on ({one}) group_left ({', '.join(labels)}) {names}"))

    return [
        table(
            "GPUs",
            "The current values of each GPU. Busy: share of the time in which a kernel ran. SM active: share of the "
            "multiprocessors in use (Hopper and newer). Up is 0 for a GPU that does not answer; unknown values are "
            "empty.",
            Column("Node", "instance"),
            Column("GPU", "index", size=60),
            Column("uuid", "short_uuid"),
            Column("Up", by_chosen_device(DEVICES.read("gpu_up")), steps=GOOD, size=60),
            Column("Busy", by_chosen_device(_busy()), bar=True, size=140),
            Column("SM active", by_chosen_device(_profiled("sm")), bar=True, size=140),
            Column("Memory", by_chosen_device(_memory()), bar=True, size=140),
            Column("Power", by_chosen_device(DEVICES.read("gpu_power_watts"))),
            Column("Limit", by_chosen_device(DEVICES.read("gpu_power_limit_watts"))),
            Column("Temperature", by_chosen_device(DEVICES.read("gpu_temperature_celsius", sensor="gpu")), steps=HOT),
            *dropped("uuid", CLUSTER),
            sort="GPU",
            ascending=True,
            height=9,
            empty_text="no GPU reports: see the exporter above",
        ),
        table(
            "Processes",
            "The processes on the GPUs, with the memory that they hold and their share of the GPU's time. The link "
            "opens the job.",
            Column("Node", "instance"),
            Column("GPU", "index", size=60),
            Column(
                "Job",
                "workload_job",
                link=link("Open the job", JOB, kind="Kind", namespace="Namespace", workload="Job"),
            ),
            Column("Kind", "workload_job_kind"),
            Column("Namespace", "workload_namespace"),
            Column("Pod", "workload_pod"),
            Column("User", "workload_user"),
            Column("Program", "workload_command"),
            Column("pid", "pid"),
            Column("Memory", process(on_devices)),
            Column("Busy", process(shares), bar=True, size=140),
            Column("process", "process"),
            Column(CLUSTER_CHOICE, CLUSTER_CHOICE, hidden=True),
            *dropped("uuid", CLUSTER),
            sort="Memory",
            height=8,
            empty_text="no process on these GPUs",
        ),
    ]


def _work() -> list[Panel]:
    return [
        _graph(
            "Busy",
            "Share of the time in which a kernel ran, from every sample that the driver kept. A collective that waits "
            "keeps a GPU busy, too: without progress, check SM active and the steps of the job.",
            Query(by_chosen_device(_busy()), DEVICE_LEGEND),
            highest=1,
        ),
        _graph(
            "SM active",
            "Share of the multiprocessors with work. If the GPU is busy and this is low, the kernels are small: use "
            "larger batches or fused kernels. Hopper and newer, not under MIG.",
            Query(by_chosen_device(_profiled("sm")), DEVICE_LEGEND),
            highest=1,
        ),
        _graph(
            "Tensor cores active",
            "Share of the time in which the tensor cores worked. If it is near 0 in a training that fills the GPU, "
            "the training computes with 32 bits: try TF32 or bfloat16.",
            Query(by_chosen_device(_profiled("tensor")), DEVICE_LEGEND),
            highest=1,
        ),
        _graph(
            "Memory bandwidth used",
            "Share of the bandwidth of the device memory. If it is high and the tensor cores are idle, the kernels "
            "wait for memory.",
            Query(by_chosen_device(_profiled("dram")), DEVICE_LEGEND),
            highest=1,
        ),
        _graph(
            "Memory used",
            "Share of the device memory that processes hold. PyTorch keeps the memory that it once allocated, so a "
            "full GPU is not an error by itself.",
            Query(by_chosen_device(_memory()), DEVICE_LEGEND),
            highest=1,
        ),
    ]
