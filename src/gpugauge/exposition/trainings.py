"""The trainings of this machine as their series had them, bounded, for reports without a database."""

from __future__ import annotations

import json
import threading
import zlib
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from typing import Any

from gpugauge.collectors.device import device, utilization
from gpugauge.collectors.exporter import exporter
from gpugauge.collectors.process import host
from gpugauge.collectors.process import process as on_gpu
from gpugauge.collectors.training import advice, loader_rows, session_rows, verdict_rows
from gpugauge.exposition.render import gzipped
from gpugauge.metric import Family, HistogramValue
from gpugauge.snapshot import Snapshot

HELD, LOST, SECONDS = verdict_rows.HELD.name, verdict_rows.LOST.name, verdict_rows.SECONDS.name
CPU, CPUS = host.CPU.name, host.AFFINITY.name
STEPS, STEP, PHASES = session_rows.STEPS.name, session_rows.STEP_DURATION.name, session_rows.PHASE_SECONDS.name
SAMPLES = session_rows.SAMPLES.name
DATA_WAIT, LOCAL_WORK = session_rows.DATA_WAIT.name, session_rows.LOCAL_WORK.name
THREAD = session_rows.THREAD_SECONDS.name
EXPOSED_WAIT, LOADING = session_rows.EXPOSED_WAIT.name, loader_rows.SECONDS.name
LOADED, LOADED_MEASURED = loader_rows.BATCHES.name, loader_rows.MEASURED.name
COUNTERS = (
    *(HELD, LOST, SECONDS, STEPS, SAMPLES, f"{STEP}_sum", f"{STEP}_count", PHASES, DATA_WAIT, LOCAL_WORK, THREAD, CPU),
    *(EXPOSED_WAIT, LOADED, LOADED_MEASURED, LOADING),
)
HOST_MEMORY, HOST_LIMIT = host.MEMORY.name, host.MEMORY_LIMIT.name
LIMITED_BY, ADVICE, MISTAKE = verdict_rows.LIMITED_BY.name, advice.TEXT.name, session_rows.MISTAKE.name
GAINS = verdict_rows.SPEEDUP.name, verdict_rows.SPEEDUP_LOWER.name, verdict_rows.SPEEDUP_UPPER.name
LOADER_LIMIT = verdict_rows.LOADER_LIMIT.name
LOADER_GAINS = verdict_rows.LOADER_SPEEDUP.name, verdict_rows.LOADER_SPEEDUP_LOWER.name
NEXT = verdict_rows.SPEEDUP_NEXT.name
PROCESS, END, DECIDED = session_rows.INFO.name, session_rows.END_INFO.name, verdict_rows.VERDICT.name
BUILD, LOADER = exporter.BUILD.name, session_rows.LOADER.name
SETTINGS = session_rows.BUILD.name, session_rows.PARALLEL.name, session_rows.SETTINGS.name, LOADER
MEMORY, PEAK, LIMIT = on_gpu.MEMORY.name, session_rows.PEAK.name, session_rows.MEMORY_LIMIT.name
GAUGES = (
    *(CPUS, HOST_MEMORY, HOST_LIMIT, MEMORY, PEAK, LIMIT, PROCESS, END, DECIDED, *SETTINGS),
    *(*GAINS, NEXT, LIMITED_BY, ADVICE, MISTAKE, LOADER_LIMIT, *LOADER_GAINS),
)
ENERGY, BUSY, OBSERVED = device.ENERGY.name, utilization.BUSY.name, utilization.OBSERVED.name
INFO, TOTAL, POWER_LIMIT = device.INFO.name, device.MEMORY_TOTAL.name, device.POWER_LIMIT.name
OWNERS = host.INFO.name, on_gpu.INFO.name, PROCESS
"""The job of a process: the first one that knows decides."""
RUN, RUN_LABEL = session_rows.RUN.name, "gpugauge_run"

MAX_BYTES = 1_000_000
_MAX_MEMBER_BYTES = 1 << 20
_NAMES = frozenset({*COUNTERS, STEP, *GAUGES, *OWNERS, RUN, ENERGY, BUSY, OBSERVED, INFO, TOTAL, POWER_LIMIT})
_Key = tuple[str, tuple[tuple[str, str], ...]]  # name, and labels


class Trainings:
    """The first and the last value of each series of trainings, ended ones packed. Methods are for any thread."""

    def __init__(self, node: str) -> None:
        self._node = node
        self._lock = threading.Lock()
        self._fed, self._simulated = 0.0, False
        self._live: dict[str, dict[_Key, list[float]]] = {}
        self._packed: list[bytes] = []
        self.ends = 0
        """How many have ended."""

    @property
    def live(self) -> bool:
        """Whether there are any that have not ended."""
        return bool(self._live)

    def load(self, data: bytes) -> None:
        """Add what an earlier daemon has written. Raises ValueError."""
        found = [_packed(of) if of.pop("live", False) else packed for packed, of in members(data)]
        with self._lock:
            self._packed = found + self._packed

    def feed(self, snapshot: Snapshot | None) -> None:
        """Take the values of a snapshot."""
        with self._lock:
            if snapshot is not None and snapshot.monotonic != self._fed:
                self._feed(snapshot)

    def body(self, snapshot: Snapshot | None) -> bytes:
        """Return all as JSON lines, a gzip member for each training, of at most MAX_BYTES."""
        self.feed(snapshot)
        with self._lock:
            parts = self._packed + [self._pack(process, live=True) for process in self._live]
            while sum(map(len, parts)) > MAX_BYTES:
                del parts[0], self._packed[:1]
        return b"".join(parts)

    def _feed(self, snapshot: Snapshot) -> None:
        self._fed, found = snapshot.monotonic, defaultdict[tuple[str, str], list[tuple[_Key, float]]](list)
        families = [family for section in snapshot.sections for family in section.families]
        spent = [family for family in families if family.metric.name == SECONDS]
        trainings = {values[family.metric.labels.index("process")] for family in spent for values, _ in family.samples}
        trainings.discard("other")
        for label, (name, labels), value in _series(families if trainings else [], trainings):
            own = dict(labels)
            found[label, own.pop(label)].append(((name, tuple(own.items())), value))
        self._simulated = bool(snapshot.node.build and snapshot.node.build[1])
        for process in trainings:
            series = found["process", process]
            known = self._live.setdefault(process, {})
            ended = any(name == END for name, _ in known)
            held = {dict(labels)["uuid"] for (name, labels), _ in series if name == MEMORY}
            of_gpus = [((name, (*ls, ("uuid", u))), v) for u in held for (name, ls), v in found["uuid", u]]
            for key, value in [*series, *of_gpus]:
                _see(known, key, snapshot.timestamp, value)
            self.ends += not ended and any(name == END for name, _ in known)
        for process in self._live.keys() - trainings:
            self._packed.append(self._pack(process))
            del self._live[process]
            self.ends += 1

    def _pack(self, process: str, **more: bool) -> bytes:
        # The most frequent values of a label are first.
        series = sorted(self._live[process].items(), key=lambda pair: -pair[1][4])
        rows = [[name, dict(labels), *points[:4]] for (name, labels), points in series]
        return _packed({"process": process, "node": self._node, "simulated": self._simulated, "series": rows, **more})


def _packed(document: dict[str, Any]) -> bytes:
    return gzipped(json.dumps(document, separators=(",", ":")).encode() + b"\n")


def _see(known: dict[_Key, list[float]], key: _Key, now: float, value: float) -> None:
    """Update time and value of the first and the last sample, and their number; a gauge has its mean or largest."""
    seen = known.setdefault(key, [now, value, now, value, 0])
    seen[2], seen[4] = now, seen[4] + 1
    if key[0].endswith(("_total", "_sum", "_count")):
        seen[3] = value
    elif key[0].endswith("_bytes"):
        seen[1] = seen[3] = max(seen[3], value)
    else:
        seen[1] = seen[3] = seen[3] + (value - seen[3]) / seen[4]


def _series(families: Iterable[Family], trainings: Collection[str]) -> Iterator[tuple[str, _Key, float]]:
    """Yield the series of trainings and of GPUs, each with the label of whose it is."""
    for family in families:
        name, names = family.metric.name, family.metric.labels
        if name not in _NAMES:
            continue
        label = "process" if "process" in names else "uuid"
        at = names.index(label)
        for values, value in family.samples:
            if label == "process" and values[at] not in trainings:
                continue
            labels = tuple(zip(names, values, strict=True))
            if isinstance(value, HistogramValue):
                yield label, (f"{name}_sum", labels), value.total
                yield label, (f"{name}_count", labels), value.counts[-1]
            else:
                yield label, (name, labels), value


def members(data: bytes) -> Iterator[tuple[bytes, dict[str, Any]]]:
    """Yield each training of a body, packed and as its JSON. Raises ValueError."""
    while data:
        packer = zlib.decompressobj(zlib.MAX_WBITS | 16)
        try:
            text = packer.decompress(data, _MAX_MEMBER_BYTES)
        except zlib.error as error:
            raise ValueError(str(error)) from None
        if not packer.eof:
            raise ValueError("a training is not complete")
        document = json.loads(text)
        if not isinstance(document, dict) or not {"process", "node", "series"} <= document.keys():
            raise ValueError("it is not what gpugauge writes")
        yield data[: len(data) - len(packer.unused_data)], document
        data = packer.unused_data
