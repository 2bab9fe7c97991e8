"""The processes of one GPU: which of them are shown, their memory, and their busy seconds."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

from gpugauge.collectors.process.busy_split import BusySplit
from gpugauge.driver.api import DeviceReading, MigReading, ProcessReading

# A hidden process replaces a shown one only if it is larger by this factor and this number of bytes: two processes of
# about the same size must not alternate.
_REPLACE_FACTOR = 1.25
_REPLACE_BYTES = 64 << 20


def choose_shown(shown: Collection[str], sizes: Mapping[str, int], max_shown: int) -> set[str]:
    """Return at most `max_shown` names of `sizes` (bytes by name) to show next. `shown` are those shown now."""
    ranked = sorted(sizes, key=lambda name: (-sizes[name], name))
    if len(ranked) <= max_shown:
        return set(ranked)
    kept = [name for name in ranked if name in shown][:max_shown]
    hidden = [name for name in ranked if name not in kept]
    free = max_shown - len(kept)
    kept, hidden = kept + hidden[:free], hidden[free:]
    kept.sort(key=lambda name: (sizes[name], name))
    for i, name in enumerate(hidden[: len(kept)]):  # the largest hidden one against the smallest shown one
        if sizes[name] <= sizes[kept[i]] * _REPLACE_FACTOR + _REPLACE_BYTES:
            break
        kept[i] = name
    return set(kept)


OTHER = "other"  # the `process` label of the sum of the hidden processes
KINDS = ("compute", "mps", "graphics")  # the first of these counts if a process is listed with several kinds
# A process without an entry in the driver's lists counts as being on the GPU for this time after its last sample.
_SAMPLED_SECONDS = 10.0


@dataclass(slots=True)
class Use:
    """Use of a GPU by one process, or by the hidden processes together."""

    memory: int | None = None  # bytes
    busy: float | None = None  # seconds
    seen: float = 0.0  # monotonic time of the last list or sample


@dataclass(slots=True)
class MigUse:
    """Use of a MIG device by one process: bytes, and the number of the GPU instance."""

    memory: int | None
    instance: int | None


class DeviceProcesses:
    """The processes of one GPU, and their accounts of busy seconds."""

    def __init__(self) -> None:
        self.split: BusySplit | None = None  # set by the first samples of processes
        self.present: dict[str, Use] = {}
        self.gone: dict[str, tuple[float, float]] = {}  # busy seconds, and when the process left; oldest first
        self.shown: set[str] = set()
        self.other_busy: float | None = None
        self.listed = False  # whether the driver lists processes
        self.on_mig: dict[tuple[str, str], MigUse] = {}  # by process and uuid of the MIG device
        self.reading: object = None

    @property
    def unaccounted(self) -> float | None:
        """Busy seconds of no known process, None without samples of processes."""
        return self.split.unaccounted if self.split else None

    @property
    def hidden(self) -> int | None:
        """The number of processes without series of their own, None if the driver lists none."""
        return len(self.present) - len(self.shown) if self.listed else None

    def set_list(self, uses: dict[str, Use], now: float, max_shown: int) -> None:
        """Replace the list of the processes that are present."""
        for process, known in self.present.items():
            use = uses.get(process)
            if use is not None:
                use.busy = known.busy
            elif known.memory is None and now - known.seen < _SAMPLED_SECONDS:
                uses[process] = known  # it has samples, but is not in the driver's lists
            else:
                self._retire(process, known, now)
        self.present = uses
        self.shown = choose_shown(self.shown, {process: use.memory or 0 for process, use in uses.items()}, max_shown)
        for process, use in uses.items():
            if process not in self.shown:
                self._retire(process, use, now)
        self._create_counters()

    def add_busy(self, given: dict[str, float], now: float, max_shown: int) -> None:
        """Add busy seconds by process; those of hidden processes are added to one sum and stay in it."""
        for process, seconds in given.items():
            use = self.present.get(process)
            if use is None:
                use = self.present[process] = Use()
                if len(self.shown) < max_shown:
                    self.shown.add(process)
            use.seen = now
            if process in self.shown:
                use.busy = self._busy(process, use) + seconds
            else:
                self.other_busy = (self.other_busy or 0.0) + seconds
        self._create_counters()

    def expire(self, now: float, linger: float, max_gone: int) -> bool:
        """Drop the counters of processes that left `linger` seconds ago, or above `max_gone`; return whether any."""
        excess = len(self.gone) - max_gone
        old = [p for i, (p, (_, left)) in enumerate(self.gone.items()) if i < excess or now - left >= linger]
        for process in old:
            del self.gone[process]
        return bool(old)

    def rows(self) -> Iterator[tuple[str, Use]]:
        """Yield the shown processes, those that left, and the sum of the hidden ones."""
        yield from ((process, use) for process, use in self.present.items() if process in self.shown)
        yield from ((process, Use(busy=busy)) for process, (busy, _) in self.gone.items())
        hidden = [use.memory for process, use in self.present.items() if process not in self.shown]
        if hidden or self.other_busy is not None:
            known = [memory for memory in hidden if memory is not None]
            yield OTHER, Use(sum(known) if known else None, self.other_busy)

    def _retire(self, process: str, use: Use, now: float) -> None:
        """Keep the counter of a process that left or is hidden now, until it expires."""
        if use.busy is not None:
            self.gone[process] = (use.busy, now)
            use.busy = None

    def _busy(self, process: str, use: Use) -> float:
        if use.busy is None:
            use.busy, _ = self.gone.pop(process, (0.0, 0.0))
        return use.busy

    def _create_counters(self) -> None:
        """Create the counters of all shown processes, so that they exist before the first second is counted."""
        if self.split is None:
            return
        for process in self.shown:
            self._busy(process, self.present[process])
        if len(self.present) > len(self.shown):
            self.other_busy = self.other_busy or 0.0


def merge(processes: Iterable[ProcessReading]) -> list[ProcessReading]:
    """Return one reading per pid: one that computes and renders, or holds memory of MIG devices, is listed twice."""
    by_pid: dict[int, list[ProcessReading]] = {}
    for process in processes:
        by_pid.setdefault(process.pid, []).append(process)
    return [found[0] if len(found) == 1 else _merged(found) for found in by_pid.values()]


def on_mig(reading: DeviceReading, process_of: Callable[[int], str]) -> dict[tuple[str, str], MigUse]:
    """Return what each process uses of each MIG device of a GPU. `process_of` returns the `process` label of a pid."""
    found: dict[tuple[str, str], MigUse] = {}
    for listed in (reading.processes or ()) if reading.mig_instances else ():
        uuid = mig_device(listed, reading.mig_instances or ())
        if uuid is not None:
            use = found.setdefault((process_of(listed.pid), uuid), MigUse(None, listed.gpu_instance_id))
            if listed.used_memory_bytes is not None:
                use.memory = max(use.memory or 0, listed.used_memory_bytes)
    return found


def mig_device(process: ProcessReading, devices: Iterable[MigReading]) -> str | None:
    """Return the uuid of the MIG device on which a process runs, None if that is not known."""
    of_instance = [device for device in devices if device.gpu_instance_id == process.gpu_instance_id]
    if process.gpu_instance_id is None:
        return None
    named = [device for device in of_instance if device.compute_instance_id == process.compute_instance_id]
    found = named or of_instance  # the compute instance may not be known
    return found[0].uuid if len(found) == 1 else None


def _merged(found: list[ProcessReading]) -> ProcessReading:
    memory: dict[int | None, int] = {}
    for p in found:
        if p.used_memory_bytes is not None:
            memory[p.gpu_instance_id] = max(p.used_memory_bytes, memory.get(p.gpu_instance_id, 0))
    kind = min((p.kind for p in found), key=KINDS.index)
    return ProcessReading(found[0].pid, kind, sum(memory.values()) if memory else None)
