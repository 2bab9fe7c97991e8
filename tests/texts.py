"""Texts that a training program may report as its facts, and the names of the facts."""

from __future__ import annotations

from gpugauge.collectors.training import session_rows
from gpugauge.node import training

# Texts that a check for digits, or a conversion, may take for what they are not.
TEXTS = (
    *(
        "²",
        "٣",
        "१२",
        "\uff13",
        "1²",
        "9" * 200,
        "9" * 18,
        "007",
        "-1",
        "+1",
        " 1",
        "1_000",
        "1e5",
        "0x10",
        "1.5",
        ".",
        "..",
    ),
    *(
        "nan",
        "inf",
        "-inf",
        "",
        "yes",
        "no",
        "None",
        "(empty)",
        "cuda",
        "cuda:",
        "cuda:²",
        "cpu",
        "sm_²",
        "sm_90",
        "².",
    ),
    *("12.8", "9.0", "\u0663.\u0660", "<b>", '"', "{", "}", "%s", "{0}", "💥", "x" * 200),
)
NAMES = (
    *(
        name
        for group in ("_BUILD", "_VISIBLE", "_PARALLEL", "_SETTINGS", "_RUNS")
        for name in getattr(session_rows, group)
    ),
    *training.LOADER_FACTS,
    *("torch", "cuda", "hip", "python", "rank", "local_rank", "world_size", "run_id", "command", "container_pid"),
    *("cpus", "ranks_on_cpus", "torch_threads", "omp_num_threads", "parameters_on", "cuda_launch_blocking", "profiler"),
)
