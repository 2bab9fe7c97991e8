"""Stories in which no alert should fire: healthy trainings, hard cases among them, and other programs."""

from __future__ import annotations

from qa.bench.alerts.builders import machine, one_training, other, training
from qa.bench.alerts.record import Planned

HEALTHY = (
    one_training("healthy", "a training that keeps its GPU busy", "{}"),
    Planned(
        "healthy-ddp",
        "four ranks on a node that write a checkpoint every quarter of an hour",
        {
            "node-1": machine(
                training(
                    100,
                    "[0, 1, 2, 3]",
                    501,
                    "{world_size: 4}",
                    per_gpu=1,
                    phases="{every: 900, checkpointing: 40}",
                ),
                count=4,
            )
        },
    ),
    Planned(
        "long-evaluation",
        "each 50 minutes of training an evaluation of 20 minutes that keeps the GPU less busy",
        {"node-1": machine(training(100, "[0]", 501, start=0, phases="{every: 4200, evaluating: 1200}"))},
        180,
    ),
    Planned(
        "many-checkpoints",
        "every 10 minutes a checkpoint that takes 2",
        {"node-1": machine(training(100, "[0]", 501, phases="{every: 600, checkpointing: 120}"))},
    ),
    Planned(
        "long-compilation",
        "torch.compile for a quarter of an hour at the start, then a healthy training",
        {"node-1": machine(training(100, "[0]", 501, start=60, phases="{compiling: 900}"))},
    ),
    Planned(
        "slow-start",
        "20 minutes of reading data with the GPU held, then a healthy training in the same job",
        {
            "node-1": machine(
                other(90, "[0]", 501, start=60, end=1260, command="python3 train.py", memory="2GiB"),
                training(100, "[0]", 501, start=1260),
            )
        },
    ),
    Planned(
        "short-jobs",
        "one job after the other, 8 minutes each, every second one starved of data",
        {
            "node-1": machine(
                *(
                    training(
                        100 + i, "[0]", 500 + i, "{load: 1.6}" if i % 2 else "{}", start=i * 600 + 1, end=i * 600 + 481
                    )
                    for i in range(12)
                )
            )
        },
    ),
    Planned(
        "serving",
        "an inference server whose requests come in waves",
        {"node-1": machine(other(100, "[0]", 501, "{shape: sine, low: 0.1, high: 0.7, period: 600}"))},
    ),
    Planned(
        "quiet-serving",
        "an inference server with little to do at night: 4 % busy",
        {"node-1": machine(other(100, "[0]", 501, 0.04))},
    ),
    Planned(
        "notebook-in-use",
        "a notebook that computes for two minutes out of every twenty",
        {
            "node-1": machine(
                other(
                    100,
                    "[0]",
                    501,
                    "{shape: square, high: 0.9, period: 1200, duty: 0.1}",
                    command="python3 -m ipykernel_launcher",
                )
            )
        },
        180,
    ),
    one_training(
        "gradient-accumulation", "an optimizer step every 40 seconds", "{kernels: 40.0, load: 4.0, host: 5.0}"
    ),
    one_training(
        "bursty-but-fine", "kernels for 9 s, then a second of Python", "{kernels: 9.0, host: 0.9, synchronises: true}"
    ),
    one_training(
        "exporter-restarts", "a healthy training, and an exporter that is restarted twice", "{}", restarts=(50, 52)
    ),
    one_training(
        "scrape-gaps",
        "a healthy training; Prometheus is away for 8 minutes, later the exporter cannot be reached for 4",
        "{}",
        unscraped=((40, 48),),
        unreachable=((80, 84),),
    ),
    Planned(
        "rank-restarts",
        "a healthy training whose process is replaced every half hour",
        {
            "node-1": machine(
                *(training(100 + i, "[0]", 501, start=i * 1800 - 1700, end=i * 1800 - 60) for i in range(5)),
            )
        },
    ),
    Planned(
        "job-ends",
        "a healthy training that ends; its GPU is free for the rest",
        {"node-1": machine(training(100, "[0]", 501, end=3600))},
    ),
    Planned(
        "two-servers-share",
        "two inference servers on one GPU",
        {"node-1": machine(other(100, "[0]", 501, 0.4), other(101, "[0]", 502, 0.3))},
    ),
    Planned(
        "small-card",
        "a healthy training on a GPU without performance counters",
        {"node-1": machine(training(100, "[0]", 501, memory="4GiB"), model="geforce")},
    ),
    Planned(
        "mig",
        "a healthy load on a MIG device; the driver tells no utilization there",
        {
            "node-1": machine(
                other(100, "[0]", 501, 0.9, memory="5GiB", instance=0),
                gpus="{model: a100, mig: [{profile: 1g.10gb}, {profile: 3g.40gb}]}",
            )
        },
    ),
    Planned("free-cards", "a machine on which nothing runs", {"node-1": machine(count=2)}),
)
