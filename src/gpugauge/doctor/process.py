"""Checks of one process: what is visible from outside, and what the running daemon reports of it."""

from __future__ import annotations

import os
from contextlib import suppress

from gpugauge.base.serving import ROLES
from gpugauge.doctor.case import Case
from gpugauge.doctor.finding import Finding, failure, ok, skipped, warning
from gpugauge.status.details import FOR_DATA, loss, no_limit, remark, waits_longest
from gpugauge.status.words import HOOK_COMMAND
from gpugauge.verdict.causes import CAUSES
from gpugauge.workload import processfiles
from gpugauge.workload.command import command_name
from gpugauge.workload.identity import clean

_MAX_VALUE = 200  # characters of a variable: a user may set it to 128 KiB
_HANGS = "it waits inside the kernel, for example for a file system that does not answer: /proc/PID/stack says where"


def existence(case: Case) -> Finding:
    """Check that the process exists."""
    title, pid = "Process", pid_of(case)
    if reason := _no_program(case):
        return failure(title, f"{pid}: {reason}", "give the pid of the training process: gpugauge status lists them")
    try:
        words = case.procfs.read(pid, "cmdline", 4096).split(b"\0")
    except TimeoutError as error:
        return warning(title, f"{pid}: it exists, but its command line is not readable: {error.strerror}", _HANGS)
    except OSError:
        if _exists(pid):
            advice = "run the doctor as its user or as root"
            return warning(title, f"{pid}: it exists, but this user may not see it (hidepid of /proc)", advice)
        status, _ = case.daemon
        if case.process is not None and status is not None:
            if status.simulated:
                return skipped(title, f"{pid}: the daemon simulates it")
            inside = case.in_container or not case.procfs.shows_machine()
            where = "is not visible in this container" if inside else "does not run on this machine"
            return warning(title, f"{pid}: the daemon reports it, but it {where}")
        if case.known:
            return skipped(title, f"{pid}: it has ended")
        return failure(title, f"{pid}: there is no such process")
    # Arguments may hold secrets, and reports are passed on: only the program's name is shown.
    return ok(title, f"{pid}: {clean(command_name(words)) or 'no command line'}")


def _exists(pid: int) -> bool:
    """Return whether the kernel knows the process, which /proc may hide (hidepid in proc(5))."""
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except (OSError, OverflowError):
        return False
    return True


def not_visible(case: Case) -> str:
    """Return why the process is not visible from outside, or ""."""
    return _no_program(case) if case.procfs.start_time(pid_of(case)) is not None else "there is no such process here"


def _no_program(case: Case) -> str:
    """Return why no program runs under the pid, "" if one does or may."""
    with suppress(OSError, KeyError):  # also TimeoutError
        text = case.procfs.read(pid_of(case), "status", 4096).decode(errors="replace")
        found = dict(line.split(":\t", 1) for line in text.splitlines() if ":\t" in line)
        if found["Tgid"] != str(pid_of(case)):
            return f"a thread of the process {found['Tgid']}"
        if found["State"].startswith("Z"):
            return f"it has ended, and its parent {found['PPid']} has not taken its exit status (a zombie)"
        return "" if "VmSize" in found else "a thread of the kernel"
    return ""


def mapped_torch(case: Case) -> Finding:
    """Check the build of the loaded torch, by the mapped libraries."""
    title = "Its torch"
    try:
        build = processfiles.torch_build(case.procfs, pid_of(case))
    except TimeoutError as error:
        return skipped(title, f"not readable: {error.strerror}")
    except OSError as error:
        return skipped(title, f"not readable ({error.strerror}): run the doctor as its user or as root")
    if not build:
        return warning(title, "torch is not loaded", "check that this is the training process and not its launcher")
    if build == "cpu" and case.has_gpu:
        return failure(title, "a build for the CPU only, but there is a GPU", cause="no_cuda_build")
    return ok(title, {"cpu": "a build for the CPU", "cuda": "a CUDA build", "rocm": "a ROCm build"}[build])


def open_devices(case: Case) -> Finding:
    """Check whether the process has opened GPUs, and which are visible to it."""
    title, pid = "Its GPUs", pid_of(case)
    opened = processfiles.device_files(case.procfs, pid)
    value = processfiles.visible_devices(case.procfs, pid)
    shown = value if value is None or len(value) <= _MAX_VALUE else value[:_MAX_VALUE] + "…"
    setting = "" if shown is None else f"; started with CUDA_VISIBLE_DEVICES={shown!r}"
    if opened is None:
        return skipped(title, "its open files are not readable: run the doctor as its user or as root")
    if not opened and value is not None and value.strip() in {"", "-1"}:
        return failure(title, f"none open{setting}", cause="no_visible_device")
    if not opened and case.has_nvidia:
        advice = "CUDA is not initialized: check that the program moves its model to the GPU (model.to('cuda'))"
        return warning(title, f"none open{setting}", advice)
    return ok(title, f"{opened or 'none'} open{setting}")


def pid_of(case: Case) -> int:
    """Return the pid of the examined process."""
    assert case.options.pid is not None
    return case.options.pid


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
