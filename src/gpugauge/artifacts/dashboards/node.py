"""The dashboard of a node: the load and the health of each GPU, and the processes on it."""

from __future__ import annotations

from gpugauge.artifacts.dashboards.common import JOB, Variable, alerts, exporter_job, link, make_dashboard
from gpugauge.artifacts.dashboards.common import NODE as UID
from gpugauge.artifacts.dashboards.health import DEVICES, NODE, by_chosen_device, health, links
from gpugauge.artifacts.dashboards.panels import GOOD, HOT, Json, Panel, Query, Row, timeseries
from gpugauge.artifacts.dashboards.queries import DEVICE_LEGEND, SHARE, Expr, Scope, devices, keys, share
from gpugauge.artifacts.dashboards.tables import Column, table
from gpugauge.artifacts.dashboards.workloads import with_job_name
from gpugauge.artifacts.rules.promql import JOB_LABELS as JOB_LABELS_OF_RULES

_ON_DEVICE = keys("instance", "uuid")
# All reasons but those of an idle GPU and of clocks that were set on request.
_SLOWDOWN = "!~gpu_idle|low_utilization|applications_clocks_setting|display_clock_setting"


def _busy(scope: Scope = DEVICES) -> Expr:
    part, whole = (scope.rate(f"gpu_{what}_seconds_total", engine="gpu") for what in ("busy", "observed"))
    return share(part, whole, _ON_DEVICE)


def _profiled(what: str) -> Expr:
    """Return the mean from the integral, because the ratio is a sample that misses short changes."""
    active = DEVICES.rate(f"gpu_{what}_active_seconds_total")
    return share(active, DEVICES.rate("gpu_profiled_seconds_total"), _ON_DEVICE)


def _memory() -> Expr:
    return Expr(f"{DEVICES.select('gpu_memory_used_bytes')} / {DEVICES.select('gpu_memory_total_bytes')}", SHARE)


def dashboard() -> Json:
    """Return the dashboard."""
    chosen = NODE.select("gpu_info")
    variables = [
        exporter_job(),
        Variable("instance", "Node", 'label_values(gpugauge_build_info{job=~"$job"}, instance)', include_all=False),
        Variable(
            "uuid",
            "GPU",
            f"query_result(max by (instance, index, uuid) (last_over_time({chosen}[$__range])))",
            # The index is the text, the uuid is the value.
            all_value=".+",
            regex='/index="(?<text>[^"]+).*uuid="(?<value>[^"]+)/',
        ),
    ]
    return make_dashboard(
        UID,
        "gpugauge / Node",
        "Each GPU of one or more nodes: its load, its health, and the processes on it.",
        variables,
        [
            Row("Now", _now()),
            Row("Work", _work()),
            Row("Power and heat", _heat()),
            Row("Health", health()),
            Row("Links", links()),
        ],
        alerts(uuid="~$uuid").then(
            f"{{}} and on ({keys('uuid')}) {DEVICES.select('gpu_up')} or {alerts(instance='~$instance')}"
        ),
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
        return with_job_name(expr.then(f"{on_device}\n* on ({one}) group_left ({', '.join(labels)}) {names}"))

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
            Column("", "uuid", hidden=True),
            sort="GPU",
            ascending=True,
            height=10,
        ),
        table(
            "Processes",
            "The processes on the GPUs, with the memory that they hold and their share of the GPU's time. The link "
            "opens the job.",
            Column("Node", "instance"),
            Column("GPU", "index", size=60),
            Column("Job", "who", link=link("Open the job", JOB, kind="Kind", workload="Job")),
            Column("Kind", "workload_job_kind"),
            Column("Pod", "workload_pod"),
            Column("User", "workload_user"),
            Column("Program", "workload_command"),
            Column("pid", "pid"),
            Column("Memory", process(on_devices)),
            Column("Busy", process(shares), bar=True, size=140),
            Column("process", "process"),
            Column("", "uuid", hidden=True),
            Column("", "workload_job", hidden=True),
            sort="Memory",
            height=9,
        ),
    ]


def _work() -> list[Panel]:
    device = keys("instance", "uuid")
    mig = f"max by ({device}, parent_uuid, profile) ({NODE.select('gpu_mig_info', parent_uuid='~$uuid')})"
    used = f"{NODE.select('gpu_mig_memory_used_bytes')} / {NODE.select('gpu_mig_memory_total_bytes')}"
    part = Expr(f"max by ({device}) ({used})\n* on ({device}) group_left (parent_uuid, profile) {mig}", SHARE)
    return [
        timeseries(
            "Busy",
            "Share of the time in which a kernel ran, from every sample that the driver kept. A collective that waits "
            "keeps a GPU busy, too: without progress, check SM active and the steps of the job.",
            Query(by_chosen_device(_busy()), DEVICE_LEGEND),
            highest=1,
        ),
        timeseries(
            "SM active",
            "Share of the multiprocessors with work. If the GPU is busy and this is low, the kernels are small: use "
            "larger batches or fused kernels. Hopper and newer, not under MIG.",
            Query(by_chosen_device(_profiled("sm")), DEVICE_LEGEND),
            highest=1,
        ),
        timeseries(
            "Tensor cores active",
            "Share of the time in which the tensor cores worked. If it is near 0 in a training that fills the GPU, "
            "the training computes with 32 bits: try TF32 or bfloat16.",
            Query(by_chosen_device(_profiled("tensor")), DEVICE_LEGEND),
            highest=1,
        ),
        timeseries(
            "Memory bandwidth used",
            "Share of the bandwidth of the device memory. If it is high and the tensor cores are idle, the kernels "
            "wait for memory.",
            Query(by_chosen_device(_profiled("dram")), DEVICE_LEGEND),
            highest=1,
        ),
        timeseries(
            "Memory used",
            "Share of the device memory that processes hold. PyTorch keeps the memory that it once allocated, so a "
            "full GPU is not an error by itself.",
            Query(by_chosen_device(_memory()), DEVICE_LEGEND),
            highest=1,
        ),
        timeseries(
            "Memory used, MIG devices",
            "The same for MIG devices. The driver reports the utilization of a GPU in MIG mode by its instances only.",
            Query(part, "{{instance}} · {{profile}} · {{uuid}}"),
            highest=1,
        ),
    ]


def _heat() -> list[Panel]:
    counted = DEVICES.rate("gpu_clocks_event_seconds_total", reason=_SLOWDOWN)
    active = DEVICES.select("gpu_clocks_event_active", reason=_SLOWDOWN)
    return [
        timeseries(
            "Power",
            "Board power at the scrapes. A GPU may run at its power limit; a busy GPU far below the limit waits for "
            "data, memory or peers.",
            Query(by_chosen_device(DEVICES.read("gpu_power_watts")), DEVICE_LEGEND),
        ),
        timeseries(
            "Temperature",
            "By sensor. A GPU slows down near the limits in gpu_temperature_limit_celsius: check fans, air flow and "
            "the neighbouring GPUs.",
            Query(by_chosen_device(DEVICES.read("gpu_temperature_celsius"), "sensor"), DEVICE_LEGEND + " · {{sensor}}"),
            steps=HOT,
        ),
        timeseries(
            "SM clock",
            "A clock that falls while the GPU is busy is throttled: the reasons are beside.",
            Query(by_chosen_device(DEVICES.read("gpu_clock_hertz", domain="sm")), DEVICE_LEGEND),
        ),
        timeseries(
            "Reasons for lowered clocks",
            "Share of the scrapes at which a reason was active, without idle GPUs and clocks set on request. Thermal: "
            "check the cooling; power cap: the power limit; brake: the power supply.",
            Query(
                by_chosen_device(Expr(f"avg_over_time({active}[$__rate_interval]) > 0", SHARE), "reason"),
                DEVICE_LEGEND + " · {{reason}}",
            ),
            highest=1,
        ),
        timeseries(
            "Time with lowered clocks",
            "Share of the time for the worst GPU of a node, from the counters of the driver. Not every driver counts "
            "every reason.",
            Query(counted.by("instance", "reason", operator="max"), "{{instance}} · {{reason}}"),
            highest=1,
        ),
        timeseries(
            "Power of all GPUs",
            "By node, mean of 5 minutes, from the energy counters, which include all changes between scrapes. Multiply "
            "by hours and the price of energy.",
            Query(DEVICES.rate("gpu_energy_joules_total", "5m").by("instance"), "{{instance}}"),
        ),
    ]
