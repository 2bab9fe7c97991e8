"""Which process holds what on which card."""

from __future__ import annotations

from dataclasses import dataclass

from gpugauge.collectors.base import Tick
from gpugauge.driver.api import ProcessReading
from gpugauge.metric import BYTES, NONE, LabelValues, Metric, Table, families
from gpugauge.snapshot import Section
from gpugauge.workload.procfs import Procfs, process_hash

_process = Table("process", "uuid")


@dataclass(frozen=True, slots=True)
class _Use:
    pid: int
    kind: str
    memory: int | None


def _info(use: _Use) -> dict[tuple[str, ...], float]:
    return {(str(use.pid), use.kind): 1}


METRICS: tuple[Metric, ...] = (
    _process.gauge(
        "gpu_process_info",
        "A process that has the card open; always 1.",
        NONE,
        _info,
        *("pid", "kind"),
        source="nvmlDeviceGetComputeRunningProcesses_v3, nvmlDeviceGetGraphicsRunningProcesses_v3",
    ),
    _process.gauge(
        "gpu_process_memory_used_bytes",
        "Device memory that the process holds on the card.",
        BYTES,
        lambda p: p.memory,
        source="nvmlDeviceGetComputeRunningProcesses_v3, nvmlDeviceGetGraphicsRunningProcesses_v3",
    ),
)


class ProcessCollector:
    """Rows by (process, uuid), new with every reading of the process lists."""

    name = "process"
    metrics = METRICS

    def __init__(self, procfs: Procfs) -> None:
        self._procfs = procfs
        self._seen: tuple[tuple[str, bool, int], ...] | None = None
        self._section = Section(self.name, ())

    def collect(self, tick: Tick) -> Section:
        """Return what each process holds, the same section until a card lists its processes anew."""
        devices = tick.driver.devices
        seen = tuple((d.uuid, d.up, d.generations.get("processes", 0)) for d in devices)
        if seen != self._seen:
            subjects: list[tuple[LabelValues, _Use]] = []
            for device in devices:
                uses = _merge(device.reading.processes or ())
                subjects += [((self._identity(use.pid), device.uuid), use) for use in uses]
            self._section, self._seen = Section(self.name, families(METRICS, subjects)), seen
        return self._section

    def _identity(self, pid: int) -> str:
        # A pid that /proc does not show (no hostPID) has no start time; the pid alone must do then.
        return self._procfs.process_id(pid) or process_hash(self._procfs.boot_id, str(pid), "unseen")


def _merge(processes: tuple[ProcessReading, ...]) -> list[_Use]:
    """One use a pid: a process that computes and draws is listed twice with the same memory."""
    uses: dict[int, _Use] = {}
    for p in processes:
        known = uses.get(p.pid)
        if known is None:
            uses[p.pid] = _Use(p.pid, p.kind, p.used_memory_bytes)
        else:
            amounts = [m for m in (known.memory, p.used_memory_bytes) if m is not None]
            uses[p.pid] = _Use(p.pid, known.kind, max(amounts) if amounts else None)
    return list(uses.values())
