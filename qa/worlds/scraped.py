"""The typed node that a scrape shows: exported samples, decoded apart from the rows that made them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from gpugauge.base.text import whole
from gpugauge.driver.api import RELEASED, Device, DeviceReading, DriverView, Failure, MigReading
from gpugauge.metric import Family
from gpugauge.node.node import (
    Assignment,
    Diagnosis,
    Gain,
    Identity,
    Judged,
    Load,
    Memory,
    Node,
    OnDevice,
    Profiled,
    Use,
    Verdict,
    Xids,
)
from gpugauge.sessions.session import Counters, Session, ThreadTime
from gpugauge.snapshot import Health, Section, Snapshot
from gpugauge.verdict.memory.trend import Growth
from gpugauge.wire import messages as wire
from gpugauge.wire.record import SharedRecord
from gpugauge.workload.identity import JOB_LABELS, LABELS, Workload
from gpugauge.workload.processfiles import Bounds, Cgroup, HostProcess
from gpugauge.workload.procfs import Stat

_INFOS = {"torch_process_info": "", "torch_build_info": "", "torch_settings_info": "", "torch_loader_info": "loader_"}
_STAT = Stat("R", 1, 0, 0.0, 0.0, 1, 0, 0, 1, 1, False)
_FIRST_BUCKET = 10  # of the shortest duration that has a bucket in a scrape: 2^-10 s of 2^-20 s
# Field of a reading, and what a value is divided by, by metric and its own label.
_READINGS: dict[tuple[str, str], tuple[str, float]] = {
    ("gpu_power_watts", ""): ("power_milliwatts", 1e-3),
    ("gpu_power_limit_watts", ""): ("power_limit_milliwatts", 1e-3),
    ("gpu_power_limit_default_watts", ""): ("power_limit_default_milliwatts", 1e-3),
    ("gpu_clock_hertz", "sm"): ("clock_sm_mhz", 1e6),
    ("gpu_clock_max_hertz", "sm"): ("clock_sm_max_mhz", 1e6),
    ("gpu_pcie_generation", "current"): ("pcie_generation", 1),
    ("gpu_pcie_generation", "max"): ("pcie_generation_max", 1),
    ("gpu_pcie_width", "current"): ("pcie_width", 1),
    ("gpu_pcie_width", "max"): ("pcie_width_max", 1),
    ("gpu_memory_free_bytes", ""): ("memory_free_bytes", 1),
    ("gpu_memory_used_bytes", ""): ("memory_used_bytes", 1),
    ("gpu_memory_total_bytes", ""): ("memory_total_bytes", 1),
    ("gpu_temperature_celsius", "gpu"): ("temperature_celsius", 1),
}
_PROFILED = {
    "profiled_seconds": "seconds",
    "sm_active_seconds": "sm_active",
    "tensor_active_seconds": "tensor_active",
    "pcie_transmitted_bytes": "sent",
    "pcie_received_bytes": "received",
}
_DEVICES = {
    "allocated_bytes": "allocated",
    "allocated_peak_bytes": "allocated_peak",
    "step_allocated_bytes": "step_allocated",
    "limit_bytes": "limit",
    "reserved_bytes": "reserved",
    "alloc_retries_total": "retries",
    "ooms_total": "ooms",
    "device_allocs_total": "device_allocs",
    "device_frees_total": "device_frees",
}
_LOADER = {
    "torch_loader_batches_total": "batches",
    "torch_loader_measured_batches_total": "measured",
    "torch_loader_epochs_total": "epochs",
    "torch_loader_start_seconds_total": "start_seconds",
    "torch_loader_slowest_worker_ratio": "slowest",
    "torch_loader_worker_memory_bytes": "worker_bytes",
    "torch_process_cpu_seconds_total": "process_cpu_seconds",
    "torch_thread_runqueue_seconds_total": "thread_queued_seconds",
}


class _Samples:
    """The samples of all families, by name."""

    def __init__(self, families: Iterable[Family]) -> None:
        self._of = {
            f.metric.name: [(dict(zip(f.metric.labels, labels, strict=True)), value) for labels, value in f.samples]
            for f in families
        }

    def of(self, name: str, **labels: str) -> list[tuple[dict[str, str], Any]]:
        found = self._of.get(name, [])
        return [(own, value) for own, value in found if labels.items() <= own.items()]

    def one(self, name: str, **labels: str) -> Any:
        return next((value for _, value in self.of(name, **labels)), None)

    def by(self, name: str, label: str, **labels: str) -> dict[str, Any]:
        return {own[label]: value for own, value in self.of(name, **labels)}

    def subjects(self, label: str) -> list[str]:
        return list(dict.fromkeys(own[label] for found in self._of.values() for own, _ in found if label in own))


def snapshot_of(
    timestamp: float, monotonic: float, sections: Sequence[Section], health: Mapping[str, Health] | None = None
) -> Snapshot:
    """Return the snapshot of a tick with these sections."""
    node = node_of(sections, timestamp, monotonic)
    return Snapshot(timestamp, monotonic, tuple(sections), dict(health or {}), node)


def node_of(sections: Iterable[Section], timestamp: float = 0.0, monotonic: float = 0.0) -> Node:
    """Return the node of one tick whose scrape shows these sections."""
    s = _Samples(family for section in sections for family in section.families)
    up = next(iter(s.by("gpugauge_driver_up", "reason").items()), None)
    released_until = s.one("gpugauge_driver_released_until_timestamp_seconds")
    node = Node(timestamp, monotonic)
    if up:
        node.driver = DriverView(bool(up[1]), up[0], released_until=released_until)
    uuids = [uuid for uuid in s.subjects("uuid") if not uuid.startswith("MIG-")]
    placed = s.by("gpu_mig_info", "uuid")
    migs = [_mig(s, uuid) for uuid in s.by("gpu_mig_memory_total_bytes", "uuid") if uuid not in placed]
    node.devices = (*(_device(s, uuid) for uuid in uuids), *([_parent(migs)] if migs else []))
    node.loads = {
        uuid: Load(s.one("gpu_busy_seconds_total", uuid=uuid, engine="gpu"), observed)
        for uuid, observed in s.by("gpu_observed_seconds_total", "uuid", engine="gpu").items()
    }
    node.profiled = {
        uuid: Profiled(**{field: s.one(f"gpu_{name}_total", uuid=uuid) for name, field in _PROFILED.items()})
        for uuid in uuids
    }
    last, lasting = (
        {
            uuid: {int(xid): at for xid, at in s.by(f"gpu_xid_{kind}_timestamp_seconds", "xid", uuid=uuid).items()}
            for uuid in uuids
        }
        for kind in ("last", "unrepaired")
    )
    node.xids = {uuid: Xids(last[uuid], lasting[uuid]) for uuid in uuids}
    memory, busy = s.of("gpu_process_memory_used_bytes"), s.of("gpu_process_busy_seconds_total")
    used = {(own["process"], own["uuid"]): value for own, value in memory}
    kept = {(own["process"], own["uuid"]): value for own, value in busy}
    node.uses = {key: Use(used.get(key), kept.get(key)) for key in {**used, **kept}}
    started = s.by("gpu_process_start_timestamp_seconds", "process")
    node.identities = {
        own["process"]: Identity(whole(own["pid"]), own["kind"], _workload(own), started.get(own["process"]))
        for own, _ in s.of("gpu_process_info")
    }
    node.on_mig = [(own["process"], own["uuid"]) for own, _ in s.of("gpu_mig_process_memory_used_bytes")]
    node.hidden = s.by("gpu_process_hidden", "uuid")
    node.utilization = s.by("gpu_utilization_ratio", "uuid")
    states = s.by("gpu_allocation_state", "uuid")
    owned: dict[str, list[Workload]] = {uuid: [] for uuid in states}
    for own, _ in s.of("gpu_allocation_info"):
        owned.setdefault(own["uuid"], []).append(_workload(own))
    node.assignments = {uuid: Assignment(tuple(who), uuid in states) for uuid, who in owned.items()}
    replaced, bans = (s.one(f"gpugauge_hook_{name}") for name in ("receiver_replaced_timestamp_seconds", "bans"))
    node.hook = Counters({}, {}, replaced_at=replaced, banned=bans or 0)
    node.build = next(((own["version"], own["simulated"] == "true") for own, _ in s.of("gpugauge_build_info")), None)
    node.unaccounted = s.by("gpu_unaccounted_busy_seconds_total", "uuid")
    processes = s.subjects("process")
    hosts = {process: host for process in processes if (host := _host(s, process))}
    node.hosts = hosts
    node.sessions = {process: _session(s, process) for process in s.by("torch_process_info", "process")}
    node.judged = {process: _judged(s, process) for process in s.by("training_state", "process")}
    node.memory = {process: _memory(s, process) for process in processes}
    return node


def _workload(own: Mapping[str, str]) -> Workload:
    return Workload(*(own.get(label, "") for label in LABELS))


def _judged(s: _Samples, process: str) -> Judged:
    def of(name: str, label: str) -> dict[str, Any]:
        return s.by(f"training_{name}", label, process=process)

    def current(name: str, label: str) -> str | None:
        return next((value for value, on in of(name, label).items() if on), None)

    info = next((own for own, _ in s.of("training_verdict_info", process=process)), {})
    verdict = Verdict(
        current("state", "state") or "",
        "inside" if info.get("confidence") == "inside" else "outside",
        of("limited_by_ratio", "cause"),
        current("limited_by", "cause"),
        frozenset(filter(None, info.get("undecidable", "").split(","))),
    )
    following = {own["cause"]: own["next"] for own, _ in s.of("training_expected_speedup_info", process=process)}
    expected, lower, upper = (of(f"expected_speedup{part}_ratio", "cause") for part in ("", "_lower", "_upper"))
    gains = {cause: Gain(expected[cause], lower[cause], upper[cause], after) for cause, after in following.items()}
    figures = ("workers_recommended", "expected_speedup_ratio", "expected_speedup_lower_ratio")
    reason, mfu = current("loader_limited_by", "reason"), s.one("training_mfu_ratio", process=process)
    diagnosis = (
        Diagnosis(reason, *(s.one(f"training_loader_{f}", process=process) for f in figures)) if reason else None
    )
    return Judged(verdict, of("step_share_ratio", "part"), gains, mfu, diagnosis)


def _memory(s: _Samples, process: str) -> Memory:
    def of(name: str, label: str = "uuid") -> dict[str, Any]:
        return s.by(f"training_{name}", label, process=process)

    def growth(name: str, label: str) -> dict[str, Growth]:
        lower, upper = (of(f"{name}_growth_{bound}_bytes", label) for bound in ("lower", "upper"))
        return {
            place: Growth(size, lower.get(place, size), upper.get(place, size), 0.0, 0.0, 0.0)
            for place, size in of(f"{name}_growth_bytes", label).items()
        }

    room, fragmented, full = (
        of(f"memory_{name}") for name in ("headroom_bytes", "fragmentation_ratio", "full_seconds")
    )
    grows = growth("memory_step", "uuid")
    places = {**room, **fragmented, **full, **grows}
    return Memory(
        {u: OnDevice(room.get(u), fragmented.get(u), grows.get(u), full.get(u)) for u in places},
        s.one("training_batch_headroom_ratio", process=process),
        s.one("training_memory_rank_ratio", process=process),
        s.one("training_host_memory_full_seconds", process=process),
        growth("host_memory", "part"),
    )


def _device(s: _Samples, uuid: str) -> Device:
    up = s.one("gpu_up", uuid=uuid)
    values: dict[str, Any] = {"local_cpus": next(iter(s.by("gpu_local_cpus_info", "cpus", uuid=uuid)), None)}
    identity = next((own for own, _ in s.of("gpu_info", uuid=uuid)), {})
    values |= {"name": identity.get("name"), "pci_bus_id": identity.get("pci_bus_id")}
    values |= {"index": int(identity["index"])} if identity.get("index") else {}
    values["mig_instances"] = tuple(_mig(s, own["uuid"], own) for own, _ in s.of("gpu_mig_info", parent_uuid=uuid))
    failures = tuple(Failure(own["reading"], own["reason"], 0.0) for own, _ in s.of("gpu_reading_failed", uuid=uuid))
    down = next(iter(s.by("gpu_down_reason", "reason", uuid=uuid)), "ok" if up else "unknown")
    for (name, label), (field, unit) in _READINGS.items():
        for own, value in s.of(name, uuid=uuid):
            if label in ("", *own.values()):
                values[field] = round(value / unit) if unit == 1e-3 else value / unit if unit > 1 else value
    active = s.by("gpu_clocks_event_active", "reason", uuid=uuid)
    if active:
        values["clocks_event_reasons"] = [reason for reason, on in active.items() if on]
        values["clocks_event_reasons_supported"] = list(active)
    return Device(uuid, up != 0, RELEASED if up is None else down, DeviceReading.of([values]), {}, failures)


def _mig(s: _Samples, uuid: str, own: Mapping[str, str] = MappingProxyType({})) -> MigReading:
    gpu, compute = (
        int(own[f"{kind}_instance"]) if own.get(f"{kind}_instance") else None for kind in ("gpu", "compute")
    )
    active = s.one("gpu_mig_sm_active_ratio", uuid=uuid)
    percent = None if active is None else 100 * active
    total, used, reserved = (s.one(f"gpu_mig_memory_{kind}_bytes", uuid=uuid) for kind in ("total", "used", "reserved"))
    return MigReading(uuid, gpu, compute, own.get("profile"), None, total, used, reserved, sm_active_percent=percent)


def _parent(migs: list[MigReading]) -> Device:
    return Device("parent", True, RELEASED, DeviceReading(mig_instances=tuple(migs)), {})


def _host(s: _Samples, process: str) -> HostProcess | None:
    def one(name: str) -> Any:
        return s.one(f"gpu_process_{name}", process=process)

    info = next((own for own, _ in s.of("gpu_process_host_info", process=process)), {})
    pressure = s.by("gpu_process_cgroup_pressure_seconds_total", "resource", process=process)
    cgroup = Cgroup(
        one("cgroup_cpus"),
        one("cgroup_throttled_seconds_total"),
        pressure,
        one("cgroup_memory_bytes"),
        one("cgroup_memory_limit_bytes"),
    )
    cpus = next(iter(s.by("gpu_process_affinity_info", "cpus", process=process)), "")
    host = HostProcess(process, whole(info.get("pid", "")) or 0, _STAT, info.get("torch_build", ""))
    host.workload = _workload(info)
    host.bounds = Bounds(one("affinity_cpus"), cpus, one("swapped_bytes"))
    host.anonymous = s.by("gpu_process_anonymous_bytes", "part", process=process)
    host.memory_available, host.cgroup = one("memory_available_bytes"), cgroup
    host.hook = info.get("hook") == "yes"
    seen = bool(info) or cpus or host.anonymous or pressure or host.bounds != Bounds() or host.memory_available
    return host if seen or cgroup != Cgroup(None, None, {}) else None


def _session(s: _Samples, process: str) -> Session:
    def one(name: str) -> Any:
        return s.one(name, process=process)

    facts: dict[str, str] = {}
    for name, prefix in _INFOS.items():
        for own, _ in s.of(name, process=process):
            facts |= {prefix + label: value for label, value in own.items() if value and label != "process"}
    if (cpus := one("torch_cpus")) is not None:
        facts |= {"cpus": f"{cpus:.0f}", "ranks_on_cpus": "1"}
    steps, durations, batches = one("torch_steps_total"), one("torch_step_duration_seconds"), one("torch_batches_total")
    log2 = [0] * wire.LOG2_BUCKETS
    counts = durations.counts if durations else ()
    for place, (count, below) in enumerate(zip(counts, (0, *counts), strict=False)):
        log2[min(_FIRST_BUCKET + place, wire.LOG2_BUCKETS - 1)] += count - below
    last = one("training_last_step_timestamp_seconds")
    progress = wire.Progress(steps or 0, durations.total if durations else 0.0, last, tuple(log2))
    sizes = s.by("torch_parameter_bytes", "device", process=process)
    elements = [(own["device"], own["dtype"]) for own, _ in s.of("torch_parameter_elements", process=process)]
    entries = elements or [(device, "unknown") for device in sizes]
    parameters = []
    for device, dtype in entries:
        parameters.append(wire.Parameters(device, dtype, 1, 1, sizes.pop(device, 0)))
    known = {field: s.by(f"torch_memory_{name}", "uuid", process=process) for name, field in _DEVICES.items()}
    infos = {own["uuid"]: own for own, _ in s.of("torch_device_info", process=process)}
    devices = []
    for place, uuid in enumerate(dict.fromkeys([*infos, *(uuid for of in known.values() for uuid in of)])):
        own = infos.get(uuid, {})
        values = {field: of.get(uuid) for field, of in known.items()}
        index = int(own.get("index") or place)
        devices.append(wire.Device(index, uuid, name=own.get("name"), capability=own.get("capability"), **values))
    snap = wire.Snap(
        process,
        1,
        steps=progress if steps is not None or durations else None,
        batches=None if batches is None else wire.Progress(batches),
        parameters=tuple(parameters),
        devices=tuple(devices),
        exposed_wait_seconds=one("torch_data_wait_exposed_seconds_total"),
        local_work_seconds=one("torch_local_work_seconds_total"),
        waits=s.by("torch_data_wait_seconds_total", "phase", process=process),
        flops=s.by("torch_model_flops_total", "source", process=process),
        loader=_loader(s, process),
        samples=one("torch_samples_total"),
        tokens=one("torch_tokens_total"),
    )
    made = {name: bool(on) for name, on in s.by("training_mistake", "mistake", process=process).items()}
    owner = tuple(facts.get(label, "") for label in JOB_LABELS)
    hello = wire.Hello(process, 0, 1, None, one("training_start_timestamp_seconds"), facts)
    ended = one("training_end_timestamp_seconds")
    end = next((own for own, _ in s.of("training_end_info", process=process)), {})
    status = int(end["exit_code"]) << 8 if end.get("exit_code") else int(end["signal"]) if end.get("signal") else None
    pid = whole(facts.get("pid", "")) or 0
    states: dict[str, dict[str, float]] = {}
    for own, value in s.of("torch_thread_seconds_total", process=process):
        states.setdefault(own["phase"], {})[own["state"]] = value
    thread = {phase: ThreadTime(**values) for phase, values in states.items()}
    reason, record = end.get("reason", ""), _record(s, process)
    return Session(hello, pid, 1000, snap, ended, reason, status, record, thread, owner=owner, mistakes=made)


def _loader(s: _Samples, process: str) -> wire.Loader | None:
    values = {field: s.one(name, process=process) for name, field in _LOADER.items()}
    parts = s.by("torch_loader_seconds_total", "part", process=process)
    parts = {("queued" if part == "runqueue" else part) + "_seconds": spent for part, spent in parts.items()}
    return wire.Loader(**values, **parts) if parts or any(value is not None for value in values.values()) else None


def _record(s: _Samples, process: str) -> SharedRecord | None:
    seconds = s.by("torch_phase_seconds_total", "phase", process=process)
    phase: Any = next((own["phase"] for own, on in s.of("torch_phase", process=process) if on), None)
    since = s.one("training_phase_since_timestamp_seconds", process=process)
    last = s.one("training_last_step_timestamp_seconds", process=process)
    return SharedRecord(phase, since, 0, 0, seconds, last) if seconds or phase or since is not None else None
