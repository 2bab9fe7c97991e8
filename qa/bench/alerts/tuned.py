"""The stories that the rules were developed with: healthy ones, and one for each fault."""

from __future__ import annotations

from qa.bench.alerts.builders import expect, job_labels, low, machine, one_training, other, training
from qa.bench.alerts.healthy import HEALTHY
from qa.bench.alerts.record import Planned

# From second 3600 on the driver reports a utilization of 100 %.
_SPINS = "".join(
    f"  - {{call: {call}, start: 3600, value: 100}}\n"
    for call in ("nvmlDeviceGetUtilizationRates", "nvmlDeviceGetSamples")
)

_HOT = "{model: h100, health: {throttling: [{reason: hw_thermal_slowdown}]}}"


def _device(index: int) -> dict[str, str]:
    return {"uuid": f"node-1/{index}"}


def _caused(cause: str, what: str, pipeline: str, *others: str, more: str = "") -> Planned:
    """Return the story of a training that one cause slows to less than half of its speed."""
    return one_training(cause.replace("_", "-"), what, pipeline, low(501, cause, *others), more=more)


CAUSES = (
    _caused("data_loading", "workers need 1.6 s for a batch of 0.1 s", "{load: 1.6}"),
    _caused("host_bound", "small kernels, launched from Python", "{kernels: 0.01, host: 0.03, load: 0.01}"),
    _caused("transfer", "each batch is copied from pageable memory", "{copy: 0.2, pinned: false}"),
    _caused("underfilled", "kernels that fill an eighth of the GPU", "{fill: 0.12}"),
    one_training(
        "precision-unused",
        "32-bit arithmetic with TF32 off",
        "{precision_unused: true, tensor: 0.0}",
        low(501, "precision_unused", only_first=False, required=False),  # the verdict counts half of the time
    ),
    Planned(
        "throttled",
        "a GPU that is too hot",
        {"node-1": machine(training(100, "[0]", 501, "{clock: 0.4}"))},
        expectations=(low(501, "throttled"), expect(_device(0), "health", "GpuThrottled")),
    ),
    _caused("memory_pressure", "the allocator frees its cache in every step", "{retries: 1.0, cached: 300}"),
    _caused(
        "contention",
        "another program takes seven tenths of the GPU",
        "{other: 0.7}",
        more=other(900, "[0]", 999, 0.7, memory="2GiB"),
    ),
    _caused("cpu_limited", "a tenth of the CPU time that it needs", "{cpu_quota: 0.1, load: 0.3}"),
    _caused("memory_swap_io", "waits for memory that was swapped out", "{paging: 0.9, load: 0.3}"),
    Planned(
        "unused-gpus",
        "holds four GPUs and uses one",
        {"node-1": machine(training(100, "[0, 1, 2, 3]", 501, works_on="[0]"), count=4)},
        expectations=(low(501, "unused_gpus"),),
    ),
    Planned(
        "straggler",
        "four ranks on two nodes; one loads its data from a slow disk, and three wait for it",
        {
            "node-1": machine(training(100, "[0, 1]", 501, "{peer: 0.4, world_size: 4}", per_gpu=1), count=2),
            "node-2": machine(
                training(100, "[0]", 501, "{peer: 0.4, world_size: 4}"),
                training(101, "[1]", 501, "{load: 1.6, world_size: 4}"),
                count=2,
            ),
        },
        expectations=(low(501, "waiting_for_peers", only_first=False),),
    ),
)

SICK = (
    one_training("partly-starved", "the loader is a little too slow: 60 %, above the threshold", "{load: 0.66}"),
    Planned(
        "hang-at-full-load",
        "after an hour a collective waits for a rank that is gone, and the GPU spins at 100 %",
        {"node-1": machine(training(100, "[0]", 501, phases="{stalled_at: 3600}"), faults=_SPINS)},
        expectations=(
            expect(job_labels(501), "load", "TrainingStalled", since=60),
            expect(job_labels(501), "load", "TrainingLoad.*", since=60, required=False),
        ),
    ),
    Planned(
        "data-stalls",
        "after an hour and a half the file system hangs",
        {"node-1": machine(training(100, "[0]", 501, phases="{stalled_at: 5400}"))},
        180,
        expectations=(
            expect(job_labels(501), "load", "TrainingStalled", since=90),
            expect(job_labels(501), "load", r"TrainingLoad.*|GpuHeldIdle", since=90, required=False),
        ),
    ),
    Planned(
        "held-idle",
        "a notebook that somebody left",
        {"node-1": machine(other(100, "[0]", 501, command="python3 -m ipykernel_launcher"))},
        expectations=(expect(job_labels(501), "idle", "GpuHeldIdle"),),
    ),
    Planned(
        "on-cpu",
        "the model was left on the CPU beside a free GPU",
        {"node-1": machine(training(100, "[]", 501, "{kernels: 2.0}"))},
        expectations=(expect(job_labels(501), "load", "TrainingOnCpu"),),
    ),
    Planned(
        "cpu-build",
        "a CPU build of PyTorch on a machine with a GPU",
        {"node-1": machine(training(100, "[]", 501, "{kernels: 2.0}"))},
        expectations=(expect(job_labels(501), "load", "TrainingOnCpu"),),
        builds={100: "cpu"},
    ),
    Planned(
        "cpu-build-without-hook",
        "the same, and nothing reports from inside",
        {"node-1": machine(training(100, "[]", 501, "{kernels: 2.0, host: 2.0, load: 0.1}", hook="false"))},
        expectations=(expect(job_labels(501), "load", "TorchCpuBuildBusy"),),
        builds={100: "cpu"},
    ),
    Planned(
        "xid-application",
        "an illegal address, after which the job goes on",
        {"node-1": machine(training(100, "[0]", 501), gpus="{model: h100, health: {xids: [{at: 3000, xid: 31}]}}")},
        expectations=(expect(_device(0), "health", "GpuXidApplication", since=50),),
    ),
    Planned(
        "card-lost",
        "after 50 minutes the second GPU falls off the bus",
        {
            "node-1": machine(
                training(100, "[0]", 501),
                count=2,
                faults="  - {gpu: 1, start: 3000, code: gpu_is_lost}\n",
            )
        },
        expectations=(expect(_device(1), "health", "GpuLost", since=50),),
    ),
    Planned(
        "hot-server",
        "a GPU that throttles under an inference server",
        {"node-1": machine(other(100, "[0]", 501, 0.8), gpus=_HOT)},
        expectations=(expect(_device(0), "health", "GpuThrottled"),),
    ),
    Planned(
        "hot-server-new-driver",
        "the same, and a driver that counts the seconds",
        {"node-1": "driver: {version: 580.95.05}\n" + machine(other(100, "[0]", 501, 0.8), gpus=_HOT)},
        expectations=(expect(_device(0), "health", "GpuThrottled"),),
    ),
    Planned(
        "driver-released",
        "the driver is released for 25 minutes, and later for good",
        {"node-1": machine(training(100, "[0]", 501))},
        180,
        released=((20, 45), (100, 180)),
        expectations=(expect({"instance": "node-1"}, "health", "DriverReleasedLong", since=100),),
    ),
    one_training(
        "out-of-memory-loop",
        "runs out of memory every five minutes, and catches it",
        "{}",
        expect(job_labels(501), "health", "TrainingOutOfMemory", since=30),
        ooms={100: tuple(range(30, 120, 5))},
    ),
    Planned(
        "given-and-unused",
        "a job was given a GPU and never touches it",
        {"node-1": machine(training(100, "[0]", 501), count=2)},
        allocations={0: "501", 1: "501"},
        expectations=(expect(job_labels(501), "idle", "AllocatedGpuUnused"),),
    ),
    Planned(
        "starved-and-restarted",
        "starved of data; its process is replaced every half hour, and the exporter once",
        {
            "node-1": machine(
                *(
                    training(100 + i, "[0]", 501, "{load: 1.6}", start=i * 1800 - 1700, end=i * 1800 - 60)
                    for i in range(6)
                )
            )
        },
        150,
        expectations=(low(501, "data_loading"),),
        restarts=(70,),
    ),
    Planned(
        "starves-later",
        "healthy for an hour; its next process reads from a slower disk",
        {"node-1": machine(training(100, "[0]", 501, end=3600), training(101, "[0]", 501, "{load: 1.6}", start=3660))},
        expectations=(low(501, "data_loading", since=61),),
    ),
    Planned(
        "exporter-down",
        "the exporter cannot be reached any more after 40 minutes",
        {"node-1": machine(training(100, "[0]", 501))},
        unreachable=((40, 200),),
        expectations=(expect({"instance": "node-1"}, "health", "ExporterDown", since=40),),
    ),
    Planned(
        "driver-hangs",
        "the driver does not answer any more after 40 minutes",
        {"node-1": machine(training(100, "[0]", 501))},
        driver_down=((40, 200),),
        expectations=(expect({"instance": "node-1"}, "health", "ExporterBlind", since=40),),
    ),
)

STORIES = (*HEALTHY, *CAUSES, *SICK)
