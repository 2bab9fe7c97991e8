"""The true cause of a slow pipeline: the component whose removal speeds the step up most."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache

from gpugauge.simulator.device.pipeline import Pipeline

# The smallest speedup without a component for which it is the cause.
MIN_SPEEDUP = 1.1

REMOVED = {
    "data_loading": {"load": 0.0, "restart": 0.0},
    "host_bound": {"host": 0.0, "synchronises": False},
    "transfer": {"copy": 0.0, "pinned": True},
    "waiting_for_peers": {"peer": 0.0},
    "throttled": {"clock": 1.0},
    "contention": {"other": 0.0},
    "cpu_limited": {"cpu_quota": 1.0},
    "memory_swap_io": {"paging": 0.0},
    "memory_pressure": {"retries": 0.0},
}


def without(pipeline: Pipeline, cause: str) -> Pipeline:
    """Return the pipeline without a cause."""
    if cause == "underfilled":
        return replace(pipeline, kernels=pipeline.kernels * min(1.0, pipeline.fill / 0.85), fill=0.85)
    if cause == "precision_unused":
        faster = pipeline.kernels / (pipeline.tensor_speedup if pipeline.precision_unused else 1.0)
        return replace(pipeline, kernels=faster, precision_unused=False)
    changes: dict[str, float | bool] = dict(REMOVED[cause])
    return replace(pipeline, **changes)  # type: ignore[arg-type]  # the table's keys are the fields' names


@lru_cache(maxsize=1)  # the same pipeline is compared with several verdicts
def speedups(pipeline: Pipeline) -> Mapping[str, float]:
    """Return the speedup of the run without each cause."""
    step, causes = pipeline.step, (*REMOVED, "underfilled", "precision_unused")
    return {cause: step / without(pipeline, cause).step for cause in causes}


def true_cause(pipeline: Pipeline) -> str | None:
    """Return the component whose removal speeds the run up most; None if the speedup is below MIN_SPEEDUP."""
    gains = speedups(pipeline)
    best = max(gains, key=lambda cause: gains[cause])
    return best if gains[best] >= MIN_SPEEDUP else None
