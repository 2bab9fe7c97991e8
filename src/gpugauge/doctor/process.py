"""Checks of one process: what is visible from outside, and what the running daemon reports of it."""

from __future__ import annotations

import time

from gpugauge.doctor.case import Case
from gpugauge.doctor.finding import Finding, failure, ok, skipped, warning
from gpugauge.verdict.causes import CAUSES
from gpugauge.workload import processfiles
from gpugauge.workload.command import command_name
from gpugauge.workload.identity import clean

_RUN_ADVICE = "start it with the hook: gpugauge run -- python train.py"
_NO_HOOK = "not available without the hook"
# Shares of the run time that make a warning: waiting while the GPU is idle, and waiting with an unknown GPU load.
_EXPOSED_WAIT_WARNING_RATIO = 0.2
_WAIT_WARNING_RATIO = 0.5


def existence(case: Case) -> Finding:
    """Check that the process exists."""
    title, pid = "Process", _pid(case)
    try:
        words = case.procfs.read(pid, "cmdline", 4096).split(b"\0")
    except OSError:
        if _process_label(case) is not None:
            return warning(title, f"{pid}: the daemon reports it, but it is not visible in this container")
        return failure(title, f"{pid}: there is no such process")
    # Arguments may hold secrets, and reports are passed on: only the program's name is shown.
    return ok(title, f"{pid}: {clean(command_name(words)) or 'no command line'}")


def not_visible(case: Case) -> str:
    """Return why the process is not visible from outside, or ""."""
    return "" if case.procfs.start_time(_pid(case)) is not None else "there is no such process here"


def mapped_torch(case: Case) -> Finding:
    """Check the build of the loaded torch, by the mapped libraries."""
    title = "Its torch"
    try:
        build = processfiles.torch_build(case.procfs, _pid(case))
    except OSError as error:
        return skipped(title, f"not readable ({error.strerror}): run the doctor as its user or as root")
    if not build:
        return warning(title, "torch is not loaded", "check that this is the training process and not its launcher")
    if build == "cpu" and (case.has_nvidia or "AMD" in case.pci):
        return failure(title, "a build for the CPU only, but there is a GPU", cause="no_cuda_build")
    return ok(title, {"cpu": "a build for the CPU", "cuda": "a CUDA build", "rocm": "a ROCm build"}[build])


def open_devices(case: Case) -> Finding:
    """Check whether the process has opened GPUs, and which are visible to it."""
    title, pid = "Its GPUs", _pid(case)
    opened = processfiles.device_files(case.procfs, pid)
    value = processfiles.visible_devices(case.procfs, pid)
    setting = "" if value is None else f"; started with CUDA_VISIBLE_DEVICES={value!r}"
    if opened is None:
        return skipped(title, "its open files are not readable: run the doctor as its user or as root")
    if not opened and value is not None and value.strip() in {"", "-1"}:
        return failure(title, f"none open{setting}", cause="no_visible_device")
    if not opened and case.has_nvidia:
        advice = "CUDA is not initialized: check that the program moves its model to the GPU (model.to('cuda'))"
        return warning(title, f"none open{setting}", advice)
    return ok(title, f"{opened or 'none'} open{setting}")


def daemon(case: Case) -> Finding:
    """Check that the daemon answers and reports the process."""
    title = "Daemon"
    if case.daemon.problem:
        return skipped(title, f"{case.daemon.problem}; for the state inside the process start gpugauge serve")
    process = _process_label(case)
    note = " The daemon simulates its GPUs." if any(case.daemon.rows("gpugauge_build_info", simulated="true")) else ""
    if process is None:
        return warning(title, f"it does not report this process.{note}", _RUN_ADVICE)
    inside = next((labels for labels, _ in case.daemon.rows("torch_process_info", process=process)), None)
    if inside is None:
        return warning(title, f"it reports process {process} from outside only.{note}", _RUN_ADVICE)
    rank = f", rank {inside['rank']} of {inside.get('world_size') or '?'}" if inside.get("rank") else ""
    return ok(title, f"the hook of process {process} reports: torch {inside.get('torch') or '?'}{rank}.{note}")


def not_reported(case: Case) -> str:
    """Return why the daemon has no data on the process, or ""."""
    return "" if _process_label(case) else "not available without the daemon"


def state(case: Case) -> Finding:
    """Show the daemon's verdict: state, cause and its share of the GPU time."""
    title, process = "Verdict", _process_label(case)
    now = case.daemon.current("training_state", "state", process) if process else None
    if process is None or now is None:
        return skipped(title, "the daemon has no verdict")
    cause = case.daemon.current("training_limited_by", "cause", process)
    share = case.daemon.value("training_limited_by_ratio", process=process, cause=cause or "")
    found = now.replace("_", " ")
    if cause:
        found += f", limited by {cause}" + (f": {_percent(share)} of the GPU time" if share is not None else "")
    known = cause if cause in CAUSES else None
    if now == "training_on_cpu":
        return failure(title, found, cause=known or "model_on_cpu")
    if now == "stalled":
        return failure(title, found, f"find out where it waits: py-spy dump --pid {_pid(case)}", known)
    if now == "held_idle":
        return warning(title, found, "it holds a GPU and does not use it: end it, or give it work to do", known)
    return warning(title, found, cause=known) if known else ok(title, found)


def steps(case: Case) -> Finding:
    """Show the number of steps, their mean duration and the age of the last one."""
    title, process = "Steps", _process_label(case)
    count = case.daemon.value("torch_steps_total", process=process) if process else None
    if process is None or count is None:
        return skipped(title, _NO_HOOK)
    parts = [f"{count:.0f}"]
    seconds = case.daemon.value("torch_step_duration_seconds_sum", process=process)
    measured = case.daemon.value("torch_step_duration_seconds_count", process=process)
    if seconds is not None and measured:
        parts.append(f"{seconds / measured * 1e3:.3g} ms each")
    last = case.daemon.value("training_last_step_timestamp_seconds", process=process)
    if last:
        parts.append(f"the last {max(0.0, time.time() - last):.0f} s ago")
    return ok(title, ", ".join(parts))


def data_wait(case: Case) -> Finding:
    """Check the share of the run time that was spent waiting for batches."""
    title, process = "Data wait", _process_label(case)
    begin = case.daemon.value("training_start_timestamp_seconds", process=process) if process else None
    wait = case.daemon.value("torch_data_wait_seconds_total", process=process) if process else None
    if process is None or begin is None or wait is None:
        return skipped(title, _NO_HOOK)
    age = max(1.0, time.time() - begin)
    exposed = case.daemon.value("torch_data_wait_exposed_seconds_total", process=process)
    if exposed is None:
        # The GPU may have had work meanwhile, so the wait alone is weak evidence.
        found = f"{_percent(wait / age)} of the time since the start; whether the GPU had work meanwhile is unknown"
        return warning(title, found, cause="data_loading") if wait > _WAIT_WARNING_RATIO * age else ok(title, found)
    found = f"{_percent(wait / age)} of the time since the start; in {_percent(exposed / age)} the GPU had no work"
    slow = exposed > _EXPOSED_WAIT_WARNING_RATIO * age
    return warning(title, found, cause="data_loading") if slow else ok(title, found)


def parameters(case: Case) -> Finding:
    """Check the devices of the model's parameters."""
    title, process = "Parameters", _process_label(case)
    rows = list(case.daemon.rows("torch_parameter_bytes", process=process)) if process else []
    if not rows:
        return skipped(title, _NO_HOOK)
    by_device: dict[str, float] = {}
    for labels, size in rows:
        by_device[labels["device"]] = by_device.get(labels["device"], 0.0) + size
    found = ", ".join(f"{size / (1 << 20):.1f} MiB on {device}" for device, size in sorted(by_device.items()))
    identity = case.daemon.rows("torch_process_info", process=process or "")
    supports_gpus = any(labels.get("cuda") or labels.get("hip") for labels, _ in identity)
    if set(by_device) == {"cpu"} and not supports_gpus:
        return ok(title, f"{found}, the only device that its torch supports")
    if set(by_device) == {"cpu"} and (case.has_nvidia or "AMD" in case.pci):
        return failure(title, found, cause="model_on_cpu")
    return ok(title, found)


def allocator(case: Case) -> Finding:
    """Check for out-of-memory errors and retries of the allocator."""
    title, process = "Memory", _process_label(case)
    counts = {
        counter: sum(value for _, value in case.daemon.rows(f"torch_memory_{counter}_total", process=process))
        for counter in ("ooms", "alloc_retries")
        if process and case.daemon.value(f"torch_memory_{counter}_total", process=process) is not None
    }
    if process is None or not counts:
        return skipped(title, "not available without the hook and a GPU in use")
    found = f"{counts.get('ooms', 0):.0f} out-of-memory errors, {counts.get('alloc_retries', 0):.0f} retries"
    return warning(title, found, cause="memory_pressure") if any(counts.values()) else ok(title, found)


def _percent(ratio: float) -> str:
    return f"{100 * ratio:.0f} %"


def _pid(case: Case) -> int:
    assert case.options.pid is not None
    return case.options.pid


def _process_label(case: Case) -> str | None:
    """Return the `process` label of the process in the daemon's metrics, by its pid or computed; None if absent."""
    named = case.daemon.process_of(_pid(case))
    if named is not None:
        return named
    own = case.procfs.process_id(_pid(case))
    return own if own and case.daemon.has_process(own) else None
