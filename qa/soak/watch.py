"""Checks of the daemon during a soak."""

from __future__ import annotations

import gc
import os
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.golden_metrics import START

from gpugauge.metric import Family, HistogramValue, LabelValues, Value
from gpugauge.snapshot import Snapshot
from gpugauge.workload.procfs import process_hash
from qa.soak.load import BOOTED, MIG_DEVICE, STEP, Job, Load

LINGER = 300.0  # seconds, the default of hook.linger_seconds and similar settings
BOOT_ID = "soak"
VERDICT = 15.0  # seconds that the verdict counts at most for an evaluation (collectors/training/verdict.py)
_EXACT = 1e-6

Series = dict[tuple[str, LabelValues], Value]


def name_of(job: Job) -> str:
    """Return the `process` label."""
    return process_hash(BOOT_ID, str(job.pid), str(job.start_ticks))


@dataclass
class Memory:
    """Memory and descriptors of this process at one moment."""

    resident: float  # MB
    blocks: int  # of Python's memory
    descriptors: int


@dataclass
class Watch:
    """Compares every snapshot with the load and with the snapshot before."""

    load: Load
    memory: list[Memory] = field(default_factory=list)
    wrong: Counter[str] = field(default_factory=Counter)
    examples: dict[str, str] = field(default_factory=dict)
    max_series: int = 0
    max_processes: int = 0
    max_expected: int = 0  # processes that live or linger
    _counters: Series = field(default_factory=dict)
    _lasting: Series = field(default_factory=dict)  # counters of GPUs, whether shown at the moment or not
    _dead: dict[str, tuple[Job, int]] = field(default_factory=dict)  # by process: when it ended

    def expect(self, error: str, good: bool, example: object = "") -> None:
        """Count the error if `good` is false."""
        if not good:
            self.wrong[error] += 1
            self.examples.setdefault(error, str(example))

    def ended(self, job: Job) -> None:
        """Record the end of a job."""
        self._dead[name_of(job)] = (job, self.load.tick)

    def check(self, snapshot: Snapshot) -> None:
        """Check a published snapshot."""
        tick = self.load.tick
        for name, health in snapshot.health.items():
            self.expect("collectors that failed", health.success, f"{name}: {health.error}")
        self._count(snapshot)
        counters: Series = {}
        for family in _families(snapshot):
            if family.metric.kind != "gauge":
                self._compare(family, counters)
        self._counters = counters
        for name, (job, ended) in self._dead.items():
            if ended == tick and job.hooked:
                self._check_end(name, job)

    def _count(self, snapshot: Snapshot) -> None:
        processes: set[str] = set()
        number = 0
        for family in _families(snapshot):
            number += len(family.samples) * (len(family.metric.buckets) + 3 if family.metric.buckets else 1)
            if family.metric.labels[:1] == ("process",):
                processes.update(labels[0] for labels, _ in family.samples)
        tick = self.load.tick
        self._dead = {name: dead for name, dead in self._dead.items() if tick - dead[1] <= LINGER / STEP + 2}
        self.max_series = max(self.max_series, number)
        self.max_processes = max(self.max_processes, len(processes))
        self.max_expected = max(self.max_expected, len(self.load.jobs) + len(self._dead))

    def _compare(self, family: Family, counters: Series) -> None:
        """Check that no counter falls."""
        name, of_process = family.metric.name, "process" in family.metric.labels
        for labels, value in family.samples:
            key = (name, labels)
            before = self._counters.get(key)
            if before is None:
                before = self._lasting.get(key)
            if before is not None and not _not_less(value, before):
                self.expect("counters that fell", False, (key, before, value))
            counters[key] = value
            if not of_process:
                self._lasting[key] = value

    def _check_end(self, name: str, job: Job) -> None:
        """Check the counters of a training that has just ended."""
        lived = job.end - job.begin
        steps = self._counters.get(("torch_steps_total", (name,)))
        self.expect("steps that differ", steps == job.steps(job.end), (steps, job))
        seconds, held, lost = (self._total(f"training_{w}seconds_total", name) for w in ("", "gpu_held_", "lost_"))
        # A GPU that is lost is not held.
        # With the hook the time is that of its phases, after the verdict that first saw the process on a GPU.
        expected = VERDICT + STEP * lived if job.hooked else VERDICT * lived
        self.expect("seconds of trainings that differ", abs(seconds - expected) < _EXACT, (seconds, expected, job))
        self.expect(
            "held seconds above those of all its GPUs", held <= seconds * len(job.devices) + _EXACT, (held, job)
        )
        self.expect("lost seconds above held ones", lost <= held + _EXACT, (lost, held, job))

    def _total(self, name: str, process: str) -> float:
        found = (value for (n, labels), value in self._counters.items() if n == name and labels[0] == process)
        return sum(value for value in found if not isinstance(value, HistogramValue))

    def counted(self, kind: str, uuid: str) -> float:
        """Return the busy or observed seconds of a GPU as the daemon counted them."""
        value = self._lasting[f"gpu_{kind}_seconds_total", (uuid, "gpu")]
        assert isinstance(value, float)
        return value

    def finish(self, snapshot: Snapshot) -> None:
        """Compare the counters at the end with the load."""
        load = self.load
        for device in load.devices[:MIG_DEVICE]:
            for kind, true in (("busy", device.busy), ("observed", device.observed)):
                ours = self.counted(kind, device.uuid)
                self.expect(
                    f"{kind} seconds that differ", abs(ours - true) <= _EXACT * load.tick, (ours, true, device.breaks)
                )
        for reason, count in load.ended.items():
            counted = self._lasting["gpugauge_trainings_ended_total", (reason,)]
            self.expect("ended trainings that differ", counted == count, (reason, counted, count))
        for device in load.devices:
            errors = sum(
                value
                for (name, labels), value in self._lasting.items()
                if name == "gpu_xid_errors_total" and labels[0] == device.uuid and not isinstance(value, HistogramValue)
            )
            self.expect("Xid errors that differ", errors == load.xids[device.uuid], (errors, load.xids[device.uuid]))
        left = [f.metric.name for f in _families(snapshot) if "process" in f.metric.labels and f.samples]
        self.expect("families of processes that ended long ago", not left, left)

    def measure_memory(self, sessions: int) -> None:
        """Record memory and descriptors of this process; a session has a socket at both ends and a shared record."""
        process_hash.cache_clear()  # at most 8,192 names, which would hide other growth within a month
        gc.collect()
        resident = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6
        descriptors = len(list(Path("/proc/self/fd").iterdir())) - 3 * sessions
        self.memory.append(Memory(resident, sys.getallocatedblocks(), descriptors))


def unix(now: float) -> float:
    """Return the Unix time of a virtual time."""
    return START - BOOTED + now


def _families(snapshot: Snapshot) -> Iterator[Family]:
    for section in snapshot.sections:
        yield from section.families


def _not_less(value: Value, before: Value) -> bool:
    if isinstance(value, HistogramValue):
        assert isinstance(before, HistogramValue)
        return value.total >= before.total - 1e-9 and all(map(int.__ge__, value.counts, before.counts))
    assert not isinstance(before, HistogramValue)
    return value >= before - 1e-9
