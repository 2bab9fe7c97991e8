"""The dashboard of a node: each GPU, what it does, how it is, and the processes on it."""

from __future__ import annotations

from gpugauge.artifacts.dashboards.board import JOB, Variable, alerts, board, exporters, link
from gpugauge.artifacts.dashboards.board import NODE as UID
from gpugauge.artifacts.dashboards.health import DEVICES, NODE, by_chosen_device, health, links
from gpugauge.artifacts.dashboards.panels import GOOD, HOT, Json, Panel, Query, Row, timeseries
from gpugauge.artifacts.dashboards.queries import DEVICE, SHARE, Expr, Scope, devices, share
from gpugauge.artifacts.dashboards.tables import Column, table
from gpugauge.artifacts.dashboards.workloads import who

_ON_DEVICE = ("instance", "uuid")
# What the driver does on request, and an idle GPU by itself.
_WANTED = "!~gpu_idle|low_utilization|applications_clocks_setting|display_clock_setting"


def _busy(scope: Scope = DEVICES) -> Expr:
    part, whole = (scope.rate(f"gpu_{what}_seconds_total", engine="gpu") for what in ("busy", "observed"))
    return share(part, whole, *_ON_DEVICE)


def _profiled(what: str) -> Expr:
    """Return the mean from the integral: the ratio alone is a sample, which misses what comes and goes."""
    active = DEVICES.rate(f"gpu_{what}_active_seconds_total")
    return share(active, DEVICES.rate("gpu_profiled_seconds_total"), *_ON_DEVICE)


def _memory() -> Expr:
    return Expr(f"{DEVICES.select('gpu_memory_used_bytes')} / {DEVICES.select('gpu_memory_total_bytes')}", SHARE)


def dashboard() -> Json:
    """Return the dashboard."""
    chosen = NODE.select("gpu_info")
    variables = [
        exporters(),
        Variable("instance", "Node", 'label_values(gpugauge_build_info{job=~"$job"}, instance)', all=False),
        Variable(
            "uuid",
            "GPU",
            f"query_result(max by (instance, index, uuid) (last_over_time({chosen}[$__range])))",
            # The index is shown, the uuid is meant.
            every=".+",
            regex='/index="(?<text>[^"]+).*uuid="(?<value>[^"]+)/',
        ),
    ]
    return board(
        UID,
        "gpugauge / Node",
        "Each GPU of one or more nodes: what it does, how it is, and who is on it.",
        variables,
        [
            Row("Now", _now()),
            Row("Work", _work()),
            Row("Power and heat", _heat()),
            Row("Health", health()),
            Row("Links", links()),
        ],
        alerts(uuid="~$uuid").then(f"{{}} and on (uuid) {DEVICES.select('gpu_up')} or {alerts(instance='~$instance')}"),
    )


def _now() -> list[Panel]:
    on_devices = DEVICES.read("gpu_process_memory_used_bytes").by("instance", "uuid", "process", operator="max")
    # Divided by what was observed, as that of the GPU: then they add up.
    used = DEVICES.rate("gpu_process_busy_seconds_total").by("instance", "uuid", "process", operator="max")
    seen = DEVICES.rate("gpu_observed_seconds_total", engine="gpu").by("instance", "uuid")
    shares = used.then(f"{{}}\n/ on (instance, uuid) group_left () ({seen} > 0)")
    labels = ("pid", "workload_kind", "workload_job_id", "workload_user", "workload_pod", "workload_command")
    names = f"topk by (process) (1, max by (process, {', '.join(labels)}) ({NODE.select('gpu_process_info')}))"

    def process(expr: Expr) -> Expr:
        on_device = f"{{}}\n* on (instance, uuid) group_left (index) {devices(DEVICES)}"
        return who(expr.then(f"{on_device}\n* on (process) group_left ({', '.join(labels)}) {names}"))

    return [
        table(
            "GPUs",
            "Each GPU as it is now. Busy: share of time in which something ran; SM active: how full the GPU was "
            "(Hopper and newer). A GPU that "
            "does not answer is 0 under Up, and what is not known of a GPU stays empty.",
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
            "Who is on the GPUs, with the memory held and the share of the GPU's time used. A line leads to the job.",
            Column("Node", "instance"),
            Column("GPU", "index", size=60),
            Column("Job", "who", link=link("Open the job", JOB, kind="Kind", workload="Job")),
            Column("Kind", "workload_kind"),
            Column("Pod", "workload_pod"),
            Column("User", "workload_user"),
            Column("Program", "workload_command"),
            Column("pid", "pid"),
            Column("Memory", process(on_devices)),
            Column("Busy", process(shares), bar=True, size=140),
            Column("process", "process"),
            Column("", "uuid", hidden=True),
            Column("", "workload_job_id", hidden=True),
            sort="Memory",
            height=9,
        ),
    ]


def _work() -> list[Panel]:
    mig = f"max by (instance, uuid, parent_uuid, profile) ({NODE.select('gpu_mig_info', parent_uuid='~$uuid')})"
    used = f"{NODE.select('gpu_mig_memory_used_bytes')} / {NODE.select('gpu_mig_memory_total_bytes')}"
    part = Expr(
        f"max by (instance, uuid) ({used})\n* on (instance, uuid) group_left (parent_uuid, profile) {mig}", SHARE
    )
    return [
        timeseries(
            "Busy",
            "Share of time in which something ran, from every sample that the driver kept. High and no progress: "
            "look at SM active and at the "
            "job's steps, a collective that waits keeps a GPU busy too.",
            Query(by_chosen_device(_busy()), DEVICE),
            highest=1,
        ),
        timeseries(
            "SM active",
            "Share of multiprocessors with work: how full the GPU was. Busy and not full means small kernels: "
            "larger batches, fused kernels. "
            "Hopper and newer, not under MIG.",
            Query(by_chosen_device(_profiled("sm")), DEVICE),
            highest=1,
        ),
        timeseries(
            "Tensor cores active",
            "Share of time in which the tensor cores worked. Near 0 in a training that fills the GPU: it computes "
            "with 32 bits; "
            "try TF32 or bfloat16.",
            Query(by_chosen_device(_profiled("tensor")), DEVICE),
            highest=1,
        ),
        timeseries(
            "Memory bandwidth used",
            "Share of the device memory's bandwidth. High with idle tensor cores: the kernels wait for memory.",
            Query(by_chosen_device(_profiled("dram")), DEVICE),
            highest=1,
        ),
        timeseries(
            "Memory used",
            "Share of the device memory that processes hold. PyTorch keeps what it once took, so a full GPU is no "
            "fault by itself.",
            Query(by_chosen_device(_memory()), DEVICE),
            highest=1,
        ),
        timeseries(
            "Memory used, MIG devices",
            "The same for the parts of GPUs that MIG divides; utilization of such a GPU is known by its parts only.",
            Query(part, "{{instance}} · {{profile}} · {{uuid}}"),
            highest=1,
        ),
    ]


def _heat() -> list[Panel]:
    held = DEVICES.rate("gpu_clocks_event_seconds_total", reason=_WANTED)
    active = DEVICES.select("gpu_clocks_event_active", reason=_WANTED)
    return [
        timeseries(
            "Power",
            "Board power, as it was at the scrapes. A GPU at its limit is not hurt; one "
            "far below it while busy waits for something.",
            Query(by_chosen_device(DEVICES.read("gpu_power_watts")), DEVICE),
        ),
        timeseries(
            "Temperature",
            "By sensor. The GPUs slow down near the limits in gpu_temperature_limit_celsius: check fans, air and "
            "neighbours.",
            Query(by_chosen_device(DEVICES.read("gpu_temperature_celsius"), "sensor"), DEVICE + " · {{sensor}}"),
            steps=HOT,
        ),
        timeseries(
            "SM clock",
            "A clock that falls while the GPU is busy is throttling: see what holds it beside.",
            Query(by_chosen_device(DEVICES.read("gpu_clock_hertz", domain="sm")), DEVICE),
        ),
        timeseries(
            "What holds the clocks down",
            "Share of the scrapes at which a reason was in force, idling and chosen clocks left out. Thermal: "
            "cooling. Power cap: the limit. "
            "Brake: the power supply.",
            Query(
                by_chosen_device(Expr(f"avg_over_time({active}[$__rate_interval]) > 0", SHARE), "reason"),
                DEVICE + " · {{reason}}",
            ),
            highest=1,
        ),
        timeseries(
            "Time for which the clocks were held down",
            "Share of the time, of the worst GPU of a node, as the driver's own counters tell it; not every driver "
            "counts every reason.",
            Query(held.by("instance", "reason", operator="max"), "{{instance}} · {{reason}}"),
            highest=1,
        ),
        timeseries(
            "Power of all GPUs",
            "By node, mean of 5 minutes from the energy counters, which miss nothing: multiply by hours and by the "
            "price of energy.",
            Query(DEVICES.rate("gpu_energy_joules_total", "5m").by("instance"), "{{instance}}"),
        ),
    ]
