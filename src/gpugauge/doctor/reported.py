"""Checks of one process: what the running daemon reports of it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from gpugauge.doctor.case import Case
from gpugauge.doctor.daemon import Daemon
from gpugauge.doctor.finding import Finding, failure, ok, skipped, warning
from gpugauge.doctor.process import not_visible, pid_of, process_label
from gpugauge.status.advice import Labels, Subject, advice_of
from gpugauge.status.steps import LOADER_ADVICE, loader_advice
from gpugauge.status.words import duration
from gpugauge.verdict.causes import CAUSES
from gpugauge.wire.shares import sentence
from gpugauge.workload import processfiles


@dataclass(frozen=True, slots=True)
class _Scraped:
    daemon: Daemon

    def rows(self, name: str, process: str) -> Sequence[tuple[Labels, float]]:
        return list(self.daemon.rows(name, **({"process": process} if process else {})))


def advice_on(case: Case, process: str, cause: str) -> str:
    """Return what to change about a cause: as if it were the main one, where the daemon names none."""
    scraped = _Scraped(case.daemon)
    loader = next((labels for labels, _ in scraped.rows("torch_loader_info", process)), {})
    used = (scraped.rows(f"gpu_process_{name}", process) for name in ("memory_used_bytes", "busy_seconds_total"))
    ranks = next((labels.get("world_size", "") for labels, _ in scraped.rows("torch_process_info", process)), "")
    facts = {
        "state": case.daemon.current("training_state", "state", process),
        "limited_by": cause,
        "loader": loader,
        "hook": True,
        "devices": list(dict.fromkeys(labels["uuid"] for rows in used for labels, _ in rows)),
        "world_size": int(ranks) if ranks.isdecimal() else None,
    }
    return next((a.change for a in advice_of(Subject(process, scraped, facts)) if a.cause == cause), "")


_RUN_ADVICE = "start it with the hook: gpugauge run -- python train.py"
_STEP_ADVICE = "if its optimizer is not one of torch's, call gpugauge.hook.step() after each step"
# Shares of the run time that make a warning: waiting while the GPU is idle, and waiting with an unknown GPU load.
_EXPOSED_WAIT_WARNING_RATIO = 0.2
_WAIT_WARNING_RATIO = 0.5


def daemon(case: Case) -> Finding:
    """Check that the daemon answers and reports the process."""
    title = "Daemon"
    if case.daemon.problem:
        remedy = "for the state inside the process start gpugauge serve, or name the address of a running one (--url)"
        return skipped(title, f"{case.daemon.problem}; {remedy}")
    process = process_label(case)
    note = " The daemon simulates its GPUs." if any(case.daemon.rows("gpugauge_build_info", simulated="true")) else ""
    inside = next((labels for labels, _ in case.daemon.rows("torch_process_info", process=process or "")), None)
    if inside is None and processfiles.starts_hook(case.procfs, pid_of(case)):
        return warning(title, f"the hook is loaded, and the daemon has received no step or batch.{note}", _STEP_ADVICE)
    if process is None:
        found = f"it does not report this process.{note}"
        return skipped(title, found) if not_visible(case) else warning(title, found, _RUN_ADVICE)
    if inside is None:
        return warning(title, f"it reports process {process} from outside only.{note}", _RUN_ADVICE)
    rank = f", rank {inside['rank']} of {inside.get('world_size') or '?'}" if inside.get("rank") else ""
    return ok(title, f"the hook of process {process} reports: torch {inside.get('torch') or '?'}{rank}.{note}")


def not_reported(case: Case) -> str:
    """Return why the daemon has no data on the process, or ""."""
    return "" if process_label(case) else "not available without the daemon"


def state(case: Case) -> Finding:
    """Show the daemon's verdict: state, cause and its share of the GPU time. On a machine without a GPU, training on
    the CPU is no fault, and the parts of its steps are shown instead.
    """
    title, process = "Verdict", process_label(case)
    now = case.daemon.current("training_state", "state", process) if process else None
    if process is None or now is None:
        return skipped(title, "the daemon has no verdict")
    cause = case.daemon.current("training_limited_by", "cause", process)
    share = case.daemon.value("training_limited_by_ratio", process=process, cause=cause or "")
    found = now.replace("_", " ")
    if cause:
        found += f", limited by {cause}"
        # Without a GPU in use no GPU time is lost.
        if share is not None and now != "training_on_cpu":
            found += f": {_percent(share)} of the GPU time"
    known = cause if cause in CAUSES else None
    if now == "training_on_cpu" and known is None and case.without_gpu:
        rows = case.daemon.rows("training_step_share_ratio", process=process)
        parts = sentence({labels["part"]: share for labels, share in rows})
        return ok(title, f"{found}: there is no GPU here" + (f"; in the last minute {parts}" if parts else ""))
    if now == "training_on_cpu":
        return failure(title, found, cause=known or "model_on_cpu")
    if now == "stalled":
        return failure(title, found, f"find out where it waits: py-spy dump --pid {pid_of(case)}", known)
    if now == "held_idle":
        return warning(title, found, "it holds a GPU and does not use it: end it, or give it work to do", known)
    if known is None and (advice := loader_advice(_undecidable(case, process))):
        return ok(title, f"{found}; whether the loader or the host limits it is not decided: {advice}")
    return warning(title, found, advice_on(case, process, known), known) if known else ok(title, found)


def _undecidable(case: Case, process: str) -> list[str]:
    rows = case.daemon.rows("training_verdict_info", process=process)
    return next((labels.get("undecidable", "").split(",") for labels, _ in rows), [])


def steps(case: Case) -> Finding:
    """Show the number of steps, their mean duration and the age of the last one."""
    title, process = "Steps", process_label(case)
    count = case.daemon.value("torch_steps_total", process=process) if process else None
    if process is None or not _inside(case, process):
        return skipped(title, _missing(case))
    if not count:
        return skipped(title, f"the hook is loaded and has seen no step: {_STEP_ADVICE}")
    parts = [f"{count:.0f}"]
    seconds = case.daemon.value("torch_step_duration_seconds_sum", process=process)
    measured = case.daemon.value("torch_step_duration_seconds_count", process=process)
    if seconds is not None and measured:
        parts.append(f"{duration(seconds / measured)} each")
    last = case.daemon.value("training_last_step_timestamp_seconds", process=process)
    if last:
        parts.append(f"the last {max(0.0, time.time() - last):.0f} s ago")
    return ok(title, ", ".join(parts))


def data_wait(case: Case) -> Finding:
    """Check the share of the last minute that was spent waiting for batches."""
    title, process = "Data wait", process_label(case)
    if process is None or case.daemon.value("training_start_timestamp_seconds", process=process) is None:
        return skipped(title, _missing(case))
    share = case.daemon.value("training_step_share_ratio", process=process, part="data")
    waited = case.daemon.value("torch_data_wait_seconds_total", process=process, phase="training")
    if share is None:
        return skipped(title, LOADER_ADVICE if waited is None else "nothing is known of the last minute")
    found = f"{_percent(share)} of the last minute"
    exposed = case.daemon.value("torch_data_wait_exposed_seconds_total", process=process)
    if exposed is None or not waited:
        # The GPU may have had work meanwhile, so the wait alone is weak evidence.
        if not case.without_gpu:
            found += "; whether the GPU had work meanwhile is unknown"
        return _waiting(case, process, title, found, slow=share > _WAIT_WARNING_RATIO)
    idle = min(1.0, exposed / waited)
    found += f"; the GPU had no work in {_percent(idle)} of the waits since the start"
    return _waiting(case, process, title, found, slow=share * idle > _EXPOSED_WAIT_WARNING_RATIO)


def _waiting(case: Case, process: str, title: str, found: str, *, slow: bool) -> Finding:
    advice = advice_on(case, process, "data_loading") if slow else ""
    return warning(title, found, advice, "data_loading") if slow else ok(title, found)


def parameters(case: Case) -> Finding:
    """Check the devices of the model's parameters."""
    title, process = "Parameters", process_label(case)
    rows = list(case.daemon.rows("torch_parameter_bytes", process=process)) if process else []
    if process is None or not _inside(case, process):
        return skipped(title, _missing(case))
    if not rows:
        return skipped(title, "the hook has seen no optimizer of torch")
    by_device: dict[str, float] = {}
    for labels, size in rows:
        by_device[labels["device"]] = by_device.get(labels["device"], 0.0) + size
    found = ", ".join(f"{size / (1 << 20):.1f} MiB on {device}" for device, size in sorted(by_device.items()))
    identity = case.daemon.rows("torch_process_info", process=process)
    supports_gpus = any(labels.get("cuda") or labels.get("hip") for labels, _ in identity)
    if set(by_device) == {"cpu"} and not supports_gpus:
        return ok(title, f"{found}, the only device that its torch supports")
    if set(by_device) == {"cpu"} and (case.has_nvidia or "AMD" in case.pci):
        return failure(title, found, cause="model_on_cpu")
    return ok(title, found)


def allocator(case: Case) -> Finding:
    """Check for out-of-memory errors and retries of the allocator."""
    title, process = "Memory", process_label(case)
    counts = {
        counter: sum(value for _, value in case.daemon.rows(f"torch_memory_{counter}_total", process=process))
        for counter in ("ooms", "alloc_retries")
        if process and case.daemon.value(f"torch_memory_{counter}_total", process=process) is not None
    }
    if process is None or not counts:
        return skipped(title, "not available without the hook and a GPU in use")
    found = f"{counts.get('ooms', 0):.0f} out-of-memory errors, {counts.get('alloc_retries', 0):.0f} retries"
    return warning(title, found, cause="memory_pressure") if any(counts.values()) else ok(title, found)


def _inside(case: Case, process: str) -> bool:
    return any(True for _ in case.daemon.rows("torch_process_info", process=process))


def _missing(case: Case) -> str:
    """Return why nothing is known from inside."""
    loaded = processfiles.starts_hook(case.procfs, pid_of(case))
    return "the hook has reported no step or batch" if loaded else "not available without the hook"


def _percent(ratio: float) -> str:
    return f"{100 * ratio:.0f} %"
