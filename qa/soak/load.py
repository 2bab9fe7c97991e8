"""The events on a node in a simulated month: jobs, lost GPUs, MIG layouts, worker restarts, Xid errors."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random

STEP = 60  # seconds between two ticks, the maximum of sampling.interval_seconds
DEVICES = 8
MIG_DEVICE = DEVICES - 1
RING = 64  # samples of one second each in the ring of a GPU
BOOTED = 10_000.0  # seconds since boot when the load begins

# Mean ticks between two events of a kind.
_JOBS, _NEIGHBOURS, _LOSSES, _RESTARTS, _LAYOUTS, _XIDS = 5, 90, 720, 180, 240, 120
_MIN_TICKS, _MAX_TICKS = 2, 360  # of a job, and of a loss
_PIDS = range(1000, 1200)  # few, so that pids are reused
_REASONS = ("finished",) * 7 + ("killed",) * 2 + ("out_of_memory",)
XIDS = (13, 31, 48, 63, 79, 94)


@dataclass
class Job:
    """One training process: its GPUs, their utilization in percent, and the reason of its end."""

    number: int
    pid: int
    begin: int
    end: int
    devices: tuple[int, ...]
    percent: int
    reason: str
    hooked: bool
    steps_a_tick: int
    instance: int | None = None

    @property
    def session(self) -> str:
        return f"{self.number:032x}"

    @property
    def start_ticks(self) -> int:
        """The start time as in /proc/PID/stat, in hundredths of a second since boot."""
        return round(100 * (BOOTED + self.begin * STEP))

    def steps(self, tick: int) -> int:
        return self.steps_a_tick * (tick - self.begin)


@dataclass
class Device:
    """One GPU: its samples, and the true busy and observed seconds."""

    uuid: str
    ring: deque[list[int]] = field(default_factory=lambda: deque(maxlen=RING))
    lost_until: int = -1
    answered: bool = False  # at the tick before
    busy: float = 0.0  # seconds, while it answered at both ends of a tick
    observed: float = 0.0
    breaks: int = 0  # times that it answered again, or to a new worker


@dataclass
class Happening:
    """The events of a tick."""

    begun: list[Job] = field(default_factory=list)
    ended: list[Job] = field(default_factory=list)
    restarted: bool = False  # another worker
    xids: list[tuple[int, int]] = field(default_factory=list)  # GPU, code


class Load:
    """Goes from tick to tick, the same way for the same seed; stops beginning jobs `quiet` ticks before the end."""

    def __init__(self, ticks: int, seed: int, quiet: int = 20) -> None:
        self._random = Random(seed)
        self._ticks, self._quiet = ticks, quiet
        self.tick = -1
        self.devices = [Device(f"GPU-{i:08x}-0000") for i in range(DEVICES)]
        self.jobs: dict[int, Job] = {}  # by pid
        self.instances: list[str] = []
        self.layouts = self.began = self.losses = self.restarts = self.reused = 0
        self.ended: Counter[str] = Counter()  # those with the hook
        self.xids: Counter[str] = Counter()  # by GPU's uuid
        self._used: set[int] = set()

    def advance(self) -> Happening:
        """Advance by a tick, and return its events."""
        self.tick += 1
        for device, percent in zip(self.devices, self.percents(), strict=True):
            for second in range(STEP):
                stamp = round(1e6 * (BOOTED + (self.tick - 1) * STEP + second + 1))
                device.ring.append([stamp, percent])
        news = Happening()
        news.ended = [job for job in self.jobs.values() if job.end <= self.tick]
        for job in news.ended:
            del self.jobs[job.pid]
            self.ended[job.reason] += job.hooked
        if 0 < self.tick < self._ticks - self._quiet:  # the verdict counts from its second evaluation on
            news.begun = list(self._begin())
        news.restarted = self._disturb()
        news.xids = list(self._errors())
        return news

    def up(self, index: int) -> bool:
        return self.devices[index].lost_until < self.tick

    def percents(self) -> list[int]:
        """Return the utilization of each GPU since the last tick, in percent."""
        total = [0] * DEVICES
        for job in self.jobs.values():
            for index in job.devices:
                total[index] += job.percent
        return total

    def _chance(self, every: int) -> bool:
        return self._random.random() < 1 / every

    def _begin(self) -> Iterator[Job]:
        free = [i for i in range(MIG_DEVICE) if not any(i in job.devices for job in self.jobs.values())]
        if free and self._chance(_JOBS):
            count = min(len(free), self._random.choice((1, 1, 1, 2, 4, 8)))
            yield self._job(tuple(sorted(self._random.sample(free, count))), self._random.randrange(5, 101))
        if self.jobs and self._chance(_NEIGHBOURS):
            host = self._random.choice(list(self.jobs.values()))
            if (
                host.percent <= 50
                and MIG_DEVICE not in host.devices
                and self.percents()[host.devices[0]] == host.percent
            ):
                yield self._job(host.devices[:1], self._random.randrange(1, 51))
        used = {job.instance for job in self.jobs.values()}
        instances = [i for i in range(len(self.instances)) if i not in used]
        if instances and self._chance(4 * _JOBS):
            yield self._job((MIG_DEVICE,), 0, instances[0])

    def _job(self, devices: tuple[int, ...], percent: int, instance: int | None = None) -> Job:
        r = self._random
        pid = r.choice([pid for pid in _PIDS if pid not in self.jobs])
        self.reused += pid in self._used
        self._used.add(pid)
        self.began += 1
        ticks = round(_MIN_TICKS * (_MAX_TICKS / _MIN_TICKS) ** r.random())
        last = self._ticks - self._quiet
        self.jobs[pid] = Job(
            self.began,
            pid,
            self.tick,
            min(self.tick + ticks, last),
            devices,
            percent,
            r.choice(_REASONS),
            r.random() < 0.8,
            r.randrange(1, 1000),
            instance,
        )
        return self.jobs[pid]

    def _disturb(self) -> bool:
        """Perhaps lose a GPU, change the MIG layout or replace the worker; return whether the worker is new."""
        returned = any(device.lost_until == self.tick - 1 >= 0 for device in self.devices)
        index = self._random.randrange(MIG_DEVICE)
        if self.up(index) and self.tick < self._ticks - self._quiet and self._chance(_LOSSES):
            self.losses += 1
            until = self.tick + self._random.randrange(_MIN_TICKS, _MAX_TICKS)
            self.devices[index].lost_until = min(until, self._ticks - self._quiet)
        taken = any(job.instance is not None for job in self.jobs.values())
        if not self.tick or (self._chance(_LAYOUTS) and not taken):
            self.layouts += 1
            self.instances = [f"MIG-{self.layouts:08x}-{i}" for i in range(self._random.randrange(1, 8))]
        restarted = not self.tick or returned or self._chance(_RESTARTS)
        self.restarts += restarted
        return restarted

    def _errors(self) -> Iterator[tuple[int, int]]:
        index = self._random.randrange(DEVICES)
        if self.tick and self.up(index) and self._chance(_XIDS):
            self.xids[self.devices[index].uuid] += 1
            yield index, self._random.choice(XIDS)
