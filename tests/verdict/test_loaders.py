"""The diagnosis of loaders: drawn pipelines that run again with the recommended number of workers."""

from __future__ import annotations

from typing import Any

from gpugauge.node.node import Diagnosis
from gpugauge.verdict import loaders
from gpugauge.verdict.loaders import Load, diagnose


def test_a_number_that_is_not_good_any_more_is_replaced() -> None:
    slow = Load(2, 0.1, 0.9, start=0.0, cpu=0.1, blocked=1.9, cpus=32, slowest=1.0)
    before = diagnose(slow._replace(wait=0.2, blocked=0.5))
    found = diagnose(slow, before)

    assert before is not None
    assert found == diagnose(slow)
    assert diagnose(slow._replace(wait=0.2, blocked=0.5), found) == before


BUSY = Load(workers=2, own=0.1, wait=0.1, start=0.0, cpu=0.38, cpus=16, slowest=1.0)


def test_evidence_decides_or_is_silent() -> None:
    cases: list[tuple[dict[str, Any], Diagnosis | None]] = [
        ({}, Diagnosis(loaders.TOO_FEW_WORKERS, 5, 2.0, 2.0)),
        ({"start": 0.11}, Diagnosis(loaders.WORKER_START, 2, 1.55, 1.55)),
        ({"space": 1}, Diagnosis(loaders.TOO_FEW_WORKERS, 3, 1.5, 1.5)),
        ({"space": 0}, Diagnosis(loaders.MEMORY, 2, 1.0, 1.0)),
        ({"throttled": 0.2}, Diagnosis(loaders.TOO_FEW_CPUS, 2, 1.0, 1.0)),
        ({"queued": 0.2, "cpus": 2}, Diagnosis(loaders.TOO_FEW_CPUS, 2, 1.0, 1.0)),
        # Workers that wait for a CPU: more of them would wait, too, unless they wait for storage most of the time.
        ({"queued": 0.2}, Diagnosis(loaders.BUSY_CPUS)),
        ({"queued": 0.06}, Diagnosis(loaders.TOO_FEW_WORKERS, 5, 1.9, 1.9)),
        ({"delayed": 0.1}, Diagnosis(loaders.BUSY_CPUS)),
        ({"queued": 0.2, "cpu": 0.1, "blocked": 0.28}, Diagnosis(loaders.TOO_FEW_WORKERS, 5, 1.9, 1.0)),
        ({"workers": 0, "wait": 0.38, "queued": 0.3, "delayed": 0.2}, Diagnosis(loaders.BUSY_CPUS)),
        (
            {"workers": 0, "wait": 0.38, "queued": 0.3, "cpus": 0.7, "trainer_cpu": 0.1},
            Diagnosis(loaders.TOO_FEW_CPUS, 0, 1.0, 1.0),
        ),
        ({"cpu": 0.15, "queued": 0.23}, Diagnosis(loaders.BUSY_CPUS)),
        ({"cpu": 0.15, "queued": 0.23, "cpus": 0.9}, Diagnosis(loaders.TOO_FEW_CPUS, 2, 1.0, 1.0)),
        ({"cpu": 0.181, "queued": 0.06, "wait": 0.06}, None),
        ({"cpu": 0.1, "blocked": 0.28}, Diagnosis(loaders.TOO_FEW_WORKERS, 5, 2.0, 1.0)),
        ({"cpu": 0.1, "storage": 0.28}, Diagnosis(loaders.STORAGE, 5, 2.0, 1.0)),
        ({"cpu": 0.2}, Diagnosis(loaders.DELIVERY, 2, 1.0, 1.0)),
        ({"cpu": 0.2, "slowest": None}, None),
        ({"cpu": 0.2, "delayed": 0.02}, Diagnosis(loaders.BUSY_CPUS)),
        ({"cpu": 0.2, "delayed": 0.005}, Diagnosis(loaders.DELIVERY, 2, 1.0, 1.0)),
        ({"cpu": 0.1, "workers": 1, "slowest": None}, Diagnosis(loaders.DELIVERY, 1, 1.0, 1.0)),
        # One that would just keep up needs a second one, because durations vary.
        ({"cpu": 0.098, "wait": 0.03, "workers": 1}, Diagnosis(loaders.TOO_FEW_WORKERS, 2, 1.3, 1.3)),
        ({"cpus": None}, Diagnosis(loaders.TOO_FEW_WORKERS, 5, 2.0, 2.0)),
        ({"wait": 0.004}, None),
        ({"own": 0.0}, None),
        ({"workers": 0, "wait": 0.38}, Diagnosis(loaders.TRAINING_THREAD, 5, 4.776, 4.776)),
        # A batch that hangs, or one that is far slower than the others.
        ({"workers": 0, "wait": 12.0}, None),
        ({"workers": 0, "wait": 0.6}, None),
        # Little to gain, or less than a worker costs.
        ({"workers": 0, "wait": 0.008, "cpu": 0.008}, None),
        ({"workers": 0, "own": 0.002, "wait": 0.0006, "cpu": 0.0006}, None),
        ({"workers": 0, "wait": 0.38, "cpu": 0.08, "blocked": 0.3, "known": False}, None),
        (
            {"workers": 0, "wait": 0.38, "cpu": 0.08, "blocked": 0.3},
            Diagnosis(loaders.TRAINING_THREAD, 5, 4.776, 1.263),
        ),
        ({"workers": 0, "wait": 0.38, "cpus": 1, "trainer_cpu": 0.1}, Diagnosis(loaders.TOO_FEW_CPUS, 0, 1.0, 1.0)),
    ]
    for changes, expected in cases:
        assert diagnose(BUSY._replace(**changes)) == expected, changes


def test_each_reason_has_its_evidence() -> None:
    named = {value for name, value in vars(loaders).items() if name.isupper() and isinstance(value, str)}

    assert named == set(loaders.REASONS)
