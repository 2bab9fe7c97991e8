"""Random pipelines with a known cause, and the verdict on them."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

from gpugauge.simulator.device.pipeline import Pipeline, observe, speedups
from gpugauge.verdict.evidence import DeviceEvidence, Evidence

WINDOW = 60.0


def random_pipeline(r: random.Random) -> Pipeline:
    """Return a random pipeline with no, one or two planted causes."""
    kernels = 10 ** r.uniform(-2.3, -0.3)
    p = Pipeline(
        kernels=kernels,
        host=kernels * r.uniform(0.1, 0.7),
        load=kernels * r.uniform(0.2, 3.0),
        workers=r.choice([4, 4, 8]),
        copy=kernels * r.uniform(0.0, 0.1),
        fill=r.uniform(0.78, 0.95),
        tensor=r.uniform(0.3, 0.7),
        world_size=r.choice([1, 1, 8]),
    )
    for _ in range(r.choice([0, 1, 1, 1, 2])):
        p = _break(p, r)
    return p


def _break(p: Pipeline, r: random.Random) -> Pipeline:
    """Plant one cause, mild or severe."""
    k, u = p.kernels, r.uniform
    changes: list[dict[str, Any]] = [
        {"load": k * p.workers * u(1.3, 8)},
        {"workers": 0, "load": k * u(0.8, 4)},
        {"host": k * u(1.3, 8)},
        {"synchronises": True, "host": k * u(0.3, 2)},
        {"pinned": False, "copy": k * u(0.4, 3)},
        {"fill": u(0.05, 0.4)},
        {"precision_unused": True, "tensor": 0.0},
        {"world_size": 8, "peer": p.step * u(1.3, 5)},
        {"clock": u(0.4, 0.8), "throttle": r.choice(["thermal", "power_cap"])},
        {"other": u(0.2, 0.7)},
        {"cpu_quota": u(0.05, 0.3)},
        {"paging": u(0.7, 0.95)},
    ]
    return replace(p, **r.choice(changes))


def evidence(p: Pipeline) -> Evidence:
    """Return the evidence from hook, driver and /proc about a minute of the pipeline."""
    o = observe(p)
    slowed = p.clock < 1.0
    device = DeviceEvidence(
        busy=o.busy,
        own_busy=o.own_busy,
        sm_active=o.sm_active,
        tensor_active=o.tensor_active,
        power=o.power,
        clock=p.clock,
        thermal=1.0 if slowed and p.throttle == "thermal" else 0.0,
        power_capped=1.0 if slowed and p.throttle == "power_cap" else 0.0,
        power_limit_lowered=slowed and p.throttle == "power_cap",
        transfer=o.transfer,
    )
    return Evidence(
        window=WINDOW,
        age=3600.0,
        inside=True,
        phase="training",
        steps=WINDOW / o.step,
        steps_ever=3600.0 / o.step,
        batches=WINDOW / o.step,
        since_progress=o.step,
        slow_step=o.step * 1.2,
        data_wait=o.data_wait,
        data_wait_exposed=o.data_wait_exposed,
        local_work=o.local_work,
        pinned=p.pinned,
        world_size=p.world_size,
        parameters={"cuda": 1e9},
        build="cuda",
        fp32_only=p.precision_unused,
        retries=o.retries * WINDOW,
        devices=(device,),
        host_has_gpu=True,
        cpu_throttled=o.cpu_throttled,
        memory_pressure=o.memory_pressure,
    )


def without_counters(e: Evidence) -> Evidence:
    """Return the evidence of the same minute on a GPU without performance counters."""
    devices = (replace(device, sm_active=None, tensor_active=None, transfer=None) for device in e.devices)
    return replace(e, devices=tuple(devices))


def right(p: Pipeline, named: str) -> bool:
    """Return whether removing the named cause saves at least nine tenths of the time that the best cause saves."""
    saved = {cause: 1.0 - 1.0 / gain for cause, gain in speedups(p).items()}
    return saved.get(named, 0.0) >= 0.9 * max(saved.values())
