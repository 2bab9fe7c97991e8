"""Evidence about a process, computed from a window."""

from __future__ import annotations

import math
import operator
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from gpugauge.base.text import whole
from gpugauge.driver.vendors import VENDORS
from gpugauge.node import training
from gpugauge.node.node import Node
from gpugauge.node.window import Point, Track, Window, risen
from gpugauge.sessions.session import Session
from gpugauge.verdict.cuda_arch import arch_supported
from gpugauge.verdict.devices import device, devices_of, held_parts, most, ratio, spread, used_gpu
from gpugauge.verdict.evidence import LIMITING_WAIT, DeviceEvidence, Evidence, used
from gpugauge.verdict.loader_facts import PARTS as LOADING
from gpugauge.verdict.loader_facts import rise
from gpugauge.verdict.shares import (
    copying,
    queued_loading,
    recent_seconds,
    seconds_in_window,
    since_reported,
    waited_for_training,
)
from gpugauge.verdict.states import MIN_EVIDENCE_SECONDS
from gpugauge.wire import messages as wire
from gpugauge.wire.shares import NAMED_PHASES, OPEN_SECONDS
from gpugauge.workload.processfiles import Cgroup

# Programs that run interactive commands, by sys.argv[0]; a plain prompt has an empty one.
_INTERACTIVE = ("", "ipykernel_launcher.py", "colab_kernel_launcher.py", "ipython", "ipython3")
# Phases of programs that do not train, too, or not yet: a resumed training saves, a server generates.
_BEFORE_TRAINING = frozenset({"starting", "loading", "checkpointing", "compiling", "generating"})
_EVEN = 1.2  # factor between a step and the mean up to which it is near
_ALL_OF_QUOTA = 0.9  # share of it: what child processes use is seen late
_LEAST_BURSTS = 5  # of an interval: what the hook adds up rises with them
_LEAST_INTERVALS = 3
_PINNED = {"yes": True, "no": False}
_LEAST_STEPS = 10  # of which the distribution is judged
_SHORT_PAUSE = 0.02  # share of an interval between two ticks; with a shorter pause it is one of the training


@dataclass(frozen=True, slots=True)
class Progress:
    """The number of steps and batches, and the monotonic time of its last change."""

    count: float
    at: float


def processes(node: Node) -> set[str]:
    """Return the processes to judge: those that have not ended, and report or have loaded torch and use a GPU."""
    reporting = {process for process, session in node.sessions.items() if session.connected}
    return reporting | {process for process in node.holders - node.sessions.keys() if _torch(node, process)}


def evidence(window: Window, process: str, now: float, unix: float, progress: Progress | None) -> Evidence:
    """Return the evidence about a process at the monotonic time `now` and Unix time `unix`. Without the hook it
    consists of the age of the process and the load of its GPUs.
    """
    node, full_window = window.node, window
    session = node.sessions.get(process)
    # The load of the GPUs before the training started does not count.
    window = since_reported(window, process) if session else window.where(lambda point: process in point.holders)
    started = session.hello.started if session else None
    if started is None:
        started = node.identities[process].started if process in node.identities else None
    age = None if started is None else unix - started
    if session is None:
        parts = {uuid: held_parts(full_window, uuid).get(process, 1.0) for uuid in devices_of(node, process)}
        working, unused, held = used([device(window, uuid)._replace(part=part) for uuid, part in parts.items()])
        return Evidence(window.span, age, devices=working, unused_devices=unused, held=held)
    facts = session.facts
    pinned = _PINNED.get(facts.get("loader_pin_memory", ""))
    steps_ever, batches_ever = training.steps(session), training.batches(session)
    # Where steps and batches are unknown, `starting` is a part of the training loop.
    pauses = NAMED_PHASES | ({"starting"} if steps_ever is not None or batches_ever is not None else set())
    full, paused = window, _share(window, process, NAMED_PHASES)
    if _share(window, process, pauses) >= _SHORT_PAUSE:
        window = _without_pauses(window, process, pauses)
    mixed = _share(window, process, pauses)
    trained = round(window.span * (1.0 - mixed), 1)
    if trained < MIN_EVIDENCE_SECONDS:
        mixed = 0.0  # no cause is reported
    uuids = devices_of(node, process)
    measured = _measured(window, process, uuids, mixed)
    every = [
        device._replace(part=held_parts(full_window, uuid).get(process, 1.0))
        for uuid, device in zip(uuids, measured["devices"], strict=True)
    ]
    working, unused, held = used(every)
    since, phase = (session.record.since, session.record.phase) if session.record else (None, None)
    workers = whole(facts.get("loader_workers"))
    burst = max(1, workers or 0)
    intervals = () if mixed or training.open_wait(session) >= OPEN_SECONDS else _intervals(window, process, burst)
    found = Evidence(
        trained,
        age,
        inside=True,
        interactive=facts.get("command", "") in _INTERACTIVE,
        phase=phase,
        phase_age=None if since is None else unix - since,
        recent=recent_seconds(full, process, phase),
        worked=_worked(session),
        steps=None if steps_ever is None else full.session(process).rise(training.steps) or 0.0,
        steps_ever=steps_ever,
        pace=0.0 if mixed else _pace(window, process, burst),
        swing=_swing(window, process, intervals, burst),
        uneven=_uneven(window, process, workers or 0),
        batches=None if batches_ever is None else full.session(process).rise(training.batches) or 0.0,
        batches_ever=batches_ever,
        since_progress=now - progress.at if progress else None,
        slow_step=_slow_step(session),
        pinned=pinned,
        loader_workers=workers,
        paused=paused,
        mixed=mixed,
        world_size=whole(facts.get("world_size")),
        parameters=_parameters(session),
        torch_devices=bool(training.visible(session)),
        build=facts.get("build", "") or _torch(node, process) or None,
        visible_devices=_visible_devices(facts),
        driver_too_old=_driver_too_old(facts),
        arch_supported=_arch_supported(node, session),
        fp32_only=_fp32_only(session),
        **measured | {"devices": working},
        unused_devices=unused,
        held=held,
        host_has_gpu=any(device.trains for device in node.shown()),
    )
    if not found.varies:
        return found
    kept = [uuid for uuid, device in zip(uuids, every, strict=True) if device in working]
    return found._replace(intervals=tuple(_interval(found, process, kept, *part) for part in intervals))


def _measured(window: Window, process: str, uuids: Sequence[str], mixed: float = 0.0) -> dict[str, Any]:
    """Return the evidence that a part of the window has: shares, counts, and the GPUs, all as of the training."""
    session, of_training = window.node.sessions[process], partial(_of_part, 1.0 - mixed)
    pinned = _PINNED.get(session.facts.get("loader_pin_memory", ""))
    devices = [used_gpu(window, uuid, process, pinned) for uuid in uuids]
    track, cgroup = window.session(process), window.cgroup(process)
    step_seconds, local = track.rise(training.step_seconds), track.rise(training.local_work)
    if (hung := min(window.span, training.open_wait(session))) >= OPEN_SECONDS:
        step_seconds, local = (step_seconds or 0.0) + hung, local if step_seconds else 0.0
    peers = 1.0 - min(1.0, local / step_seconds) if local is not None and step_seconds else None
    loading = {part: rise(track, seconds) for part, seconds in LOADING.items()}
    loaded = sum(seconds or 0.0 for part, seconds in loading.items() if part != "threads")
    return {
        "data_wait": of_training(track.rate(waited_for_training)),
        "data_wait_exposed": of_training(track.rate(training.exposed_wait)),
        "loading": None if mixed else _loading(track, loaded, whole(session.facts.get("loader_workers"))),
        "loader_queued": ratio(loading["runqueue"], loaded),
        "loader_storage": ratio(loading["storage"], loaded),
        "asleep": of_training(track.rate(training.asleep)),
        "runnable": of_training(track.rate(_runnable)),
        "local_work": None if peers is None else 1.0 - (of_training(peers) or 0.0),
        "retries": _rises(track, session, lambda d: d.retries) or 0.0,
        "ooms": _rises(track, session, lambda d: d.ooms) or 0.0,
        "device_allocs": _rises(track, session, lambda d: d.device_allocs),
        "device_frees": _rises(track, session, lambda d: d.device_frees),
        "devices": tuple(_scaled(device, of_training) for device in devices) if mixed else tuple(devices),
        "cpu_throttled": of_training(throttled_share(cgroup, track.rate(_queued))),
        "memory_pressure": of_training(_pressed(cgroup)),
    }


def _loading(track: Track[Session], seconds: float, workers: int | None) -> float | None:
    """Return the share of their time in which workers load, from the seconds of the batches that are measured."""
    measured = rise(track, lambda loader: loader.measured)
    batches = track.rate(lambda session: loader.batches if (loader := training.loader(session)) else None)
    return min(1.0, seconds / measured * batches / workers) if workers and measured and batches is not None else None


def _intervals(window: Window, process: str, burst: int) -> Sequence[tuple[Window, Window]]:
    """Return the intervals of the window, each with enough steps, and with its rest; none where there are few of them.
    What the hook adds up rises with the end of a step, or of a `burst` of batches.
    """
    ticks = sum(len(piece) - 1 for piece in window.pieces)
    steps = window.session(process).rise(training.steps)
    length = math.ceil(_LEAST_BURSTS * burst * ticks / steps) if steps else 0
    return window.intervals(length) if 0 < _LEAST_INTERVALS * length <= ticks else ()


def _interval(whole: Evidence, process: str, uuids: Sequence[str], part: Window, rest: Window) -> Evidence:
    """Return the evidence about an interval of a window. The cgroup is read less often than the counters: its shares
    are those until the first reading after the interval. What of a GPU was not read in it is that of the whole.
    """
    found = _measured(part, process, uuids)
    found["devices"] = tuple(
        own._replace(**{name: value for name, value in device._asdict().items() if getattr(own, name) is None})
        for own, device in zip(found["devices"], whole.devices, strict=True)
    )
    reads = [_read(point, process) for point in rest.points]
    read = next((at for at in reads if at >= part.points[-1].at), math.inf)
    cgroup = rest.where(lambda point: _read(point, process) <= read).cgroup(process)
    queued = part.session(process).rate(_queued)
    for name, share in (("cpu_throttled", throttled_share(cgroup, queued)), ("memory_pressure", _pressed(cgroup))):
        found[name] = getattr(whole, name) if share is None else share
    return whole._replace(window=part.span, **found)


def _read(point: Point, process: str) -> float:
    cgroup = point.cgroups.get(process)
    return point.at if cgroup is None or cgroup.at is None else cgroup.at


def _swing(window: Window, process: str, parts: Sequence[tuple[Window, Window]], burst: int) -> float:
    """Return the largest spread between intervals of what the process waits for and does, and of its copies, less what
    a `burst` of steps makes.
    """
    steps = window.session(process).rise(training.steps)
    tracks = [part.session(process) for part, _ in parts]
    shares = [[track.rate(seconds) for track in tracks] for seconds in (waited_for_training, training.asleep)]
    shares += [[ratio(track.rise(training.local_work), track.rise(training.step_seconds)) for track in tracks]]
    # What is read of the cgroup less often covers pauses, too.
    cgroups = [part.cgroup(process) for part, _ in parts if len(window.pieces) == 1]
    shares += [[throttled_share(cgroup) for cgroup in cgroups], [_pressed(cgroup) for cgroup in cgroups]]
    for uuid in devices_of(window.node, process):
        shares += [[copying(part, uuid, pinned=True) for part, _ in parts]]
    known = [[share for share in kind if share is not None] for kind in shares]
    widest = max((max(kind) - min(kind) for kind in known if kind), default=0.0)
    return max(0.0, widest - burst * len(parts) / steps) if steps else 0.0


def _torch(node: Node, process: str) -> str:
    """Return the build of torch that a process has mapped, empty if there is none, or if it is not known."""
    host = node.hosts.get(process)
    return host.torch if host else ""


def _slow_step(session: Session) -> float | None:
    """Return the bound below which 99 % of the steps lasted, at most the highest."""
    durations = training.step_durations(session)
    if durations is None or not durations.counts[-1]:
        return None
    enough, bounds = 0.99 * durations.counts[-1], training.STEP_BUCKETS
    return next((bound for bound, n in zip(bounds, durations.counts, strict=False) if n >= enough), bounds[-1])


def _runnable(session: Session) -> float | None:
    return session.thread["training"].runnable if "training" in session.thread else None


def _queued(session: Session) -> float | None:
    runnable = _runnable(session)
    return None if runnable is None else runnable + (queued_loading(session) or 0.0)


def _worked(session: Session) -> bool:
    phases = any(spent > 0 for phase, spent in training.phases(session).items() if phase not in _BEFORE_TRAINING)
    return phases or any(training.waits(session).values())


def _share(window: Window, process: str, phases: Collection[str]) -> float:
    spent = sum(seconds for phase, seconds in seconds_in_window(window, process).items() if phase in phases)
    return min(1.0, spent / window.span) if window.span else 0.0


def _without_pauses(window: Window, process: str, pauses: Collection[str]) -> Window:
    """Return the part of the window between pauses, all of it if that part is too short."""

    def paused(point: Point) -> float:
        session = point.sessions[process]
        totals = (training.phases(session), training.waits(session))
        return sum(seconds.get(phase, 0.0) for phase in pauses for seconds in totals)

    part = window.without(lambda before, after: paused(after) - paused(before) > _SHORT_PAUSE * (after.at - before.at))
    return part if part.span >= MIN_EVIDENCE_SECONDS else window


def _of_part(part: float, share: float | None) -> float | None:
    """Return a share of the time as one of a part of it, in which all of it is."""
    return None if share is None else min(1.0, share / part)


def _scaled(device: DeviceEvidence, of_training: Callable[[float | None], float | None]) -> DeviceEvidence:
    """Return the evidence as if the GPU was idle in the pauses."""
    shares = ("busy", "own_busy", "sm_active", "tensor_active", "transfer")
    scaled: dict[str, Any] = {name: of_training(getattr(device, name)) for name in shares}
    return device._replace(unowned_busy=of_training(device.unowned_busy) or 0.0, **scaled)


def _pace(window: Window, process: str, burst: int) -> float:
    """Return the spread of the steps between two points as a share of their mean, less a `burst` of steps that may be
    counted before or after a point: the batches of several workers come together.
    """

    def steps(before: Point, after: Point) -> float | None:
        first, last = (training.steps(point.sessions[process]) for point in (before, after))
        return (0.0 if first is None or last is None else risen(first, last)) / (after.at - before.at)

    mean = window.session(process).rate(training.steps)
    interval = window.span / max(1, sum(len(piece) - 1 for piece in window.pieces))
    return max(0.0, spread(window, steps) / mean - burst / (mean * interval)) if mean and interval else 0.0


def _uneven(window: Window, process: str, workers: int) -> float:
    """Return the share of the steps that are not near their mean, by their distribution. Several workers that cannot
    keep up deliver their batches together: then the steps show nothing else.
    """
    if workers > 1 and (window.session(process).rate(waited_for_training) or 0.0) >= LIMITING_WAIT:
        return 0.0
    ends = [
        [training.distribution(point.sessions[process]) for point in (piece[0], piece[-1])] for piece in window.pieces
    ]
    seconds = sum(after.seconds - before.seconds for before, after in ends)
    counts = [sum(rises) for rises in zip(*(map(operator.sub, b.log2, a.log2) for a, b in ends), strict=False)]
    total: int = sum(counts)
    if total < _LEAST_STEPS or min(counts) < 0 or seconds <= 0:
        return 0.0
    first, last = (wire.log2_bucket(round(seconds / total * part * 1e9)) for part in (1.0 / _EVEN, _EVEN))
    near: int = sum(counts[first : last + 1])
    return 1.0 - near / total


def throttled_share(track: Track[Cgroup], queued: float | None = None) -> float | None:
    """Return the share in which the cgroup is throttled. Linux 6.18 counts a part of it: in a cgroup that uses all of
    its quota, the training thread is `queued` for a CPU because of it.
    """
    throttled, used = (_withheld(track, seconds) for seconds in (lambda c: c.throttled, _used_quota))
    return max(throttled, queued or 0.0) if throttled and (used or 0.0) >= _ALL_OF_QUOTA else throttled


def _used_quota(cgroup: Cgroup) -> float | None:
    return cgroup.used / cgroup.cpus if cgroup.used is not None and cgroup.cpus else None


def _pressed(track: Track[Cgroup]) -> float | None:
    return most(_withheld(track, partial(_pressure, of)) for of in ("memory", "io"))


def _withheld(track: Track[Cgroup], seconds: Callable[[Cgroup], float | None]) -> float | None:
    """Return a share of the time between the first and the last reading: ticks are more frequent than readings."""
    between = track.rise(lambda cgroup: cgroup.at)
    return track.rate(seconds) if between is None else ratio(track.rise(seconds), between)


def _pressure(resource: str, cgroup: Cgroup) -> float | None:
    return cgroup.pressure.get(resource)


def _parameters(session: Session) -> dict[str, float]:
    kinds: defaultdict[str, float] = defaultdict(float)
    for name, size in training.parameter_bytes(session).items():
        kinds[name.split(":")[0]] += size
    return dict(kinds)


def _visible_devices(facts: Mapping[str, str]) -> int | None:
    """Return the number of GPUs visible to the process: by CUDA, or before that by its environment and /dev."""
    counted = whole(facts.get("visible_devices"))
    if counted is not None:
        return counted
    # An empty list hides all GPUs, and so does one that begins with an invalid index. HIP ignores an empty one.
    rocm = facts.get("build") == "rocm"
    listed = [facts.get(f"{name}_visible_devices", "") for name in (("rocr", "hip", "cuda") if rocm else ("cuda",))]
    if listed[0] == "(empty)" or any(names.startswith("-") for names in listed):
        return 0
    # Without the driver in /proc, the machine may provide GPUs in another way, as WSL does.
    return 0 if facts.get("device_nodes") == "0" and facts.get("kernel_driver") else None


def _driver_too_old(facts: Mapping[str, str]) -> bool | None:
    driver = _major(facts, "kernel_driver")
    required = next(filter(None, (v.min_drivers.get(_major(facts, v.build) or 0) for v in VENDORS)), None)
    return driver < required if required and driver is not None else None


def _major(facts: Mapping[str, str], name: str) -> int | None:
    return whole(facts.get(name, "").partition(".")[0])


def _arch_supported(node: Node, session: Session) -> bool | None:
    built = session.facts.get("architectures", "").split()
    targets = {node.reading(d.uuid or "").value("gfx_target") for d in training.visible(session)} - {None}
    if targets:  # a GPU of AMD; what an override makes of it is not known
        known = {name.partition(":")[0] for name in built if name.startswith("gfx")}
        generic = any(name.endswith("-generic") for name in known) or "hsa_override_gfx_version" in session.facts
        return targets <= known or None if generic or not known else targets <= known
    texts = ((d.capability or "").partition(".") for d in training.visible(session))
    found = [(whole(major), whole(minor)) for major, _, minor in texts]
    supported = [arch_supported(built, (x, y)) for x, y in found if x is not None and y is not None]
    return None if None in supported or not supported else all(supported)


def _fp32_only(session: Session) -> bool | None:
    dtypes = {entry.dtype for entry in session.snap.parameters} if session.snap else set()
    tf32 = session.facts.get("tf32_matmul", "")
    if not dtypes or not tf32:
        return None
    return dtypes <= {"torch.float32", "float32"} and tf32 == "no" and session.facts.get("autocast") != "yes"


def _rises(track: Track[Session], session: Session, figure: Callable[[wire.Device], int | None]) -> float | None:
    """Return the sum of the increases of a counter of the devices, None if no device has it."""
    uuids = training.by_uuid(session, figure)
    rises = [track.rise(partial(_of_device, figure, uuid)) or 0.0 for uuid in uuids]
    return sum(rises) if uuids else None


def _of_device(figure: Callable[[wire.Device], int | None], uuid: str, session: Session) -> int | None:
    return training.by_uuid(session, figure).get(uuid)
