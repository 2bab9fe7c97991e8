"""The rows of a job's dashboard about its steps and ranks, their memory, GPUs and hosts."""

from __future__ import annotations

from gpugauge.verdict.loaders import REASONS
from grafana.build.common import CLUSTER_CHOICE, NODE, link, with_cluster_choice
from grafana.build.layout import Panel
from grafana.build.panels import Query, bars, timeseries
from grafana.build.queries import CLUSTER, COUNT, DEVICE_LEGEND, Expr, by_device, keys, share
from grafana.build.tables import Column, dropped, table
from grafana.build.workloads import JOB_NODES as _S
from grafana.build.workloads import PHASE_COLORS, RANGE, RANK_LEGEND, WINDOW, by_process, by_rank

_TIMES = "suffix:\u00d7"
_OUTSIDE = "needs the hook (docs/hook.md), or a value that these processes do not report"


def every_rank(title: str, text: str, expr: Expr, *labels: str, highest: float | None = None) -> Panel:
    """Return a graph with a line for each rank and each value of the labels."""
    legend = RANK_LEGEND + "".join(f" · {{{{{label}}}}}" for label in labels)
    return timeseries(
        title, text, Query(by_rank(expr, *labels), legend), highest=highest, legend=False, empty_text=_OUTSIDE
    )


def ranks() -> list[Panel]:
    """Return the panels that compare the ranks."""
    # Within a run, because only its ranks do the same work.
    run = keys("run_id", "world_size")
    process = keys("process")
    info = _S.select("torch_process_info")
    rank = f"topk by ({process}) (1, max by ({process}, instance, rank, run_id, world_size) ({info}))"
    work = by_process(_S.rate("torch_local_work_seconds_total", RANGE)).then(
        f"({{}}\n* on ({process}) group_left (instance, rank, run_id, world_size) {rank})"
    )
    median = f"quantile by ({run}) (0.5, {work})"
    relative = Expr(f"{work}\n/ on ({run}) group_left () ({median} > 0)", COUNT)
    step = Expr(f"{_S.rate('torch_step_duration_seconds_sum')} / {_S.rate('torch_step_duration_seconds_count')}", "s")
    own = Expr(f"{_S.rate('torch_local_work_seconds_total')} / {_S.rate('torch_steps_total')}", "s")
    held = _S.read("gpu_process_memory_used_bytes").by(keys("process", "instance"))

    def of_rank(expr: Expr) -> Expr:
        return with_cluster_choice(by_rank(expr))

    lost = _S.rate("training_lost_seconds_total", RANGE).by(keys("process"))
    return [
        bars(
            "Own work, relative to the median rank",
            "The other ranks wait for a rank above 1.25: check its node and its data. Needs DistributedDataParallel "
            "under the hook.",
            Query(
                relative.by("instance", "rank", "process", operator="max").then("sort_desc({})"),
                "{{instance}} · rank {{rank}}",
            ),
            width=8,
            height=9,
            steps=((None, "green"), (1.1, "orange"), (1.25, "red")),
            decimals=2,
            empty_text=_OUTSIDE,
        ),
        table(
            "Ranks",
            "The processes that report through the hook: duration of a step, own work in it, waits for data, and GPU "
            "time lost.",
            Column("Rank", "rank", size=60),
            Column("Node", "instance", link=link("Open the node", NODE, instance="Node")),
            Column("Step", of_rank(step)),
            Column("Own work", of_rank(own)),
            Column("Data wait", of_rank(_S.rate("torch_data_wait_exposed_seconds_total")), bar=True),
            Column("GPUs wasted", of_rank(lost).with_unit(COUNT)),
            Column("GPU memory", of_rank(held)),
            Column("Last step ago", of_rank(_S.age("training_last_step_timestamp_seconds"))),
            Column("process", "process"),
            Column(CLUSTER_CHOICE, CLUSTER_CHOICE, hidden=True),
            *dropped(CLUSTER),
            sort="Rank",
            ascending=True,
            width=16,
            height=9,
            empty_text=_OUTSIDE,
        ),
        timeseries(
            "Own work of each rank",
            f"Share of its time that a rank works itself and does not wait for other ranks, {WINDOW}. A line above "
            "the others is a straggler.",
            Query(work.by("instance", "rank", "process", operator="max"), RANK_LEGEND),
            width=24,
            legend=False,
            empty_text=_OUTSIDE,
        ),
    ]


def steps() -> list[Panel]:
    """Return the panels about the steps of all ranks."""
    buckets = by_process(_S.rate("torch_step_duration_seconds_bucket"), "le").by("le")
    durations = [
        Query(Expr(f"histogram_quantile({q:g}, {buckets})", "s"), name)
        for q, name in ((0.5, "median"), (0.9, "90 %"), (0.99, "99 %"))
    ]
    return [
        every_rank(
            "Steps a second",
            "By rank. Ranks that wait for each other make steps at the same rate: compare their own work.",
            _S.rate("torch_steps_total"),
        ),
        timeseries(
            "Duration of a step",
            "From one optimizer step to the next, over all ranks. A high 99 % with a low median indicates occasional "
            "delays, such as a checkpoint, a slow batch or another process.",
            *durations,
            empty_text=_OUTSIDE,
        ),
        *_throughput(),
        every_rank(
            "Waiting for data while the GPU was idle",
            "Share of the time. Above a tenth, the loader limits the training: use more workers, pinned memory or "
            "faster storage. Absent where it cannot be measured.",
            _S.rate("torch_data_wait_exposed_seconds_total"),
            highest=1,
        ),
        every_rank(
            "Waiting for data, in all",
            "Share of the time that the training thread waits for training batches. The wait costs nothing while the "
            "GPU still has work. Absent where the loader is not known to the hook.",
            _S.rate("torch_data_wait_seconds_total", phase="training"),
            highest=1,
        ),
        _loaders(),
        timeseries(
            "Phases of the training threads",
            "Number of ranks by phase, averaged.",
            Query(
                by_process(_S.rate("torch_phase_seconds_total"), "phase").by("phase").then("{} > 0", COUNT),
                "{{phase}}",
            ),
            width=24,
            stack=True,
            colors=PHASE_COLORS,
            empty_text=_OUTSIDE,
        ),
    ]


def _throughput() -> list[Panel]:
    """Return the panels about what the steps achieve."""
    kinds = ("samples", "tokens")
    return [
        *(
            timeseries(
                f"{kind.capitalize()} a second",
                "Summed over the ranks. Ranks that compute on the same batch, as with tensor parallelism, count it "
                "once each.",
                Query(by_process(_S.rate(f"torch_{kind}_total")).by(), kind),
                width=8,
                legend=False,
                empty_text="not known: the program or its loader does not report them (docs/hook.md)",
            )
            for kind in kinds
        ),
        timeseries(
            "Model FLOPs utilization",
            "By rank: the model's FLOPs in the time of the steps, over the peak of the GPUs. Absent where the FLOPs, "
            "the dtype or the peak is not known (docs/verdict.md).",
            Query(by_rank(_S.read("training_mfu_ratio")), RANK_LEGEND),
            width=8,
            highest=1,
            legend=False,
            empty_text="not known: FLOPs, dtype or peak of the GPU",
        ),
    ]


def _loaders() -> Panel:
    """Return the table of the loaders for which ranks wait."""
    limited = by_rank(_S.read("training_loader_limited_by"), "reason")
    explained = limited.then('label_replace({}, "meaning", "$1", "reason", "(.*)")')

    def of_rank(name: str, unit: str = "") -> Expr:
        found = by_rank(_S.read(f"training_loader_{name}"))
        return with_cluster_choice(found.with_unit(unit) if unit else found)

    return table(
        "Loaders that limit a rank",
        "The ranks that wait for their batches for 5 % of the time or more, the limit of the loader, and the number of "
        "loader workers that helps: the present one if more will not help. Step rate: how many times as many steps a "
        "second are expected with it; - where that is not known (docs/verdict.md).",
        Column("Rank", "rank", size=60),
        Column("Node", "instance", link=link("Open the node", NODE, instance="Node")),
        Column("Limit", "reason", size=150),
        Column("Workers that help", of_rank("workers_recommended"), size=150),
        Column("Step rate", of_rank("expected_speedup_ratio", _TIMES), size=90, decimals=1),
        Column("At least", of_rank("expected_speedup_lower_ratio", _TIMES), size=90, decimals=1),
        Column("Evidence", "meaning", texts=REASONS),
        Column("Limited", with_cluster_choice(explained), hidden=True),
        Column("process", "process"),
        Column(CLUSTER_CHOICE, CLUSTER_CHOICE, hidden=True),
        *dropped(CLUSTER),
        sort="Step rate",
        height=6,
        empty_text="no rank waits for its loader, or they do not report through the hook (docs/hook.md)",
    )


def memory() -> list[Panel]:
    """Return the panels about memory."""

    def total(name: str) -> Expr:
        return by_process(_S.read(name), "uuid").by()

    failures = [("torch_memory_alloc_retries_total", "retries"), ("torch_memory_ooms_total", "out of memory")]
    return [
        timeseries(
            "Memory of all ranks",
            "Memory of tensors, memory that the caching allocator holds, and memory that the processes hold on the "
            "GPUs. Memory held by PyTorch and not by tensors is cache, not a leak. A large part in split blocks is "
            "fragmentation.",
            Query(total("torch_memory_allocated_bytes"), "tensors"),
            Query(total("torch_memory_allocated_peak_bytes"), "tensors, peak"),
            Query(total("torch_memory_reserved_bytes"), "held by PyTorch"),
            Query(total("torch_memory_inactive_split_bytes"), "in split blocks"),
            Query(total("gpu_process_memory_used_bytes"), "held on the GPUs"),
        ),
        every_rank(
            "Memory of tensors",
            "By rank and GPU. The ranks of a data-parallel training should have similar values.",
            _S.read("torch_memory_allocated_bytes"),
        ),
        timeseries(
            "Allocation retries and failures",
            "Per second. Before a retry the allocator returns its cache to the driver, which stalls the GPU. "
            "Out-of-memory errors that the program catches slow it down without a message.",
            *(Query(by_process(_S.rate(name), "uuid").by(), legend) for name, legend in failures),
            empty_text=_OUTSIDE,
        ),
        timeseries(
            "Parameters, by device",
            "A training whose parameters are on the CPU does not use the GPU.",
            Query(by_process(_S.read("torch_parameter_bytes"), "device").by("device"), "{{device}}"),
            empty_text=_OUTSIDE,
        ),
    ]


def host() -> list[Panel]:
    """Return the panels about the GPUs and the hosts of the job."""
    part, whole = (_S.rate(f"gpu_{what}_seconds_total", engine="gpu") for what in ("busy", "observed"))
    device = keys("instance", "uuid")
    held = by_process(_S.read("gpu_process_memory_used_bytes"), "instance", "uuid").by(device, operator="max")
    used = share(part, whole, device).then(f"{{}}\nand on ({device}) {held}")
    pressure = by_process(_S.rate("gpu_process_cgroup_pressure_seconds_total"), "resource").by(
        "resource", operator="max"
    )
    cpus = by_process(_S.rate("gpu_process_cpu_seconds_total"), "part").by("part")
    return [
        timeseries(
            "Busy GPUs",
            "Share of the time in which a kernel of any process ran, for the GPUs that the job's processes hold.",
            Query(by_device(_S, used), DEVICE_LEGEND),
            highest=1,
            legend=False,
            empty_text="its processes hold no memory of a GPU",
        ),
        timeseries(
            "CPUs used",
            "By the training threads, the whole processes, and their children, such as loader workers. A training "
            "thread at 1 limits a training that has gaps on the GPU.",
            Query(cpus.with_unit(COUNT), "{{part}}"),
        ),
        timeseries(
            "Waiting on the host",
            "Share of the time, summed over the processes: throttled by the CPU quota of the cgroup, and main thread "
            "inside the kernel. Raise the CPU quota, or check the storage.",
            Query(by_process(_S.rate("gpu_process_cgroup_throttled_seconds_total")).by(), "CPU quota"),
            Query(by_process(_S.rate("gpu_process_uninterruptible_seconds_total")).by(), "inside the kernel"),
        ),
        timeseries(
            "Pressure in its cgroups",
            "Share of the time in which a task waited for the resource (PSI), for the worst of its processes. io: "
            "storage; memory: reclaim and swap; cpu: too few CPUs.",
            Query(pressure, "{{resource}}"),
        ),
    ]
