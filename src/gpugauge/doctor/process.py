"""Checks of one process: what is visible from outside."""

from __future__ import annotations

import os
from contextlib import suppress

from gpugauge.doctor.case import Case
from gpugauge.doctor.finding import Finding, failure, ok, skipped, warning
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
