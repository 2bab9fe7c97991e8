"""A machine with one GPU, reused pids, and a driver that reports pids only."""

from dataclasses import dataclass, field
from pathlib import Path

from gpugauge.collectors.base import Tick
from gpugauge.collectors.process.process import ProcessCollector
from gpugauge.driver.api import Device, DeviceReading, DriverView, MigReading, ProcessReading, Reply
from gpugauge.workload.procfs import Procfs, process_hash

GIB, UUID = 1 << 30, "GPU-a"
TICKS = 100


@dataclass(frozen=True)
class Process:
    """Keeps the GPU busy at `level` between two times. `start` distinguishes processes with the same pid."""

    pid: int
    start: float
    end: float
    level: float
    busy_from: float
    busy_to: float
    memory: int = GIB

    @property
    def name(self) -> str:
        return process_hash("", str(self.pid), str(round(self.start * TICKS)))

    def busy(self, t: float) -> float:
        begin, end = max(self.start, self.busy_from), min(self.end, self.busy_to, t)
        return max(0.0, end - begin) * self.level

    def alive(self, t: float) -> bool:
        return self.start <= t < self.end


@dataclass
class Machine:
    """The time is `now`. The driver's window of process samples begins at `cursor`."""

    processes: list[Process]
    now: float = 0.0
    cursor: float | None = None
    starts: int = 1
    generation: int = 0
    listed: tuple[ProcessReading, ...] | None = None
    instances: tuple[MigReading, ...] | None = None
    up: bool = True
    lag: float = 0.0  # of the GPU's own counter
    garbage: list[list[int]] = field(default_factory=list)
    uptime: Path | None = None

    def busy(self, t: float) -> float:
        return sum(p.busy(t) for p in self.processes)

    def device_busy(self, uuid: str) -> float | None:
        return self.busy(self.now - self.lag)

    def restart_worker(self) -> None:
        self.starts += 1
        self.cursor = None

    def read_list(self) -> None:
        self.generation += 1
        self.listed = tuple(ProcessReading(p.pid, "compute", p.memory) for p in self.processes if p.alive(self.now))

    def drain(self) -> list[Reply]:
        """Return the mean use of each pid since the newest row of the last drain, over all processes with the pid. The
        first rows of a worker are dropped: they are a mean over the whole buffer.
        """
        begin = max(self.cursor or 0.0, self.now - 12)
        by_pid: dict[int, float] = {}
        for p in self.processes:
            by_pid[p.pid] = by_pid.get(p.pid, 0.0) + (p.busy(self.now) - p.busy(begin)) / max(1e-9, self.now - begin)
        stamp = round((1000 + self.now) * 1e6)
        rows = [[stamp, pid, round(100 * share), 0, 0, 0] for pid, share in by_pid.items() if share > 0]
        seeded, self.cursor = self.cursor is not None, self.now if rows else self.cursor
        sent = self.garbage + rows if seeded else []
        return [Reply(1, "read", uuid=UUID, samples={"process": sent}, received=self.now)]

    def tick(self, *replies: Reply) -> Tick:
        if self.uptime:
            self.uptime.write_text(f"{self.now:.2f} 0.00\n")
        reading = DeviceReading(uuid=UUID, processes=self.listed if self.up else None, mig_instances=self.instances)
        device = Device(UUID, self.up, "ok" if self.up else "released", reading, {"processes": self.generation})
        view = DriverView(True, "ok", devices=(device,), worker_starts=self.starts)
        return Tick(1.7e9 + self.now, self.now, view, replies)


class Proc(Procfs):
    """Shows the living processes of a machine, and the uptime only if `uptime` is set."""

    def __init__(self, machine: Machine, folder: Path, *, uptime: bool = False) -> None:
        super().__init__(str(folder))
        self._machine = machine
        machine.uptime = folder / "uptime" if uptime else None

    def start_time(self, pid: int) -> int | None:
        return next(
            (round(p.start * TICKS) for p in self._machine.processes if p.pid == pid and p.alive(self._machine.now)),
            None,
        )


def values(collector: ProcessCollector, tick: Tick) -> dict[str, dict[tuple[str, ...], float]]:
    """Return the collector's samples by metric and labels."""
    return {f.metric.name: dict(f.samples) for f in collector.collect(tick).families}  # type: ignore[arg-type]  # no histogram here


def collector(machine: Machine, folder: Path, most: int = 128, linger: float = 300.0) -> ProcessCollector:
    return ProcessCollector(Proc(machine, folder), machine.device_busy, None, most, linger)


def long(pid: int, level: float, memory: int = GIB) -> Process:
    """Return a process that is busy all the time."""
    return Process(pid, 0, 1e6, level, 0, 1e6, memory)
