"""Stories written after the rules, and not used to change them: mixtures, borderline cases and bad timing."""

from __future__ import annotations

from qa.bench.alerts.builders import expect, job_labels, low, machine, other, training
from qa.bench.alerts.record import Planned

_LOST_FOR_A_WHILE = "  - {gpu: 0, start: 2400, end: 3000, code: gpu_is_lost}\n"
_SPELLS = ", ".join(
    f"{{reason: sw_thermal_slowdown, start: {start}, end: {start + 90}}}" for start in (1800, 3600, 5400)
)
_OFF_THE_BUS = "{model: h100, health: {xids: [{at: 3600, xid: 79}]}}"

STORIES = (
    Planned(
        "server-beside-starved-training",
        "a quiet server and a starved training of another job on one machine; the exporter restarts",
        {"node-1": machine(other(100, "[0]", 501, 0.05), training(200, "[1]", 502, "{load: 1.2}"), count=2)},
        restarts=(40,),
        expectations=(low(502, "data_loading"),),
    ),
    Planned(
        "nearly-full",
        "a loader that is a little too slow: 85 %, which is above what was asked for",
        {"node-1": machine(training(100, "[0]", 501, "{load: 0.47}"))},
    ),
    Planned(
        "healthy-sweep",
        "one job that tries settings one after the other, each compiled for 3 minutes and trained for 12",
        {
            "node-1": machine(
                *(
                    training(100 + i, "[0]", 501, start=i * 930 + 1, end=i * 930 + 901, phases="{compiling: 180}")
                    for i in range(8)
                )
            )
        },
    ),
    Planned(
        "starved-sweep",
        "the same, without compiling and with too slow a loader: no process lives for longer than 12 minutes",
        {
            "node-1": machine(
                *(training(100 + i, "[0]", 501, "{load: 1.6}", start=i * 750 + 1, end=i * 750 + 721) for i in range(10))
            )
        },
        expectations=(low(501, "data_loading"),),
    ),
    Planned(
        "starved-between-evaluations",
        "of 20 minutes 8 are evaluation, and the other 12 lose seven tenths to the loader",
        {"node-1": machine(training(100, "[0]", 501, "{load: 1.33}", phases="{every: 1200, evaluating: 480}"))},
        150,
        expectations=(low(501, "data_loading", only_first=False),),
    ),
    Planned(
        "uneven-ranks",
        "four ranks of which one takes 13 % longer, as happens",
        {
            "node-1": machine(
                training(100, "[0, 1, 2]", 501, "{peer: 0.113, world_size: 4}", per_gpu=1),
                training(110, "[3]", 501, "{kernels: 0.113, world_size: 4}"),
                count=4,
            )
        },
    ),
    Planned(
        "hot-node",
        "two nodes with two ranks each; all GPUs of the second are too hot and half as fast",
        {
            "node-1": machine(training(100, "[0, 1]", 501, "{peer: 0.2, world_size: 4}", per_gpu=1), count=2),
            "node-2": machine(training(100, "[0, 1]", 501, "{clock: 0.5, world_size: 4}", per_gpu=1), count=2),
        },
        expectations=(
            low(501, "waiting_for_peers", only_first=False, required=False),  # half of the time
            expect(job_labels(501), "health", "TrainingRankBehind", required=False),  # half of the ranks work longer
            expect({"uuid": "node-2/0"}, "health", "GpuThrottled"),
            expect({"uuid": "node-2/1"}, "health", "GpuThrottled"),
        ),
    ),
    Planned(
        "out-of-memory-once",
        "runs out of memory after 55 minutes and ends a minute later; the scheduler starts it again",
        {"node-1": machine(training(100, "[0]", 501, end=3360), training(101, "[0]", 501, start=3420))},
        ooms={100: (55,)},
        expectations=(expect(job_labels(501), "health", "TrainingOutOfMemory", since=55),),
    ),
    Planned(
        "card-comes-back",
        "a GPU with a server does not answer for ten minutes",
        {"node-1": machine(other(100, "[0]", 501, 0.6), count=2, faults=_LOST_FOR_A_WHILE)},
        expectations=(expect({"uuid": "node-1/0"}, "health", "GpuLost", since=40, until=50),),
    ),
    Planned(
        "short-heat",
        "three spells of heat of a minute and a half, half an hour apart",
        {"node-1": machine(training(100, "[0]", 501), gpus=f"{{model: h100, health: {{throttling: [{_SPELLS}]}}}}")},
    ),
    Planned(
        "nobody-watched",
        "a training is held up by its CPU limit, and Prometheus is away for the first half hour of it",
        {"node-1": machine(training(100, "[0]", 501, "{cpu_quota: 0.1, load: 0.3}", start=1200))},
        unscraped=((20, 50),),
        expectations=(low(501, "cpu_limited", since=20),),
    ),
    Planned(
        "full-house",
        "four jobs on a machine: a healthy training, a forgotten notebook, a model on the CPU, a server",
        {
            "node-1": machine(
                training(100, "[0]", 501),
                other(200, "[1]", 502, command="python3 -m ipykernel_launcher"),
                training(300, "[]", 503, "{kernels: 1.0}"),
                other(400, "[2]", 504, "{shape: square, high: 0.8, period: 90, duty: 0.2}"),
                count=4,
            )
        },
        expectations=(expect(job_labels(502), "idle", "GpuHeldIdle"), expect(job_labels(503), "load", "TrainingOnCpu")),
    ),
    Planned(
        "never-ended",
        "a training that is done after 50 minutes, and a process of the job that keeps the GPU",
        {
            "node-1": machine(
                training(100, "[0]", 501, end=3000),
                other(101, "[0]", 501, start=3000, memory="10GiB", command="python fit.py"),
            )
        },
        expectations=(expect(job_labels(501), "idle", "GpuHeldIdle", since=50),),
    ),
    Planned(
        "off-the-bus",
        "Xid 79 after an hour, and the GPU is gone",
        {
            "node-1": machine(
                other(100, "[0]", 501, 0.9),
                gpus=_OFF_THE_BUS,
                faults="  - {gpu: 0, start: 3600, code: gpu_is_lost}\n",
            )
        },
        expectations=(
            expect({"uuid": "node-1/0"}, "health", "GpuXidNode", since=60),
            expect({"uuid": "node-1/0"}, "health", "GpuLost", since=60),
        ),
    ),
)
