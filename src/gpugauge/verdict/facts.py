"""Evidence about a process, computed from a window of exported metrics."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace

from gpugauge.base.text import whole
from gpugauge.faults.table import SLOWDOWNS
from gpugauge.verdict import loader_facts
from gpugauge.verdict.cuda_arch import arch_supported
from gpugauge.verdict.evidence import DeviceEvidence, Evidence, used
from gpugauge.verdict.peaks import tensor_speedup
from gpugauge.verdict.shares import copying, phase_seconds, recent_seconds, seconds_in_window, waits
from gpugauge.verdict.window import Window, WindowFamilies
from gpugauge.wire.shares import NAMED_PHASES

FAMILIES = WindowFamilies(
    latest=frozenset(
        {
            *("gpu_up", "gpu_info", "gpu_power_limit_watts", "gpu_power_limit_default_watts", "gpu_clock_max_hertz"),
            *("gpu_pcie_generation", "gpu_pcie_width", "gpu_process_start_timestamp_seconds", "gpu_process_host_info"),
            *("torch_build_info", "torch_parameter_bytes", "torch_parameter_elements", "torch_device_info"),
            *("torch_memory_allocated_peak_bytes", "torch_memory_allocated_bytes", "torch_phase", "torch_loader_info"),
            *("training_start_timestamp_seconds", "training_last_step_timestamp_seconds", *loader_facts.LATEST),
            *("training_end_timestamp_seconds", "training_phase_since_timestamp_seconds", "torch_settings_info"),
        }
    ),
    history=frozenset(
        {
            *("gpu_busy_seconds_total", "gpu_observed_seconds_total", "gpu_process_busy_seconds_total"),
            *("gpu_sm_active_seconds_total", "gpu_tensor_active_seconds_total", "gpu_profiled_seconds_total"),
            *("gpu_unaccounted_busy_seconds_total", "gpu_power_watts", "gpu_clock_hertz", "gpu_clocks_event_active"),
            *("gpu_pcie_transmitted_bytes_total", "gpu_pcie_received_bytes_total"),
            *("gpu_process_cgroup_throttled_seconds_total", "gpu_process_cgroup_pressure_seconds_total"),
            *("torch_memory_alloc_retries_total", "torch_memory_ooms_total", "torch_steps_total"),
            *("torch_memory_device_allocs_total", "torch_memory_device_frees_total"),
            *("torch_batches_total", "torch_step_duration_seconds", "torch_phase_seconds_total"),
            *("torch_data_wait_seconds_total", "torch_data_wait_exposed_seconds_total", "torch_model_flops_total"),
            *("torch_local_work_seconds_total", *loader_facts.HISTORY),
        }
    ),
    subjects=frozenset({"torch_process_info", "gpu_process_memory_used_bytes"}),
)

# Programs that run interactive commands, by sys.argv[0]; a plain prompt has an empty one.
_INTERACTIVE = ("", "ipykernel_launcher.py", "colab_kernel_launcher.py", "ipython", "ipython3")
# Phases of programs that do not train, too, or not yet: a resumed training saves, a server generates.
_BEFORE_TRAINING = frozenset({"starting", "loading", "checkpointing", "compiling", "generating"})
# Minimum driver by major version of CUDA; it is enough for all minor versions.
# https://docs.nvidia.com/deploy/cuda-compatibility/
_MIN_DRIVER = {11: 450, 12: 525, 13: 580}


@dataclass(frozen=True, slots=True)
class Progress:
    """The number of steps and batches, and the monotonic time of its last change."""

    count: float
    at: float


def processes(window: Window) -> set[str]:
    """Return the processes to judge: those that have not ended, and report or have loaded torch and use a GPU."""
    inside = window.values("torch_process_info", "process")
    ended = window.values("training_end_timestamp_seconds", "process")
    on_gpu = window.values("gpu_process_memory_used_bytes", "process") - inside - ended
    return (inside - ended) | {p for p in on_gpu if _label(window, "gpu_process_host_info", p, "torch_build")}


def evidence(window: Window, process: str, now: float, unix: float, progress: Progress | None) -> Evidence:
    """Return the evidence about a process at the monotonic time `now` and Unix time `unix`. Without the hook it
    consists of the age of the process and the load of its GPUs.
    """
    inside = bool(window.samples("torch_process_info", "process", process))
    # The load of the GPUs before the training started does not count.
    window = window.since_present("torch_process_info" if inside else "gpu_process_memory_used_bytes", process)
    devices = [device(window, uuid, process if inside else None) for uuid in _uuids(window, process)]
    working, unused = used(devices)
    started = window.last("training_start_timestamp_seconds", process)
    if started is None:
        started = window.last("gpu_process_start_timestamp_seconds", process)
    age = None if started is None else unix - started
    if not inside:
        return Evidence(window.span, age, devices=working, unused_devices=unused)
    since = window.last("training_phase_since_timestamp_seconds", process)
    step_seconds = window.rise("torch_step_duration_seconds", process)
    local = window.rise("torch_local_work_seconds_total", process)
    build = _label(window, "torch_build_info", process, "build") or _label(
        window, "gpu_process_host_info", process, "torch_build"
    )
    world = _label(window, "torch_process_info", process, "world_size")
    workers = _label(window, "torch_loader_info", process, "workers")
    phase = next((labels["phase"] for labels, v in window.samples("torch_phase", "process", process) if v == 1), None)
    steps_ever, batches_ever = (window.last(f"torch_{what}_total", process) for what in ("steps", "batches"))
    return Evidence(
        window.span,
        age,
        inside=True,
        interactive=_label(window, "torch_process_info", process, "command") in _INTERACTIVE,
        phase=phase,
        phase_age=None if since is None else unix - since,
        recent=recent_seconds(window, process, phase),
        worked=_worked(window, process),
        steps=None if steps_ever is None else window.rise("torch_steps_total", process) or 0.0,
        steps_ever=steps_ever,
        batches=None if batches_ever is None else window.rise("torch_batches_total", process) or 0.0,
        batches_ever=batches_ever,
        since_progress=now - progress.at if progress else None,
        slow_step=window.quantile(0.99, "torch_step_duration_seconds", process),
        data_wait=_share(window, "torch_data_wait_seconds_total", process, "training"),
        data_wait_exposed=_share(window, "torch_data_wait_exposed_seconds_total", process),
        pinned=_pinned(window, process),
        loader_workers=whole(workers),
        paused=_paused(window, process, starting=steps_ever is not None or batches_ever is not None),
        local_work=min(1.0, local / step_seconds) if local is not None and step_seconds else None,
        world_size=whole(world or ""),
        parameters=_parameters(window, process),
        torch_devices=bool(window.samples("torch_device_info", "process", process)),
        build=build or None,
        visible_devices=_visible_devices(window, process),
        driver_too_old=_driver_too_old(window, process),
        arch_supported=_arch_supported(window, process),
        fp32_only=_fp32_only(window, process),
        retries=_sum_of_rises(window, "torch_memory_alloc_retries_total", process),
        ooms=_sum_of_rises(window, "torch_memory_ooms_total", process),
        device_allocs=_known_rises(window, "torch_memory_device_allocs_total", process),
        device_frees=_known_rises(window, "torch_memory_device_frees_total", process),
        devices=working,
        unused_devices=unused,
        host_has_gpu=any(
            value == 1
            for uuid in window.values("gpu_up", "uuid")
            for _, value in window.samples("gpu_up", "uuid", uuid)
        ),
        cpu_throttled=_share(window, "gpu_process_cgroup_throttled_seconds_total", process),
        memory_pressure=_pressure(window, process),
    )


def _pinned(window: Window, process: str) -> bool | None:
    return {"yes": True, "no": False}.get(_label(window, "torch_loader_info", process, "pin_memory"))


def _worked(window: Window, process: str) -> bool:
    seconds = phase_seconds(window, process)
    phases = any(spent > 0 for phase, spent in seconds.items() if phase not in _BEFORE_TRAINING)
    return phases or any(waits(window, process).values())


def _paused(window: Window, process: str, starting: bool) -> float:
    """Return the share of phases without steps. Where steps and batches are unknown, `starting` is a part of the
    training loop.
    """
    pauses = NAMED_PHASES | ({"starting"} if starting else set())
    paused = sum(spent for phase, spent in seconds_in_window(window, process).items() if phase in pauses)
    return min(1.0, paused / window.span) if window.span else 0.0


def device(window: Window, uuid: str, process: str | None = None) -> DeviceEvidence:
    """Return the means of one GPU over the window, and its use by the process. Without a process they consist of busy
    ratio and SM activity.
    """
    key = (uuid, process is None)
    known: DeviceEvidence | None = window.cache.get(key)
    if known is None:
        known = window.cache[key] = _load(window, uuid) if process is None else _means(window, uuid)
    if process is None:
        return known
    observed = window.rise("gpu_observed_seconds_total", uuid, "gpu")
    own = _ratio(window.rise("gpu_process_busy_seconds_total", process, uuid), observed)
    unowned = _ratio(window.rise("gpu_unaccounted_busy_seconds_total", uuid), observed)
    transfer = copying(window, uuid, _pinned(window, process))
    return replace(known, own_busy=own, unowned_busy=unowned or 0.0, transfer=transfer)


def _load(window: Window, uuid: str) -> DeviceEvidence:
    observed = window.rise("gpu_observed_seconds_total", uuid, "gpu")
    busy = window.rise("gpu_busy_seconds_total", uuid, "gpu")
    profiled = window.rise("gpu_profiled_seconds_total", uuid)
    engines = window.samples("gpu_observed_seconds_total", "uuid", uuid)
    return DeviceEvidence(
        busy=_ratio(busy, observed),
        measured=any(labels["engine"] == "gpu" for labels, _ in engines),
        sm_active=_ratio(window.rise("gpu_sm_active_seconds_total", uuid), profiled),
    )


def _means(window: Window, uuid: str) -> DeviceEvidence:
    profiled = window.rise("gpu_profiled_seconds_total", uuid)
    power, limit = window.mean("gpu_power_watts", uuid), window.last("gpu_power_limit_watts", uuid)
    default = window.last("gpu_power_limit_default_watts", uuid)
    clock, top = window.mean("gpu_clock_hertz", uuid, "sm"), window.last("gpu_clock_max_hertz", uuid, "sm")
    means = (window.mean("gpu_clocks_event_active", uuid, reason) for reason in SLOWDOWNS)
    thermal = [mean for mean in means if mean is not None]
    name = next((labels["name"] for labels, _ in window.samples("gpu_info", "uuid", uuid)), "")
    return replace(
        _load(window, uuid),
        tensor_active=_ratio(window.rise("gpu_tensor_active_seconds_total", uuid), profiled),
        tensor_speedup=tensor_speedup(name),
        power=_ratio(power, limit),
        clock=_ratio(clock, top),
        thermal=max(thermal) if thermal else None,
        power_capped=window.mean("gpu_clocks_event_active", uuid, "sw_power_cap"),
        power_limit_lowered=None if limit is None or default is None else limit < default,
    )


def _ratio(part: float | None, whole: float | None) -> float | None:
    return None if part is None or not whole else min(1.0, part / whole)


def _share(window: Window, name: str, *labels: str) -> float | None:
    rate = window.rate(name, *labels)
    return None if rate is None else min(1.0, rate)


def _uuids(window: Window, process: str) -> list[str]:
    found = {
        labels["uuid"]
        for name in ("torch_memory_allocated_bytes", "gpu_process_memory_used_bytes")
        for labels, _ in window.samples(name, "process", process)
    }
    return sorted(uuid for uuid in found if window.samples("gpu_up", "uuid", uuid))


def _label(window: Window, name: str, process: str, label: str) -> str:
    return next((labels.get(label, "") for labels, _ in window.samples(name, "process", process)), "")


def _parameters(window: Window, process: str) -> dict[str, float]:
    kinds: defaultdict[str, float] = defaultdict(float)
    for labels, value in window.samples("torch_parameter_bytes", "process", process):
        if isinstance(value, (int, float)):
            kinds[labels["device"].split(":")[0]] += value
    return dict(kinds)


def _visible_devices(window: Window, process: str) -> int | None:
    """Return the number of GPUs visible to the process: by CUDA, or before that by its environment and /dev."""
    counted = whole(_label(window, "torch_build_info", process, "visible_devices"))
    if counted is not None:
        return counted
    # An empty list hides all GPUs, and so does one that begins with an invalid index.
    listed = _label(window, "torch_build_info", process, "cuda_visible_devices")
    if listed == "(empty)" or listed.startswith("-"):
        return 0
    nodes, driver = (_label(window, "torch_build_info", process, label) for label in ("device_nodes", "kernel_driver"))
    # Without the driver in /proc, the machine may provide GPUs in another way, as WSL does.
    return 0 if nodes == "0" and driver else None


def _driver_too_old(window: Window, process: str) -> bool | None:
    cuda, driver = (
        whole(_label(window, name, process, label).partition(".")[0])
        for name, label in (("torch_process_info", "cuda"), ("torch_build_info", "kernel_driver"))
    )
    required = _MIN_DRIVER.get(cuda or 0)
    return driver < required if required and driver is not None else None


def _arch_supported(window: Window, process: str) -> bool | None:
    """Return whether the build supports all GPUs that the process uses."""
    built = _label(window, "torch_build_info", process, "architectures").split()
    devices = window.samples("torch_device_info", "process", process)
    texts = (labels["capability"].partition(".") for labels, _ in devices)
    found = [(whole(major), whole(minor)) for major, _, minor in texts]
    supported = [arch_supported(built, (x, y)) for x, y in found if x is not None and y is not None]
    return None if None in supported or not supported else all(supported)


def _fp32_only(window: Window, process: str) -> bool | None:
    dtypes = {labels["dtype"] for labels, _ in window.samples("torch_parameter_elements", "process", process)}
    tf32 = _label(window, "torch_build_info", process, "tf32_matmul")
    if not dtypes or not tf32:
        return None
    autocast = _label(window, "torch_settings_info", process, "autocast") == "yes"
    return dtypes <= {"torch.float32", "float32"} and tf32 == "no" and not autocast


def _sum_of_rises(window: Window, name: str, process: str) -> float:
    samples = window.samples(name, "process", process)
    return sum(window.rise(name, process, labels["uuid"]) or 0.0 for labels, _ in samples)


def _known_rises(window: Window, name: str, process: str) -> float | None:
    return _sum_of_rises(window, name, process) if window.samples(name, "process", process) else None


def _pressure(window: Window, process: str) -> float | None:
    name = "gpu_process_cgroup_pressure_seconds_total"
    shares = [_share(window, name, process, resource) for resource in ("memory", "io")]
    return max((share for share in shares if share is not None), default=None)
