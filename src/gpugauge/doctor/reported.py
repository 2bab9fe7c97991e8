"""Checks of one process: what the running daemon reports of it."""

from __future__ import annotations

import time

from gpugauge.base.serving import ROLES
from gpugauge.doctor.case import Case
from gpugauge.doctor.finding import Finding, failure, ok, skipped, warning
from gpugauge.doctor.process import not_visible, pid_of
from gpugauge.status.history import WAITING_RATIO
from gpugauge.status.model import Inside
from gpugauge.status.words import HOOK_COMMAND, cause_phrase, duration, loader_advice, percent
from gpugauge.verdict.causes import CAUSES
from gpugauge.wire.shares import sentence
from gpugauge.workload import processfiles

_RUN_ADVICE = f"start it with the hook: {HOOK_COMMAND}"
_RECORDER_ADVICE = (
    "No collective is known: before its first one, or because the flight recorder of torch is off; "
    "TORCH_FR_BUFFER_SIZE=2000 switches it on."
)
_STEP_ADVICE = "if its optimizer is not one of torch's, call gpugauge.hook.step() after each step"


def daemon(case: Case) -> Finding:
    """Check that the daemon answers and reports the process."""
    title, (status, problem), facts = "Daemon", case.daemon, case.facts
    if status is None:
        remedy = "for the state inside the process start gpugauge serve, or name the address of a running one (--url)"
        return skipped(title, f"{problem}; {remedy}")
    note = " The daemon simulates its GPUs." if status.simulated else ""
    inside = facts.inside
    if inside is None and processfiles.starts_hook(case.procfs, pid_of(case)):
        return warning(title, f"the hook is loaded, and the daemon has received no step or batch.{note}", _STEP_ADVICE)
    if case.process is None:
        found = f"it does not report this process.{note}"
        return skipped(title, found) if not_visible(case) else warning(title, found, _RUN_ADVICE)
    if inside is None:
        found = f"it reports process {facts.process} from outside only.{note}"
        return ok(title, f"{found} It is a {facts.role}") if facts.role in ROLES else warning(title, found, _RUN_ADVICE)
    rank = f", rank {facts.rank} of {facts.world_size or '?'}" if facts.rank is not None else ""
    off = f" {_RECORDER_ADVICE}" if inside.recorder is False else ""
    return ok(title, f"the hook of process {facts.process} reports: torch {inside.torch or '?'}{rank}.{off}{note}")


def not_reported(case: Case) -> str:
    """Return why the daemon has no data on the process, or ""."""
    return "" if case.process else "not available without the daemon"


def state(case: Case) -> Finding:
    """Show the daemon's verdict: state, cause and its share of the GPU time. On a machine without a GPU, training on
    the CPU is no fault, and the parts of its steps are shown instead.
    """
    title, facts = "Verdict", case.facts
    now, cause = facts.state, facts.limited_by
    if now is None or facts.ended is not None:
        return skipped(title, "the daemon has no verdict")
    found = now.replace("_", " ")
    if cause:
        found += f", it {cause_phrase(cause)}"
        # Without a GPU in use no GPU time is lost.
        if facts.lost_ratio is not None and now != "training_on_cpu":
            found += f": {percent(facts.lost_ratio)} of its GPU time is lost"
    known = cause if cause in CAUSES else None
    if now == "training_on_cpu" and known is None and case.without_gpu:
        parts = sentence(facts.step_shares)
        found = f"{found}: there is no GPU here" + (f"; in the last minute {parts}" if parts else "")
        if (facts.data_wait_ratio or 0.0) < WAITING_RATIO:
            return ok(title, found)
        return warning(title, found, facts.advice or "", "data_loading")
    if now == "training_on_cpu":
        return failure(title, found, cause=known or "model_on_cpu")
    if now == "stalled":
        return failure(title, found, facts.advice or "", known)
    if now == "held_idle" and facts.level == "bad":
        return warning(title, found, facts.advice or "", known)
    if known is None and (advice := loader_advice(facts.undecidable, facts.data_wait_ratio)):
        return ok(title, f"{found}; whether the loader or the host limits it is not decided: {advice}")
    change = next((change.change for change in facts.changes if change.cause == known), "")
    return warning(title, found, change, known) if known else ok(title, found)


def steps(case: Case) -> Finding:
    """Show the number of steps, their mean duration and the age of the last one."""
    title, facts = "Steps", case.facts
    if facts.inside is None:
        return skipped(title, _missing(case))
    if not facts.steps:
        return skipped(title, f"the hook is loaded and has seen no step: {_STEP_ADVICE}")
    parts = [f"{facts.steps:.0f}"]
    if facts.step_seconds is not None:
        parts.append(f"{duration(facts.step_seconds)} each")
    if facts.last_step:
        parts.append(f"the last {max(0.0, time.time() - facts.last_step):.0f} s ago")
    return ok(title, ", ".join(parts))


def parameters(case: Case) -> Finding:
    """Check the devices of the model's parameters."""
    title, inside = "Parameters", case.facts.inside
    if inside is None:
        return skipped(title, _missing(case))
    if not inside.parameter_bytes:
        return skipped(title, "the hook has seen no optimizer of torch")
    sizes = sorted(inside.parameter_bytes.items())
    found = ", ".join(f"{size / (1 << 20):.1f} MiB on {device}" for device, size in sizes)
    on_cpu = set(inside.parameter_bytes) == {"cpu"}
    if on_cpu and not inside.gpu_build:
        return ok(title, f"{found}, the only device that its torch supports")
    if on_cpu and case.has_gpu:
        return failure(title, found, cause="model_on_cpu")
    return ok(title, found)


def allocator(case: Case) -> Finding:
    """Check for out-of-memory errors and retries of the allocator."""
    title, inside = "Memory", case.facts.inside or Inside()
    ooms, retries = inside.ooms, inside.alloc_retries
    if ooms is None and retries is None:
        return skipped(title, "not available without the hook and a GPU in use")
    found = f"{ooms or 0:.0f} out-of-memory errors, {retries or 0:.0f} retries"
    return warning(title, found, cause="memory_pressure") if ooms or retries else ok(title, found)


def _missing(case: Case) -> str:
    loaded = processfiles.starts_hook(case.procfs, pid_of(case))
    return "the hook has reported no step or batch" if loaded else "not available without the hook"
