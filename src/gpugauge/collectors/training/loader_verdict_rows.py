"""Metric rows of the diagnosis of a loader."""

from __future__ import annotations

from collections.abc import Callable

from gpugauge.collectors.training.verdict_rows import Account
from gpugauge.metric import Metric, Table
from gpugauge.verdict.loaders import Diagnosis

_process = Table[Account]("process")


def _of(read: Callable[[Diagnosis], float | None]) -> Callable[[Account], float | None]:
    return lambda account: read(account.loader) if account.loader else None


LIVE: tuple[Metric, ...] = (
    _process.gauge(
        "training_loader_limited_by",
        "1 for the limit of a loader for which the training waits (docs/verdict.md); absent while it does not wait, "
        "and where the evidence does not decide.",
        lambda account: {account.loader.reason: 1} if account.loader else None,
        "reason",
    ),
    _process.gauge(
        "training_loader_workers_recommended",
        "Number of loader workers that removes the waits as far as CPUs and memory allow; the present number if more "
        "will not help.",
        _of(lambda loader: loader.workers),
    ),
    _process.gauge(
        "training_loader_expected_speedup_ratio",
        "Expected factor of the step rate with the recommended number of loader workers, or for worker_start with "
        "workers that stay; 1 if more will not help.",
        _of(lambda loader: loader.speedup),
    ),
    _process.gauge(
        "training_loader_expected_speedup_lower_ratio",
        "Lower bound of training_loader_expected_speedup_ratio. It is 1 where storage, or another thing that batches "
        "wait for, may not serve several workers at once.",
        _of(lambda loader: loader.lower),
    ),
)
