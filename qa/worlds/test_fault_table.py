"""The faults that the daemon finds, and the alerts, on drawn GPUs at the edges of the conditions: both are the same."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from tests.drawn import EVERYTHING
from tests.e2e.daily import seed
from tests.e2e.ruletester import HERE, SECONDS, Case, Series, check

from gpugauge.driver.codes import RECOVERY_ACTIONS
from gpugauge.faults.table import (
    DEFAULTS,
    FAULTS,
    NVLINK_CORRECTED,
    NVLINK_NEVER,
    GpuHealth,
    ailments,
)

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(SECONDS)]

MINUTES = 61
GPUS = 120 if EVERYTHING else 30
# Alerts that need more than the figures of a GPU that answers.
OTHERS = {
    "GpuLost",
    "GpuReadingFailed",
    "GpuPcieDegraded",
    "GpuThrottled",
    *(name for name in FAULTS if name.startswith("GpuXid")),
}


def drawn(draw: random.Random) -> GpuHealth:
    """Return a GPU with some figures at the edge from which they are a fault; two of three are none."""

    def at(*edges: float) -> float:
        return draw.choice([*edges, 0, 0]) if draw.random() < 0.5 else 0

    slowdown, pages, rate = draw.choice([83, 90, 95]), DEFAULTS.retired_pages, DEFAULTS.nvlink_errors_per_second
    edge = slowdown - DEFAULTS.near_slowdown_celsius
    return GpuHealth(
        draw.choice(RECOVERY_ACTIONS) if draw.random() < 0.3 else "none",
        bool(at(1)),
        bool(at(1)),
        at(pages - 1, pages, pages + 4),
        bool(at(1)),
        at(1, 7),
        {kind: at(1, 40) for kind in draw.sample(NVLINK_NEVER, draw.randrange(4))},
        draw.choice([None, 0.0, rate - 1, rate, rate + 1]),
        draw.choice([None, 40, edge - 1, edge, edge + 1, slowdown + 20]),
        draw.choice([None, slowdown, slowdown]),
    )


def series(gpu: GpuHealth, draw: random.Random) -> list[Series]:
    """Return what the exporter shows of a GPU, from a minute to the next."""

    def constant(name: str, value: float, **labels: str) -> Series:
        return name, {"instance": "node-1", "uuid": "GPU-0", **labels}, f"{value:g}+0x{MINUTES}"

    found = [
        constant("gpu_info", 1, index="3"),
        constant("gpu_up", 1),
        *(constant("gpu_recovery_action", action == gpu.recovery_action, action=action) for action in RECOVERY_ACTIONS),
        constant("gpu_remapped_rows_failure", gpu.remapping_failed),
        constant("gpu_remapped_rows_pending", gpu.remapping_pending),
        constant("gpu_retired_pages_pending", gpu.retirement_pending),
        constant("gpu_retired_pages", gpu.retired_pages // 2, cause="single_bit"),
        constant("gpu_retired_pages", gpu.retired_pages - gpu.retired_pages // 2, cause="double_bit"),
        constant("gpu_ecc_errors_total", gpu.uncorrected, type="uncorrected", scope="volatile"),
        constant("gpu_ecc_errors_total", 5, type="corrected", scope="volatile"),
        *(constant("gpu_nvlink_errors_total", count, kind=kind) for kind, count in gpu.nvlink_errors.items()),
    ]
    if gpu.nvlink_corrected is not None:
        most = draw.choice(NVLINK_CORRECTED)
        for kind in NVLINK_CORRECTED:  # the sum of the kinds is no fault
            name, labels, _ = constant("gpu_nvlink_errors_total", 0, kind=kind)
            rate = gpu.nvlink_corrected * (1 if kind == most else 0.7)
            found.append((name, labels, f"0+{60 * rate:g}x{MINUTES}"))
    if gpu.temperature is not None:
        found.append(constant("gpu_temperature_celsius", gpu.temperature, sensor="gpu"))
    if gpu.slowdown_temperature is not None:
        found.append(constant("gpu_temperature_limit_celsius", gpu.slowdown_temperature, limit="slowdown"))
    return found


def test_the_alerts_are_the_faults_that_the_views_show(tmp_path: Path) -> None:
    draw = random.Random(seed())
    gpus = [drawn(draw) for _ in range(GPUS)]
    cases, names = [], set()
    for number, gpu in enumerate(gpus):
        faults = {ailment.runbook for ailment in ailments(gpu, 3)}
        names |= faults
        fired = [{"labels": f'{{alertname="{name}"}}', "value": 1} for name in sorted(faults)]
        query = f'count by (alertname) (ALERTS{{alertstate="firing",cluster="{HERE}"}})'
        expected = {"expr": query, "eval_time": "60m", "exp_samples": fired}
        cases.append(Case(f"gpu-{number}", series(gpu, draw), [expected]))

    check(tmp_path, cases)

    assert names == FAULTS.keys() - OTHERS
