"""Drawn sample rings of a compiled library (rings.c), from the C function to the counters; the truth is from C, too."""

from __future__ import annotations

import ctypes
import random
import subprocess
from pathlib import Path
from typing import Any

import pytest

from gpugauge.collectors.base import Tick
from gpugauge.collectors.device.utilization import UtilizationCollector
from gpugauge.driver.api import DriverView
from gpugauge.driver.messages import reply
from gpugauge.driver.nvidia.nvml import Nvml, use_library
from gpugauge.driver.worker import Service
from tests.needs import need

SECONDS = 70.0
_MAX_STEPS = 4


class Config(ctypes.Structure):
    """`struct config` of rings.c."""

    _fields_ = (
        *((name, ctypes.c_double) for name in ("period", "jitter", "on", "off", "phase", "level", "idle", "dropped")),
        ("epoch", ctypes.c_double),
        ("step_at", ctypes.c_double * _MAX_STEPS),
        ("step_by", ctypes.c_double * _MAX_STEPS),
        *((name, ctypes.c_int32) for name in ("seed", "capacity", "value_type", "duplicates", "shuffled")),
        *((name, ctypes.c_int32) for name in ("timeless", "sizing")),
    )


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    built = tmp_path_factory.mktemp("rings") / "libnvidia-ml.so.1"
    source = Path(__file__).with_name("rings.c")
    subprocess.run([need("gcc"), "-O1", "-Wall", "-Werror", "-shared", "-fPIC", source, "-o", built, "-lm"], check=True)
    loaded = ctypes.CDLL(str(built))
    loaded.busy_seconds.restype, loaded.busy_seconds.argtypes = ctypes.c_double, [ctypes.c_double] * 2
    return loaded


def drawn(chance: random.Random, seed: int) -> Config:
    period = chance.choice([0.02, 0.1, 1 / 6, 1 / 6, 0.25, 0.5, 1.0])
    config = Config(
        period=period,
        jitter=chance.choice([0, 0, 0.05, 0.3]),
        on=chance.uniform(0.1, 20),
        off=chance.uniform(0.1, 20),
        phase=chance.uniform(0, 40),
        level=chance.choice([100, 100, 60, 37]),
        idle=chance.choice([0, 0, 0, 3]),
        dropped=chance.choice([0, 0, 0, 0, 0.05, 0.3]),
        epoch=chance.choice([3600.0, 1.76e9]),
        seed=seed,
        capacity=chance.choice([72, 100, 120, 200, 600] if period > 0.05 else [600, 1200]),
        value_type=chance.choice([0, 1, 1, 1, 2, 3, 4, 5, 6]),
        duplicates=chance.random() < 0.25,
        shuffled=chance.random() < 0.25,
        timeless=chance.random() < 0.2,
        sizing=chance.choice([0, 0, 1, 2]),
    )
    if chance.random() < 0.35:
        for step in range(chance.randint(1, 3)):
            config.step_at[step] = chance.uniform(5, 50)
            config.step_by[step] = chance.choice([-1, 1]) * chance.choice([0.05, 0.2, 0.6, 2, 11, 30, 3600])
    return config


@pytest.mark.parametrize("seed", range(80))
def test_counters_of_drawn_rings(seed: int, library: ctypes.CDLL) -> None:
    """Late readings, new workers and steps of the host's clock are drawn as well."""
    chance = random.Random(seed)
    config = drawn(chance, seed)
    ctypes.memmove(ctypes.byref(Config.in_dll(library, "config")), ctypes.byref(config), ctypes.sizeof(config))
    seconds = ctypes.c_double.in_dll(library, "seconds")
    interval, late, recycled = chance.choice([1, 2, 2, 2, 5]), chance.random() < 0.3, chance.random() < 0.25
    host_follows = chance.random() < 0.6
    use_library(library)
    collector, service, workers, begin = UtilizationCollector(), None, 0, 1.0
    now = begin
    while now < SECONDS:
        seconds.value = now
        if service is None:
            service, workers = Service(Nvml(lambda: seconds.value), lambda: seconds.value), workers + 1
            service.answer({"id": 0, "op": "open"})
        answer = reply(service.message({"id": 1, "op": "read", "index": 0, "groups": ["static", "fast", "samples"]}))
        assert (answer.failed, answer.errors.get("samples_gpu")) == (None, None)
        answer.uuid, answer.worker, answer.received = "GPU-0", workers, now
        steps = zip(config.step_at, config.step_by, strict=True)
        unix = 1.76e9 + now + (sum(by for at, by in steps if at <= now) if host_follows else 0)
        collector.collect(Tick(unix, now, DriverView(up=True, reason="ok"), (answer,)))
        check(collector._states["GPU-0"].engines["gpu"].account, library, config, begin, now)
        now += chance.uniform(5, 25) if late and chance.random() < 0.1 else interval * chance.uniform(0.9, 1.1)
        if recycled and chance.random() < 0.1:
            service, now = None, now + chance.choice([0.3, 3, 12])


def check(account: Any, library: ctypes.CDLL, config: Config, begin: float, now: float) -> None:
    """Compare the counters with the truth: what is not observed may be anything, all else is correct."""
    truth, elapsed = library.busy_seconds(begin, now), now - begin
    uncounted = elapsed - account.observed - account.unobserved
    tolerance = 0.02 * elapsed + 2 * config.period + 0.1
    if config.dropped:
        tolerance += 0.1 * config.dropped * elapsed + 4 * config.period + 0.3

    assert account.busy <= account.observed + 1e-6
    assert abs(uncounted) <= 2.1 * config.period + 0.05
    assert account.busy <= truth + tolerance
    assert account.busy >= truth - account.unobserved - uncounted - tolerance
