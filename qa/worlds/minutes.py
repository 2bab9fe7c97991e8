"""A minute of a training as the daemon records it: a node for each verdict, with all that is measured of the training.

The counters rise evenly in each stretch of the minute. Evidence and verdict are those of the daemon's own functions.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

from gpugauge.driver.api import Device, DeviceReading
from gpugauge.node.node import Identity, Load, Node, Profiled, Use
from gpugauge.node.window import Window
from gpugauge.sessions.session import Session, ThreadTime
from gpugauge.simulator.device.pipeline import observe
from gpugauge.simulator.host.trainings import loader
from gpugauge.verdict.evidence import Evidence
from gpugauge.verdict.facts import Progress
from gpugauge.verdict.facts import evidence as evidence_of
from gpugauge.wire import messages as wire
from gpugauge.wire.record import SharedRecord
from gpugauge.workload.identity import Workload
from gpugauge.workload.processfiles import Cgroup, HostProcess
from gpugauge.workload.procfs import Stat
from qa.worlds.oracle import WINDOW, evidence
from qa.worlds.trainings import Training

EVERY = 5.0  # seconds between two verdicts
_JITTER = (-0.12, -0.06, 0.0, 0.06, 0.12)  # of the duration of a step
_SCANNED = 10.0  # … and between two readings of the cgroup
_PROCESS, _OTHER, _UUID = "p", "other", "GPU-0"
_UNIX, _BEFORE = 1.7e9, 3600.0  # seconds of training before the minute
_LINK, _PAGEABLE = 63e9, 10e9  # bytes per second of the link, and of copies of memory that is not pinned
_LIMIT, _CLOCK = 700_000, 1980  # milliwatts, MHz
_CAPPED = 0.7  # a lowered power limit, as a share of the default
_SUPPORTED = (
    *("gpu_idle", "applications_clocks_setting", "sw_power_cap", "hw_slowdown", "sync_boost", "sw_thermal_slowdown"),
    *("hw_thermal_slowdown", "hw_power_brake_slowdown", "display_clock_setting"),
)
_STAT = Stat("S", 1, 0, 0.0, 0.0, 1, 1, 0, 1, 1, terminal=False)


@dataclass(frozen=True, slots=True)
class Stretch:
    """A part of the minute: steps of a training, or a pause with the GPU `busy` for a share of it."""

    seconds: float
    training: Training | None = None
    phase: str = "training"
    busy: float = 0.0
    waits: float = 0.0  # share of a pause in which it waits for its batches


@dataclass(frozen=True, slots=True)
class View:
    """How a minute is seen. `missing` are kinds of evidence, `noise` factors of measured shares by name, `fills` is the
    share of the gaps between kernels that the counter of the driver counts as busy, `attribution` what is added to the
    busy time of the process while others are busy, `lag` how many seconds the counters of the GPU are behind.

    With `overlaps`, the kernels of the other processes run beside those of the training (MPS), otherwise between them.
    """

    missing: frozenset[str] = frozenset()
    noise: Mapping[str, float] = field(default_factory=dict)
    fills: float = 0.0
    attribution: float = 0.0
    lag: float = 0.2
    overlaps: bool = False
    pageable: float = 1.0  # factor of the time of copies at the assumed speed
    unhidden_wait: float | None = None  # share of waits for batches in which the GPU works, where there are no others


Rates = dict[str, float]


def minute(stretches: Sequence[Stretch], view: View) -> Evidence:
    """Return the evidence at the end of the minute."""
    seen = _Seen(stretches, view)
    window = Window(WINDOW)
    times = [EVERY * i for i in range(round(WINDOW / EVERY) + 1)]
    for at in times:
        window.add(seen.node(at))
    last = next(s.training for s in reversed(stretches) if s.training)
    progress = Progress(1.0, times[-1] - min(last.built.step, 60.0))
    return evidence_of(window, _PROCESS, times[-1], _UNIX + times[-1], progress)


class _Seen:
    """The totals of all counters at a time, and nodes made of them."""

    def __init__(self, stretches: Sequence[Stretch], view: View) -> None:
        self._stretches, self._view = stretches, view
        known: dict[Training, Rates] = {}
        self._rates: list[Rates] = []
        for stretch in stretches:
            if stretch.training is None:
                rates = self._paused(stretch)
            elif stretch.training in known:
                rates = known[stretch.training]
            else:
                rates = known[stretch.training] = self._training(stretch.training)
            self._rates.append(rates)
        self._starts = stretches[0].phase == "starting"
        names = {name: 0.0 if self._starts else _BEFORE * rate for name, rate in self._rates[0].items()}
        self._begins, self._totals = [0.0], [names]
        for stretch, rates in zip(stretches, self._rates, strict=True):
            before = self._totals[-1]
            self._totals.append({name: total + stretch.seconds * rates[name] for name, total in before.items()})
            self._begins.append(self._begins[-1] + stretch.seconds)
        self._last = next(s.training for s in reversed(stretches) if s.training)
        self._facts = _facts(self._last, view)
        # A power limit is a setting: it does not come and go with what the training does.
        self._capped = any(s.training.pipeline.throttle == "power_cap" for s in stretches if s.training)

    def _noisy(self, name: str, share: float) -> float:
        return min(1.0, share * self._view.noise.get(name, 1.0))

    def _training(self, training: Training) -> Rates:
        p, view = training.built, self._view
        e, o = evidence(p), observe(p)
        d = e.devices[0]
        own, busy, other = d.own_busy or 0.0, d.busy or 0.0, p.other
        if other and view.overlaps:
            own = min(1.0, own / (1.0 - other))
            busy = 1.0 - (1.0 - own) * (1.0 - other)
            # Each sample of the driver is attributed to one of the processes that compute.
            own *= busy / (own + other)
        busy = self._noisy("busy", busy + view.fills * (1.0 - busy))
        own = min(busy, max(0.0, self._noisy("own_busy", own) + view.attribution)) if other else busy
        wait, exposed = e.data_wait or 0.0, e.data_wait_exposed or 0.0
        if not wait and view.unhidden_wait:
            wait = view.unhidden_wait * max(0.0, 1.0 - p.host_seconds / p.step)
        copied = d.transfer or 0.0
        if not p.pinned:
            copied = min(1.0, copied * view.pageable)
        # Of the work of the thread, a part is withheld by the cgroup, and a part sleeps until its pages are read.
        cpu = training.pipeline.host + training.offloaded
        withheld = cpu * p.slowed * (1.0 - p.paging) - cpu
        slept = training.asleep + cpu * p.slowed * p.paging
        works = max(cpu * p.slowed + (0.0 if p.workers else p.load_seconds), p.loader_interval) / o.step
        first, last = loader(p, 1000, 1000), loader(p, 2000, 2000)
        loads = view.noise.get("loading", 1.0) / 1000 / o.step
        assert first
        assert last
        return {
            "busy": busy,
            "own": own,
            "other": busy - own,
            "sm": self._noisy("sm_active", d.sm_active or 0.0),
            "tensor": self._noisy("tensor_active", d.tensor_active or 0.0),
            "received": self._noisy("transfer", copied) * (_LINK if p.pinned else _PAGEABLE),
            "wait": self._noisy("data_wait", wait),
            "exposed": self._noisy("data_wait_exposed", exposed),
            "evaluation": 0.0,
            "stepping": 1.0,
            "local": self._noisy("local_work", p.own_step / o.step),
            "throttled": self._noisy("cpu_throttled", (1.0 - p.cpu_quota) * min(1.0, works)),
            "pressure": self._noisy("memory_pressure", p.paging * min(1.0, works)),
            "retries": o.retries,
            "calls": o.device_calls,
            "steps": 1.0 / o.step,
            "runnable": self._noisy("asleep", min(1.0, withheld / o.step)),
            "asleep": self._noisy("asleep", min(1.0, slept / o.step)),
            "loading": ((last.cpu_seconds or 0.0) - (first.cpu_seconds or 0.0)) * loads,
            "queued": ((last.queued_seconds or 0.0) - (first.queued_seconds or 0.0)) * loads,
            "storage": ((last.storage_seconds or 0.0) - (first.storage_seconds or 0.0)) * loads,
            "power": self._noisy("power", d.power or 0.0),
            "clock": self._noisy("clock", p.clock),
        }

    def _paused(self, stretch: Stretch) -> Rates:
        reference = next(s.training for s in self._stretches if s.training)
        p = reference.pipeline
        busy = min(1.0, stretch.busy + p.other)
        return {
            "busy": busy,
            "own": stretch.busy,
            "other": busy - stretch.busy,
            "sm": busy * min(0.9, p.fill),
            "tensor": busy * p.tensor * p.fill,
            "received": 0.02 * _LINK * stretch.busy,
            "wait": 0.0,
            "exposed": 0.0,
            "evaluation": stretch.waits,
            "stepping": 0.0 if stretch.phase == "starting" else 1.0,
            "local": 0.0 if stretch.phase == "starting" else 1.0,
            "throttled": 0.0,
            "pressure": 0.0,
            "retries": 0.0,
            "calls": 0.0,
            "steps": 0.0,
            "runnable": 0.0,
            "asleep": 0.0,
            "loading": 0.0,
            "queued": 0.0,
            "storage": 0.0,
            "power": 0.12 + 0.8 * busy * p.fill,
            "clock": 1.0,
        }

    def _at(self, second: float) -> tuple[int, Rates]:
        """Return the stretch at a second, and the totals until then."""
        found = min(max(0, bisect_right(self._begins, second) - 1), len(self._stretches) - 1)
        since, rates = second - self._begins[found], self._rates[found]
        return found, {name: total + since * rates[name] for name, total in self._totals[found].items()}

    def _hooked(self, second: float) -> Rates:
        """Return the totals of the hook: waits and steps count when they have ended, those of several workers that
        cannot keep up with the last one of their batches.
        """
        found, counted = self._at(second)
        training = self._stretches[found].training
        if training is None:
            return counted
        every = _burst(training) * observe(training.built).step
        begin = self._begins[found]
        _, ended = self._at(begin + every * ((second - begin) // every))
        return counted | {name: ended[name] for name in ("wait", "exposed", "stepping", "local")}

    def node(self, second: float) -> Node:
        """Return the node of a second."""
        view = self._view
        index, _ = self._at(second)
        _, on_gpu = self._at(second - view.lag)
        busy = None if "busy" in view.missing else on_gpu["busy"]
        profiled = Profiled(_BEFORE + second - view.lag, on_gpu["sm"], on_gpu["tensor"], 0.0, on_gpu["received"])
        listed = ("mps" if view.overlaps else "compute", Workload(), _UNIX - _BEFORE)
        uses = {(_PROCESS, _UUID): Use(20 << 30, None if "own_busy" in view.missing else on_gpu["own"])}
        if any(stretch.training and stretch.training.pipeline.other for stretch in self._stretches):
            uses[_OTHER, _UUID] = Use(2 << 30, None if "own_busy" in view.missing else on_gpu["other"])
        scanned = _SCANNED * (second // _SCANNED)
        _, then = self._at(scanned)
        throttled = None if "throttled" in view.missing else then["throttled"]
        pressure = {} if "pressure" in view.missing else {"memory": then["pressure"]}
        cgroup = Cgroup(None, throttled, pressure, at=scanned)
        return Node(
            _UNIX + second,
            second,
            (Device(_UUID, True, "ok", self._reading(index, second), {}),),
            {} if busy is None else {_UUID: Load(busy, _BEFORE + second - view.lag)},
            profiled={} if "gpm" in view.missing else {_UUID: profiled},
            uses=uses,
            identities={process: Identity(7, *listed) for process, _ in uses},
            hosts={_PROCESS: HostProcess(_PROCESS, 7, _STAT, "cuda", cgroup=cgroup)},
            sessions={_PROCESS: self._session(index, second, self._hooked(second))},
        )

    def _reading(self, index: int, second: float) -> DeviceReading:
        rates, training = self._rates[index], self._stretches[index].training
        reasons, limit = tuple[str, ...](), _LIMIT
        if self._capped:
            limit = round(_LIMIT * _CAPPED)
        if training and training.pipeline.clock < 1.0:
            thermal = training.pipeline.throttle == "thermal"
            reasons = ("sw_thermal_slowdown" if thermal else "sw_power_cap",)
        return _reading(
            None if "power" in self._view.missing else round(rates["power"] * limit),
            limit,
            None if "clocks" in self._view.missing else round(min(1.0, rates["clock"]) * _CLOCK),
            None if "clocks" in self._view.missing else reasons,
        )

    def _session(self, index: int, second: float, counted: Rates) -> Session:
        missing, phase = self._view.missing, self._stretches[index].phase
        steps, dtype = int(counted["steps"] + 1e-6), "torch.bfloat16"
        if self._last.pipeline.precision_unused:
            dtype = "torch.float32"
        waits = {"training": counted["wait"], "evaluating": counted["evaluation"]}
        calls = int(counted["calls"] + 0.5)
        loading = wire.Loader(
            steps,
            steps,
            counted["loading"],
            0.0,
            counted["queued"],
            counted["storage"],
            0.0,
        )
        snap = wire.Snap(
            "s",
            1,
            steps=wire.Progress(steps, counted["stepping"], _UNIX + second, self._durations(second)),
            batches=None if "waits" in missing else wire.Progress(steps + 1, sum(waits.values())),
            parameters=(wire.Parameters("cpu" if self._last.offloaded else "cuda:0", dtype, 148, 1 << 28, 1 << 30),),
            devices=(
                wire.Device(
                    0,
                    _UUID,
                    allocated=20 << 30,
                    retries=int(counted["retries"] + 0.5),
                    ooms=0,
                    device_allocs=100 + calls,
                    device_frees=calls,
                ),
            ),
            exposed_wait_seconds=None if missing & {"waits", "exposed"} else counted["exposed"],
            local_work_seconds=None if "local_work" in missing else counted["local"],
            waits=None if "waits" in missing else waits,
            loader=None if "waits" in missing else loading,
        )
        seconds = self._phases(second)
        waited = 0.0 if "waits" in missing else sum(waits.values())
        for owner, spent in (("training", waits["training"]), ("evaluating", waits["evaluating"])):
            if waited:
                seconds[owner] = max(0.0, seconds.get(owner, 0.0) - spent)
        seconds["loading"] = waited
        record = SharedRecord(phase, _UNIX + self._begins[index], steps, steps + 1, seconds)
        spent = seconds.get("training", 0.0)
        asleep, runnable = counted["asleep"], counted["runnable"]
        thread = {"training": ThreadTime(max(0.0, spent - asleep - runnable), runnable, asleep)}
        if "asleep" in missing:
            thread = {}
        hello = wire.Hello("s", 0, 7, started=_UNIX - _BEFORE, facts=self._facts)
        return Session(hello, 7, 1000, snap, record=record, thread=thread)

    def _durations(self, second: float) -> tuple[int, ...]:
        """Return the steps since the begin of the minute by their durations."""
        counts = [0.0] * wire.LOG2_BUCKETS
        for stretch, begin in zip(self._stretches, self._begins, strict=False):
            if stretch.training and begin < second:
                steps = min(stretch.seconds, second - begin) / observe(stretch.training.built).step
                for duration, share in _steps(stretch.training):
                    counts[wire.log2_bucket(round(duration * 1e9))] += steps * share
        return tuple(int(count + 0.5) for count in counts)

    def _phases(self, second: float) -> dict[str, float]:
        seconds = {} if self._starts else {"training": _BEFORE, "evaluating": 0.0}
        for stretch, begin in zip(self._stretches, self._begins, strict=False):
            if begin < second:
                spent = min(stretch.seconds, second - begin)
                seconds[stretch.phase] = seconds.get(stretch.phase, 0.0) + spent
        return seconds


@lru_cache(maxsize=64)
def _burst(training: Training) -> int:
    """Return the number of batches that come together: those of workers that cannot keep up."""
    p = training.built
    return p.workers if p.workers > 1 and observe(p).step > 1.05 * replace(p, load=0.0).step else 1


@lru_cache(maxsize=64)
def _steps(training: Training) -> list[tuple[float, float]]:
    """Return durations of steps, with the share of the steps that have them. The batches of several workers that cannot
    keep up come together.
    """
    p = training.built
    step, alone, workers = observe(p).step, replace(p, load=0.0).step, _burst(training)
    means = (
        [(alone, 1.0 - 1.0 / workers), (alone + workers * (step - alone), 1.0 / workers)]
        if workers > 1
        else [(step, 1.0)]
    )
    return [(mean * (1.0 + jitter), share / len(_JITTER)) for mean, share in means for jitter in _JITTER]


def _facts(training: Training, view: View) -> dict[str, str]:
    p = training.pipeline
    facts = {
        "command": "train.py",
        "build": "cuda",
        "visible_devices": "1",
        "world_size": str(p.world_size),
        "tf32_matmul": "no" if p.precision_unused else "yes",
        "autocast": "no",
    }
    if "waits" not in view.missing:
        facts |= {"loader_workers": str(p.workers), "loader_pin_memory": "yes" if p.pinned else "no"}
    return facts


@lru_cache(maxsize=4096)
def _reading(power: int | None, limit: int, clock: int | None, reasons: tuple[str, ...] | None) -> DeviceReading:
    return DeviceReading(
        0,
        _UUID,
        "NVIDIA H100 80GB HBM3",
        power_limit_default_milliwatts=_LIMIT,
        clock_sm_max_mhz=_CLOCK,
        clocks_event_reasons_supported=None if reasons is None else _SUPPORTED,
        power_milliwatts=power,
        power_limit_milliwatts=limit,
        clock_sm_mhz=clock,
        clocks_event_reasons=reasons,
        pcie_generation=5,
        pcie_width=16,
    )
