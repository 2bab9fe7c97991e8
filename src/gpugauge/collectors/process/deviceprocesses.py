"""The processes of one GPU: which are shown, what they hold, and their counters."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from gpugauge.collectors.process.busysplit import BusySplit
from gpugauge.collectors.process.shown import choose
from gpugauge.driver.api import ProcessReading

OTHER = "other"  # the `process` of all that are not shown
KINDS = ("compute", "mps", "graphics")  # of a process that is listed as several, the first is shown
# Seconds for which a process that the driver's samples name counts as being on the GPU without being in its lists.
_SAMPLED = 10.0


@dataclass(slots=True)
class Use:
    """A process on a GPU, or the sum of those that are hidden."""

    memory: int | None = None
    busy: float | None = None
    seen: float = 0.0  # when the driver last told of it


class DeviceProcesses:
    """The processes of one GPU, and its account of busy seconds."""

    def __init__(self) -> None:
        self.split: BusySplit | None = None  # once the driver tells of processes' use
        self.here: dict[str, Use] = {}
        self.gone: dict[str, tuple[float, float]] = {}  # busy seconds, and when the process left; oldest first
        self.shown: set[str] = set()
        self.other_busy: float | None = None
        self.listed = False  # whether the driver tells which processes there are
        self.reading: object = None

    def take_list(self, uses: dict[str, Use], now: float, most: int) -> None:
        """Take a new list of the processes that are there."""
        for process, known in self.here.items():
            use = uses.get(process)
            if use is not None:
                use.busy = known.busy
            elif known.memory is None and now - known.seen < _SAMPLED:
                uses[process] = known  # the driver's samples name it, its lists do not
            else:
                self._retire(process, known, now)
        self.here = uses
        self.shown = choose(self.shown, {process: use.memory or 0 for process, use in uses.items()}, most)
        for process, use in uses.items():
            if process not in self.shown:
                self._retire(process, use, now)
        self._show()

    def credit(self, given: dict[str, float], now: float, most: int) -> None:
        """Count busy seconds; those of hidden processes are counted together and stay there."""
        for process, seconds in given.items():
            use = self.here.get(process)
            if use is None:
                use = self.here[process] = Use()
                if len(self.shown) < most:
                    self.shown.add(process)
            use.seen = now
            if process in self.shown:
                use.busy = self._busy(process, use) + seconds
            else:
                self.other_busy = (self.other_busy or 0.0) + seconds
        self._show()

    def forget(self, now: float, linger: float, most: int) -> bool:
        """Drop the counters of processes that left long ago, and the oldest of too many; tell whether there were."""
        excess = len(self.gone) - most
        old = [p for i, (p, (_, left)) in enumerate(self.gone.items()) if i < excess or now - left >= linger]
        for process in old:
            del self.gone[process]
        return bool(old)

    def rows(self) -> Iterator[tuple[str, Use]]:
        """Yield what is shown: processes, those that left, and the rest as one."""
        yield from ((process, use) for process, use in self.here.items() if process in self.shown)
        yield from ((process, Use(busy=busy)) for process, (busy, _) in self.gone.items())
        hidden = [use.memory for process, use in self.here.items() if process not in self.shown]
        if hidden or self.other_busy is not None:
            known = [memory for memory in hidden if memory is not None]
            yield OTHER, Use(sum(known) if known else None, self.other_busy)

    def _retire(self, process: str, use: Use, now: float) -> None:
        """Keep the counter of a process that left or is no longer shown, for a while."""
        if use.busy is not None:
            self.gone[process] = (use.busy, now)
            use.busy = None

    def _busy(self, process: str, use: Use) -> float:
        """Return a shown process's counter: born at 0, or where it was when the process left."""
        if use.busy is None:
            use.busy, _ = self.gone.pop(process, (0.0, 0.0))
        return use.busy

    def _show(self) -> None:
        """Let the counters of all that is shown be there before the first second is counted."""
        if self.split is None:
            return
        for process in self.shown:
            self._busy(process, self.here[process])
        if len(self.here) > len(self.shown):
            self.other_busy = self.other_busy or 0.0


def merge(processes: Iterable[ProcessReading]) -> list[ProcessReading]:
    """Return one reading a pid. A process that computes and draws is listed twice with the same memory; on several MIG
    devices of a GPU it holds memory of each.
    """
    by_pid: dict[int, list[ProcessReading]] = {}
    for process in processes:
        by_pid.setdefault(process.pid, []).append(process)
    return [found[0] if len(found) == 1 else _merged(found) for found in by_pid.values()]


def _merged(found: list[ProcessReading]) -> ProcessReading:
    memory: dict[int | None, int] = {}
    for p in found:
        if p.used_memory_bytes is not None:
            memory[p.gpu_instance_id] = max(p.used_memory_bytes, memory.get(p.gpu_instance_id, 0))
    kind = min((p.kind for p in found), key=KINDS.index)
    return ProcessReading(found[0].pid, kind, sum(memory.values()) if memory else None)
