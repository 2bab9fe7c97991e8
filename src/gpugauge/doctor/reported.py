"""Checks of one process: what the running daemon reports of it."""

from __future__ import annotations

from gpugauge.base.serving import ROLES
from gpugauge.doctor.case import Case
from gpugauge.doctor.finding import Finding, failure, ok, skipped, warning
from gpugauge.doctor.process import not_visible, pid_of
from gpugauge.status.details import FOR_DATA, loss, no_limit, remark, waits_longest
from gpugauge.status.words import HOOK_COMMAND
from gpugauge.verdict.causes import CAUSES
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
    if case.process:
        return ""
    return "not available without the daemon" if case.daemon[0] is None else "the daemon does not report this process"


def state(case: Case) -> Finding:
    """Return the daemon's verdict as grave as the views show it. On a machine without a GPU, training on the CPU is no
    fault, but waits for most of its time are.
    """
    title, facts = "Verdict", case.facts
    if facts.state is None or facts.ended is not None:
        return skipped(title, "the daemon has no verdict")
    now = case.daemon[0].timestamp if case.daemon[0] else 0.0
    words = ", it " if loss(facts)[1] and not no_limit(facts, now) else "; "
    found = words.join(filter(None, (facts.state.replace("_", " "), no_limit(facts, now) or remark(facts))))
    cause, on_cpu = facts.limited_by if facts.limited_by in CAUSES else None, facts.state == "training_on_cpu"
    ill = facts.level in {"bad", "poor"} or (on_cpu and not case.without_gpu and facts.judging_since is None)
    if not ill:
        return ok(title, found)
    if on_cpu and cause is None:
        waits = "data_loading" if [words for words, _ in waits_longest(facts)] == [FOR_DATA] else None
        cause = waits if case.without_gpu else "model_on_cpu"
    grave = facts.state == "stalled" or (on_cpu and cause not in {"data_loading", None})
    change = next((change.change for change in facts.changes if cause and change.cause == cause), facts.advice or "")
    return (failure if grave else warning)(title, found, change, cause)


def parameters(case: Case) -> Finding:
    """Check the devices of the model's parameters."""
    title, inside = "Parameters", case.facts.inside
    if inside is None:
        loaded = processfiles.starts_hook(case.procfs, pid_of(case))
        return skipped(title, "the hook has reported no step or batch" if loaded else "not available without the hook")
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
