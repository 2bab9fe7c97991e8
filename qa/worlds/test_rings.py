"""Drawn sample rings of a compiled library (rings.c), from the C function to the counters; the truth is from C, too."""

from __future__ import annotations

import ctypes
import random
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.drawn import seeds
from tests.needs import need

from gpugauge.collectors.base import Tick
from gpugauge.collectors.device.utilization import UtilizationCollector
from gpugauge.collectors.process.busy_split import BusySplit
from gpugauge.driver.api import DriverView
from gpugauge.driver.frames import reply
from gpugauge.driver.nvidia.nvml import Nvml, use_library
from gpugauge.driver.worker import Service

SECONDS = 140.0
_MAX_STEPS, _PROCESSES, _FIRST_PID = 4, 3, 41000
# Without a row for this long, the ring of processes is read whole.
_DRY_SECONDS, _MOST_LATE_SECONDS = 15.0, 5.5


class Config(ctypes.Structure):
    """`struct config` of rings.c."""

    _fields_ = (
        *((name, ctypes.c_double) for name in ("period", "jitter", "on", "off", "phase", "level", "idle", "dropped")),
        ("epoch", ctypes.c_double),
        ("step_at", ctypes.c_double * _MAX_STEPS),
        ("step_by", ctypes.c_double * _MAX_STEPS),
        *((name, ctypes.c_int32) for name in ("seed", "capacity", "value_type", "duplicates", "shuffled")),
        *((name, ctypes.c_int32) for name in ("timeless", "sizing", "garbage")),
        ("shares", ctypes.c_double * _PROCESSES),
        ("future_at", ctypes.c_double),
    )


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    built = tmp_path_factory.mktemp("rings") / "libnvidia-ml.so.1"
    source = Path(__file__).with_name("rings.c")
    subprocess.run([need("gcc"), "-O1", "-Wall", "-Werror", "-shared", "-fPIC", source, "-o", built, "-lm"], check=True)
    loaded = ctypes.CDLL(str(built))
    loaded.busy_seconds.restype, loaded.busy_seconds.argtypes = ctypes.c_double, [ctypes.c_double] * 2
    loaded.process_seconds.restype = ctypes.c_double
    loaded.process_seconds.argtypes = [ctypes.c_int, *[ctypes.c_double] * 2]
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
    other = random.Random(seed + 1)
    first = other.uniform(0.1, 0.6)
    config.shares[0], config.shares[1] = first, other.uniform(0, 1 - first)
    config.garbage = other.random() < 0.3
    config.future_at = other.uniform(10, 40) if other.random() < 0.2 else 0
    return config


@pytest.mark.timeout(600)
@seeds(range(80))
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
    processes = Processes(library, config, begin)
    now = begin
    while now < SECONDS:
        seconds.value = now
        if service is None:
            service, workers = Service(Nvml(lambda: seconds.value), lambda: seconds.value), workers + 1
            service.answer({"id": 0, "op": "open"})
            processes.restart()
        answer = reply(service.message({"id": 1, "op": "read", "index": 0, "groups": ["static", "fast", "samples"]}))
        assert (answer.failed, answer.errors.get("samples_gpu")) == (None, None)
        answer.uuid, answer.worker, answer.received = "GPU-0", workers, now
        steps = zip(config.step_at, config.step_by, strict=True)
        unix = 1.76e9 + now + (sum(by for at, by in steps if at <= now) if host_follows else 0)
        collector.collect(Tick(unix, now, DriverView(up=True, reason="ok"), (answer,)))
        account = collector._states["GPU-0"].engines["gpu"].account
        check(account, library, config, begin, now)
        processes.drain(answer.samples["process"], now, account)
        now += chance.uniform(5, 25) if late and chance.random() < 0.1 else interval * chance.uniform(0.9, 1.1)
        if recycled and chance.random() < 0.1:
            service, now = None, now + chance.choice([0.3, 3, 12])


class Processes:
    """The split of the busy time, and the times for which it may be anything."""

    def __init__(self, library: ctypes.CDLL, config: Config, begin: float) -> None:
        self._library, self._config, self._begin, self._last = library, config, begin, begin
        self._split, self._given = BusySplit(), [0.0] * _PROCESSES
        self._unknown: list[tuple[float, float]] = []
        self._blind = sorted(at for at in (*config.step_at, config.future_at) if at)
        self._first = True

    def restart(self) -> None:
        """Start as with a new worker, whose first reading is not used."""
        self._split.restart()
        self._first = True

    def drain(self, rows: list[list[int]], now: float, account: Any) -> None:
        """Add the rows of a reading, and compare the sums with the truth."""
        given = self._split.drain([rows], now, account.busy, lambda pid, _: str(pid) if pid >= _FIRST_PID else None)
        for process in range(_PROCESSES):
            self._given[process] += given.get(str(_FIRST_PID + process), 0.0)
        past, span = now - self._last, self._config.capacity * self._config.period
        # Rows are means over what the driver still has, and the split takes no more than 12 s from them.
        if self._first or past > min(11.0, 0.9 * span):
            self._unknown.append((self._last, now))
        if self._blind and self._blind[0] <= now:
            begin = min(self._last, self._blind.pop(0))
            self._unknown.append((begin, now + _DRY_SECONDS + 2 * _MOST_LATE_SECONDS))
        # A reading of an idle GPU has no rows.
        self._first, self._last = self._first and not rows, now
        self._check(now, account)

    def _check(self, now: float, account: Any) -> None:
        elapsed = now - self._begin
        intervals = [(begin, min(end, now)) for begin, end in self._unknown]
        tolerance = 0.03 * elapsed + 4 * self._config.period + 1.2 + account.unobserved
        more = tolerance + sum(self._library.busy_seconds(*interval) for interval in intervals)
        for process, given in enumerate(self._given):
            truth = self._library.process_seconds(process, self._begin, now)
            less = tolerance + sum(self._library.process_seconds(process, *interval) for interval in intervals)
            assert truth - less <= given <= truth + more, (process, now, intervals)


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
