"""Memory and busy seconds of processes over drawn histories with reused pids."""

from __future__ import annotations

import time
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.drawn import EVERYTHING, seeds

from gpugauge.collectors.process.process import ProcessCollector
from gpugauge.driver.api import MigReading, ProcessReading
from gpugauge.workload.registry import Identity, Registry, Want
from qa.worlds.machine import UUID, Machine, Proc, Process, collector, long, values


@seeds(range(20))
def test_memory_by_mig_device(seed: int, tmp_path: Path) -> None:
    dice = Random(seed)
    # GPU instances with one or several compute instances, each a MIG device.
    parts = [(gpu, compute) for gpu in range(1, dice.randint(2, 6)) for compute in range(dice.randint(1, 2))]
    instances = tuple(MigReading(f"MIG-{gpu}-{compute}", gpu, compute) for gpu, compute in parts)
    machine = Machine([long(10 + number, 0.1) for number in range(5)])
    machine.generation, machine.instances = 1, instances
    truth, listed = {}, []
    for process in machine.processes:
        gpu, compute = dice.choice(parts)
        known = dice.random() < 0.7  # an old driver does not report the compute instance
        listed.append(ProcessReading(process.pid, "compute", process.pid, gpu, compute if known else None))
        if known or sum(part[0] == gpu for part in parts) == 1:
            truth[process.name, f"MIG-{gpu}-{compute}"] = process.pid
    listed += [listed[0]._replace(kind="graphics")]  # listed twice, it holds its memory once
    machine.listed = (*listed, ProcessReading(99, "graphics", 1))

    seen = values(collector(machine, tmp_path), machine.tick())

    assert seen.get("gpu_mig_process_memory_used_bytes", {}) == truth


@seeds(range(20))
def test_the_kubelet_is_asked_for_the_mig_devices_of_each_process(seed: int, tmp_path: Path) -> None:
    """And for the whole GPU where the MIG device is not known."""
    dice = Random(seed)
    machine = Machine([long(10 + number, 0.1) for number in range(5)])
    machine.generation = 1
    machine.instances = tuple(MigReading(f"MIG-{gpu}", gpu, 0) for gpu in range(1, 4))
    truth, listed = {}, []
    for process in machine.processes:
        used = dice.sample([1, 2, 3], dice.randint(0, 2))
        listed += [ProcessReading(process.pid, "compute", 1, gpu, 0) for gpu in used]
        listed += [] if used else [ProcessReading(process.pid, "compute", 1)]
        truth[process.pid] = {f"MIG-{gpu}" for gpu in used} or {UUID}
    machine.listed = tuple(listed)
    asked: dict[int, set[str]] = {}

    def ask(want: Want) -> Identity:
        asked[want.pid] = {names[0] for names in want.devices}
        return Identity()

    watched = ProcessCollector(Proc(machine, tmp_path), machine.device_busy, Registry(ask, lambda: 0, time.monotonic))
    end = time.monotonic() + 20
    while asked.keys() != truth.keys():  # in the background
        values(watched, machine.tick())
        assert time.monotonic() < end, asked

    assert asked == truth


def history(random: Random) -> list[Process]:
    """Return processes that follow each other closely on three pids and together use at most the whole GPU."""
    processes = []
    for pid in (10, 11, 12):
        t = random.uniform(0, 10)
        while t < 60:
            start, end = round(t, 2), round(t + random.uniform(0.2, 30), 2)
            begin = random.uniform(start, end)
            processes.append(Process(pid, start, end, random.choice((0.0, 0.05, 0.33)), begin, end))
            t = end + random.uniform(0.02, 8)
    return processes


@settings(deadline=None, max_examples=200 if EVERYTHING else 50)
@given(
    seed=st.integers(0, 2**32),
    lag=st.floats(0, 0.4),
    uptime=st.booleans(),
    most=st.sampled_from([1, 128]),
    longest=st.integers(1, 6),
    restarts=st.sets(st.integers(1, 60), max_size=3),
)
def test_no_second_is_counted_twice_or_for_the_wrong_process(
    tmp_path_factory: pytest.TempPathFactory,
    seed: int,
    lag: float,
    uptime: bool,
    most: int,
    longest: int,
    restarts: set[int],
) -> None:
    random = Random(seed)
    machine = Machine(history(random), lag=lag)
    proc = Proc(machine, tmp_path_factory.mktemp("proc"), uptime=uptime)
    watched = ProcessCollector(proc, machine.device_busy, None, most, 1e9)
    before: dict[tuple[str, ...], float] = {}
    due, base = 0, None
    for second in range(70):
        machine.now = second + 0.37
        if second in restarts:
            machine.restart_worker()
        if second % 5 == 0:
            machine.read_list()
        replies = []
        if second >= due:
            replies = machine.drain()
            due = second + random.randint(1, longest)
            base = machine.device_busy(UUID) if base is None else base
        seen = values(watched, machine.tick(*replies))
        busy = seen.get("gpu_process_busy_seconds_total", {})
        assert all(busy[labels] >= value - 1e-9 for labels, value in before.items() if labels in busy)
        # The driver reports whole percents: each of its windows has an error of up to half a percent.
        slack = 0.1 + 0.006 * machine.now
        for process in machine.processes:
            assert busy.get((process.name, UUID), 0.0) <= process.busy(machine.now) + slack
        if replies and base is not None:
            there = machine.busy(machine.now - lag) - base
            assert sum(busy.values()) <= there + 1e-6
            if most == 128:  # otherwise excess counters are dropped
                counted = sum(busy.values()) + seen["gpu_unaccounted_busy_seconds_total"][(UUID,)]
                assert there - 0.5 - 1e-6 <= counted <= there + 1e-6
        before = busy
