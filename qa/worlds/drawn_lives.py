"""Lives of a node, drawn by a seed: GPUs, processes and trainings with values of every field, through the collectors of
trainings, the history and the status. What comes out of each life is recorded.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from gpugauge.collectors.base import Tick
from gpugauge.collectors.training.continued import _DEVICE_COUNTS, _LOADER_COUNTS, _SNAP_COUNTS
from gpugauge.collectors.training.memory import MemoryCollector
from gpugauge.collectors.training.training import TrainingCollector
from gpugauge.collectors.training.verdict import VerdictCollector
from gpugauge.driver.advice import WITHOUT_GPU
from gpugauge.driver.api import DOWN_REASONS, DRIVER_DOWN, Device, DeviceReading, DriverView, Failure, MigReading
from gpugauge.driver.codes import CODES, RECOVERY_ACTIONS
from gpugauge.driver.vendors import VENDORS
from gpugauge.faults import judged as faults
from gpugauge.faults.table import NVLINK_NEVER, SLOWDOWNS, GpuHealth, ailments
from gpugauge.metric import HistogramValue
from gpugauge.node.node import Assignment, Gain, Identity, Judged, Load, Memory, Node, Profiled, Use, Verdict, Xids
from gpugauge.sessions.inquiry import ELSEWHERE, SILENT, WAITING, Inquiry
from gpugauge.sessions.session import SESSION_END_REASONS, Counters, Session, ThreadTime
from gpugauge.settings.model import Verdict as Verdicts
from gpugauge.snapshot import Health, Section, Snapshot
from gpugauge.status.history import History
from gpugauge.status.model import as_json
from gpugauge.status.node import build
from gpugauge.terminal.process import process_screen
from gpugauge.terminal.rows import processes
from gpugauge.terminal.screen import gpu_details
from gpugauge.terminal.table import table
from gpugauge.verdict.causes import CAUSES, STATES
from gpugauge.verdict.loaders import REASONS
from gpugauge.web.page.links import NO_LINKS
from gpugauge.web.page.render import content
from gpugauge.wire import messages as wire
from gpugauge.wire.record import PHASES, SharedRecord
from gpugauge.workload.identity import Workload
from gpugauge.workload.processfiles import Bounds, Cgroup, HostProcess
from qa.worlds.anything import Drawer
from qa.worlds.recorded import Record

START, STEP = 1_700_000_000.0, 5.0
GIB = 1 << 30
_YES = ("yes", "no", "")
_SHOWN_DIGITS = 5
# The facts that a process may report.
FACTS: Mapping[str, Sequence[str]] = {
    "command": ("train.py", "vllm.server", "jupyter", "python3", "ipython"),
    "torch": ("2.13.0", ""),
    "cuda": ("12.8", ""),
    "hip": ("6.4", "", ""),
    "build": ("cuda", "cpu", "rocm", ""),
    "architectures": ("sm_80 sm_90", "sm_70", "gfx942"),
    "driver_cuda": ("12.8", "11.0", ""),
    "kernel_driver": ("570.1", "470.2", ""),
    "device_nodes": ("0", "2", ""),
    "visible_devices": ("0", "2", ""),
    "cuda_visible_devices": ("0", "-1", "", "0,1"),
    "matmul_dtype": ("bfloat16", "float32", "float16"),
    "tf32_matmul": _YES,
    "autocast": _YES,
    "deterministic": _YES,
    "cudnn_benchmark": _YES,
    "allocator": ("native", "cudaMallocAsync"),
    "alloc_conf": ("expandable_segments:True", ""),
    "current_device": ("0", "1", ""),
    "loader_workers": ("0", "1", "4", "16", "x"),
    "loader_batch_size": ("32", ""),
    "loader_pin_memory": _YES,
    "loader_prefetch": ("2", ""),
    "backend": ("nccl", "gloo"),
    "parallel": ("ddp", "fsdp", "dataparallel"),
    "cpus": ("8", "1", "0", ""),
    "ranks_on_cpus": ("1", "2", ""),
    "torch_threads": ("8", "64", "1"),
    "wandb_run": ("abc", ""),
    "profiler": _YES,
    "anomaly_detection": _YES,
    "launch_blocking": _YES,
    "batch_device": ("cpu", "cuda:0", "cuda:1"),
    "parameter_device": ("cuda:0", "cpu"),
    "parameters_on": ("cuda", "cpu"),
    "dataparallel_devices": ("1", "4"),
}
_POOLS: Mapping[str, Sequence[Any]] = {
    "Verdict.state": STATES,
    "limited_by": (None, *CAUSES, "of_tomorrow"),
    "causes of": ("data_loading", "contention", "unknown", "peers", "thermal"),
    "causes": tuple(dict(c) for c in ({"data_loading": 0.4, "unknown": 0.1}, {"unknown": 0.5, "contention": 0.2}, {})),
    "undecidable": (frozenset(), frozenset({"data_loading"}), frozenset({"transfers", "precision_unused"})),
    "shares of": ("data", "peers", "rest", "compilation"),
    "rest of": ("running", "runnable", "asleep"),
    "gains": (),
    "reason": tuple(REASONS),
    "workers": (None, 0, 2, 8),
    "speedup": (None, 1.0, 1.4),
    "known of": ("data_wait", "cpu_throttled", "power", "clock"),
    "mfu": (None, 0.31, 0.004),
    "shares": ({}, *({"data": d, "peers": 0.1, "rest": 0.9 - d} for d in (0.0, 0.005, 0.2, 0.45, 0.5, 0.8))),
    "full_seconds": (None, 3000.0, 86_400.0, 90_000.0, 200_000.0),
    "batch_ratio": (None, 1.2, 1.5, 3.0),
    "rank_ratio": (None, 0.7, 1.0, 1.4),
    "headroom": (None, 0.0, 1.0 * GIB, 3.5 * GIB),
    "fragmentation": (None, 0.1, 0.15, 0.4),
    "devices of": ("GPU-0", "GPU-1"),
    "growth of": ("process", "children", "cgroup"),
    "Workload.kind": ("pod", "slurm", "container", "systemd", "user", ""),
    "Workload.job_kind": ("slurm", "job", "pytorchjob", ""),
    "Workload.command": ("train.py", "fit.py", "sweep.py", "vllm.server", "jupyter-lab", "Xorg", ""),
    "Workload.user": ("ann", "1000", ""),
    "Workload.run_id": ("wandb:abc", ""),
    "HostProcess.torch": ("", "cpu", "cuda", "rocm"),
    "hook": (None, False, True, True),
    "memory_limit": (None, 8 * GIB, 64 * GIB),
    "DeviceReading.pcie_width": (None, 4, 8, 16, 16),
    "pcie_width_max": (None, 16, 16),
    "pcie_generation": (None, 1, 4),
    "pcie_generation_max": (None, 4),
    "power_milliwatts": (None, 71_000, 690_000),
    "power_limit_milliwatts": (None, 300_000, 700_000),
    "power_limit_default_milliwatts": (None, 700_000),
    "temperature_celsius": (None, 40, 88),
    "temperature_gpu_max_celsius": (None, 90),
    "temperature_slowdown_celsius": (None, 92),
    "clocks_event_reasons": (None, (), *((each,) for each in SLOWDOWNS), ("sw_power_cap", "gpu_idle")),
    "memory_total_bytes": (None, 80 * GIB, 80 * GIB),
    "memory_used_bytes": (None, 0, 3 * GIB, 79 * GIB),
    "memory_free_bytes": (None, GIB, 20 * GIB),
    "recovery_action": ("none", "none", "none", *RECOVERY_ACTIONS),
    "GpuHealth.temperature": (None, 60.0, 95.0),
    "slowdown_temperature": (None, 92.0),
    "GpuHealth.lanes": (None, (4, 16), (16, 16)),
    "retired_pages": (0, 0, 3, 64),
    "uncorrected": (0, 0, 7),
    "nvlink_errors": ({}, *({name: 5.0} for name in NVLINK_NEVER)),
    "slowed": ({}, *({name: 1.0} for name in SLOWDOWNS)),
    "nvlink_grown": (None, START - 70),
    "GpuHealth.links": ({}, {"3": (5.0, "GPU 5")}, {str(link): (12.0, "an NVSwitch") for link in range(8)}),
    "remapping_failed": (False, False, True),
    "vendor": (VENDORS[0],),
    "gfx_target": (None,),
}
_XIDS = (13, 31, 48, 63, 64, 74, 79, 92, 94, 95, 119, 121, 136, 143, 154, 9999)
_INDEX = re.compile(r"\[\d+\]|\.GPU-\d+")
TICKS, _EVERY = 60, 5
# By how much: sums are exact, so that times meet limits at their exact value, and a tick may be as early as is taken.
_EARLY_OR_LATE = (-0.75, -0.5, -0.25, 0.0, 0.0, 0.0, 0.5)


class _Registry:
    """Knows the owner of a process one look after it was wanted."""

    def __init__(self, owners: Mapping[str, Workload]) -> None:
        self._owners, self._wanted = owners, set[str]()

    def want(self, _: str, wanted: Mapping[str, Any]) -> None:
        self._wanted = set(wanted)

    def get(self, process: str) -> Any:
        return (
            SimpleNamespace(workload=self._owners[process]) if process in self._wanted & self._owners.keys() else None
        )


class Life(Drawer):
    """A node with a seed. `tick` lets five seconds pass; `lines` is what is shown of it, by name."""

    def __init__(self, seed: int) -> None:
        super().__init__(random.Random(seed), _POOLS)
        dice = self.dice
        self.now, self._view, self._counters = 0.0, tuple[Session, ...](), Counters({}, {})
        self.uuids = [
            f"GPU-{index}" for index in range(dice.choice((0, 1, 2, 3)) if seed % 6 == 5 else dice.randint(1, 3))
        ]
        self.processes = [f"p{number}" for number in range(dice.randint(2, 6) + 4 * (seed % 5 == 4))]
        self._pids = {process: 4000 + number for number, process in enumerate(self.processes)}
        self._job = dice.random() < 0.5  # whether all trainings are ranks of one
        self._judges = seed % 2 == 0  # otherwise the verdicts are drawn
        self._calm = seed % 3 == 0  # its trainings run on and on, until one of them hangs
        self._bare = seed % 5 == 4  # no program has the hook
        self._mute = (
            set(self.processes) if self._bare else {process for process in self.processes if self._often(0.2)}
        )  # the hook of these never reports
        self.node, self.history = Node(), History()
        self._devices = {uuid: self._device(index, uuid) for index, uuid in enumerate(self.uuids)}
        self._sessions: dict[str, Session] = {}
        self._ended: list[Session] = []
        self._loads = dict.fromkeys(self.uuids, (0.0, 0.0))
        self._busy: dict[tuple[str, str], float] = {}
        job = self.of(Workload, kind="pod", namespace="ml", job="night", job_kind="job", job_source="pod")
        self._owners = {process: job if self._calm else self.of(Workload) for process in self.processes}
        place: Any = SimpleNamespace(registry=_Registry(self._owners), claimed=lambda *_: self.of(Workload))
        self._training = TrainingCollector(self, self._label, lambda s: place if s.peer_uid else None)
        self._memory, self._verdict = MemoryCollector(), VerdictCollector()
        stalled = Verdicts(stalled_seconds=dice.choice((20.0, 60.0, 300.0)))
        self._verdict.configure(SimpleNamespace(verdict=stalled))  # type: ignore[arg-type]  # what it reads
        self._judged: dict[str, Judged] = {}
        self._memories: dict[str, Memory] = {}
        self._faults: dict[str, tuple[Any, ...]] = {}
        self._xids = Xids({}, {})
        self.snapshot = Snapshot(START, 0.0, ())

    # The source of sessions.
    def view(self) -> tuple[Session, ...]:
        return self._view

    def counters(self) -> Counters:
        return self._counters

    def _label(self, session: Session) -> str | None:
        return self.processes[session.peer_pid - 4000] if session.peer_pid else None

    def _often(self, share: float) -> bool:
        return self.dice.random() < share

    def _device(self, index: int, uuid: str) -> Device:
        up = self._often(0.85)
        mig = tuple(self.of(MigReading, uuid=f"MIG-{index}-{n}") for n in range(self.dice.choice((0, 0, 0, 2))))
        reading = self.of(DeviceReading, index=index, uuid=uuid, mig_instances=mig or None, pci_bus_id=f"0:{index}:0.0")
        reason = "" if up else self.dice.choice((*DOWN_REASONS, *sorted(CODES)))
        failures = (self.of(Failure),) if up and self._often(0.2) else ()
        vendor = VENDORS[0] if self._often(0.8) else self.dice.choice(VENDORS)
        return Device(uuid, up, reason, reading, {}, failures, vendor)

    def _facts(self) -> dict[str, str]:
        if self._calm and self.now > 2 * STEP:
            return {"matmul_dtype": "bfloat16"}
        facts = {name: self.dice.choice(values) for name, values in FACTS.items() if self._often(0.6)}
        return {name: value for name, value in facts.items() if value}

    def _begin(self, process: str) -> Session:
        number = self.processes.index(process)
        name = f"{self.dice.getrandbits(64):032x}"
        facts = self._facts()
        if self._job or self._often(0.3):
            facts |= {"rank": str(number), "local_rank": str(number), "world_size": str(len(self.processes))}
        seen = self._often(0.9)
        hello = self.of(wire.Hello, session=name, started=START + self.now - self.dice.choice((0, 3, 90)), facts=facts)
        record = SharedRecord("starting", START + self.now, 0, 0, {"starting": 0.0})
        pid = self._pids[process] if seen else 0
        return Session(hello, pid, 1000, record=record if self._often(0.9) else None, peer_start=7 if seen else None)

    def _snap(self, session: Session) -> wire.Snap:
        """Return a message with other gauges; the counts are those of the one before, and more."""
        before, name = session.snap, session.hello.session
        given: dict[str, Any] = {
            "session": name,
            "steps": None,
            "batches": None,
            "waits": {},
            "flops": {},
            "groups": (),
        }
        given |= {"facts": self._facts(), "devices": self._torch_devices(before.devices if before else ())}
        given["parameters"] = tuple(
            self.of(wire.Parameters, device=self.dice.choice(("cpu", "cuda:0", "cuda:1")), dtype="torch.bfloat16")
            for _ in range(self.dice.randint(0, 2))
        )
        found = self.of(wire.Snap, **given)
        group = wire.Group("0", "default_pg", len(self.processes), 9, 8)
        return replace(
            found,
            facts={**(before.facts if before else {}), **found.facts}
            if self._calm or self._often(0.5)
            else found.facts,
            groups=(group,) if self._calm or self._often(0.3) else (),
            answers=1 if self._calm else found.answers,
            step_source=self.dice.choice(wire.STEP_SOURCES),
            **self._grown(before, found, _SNAP_COUNTS),
            steps=self._progress(before.steps if before else None),
            batches=self._progress(before.batches if before else None),
            waits=self._more(before.waits if before else {}, PHASES) if self._often(0.8) else None,
            flops=self._flops(before.flops if before else {}),
            loader=self._loader(before.loader if before else None),
        )

    def _flops(self, before: Mapping[str, float] | None) -> dict[str, float]:
        if self._calm:
            return {"counted": (before or {}).get("counted", 0.0) + self.dice.choice((1e14, 3e14))}
        return self._more(before, wire.FLOP_SOURCES)

    def _grown(self, before: Any, found: Any, names: Sequence[str]) -> dict[str, Any]:
        grown = {}
        for name in names:
            known, more = (getattr(each, name, None) for each in (before, found))
            grown[name] = more if known is None else known + (more or 0)
        return grown

    def _more(self, before: Mapping[str, float] | None, names: Sequence[str]) -> dict[str, float]:
        seconds = {name: self.dice.choice((0.0, 0.5, 2.0)) for name in names if self._often(0.3)}
        return {name: (before or {}).get(name, 0.0) + seconds.get(name, 0.0) for name in {**(before or {}), **seconds}}

    def _progress(self, before: wire.Progress | None) -> wire.Progress | None:
        if before is None and self._often(0.3):
            return None
        before = before or wire.Progress(log2=(0,) * wire.LOG2_BUCKETS)
        count, each = self.dice.choice((8,) if self._calm else (0, 1, 8, 50)), self.dice.choice((0.02, 0.1, 0.6))
        log2 = list(before.log2)
        log2[wire.log2_bucket(round(each * 1e9))] += count
        last = START + self.now - self.dice.choice((0.0, 1.0)) if count else before.last
        return wire.Progress(before.count + count, before.seconds + each * count, last, tuple(log2))

    def _torch_devices(self, before: Sequence[wire.Device]) -> tuple[wire.Device, ...]:
        earlier = {device.uuid: device for device in before}
        found = []
        for index, uuid in enumerate(self.uuids):
            if self._calm or self._often(0.7):
                known = self._calm or self._often(0.95)
                device = self.of(wire.Device, index=index, uuid=uuid if known else None, name="NVIDIA H100 80GB HBM3")
                kept, more = earlier.get(uuid), dict[str, Any]()
                if self._calm:  # it leaks
                    more = {
                        "step_allocated": GIB + int(self.now) * 2_000_000,
                        "allocated_peak": 2 * GIB,
                        "allocated": GIB,
                    }
                found.append(replace(device, **self._grown(kept, device, _DEVICE_COUNTS), **more))
        return tuple(found)

    def _loader(self, before: wire.Loader | None) -> wire.Loader | None:
        if before is None and self._often(0.4):
            return None
        found = self.of(wire.Loader)
        return replace(found, **self._grown(before, found, _LOADER_COUNTS))

    def _record(self, session: Session) -> SharedRecord | None:
        record, snap = session.record, session.snap
        if record is None:
            return None
        others = ("training",) if self._calm else ("training", "training", *PHASES)
        phase = record.phase if self._often(0.6) else self.dice.choice(others)
        seconds = dict(record.seconds)
        seconds[record.phase] = seconds.get(record.phase, 0.0) + STEP
        steps, batches = (getattr(snap, name, None) for name in ("steps", "batches"))
        more = self.dice.choice((0, 0, 3))
        return SharedRecord(
            phase,
            record.since if phase == record.phase else START + self.now,
            max(record.steps, steps.count if steps else 0) + more,
            max(record.batches, batches.count if batches else 0) + more,
            seconds,
            START + self.now - 0.5 if more else record.last_step,
            max(record.samples, (snap and snap.samples) or 0) + more,
            max(record.tokens, (snap and snap.tokens) or 0) + 7 * more,
            self._more(record.waits, PHASES) if self._often(0.5) else record.waits,
            thread=5,
        )

    def _inquiry(self, session: Session) -> Inquiry | None:
        if session.snap is None or session.snap.answers is None or (self._often(0.6) and not self._hangs):
            return None
        position, now = self.dice.choice((None, WAITING, ELSEWHERE, SILENT)), START + self.now
        if self._hangs:
            position = {4000: ELSEWHERE, 4001: SILENT}.get(session.peer_pid, WAITING)
        answer = (
            None
            if position == SILENT
            else self.of(wire.Answer, session=session.hello.session, groups=session.snap.groups)
        )
        answered = now - 2 if answer else None
        since = {"0": now - 20} if answer else {}
        waiting = now - 15 if position == WAITING else None
        stopped = position == SILENT and (self._hangs or self._often(0.5))
        return Inquiry(now - 30, now - 12, answer, answered, since, position, stopped, waiting)

    def _end(self, session: Session) -> Session:
        status = self.dice.choice((None, 0, 256, 2, 9, 11, 45))
        reason = self.dice.choice(("", *SESSION_END_REASONS))
        return session._replace(ended_at=START + self.now, end_reason=reason, end_status=status, inquiry=None)

    @property
    def _dark(self) -> bool:
        """Whether the driver of all GPUs is down, from the begin of some lives on."""
        return self._calm != self._judges and (self.now < 20 * STEP or 190 < self.now < 230)

    @property
    def _hangs(self) -> bool:
        return self._calm and self.now > 0.8 * TICKS * STEP

    def _live(self) -> None:
        """Let the trainings go on: begin, report, be replaced by another program, end."""
        for process in self.processes:
            session = self._sessions.get(process)
            if session is None:
                if process not in self._mute and self._often(0.3):
                    self._sessions[process] = self._begin(process)
                continue
            if not session.connected:
                if self._often(0.1):
                    self._ended.append(session)
                    self._sessions[process] = self._begin(process)
                continue
            if not self._hangs and (self._calm or self._often(0.7)):
                session = session._replace(snap=self._snap(session))
            session = session if self._hangs else session._replace(record=self._record(session))
            spent = [self.dice.choice((0.5, 1.0, 2.0)) for _ in range(3)]
            thread = session.thread.get("training", ThreadTime()).plus(spent)
            session = session._replace(thread={**session.thread, "training": thread} if self._often(0.8) else {})
            session = session._replace(inquiry=self._inquiry(session))
            self._sessions[process] = self._end(session) if self._often(0.01 if self._calm else 0.04) else session
        self._ended = self._ended[-4:]
        self._view = (*self._ended, *self._sessions.values())
        if self._often(0.1):
            self._counters = self.of(Counters, replaced_at=START + self.now - self.dice.choice((5, 900)))

    def _host(self, process: str) -> HostProcess:
        seconds = int(self.now)
        size = GIB + seconds * 1_000_000 if self._calm else self.dice.choice((1, 2)) * GIB + seconds
        more: dict[str, Any] = {"hook": True} if process in self._mute else {}
        more = {"hook": False, "torch": "cuda"} if self._bare else more
        found = self.of(
            HostProcess,
            **more,
            process=process,
            pid=self._pids[process],
            workload=self._owners[process],
            bounds=self.of(Bounds, cpu_list=self.dice.choice(("", "0-7"))),
            anonymous={"process": size, "children": GIB},
            folders=(None, None),
        )
        cgroup = self.of(Cgroup, at=self.now, throttled=self.now * 0.4, pressure={"io": self.now * 0.2})
        found.cgroup = cgroup._replace(memory=size, memory_limit=4 * GIB) if self._calm else cgroup
        return found

    def _fill(self, node: Node) -> None:
        """Set the parts of the collectors that are not run here."""
        dice = self.dice
        for uuid, (busy, observed) in self._loads.items():
            self._loads[uuid] = (
                busy + STEP * dice.choice((0.0, 0.1, 0.2) if self._bare else (0.0, 0.3, 0.9, 1.0, 1.02)),
                observed + STEP,
            )
            if self._often(0.2):
                self._devices[uuid] = self._device(self.uuids.index(uuid), uuid)
        node.devices = tuple(self._devices.values())
        up = [device.uuid for device in node.devices if device.up]
        node.loads = {uuid: Load(*self._loads[uuid]) for uuid in up if self._often(0.95)}
        node.utilization = {uuid: dice.choice((0.0, 0.42, 1.0)) for uuid in up}
        node.profiled = {uuid: Profiled(*(self.now * dice.choice((0.2, 1.0)) for _ in range(5))) for uuid in up}
        node.hidden = {uuid: dice.choice((0, 0, 2)) for uuid in up}
        if self._often(0.1) and self.uuids:
            code = dice.choice(_XIDS)
            kept = {code: START + self.now} if self._often(0.5) else {}
            self._xids = Xids({**self._xids.last, code: START + self.now}, {**self._xids.unrepaired, **kept})
        node.xids = dict.fromkeys(self.uuids[:1], self._xids)
        uses: dict[tuple[str, str], Use] = {}
        for process in self.processes:
            for uuid in up:
                if (hash_of(process, uuid, int(self.now) // 60) % 3) == 0:
                    if self._often(0.02):
                        self._busy[process, uuid] = 0.0  # the driver was loaded again
                    self._busy[process, uuid] = self._busy.get((process, uuid), 0.0) + STEP * dice.choice(
                        (0.0, 0.4, 0.9)
                    )
                    memory = dice.choice((None, GIB, 20 * GIB))
                    uses[process, uuid] = Use(memory, self._busy[process, uuid] if self._often(0.9) else None)
        node.uses = uses
        used = dict.fromkeys(process for process, _ in uses)
        migs = [mig.uuid for each in node.devices for mig in each.reading.mig_instances or ()]
        kinds = ("compute", "compute", "compute", "graphics", "mps")
        node.identities = {p: Identity(self._pids[p], kinds[hash_of(p) % 5], self._owners[p], START - 30) for p in used}
        there = (p for p in self.processes if self._calm or p in self._mute or self._often(0.8))
        node.hosts = {process: self._host(process) for process in there}
        node.assignments = {
            uuid: self.of(Assignment, workloads=tuple(self.of(Workload) for _ in range(dice.randint(0, 2))))
            for uuid in (*self.uuids, *migs)
            if self._often(0.3)
        }
        node.on_mig = [(process, uuid) for process in used for uuid in migs if self._often(0.5)]
        node.unaccounted = {uuid: dice.choice((None, 0.0, self.now * 0.1)) for uuid in up}
        node.build = ("9.9", self._often(0.3))
        reason = dice.choice(("unknown", "library_not_found", *sorted(WITHOUT_GPU)))
        until = START + self.now + 60 if self._often(0.6) else None
        if self._dark:
            reading = DeviceReading(pci_bus_id="0:0:0.0")
            node.devices = tuple(Device(u, False, DRIVER_DOWN, replace(reading, uuid=u), {}) for u in self.uuids)
            node.driver, node.xids = DriverView(False, dice.choice(("unknown", *sorted(WITHOUT_GPU)))), {}
            return
        node.driver = DriverView(True, "ok") if self._often(0.95) else DriverView(False, reason, released_until=until)

    def tick(self) -> None:
        """Let five seconds pass."""
        self.now += STEP + self.dice.choice(_EARLY_OR_LATE)
        self._live()
        node = self.node = Node(START + self.now, self.now)
        self._fill(node)
        tick = Tick(START + self.now, self.now, DriverView(True, "ok", devices=node.devices), node=node)
        sections: list[Section] = [each.collect(tick) for each in (self._training, self._memory, self._verdict)]
        if not self._judges:
            self._judged = {p: self._drawn(p) for p in {**node.sessions, **node.hosts}}
            node.judged = self._judged
            node.memory = self._memories = self._memories or {p: self._of_memory() for p in node.judged}
            if self._often(0.2):
                self._memories = {}
        for device in node.devices:
            if device.up and self._often(0.3):
                at = self.dice.choice((None, START - 90.0)), self._often(0.5)
                found_now = ailments(self.of(GpuHealth))
                self._faults[device.uuid] = tuple(each._replace(since=at[0], earlier=at[1]) for each in found_now)
        found = {uuid: each for uuid, each in self._faults.items() if self._devices[uuid].up}
        error = self.dice.choice(("", "no\n  answer"))
        health = {"device": Health(self._often(0.9), 0.1, START, 0, error)}
        self.snapshot = Snapshot(
            START + self.now, self.now, (*sections, faults.Judged("faults", (), found)), health, node
        )
        self.history.feed(self.snapshot)

    def _of_memory(self) -> Memory:
        """Return drawn memory; when it is full is known of what grows only."""
        found = self.of(Memory)
        devices = {u: each if each.growth else each._replace(full_seconds=None) for u, each in found.devices.items()}
        full = found.full_seconds if "cgroup" in found.growth else None
        return found._replace(devices=devices, full_seconds=full)

    def _drawn(self, process: str) -> Judged:
        before = self._judged.get(process)
        if before and self._often(0.7):
            return before
        gains = {cause: Gain(1.5, 1.2, 1.9, "gpu") for cause in CAUSES if self._often(0.2)}
        return self.of(Judged, verdict=self.of(Verdict), gains=gains)

    def shown(self) -> Iterator[tuple[str, str]]:
        """Yield what metrics, status and views show: the name of each metric, field or view, and its content."""
        for section in self.snapshot.sections:
            for family in section.families:
                yield from ((family.metric.name, f"{labels} {_shown(value)}") for labels, value in family.samples)
        status = replace(build(self.snapshot, self.history, lambda: self._often(0.5)), host="node")
        yield from ((_INDEX.sub("", name), f"{name} {value}") for name, value in _leaves("status", as_json(status)))
        yield "gpugauge status", table(status, True, status.timestamp, 120)
        yield from (("page", part) for part in content(status, None, NO_LINKS))
        yield "gpugauge top", "\n".join(f"{gpu_details(gpu)}" for gpu in status.gpus)
        for process in processes(status):
            lines = process_screen(process, status.timestamp, 120, colour=True)
            yield "gpugauge top, a process", "\n".join(lines)


def hash_of(*parts: object) -> int:
    """Return a number that depends on the parts alone."""
    return random.Random(repr(parts)).getrandbits(32)


def _shown(value: Any) -> str:
    if isinstance(value, HistogramValue):
        return f"{' '.join(map(str, value.counts))} {_shown(value[1])}"
    return f"{value:.{_SHOWN_DIGITS}g}" if isinstance(value, float) else str(value)


def _leaves(name: str, value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        for key, each in value.items():
            yield from _leaves(f"{name}.{key}", each)
    elif isinstance(value, (list, tuple)) and value and isinstance(value[0], (Mapping, list, tuple)):
        for number, each in enumerate(value):
            yield from _leaves(f"{name}[{number}]", each)
    elif value not in (None, "", (), [], False):
        yield name, _shown(value)


def _shown_of(seed: int) -> Iterator[tuple[str, str]]:
    life = Life(seed)
    for number in range(1, TICKS + 1):
        life.tick()
        if number % _EVERY == 0:
            yield from ((name, f"{number} {text}") for name, text in life.shown())


RECORD = Record("drawn_lives", _shown_of, 14)
