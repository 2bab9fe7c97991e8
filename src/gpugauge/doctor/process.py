"""One process: what the running daemon knows of it, and what anybody can see from outside."""

from __future__ import annotations

import time

from gpugauge.doctor.case import Case
from gpugauge.doctor.finding import Finding, failure, ok, skipped, warning
from gpugauge.verdict.causes import CAUSES
from gpugauge.workload import processfiles as hostfiles
from gpugauge.workload.command import command_name
from gpugauge.workload.identity import clean

_RUN_UNDER = "start it so that it reports: gpugauge run -- python train.py"
_MUCH_WAIT = 0.2  # share of the time


def existence(case: Case) -> Finding:
    """Whether there is such a process."""
    title, pid = "Process", _pid(case)
    try:
        words = case.procfs.read(pid, "cmdline", 4096).split(b"\0")
    except OSError:
        known = _known(case) is not None
        found = "the daemon knows it, this container does not" if known else "there is no such process"
        return warning(title, found) if known else failure(title, f"{pid}: {found}")
    # Arguments may hold secrets, and reports get passed on: the program's name is enough.
    return ok(title, f"{pid}: {clean(command_name(words)) or 'no command line'}")


def gone(case: Case) -> str:
    """Return why it cannot be seen from outside; empty when it can."""
    return "" if case.procfs.start_time(_pid(case)) is not None else "there is no such process here"


def mapped_torch(case: Case) -> Finding:
    """Which build of torch it has loaded, by the libraries that it has mapped."""
    title = "Its torch"
    try:
        build = hostfiles.torch_build(case.procfs, _pid(case))
    except OSError as error:
        return skipped(title, f"cannot be seen ({error.strerror}): ask as its user or as root")
    if not build:
        return warning(title, "it has not loaded torch", "is this the process that trains, and not its launcher?")
    if build == "cpu" and (case.has_nvidia or "AMD" in case.pci):
        return failure(title, "a build for the CPU only, and there is a GPU", cause="no_cuda_build")
    return ok(title, {"cpu": "a build for the CPU", "cuda": "a CUDA build", "rocm": "a ROCm build"}[build])


def open_devices(case: Case) -> Finding:
    """Whether it has opened GPUs, and which it may see."""
    title, pid = "Its GPUs", _pid(case)
    opened = hostfiles.device_files(case.procfs, pid)
    value = hostfiles.visible_devices(case.procfs, pid)
    said = "" if value is None else f"; it was started with CUDA_VISIBLE_DEVICES={value!r}"
    if opened is None:
        return skipped(title, "its open files cannot be seen: ask as its user or as root")
    if not opened and value is not None and value.strip() in {"", "-1"}:
        return failure(title, f"it has none open{said}", cause="no_visible_device")
    if not opened and case.has_nvidia:
        advice = "it has not started CUDA: does the program move its model there (model.to('cuda'))?"
        return warning(title, f"it has none open{said}", advice)
    return ok(title, f"it has {opened or 'none'} open{said}")


def daemon(case: Case) -> Finding:
    """Whether the daemon answers and knows the process."""
    title = "Daemon"
    if case.daemon.problem:
        return skipped(title, f"{case.daemon.problem}; for more than what is seen from outside start gpugauge serve")
    process = _known(case)
    note = " It simulates its GPUs." if any(case.daemon.rows("gpugauge_build_info", simulated="true")) else ""
    if process is None:
        return warning(title, f"it does not know this process.{note}", _RUN_UNDER)
    inside = next((labels for labels, _ in case.daemon.rows("torch_process_info", process=process)), None)
    if inside is None:
        return warning(title, f"it sees process {process} from outside only.{note}", _RUN_UNDER)
    rank = f", rank {inside['rank']} of {inside.get('world_size') or '?'}" if inside.get("rank") else ""
    return ok(title, f"process {process} reports from inside: torch {inside.get('torch') or '?'}{rank}.{note}")


def unknown(case: Case) -> str:
    """Return why nothing is known of its inside; empty when there may be something."""
    return "" if _known(case) else "not known without the daemon"


def state(case: Case) -> Finding:
    """The daemon's verdict."""
    title, process = "Verdict", _known(case)
    now = case.daemon.current("training_state", "state", process) if process else None
    if process is None or now is None:
        return skipped(title, "the daemon has none")
    cause = case.daemon.current("training_limited_by", "cause", process)
    share = case.daemon.value("training_limited_by_ratio", process=process, cause=cause or "")
    found = now.replace("_", " ")
    if cause:
        found += f", limited by {cause}" + (f": {_percent(share)} of the GPU time" if share is not None else "")
    known = cause if cause in CAUSES else None
    if now == "training_on_cpu":
        return failure(title, found, cause=known or "model_on_cpu")
    if now == "stalled":
        return failure(title, found, f"look at where it waits: py-spy dump --pid {_pid(case)}", known)
    if now == "held_idle":
        return warning(title, found, "it holds a GPU and does not use it: end it, or give it work", known)
    return warning(title, found, cause=known) if known else ok(title, found)


def steps(case: Case) -> Finding:
    """How many steps, how long, and when the last one was."""
    title, process = "Steps", _known(case)
    count = case.daemon.value("torch_steps_total", process=process) if process else None
    if process is None or count is None:
        return skipped(title, "not known without the hook")
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
    """How much of the time it waited for batches, since it began."""
    title, process = "Data wait", _known(case)
    begin = case.daemon.value("training_start_timestamp_seconds", process=process) if process else None
    wait = case.daemon.value("torch_data_wait_seconds_total", process=process) if process else None
    if process is None or begin is None or wait is None:
        return skipped(title, "not known without the hook")
    age = max(1.0, time.time() - begin)
    exposed = case.daemon.value("torch_data_wait_exposed_seconds_total", process=process)
    if exposed is None:
        # Waiting is not idling: the GPU may have had work meanwhile, so the length alone accuses nobody.
        found = f"{_percent(wait / age)} of the time since it began; what the GPU had to do meanwhile is not known"
        return warning(title, found, cause="data_loading") if wait > 0.5 * age else ok(title, found)
    found = f"{_percent(wait / age)} of the time since it began; in {_percent(exposed / age)} the GPU had nothing to do"
    return warning(title, found, cause="data_loading") if exposed > _MUCH_WAIT * age else ok(title, found)


def parameters(case: Case) -> Finding:
    """Where the model lives."""
    title, process = "Parameters", _known(case)
    rows = list(case.daemon.rows("torch_parameter_bytes", process=process)) if process else []
    if not rows:
        return skipped(title, "not known without the hook")
    by_device: dict[str, float] = {}
    for labels, size in rows:
        by_device[labels["device"]] = by_device.get(labels["device"], 0.0) + size
    found = ", ".join(f"{size / (1 << 20):.1f} MiB on {device}" for device, size in sorted(by_device.items()))
    identity = case.daemon.rows("torch_process_info", process=process or "")
    could = any(labels.get("cuda") or labels.get("hip") for labels, _ in identity)
    if set(by_device) == {"cpu"} and not could:
        return ok(title, f"{found}, and its torch knows no other device")
    if set(by_device) == {"cpu"} and (case.has_nvidia or "AMD" in case.pci):
        return failure(title, found, cause="model_on_cpu")
    return ok(title, found)


def allocator(case: Case) -> Finding:
    """Whether device memory was short."""
    title, process = "Memory", _known(case)
    counts = {
        what: sum(value for _, value in case.daemon.rows(f"torch_memory_{what}_total", process=process))
        for what in ("ooms", "alloc_retries")
        if process and case.daemon.value(f"torch_memory_{what}_total", process=process) is not None
    }
    if process is None or not counts:
        return skipped(title, "not known without the hook and a GPU in use")
    found = f"{counts.get('ooms', 0):.0f} out-of-memory errors, {counts.get('alloc_retries', 0):.0f} retries"
    return warning(title, found, cause="memory_pressure") if any(counts.values()) else ok(title, found)


def _percent(ratio: float) -> str:
    return f"{100 * ratio:.0f} %"


def _pid(case: Case) -> int:
    assert case.options.pid is not None
    return case.options.pid


def _known(case: Case) -> str | None:
    """The daemon's name of the process: by its pid, or by what the name is made of."""
    named = case.daemon.process_of(_pid(case))
    if named is not None:
        return named
    own = case.procfs.process_id(_pid(case))
    return own if own and case.daemon.knows(own) else None
