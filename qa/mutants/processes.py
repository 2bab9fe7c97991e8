"""Forked children, some at a time, each with a time limit."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_PR_SET_PDEATHSIG = 1
CRASHED = {"crashed": True}
TIMED_OUT = {"timed_out": True}


@dataclass
class Task:
    """`work` runs in a child, and returns what JSON can express."""

    key: Any
    work: Callable[[], Any]
    seconds: float
    loud: bool = False  # keeps its standard error


@dataclass
class _Child:
    task: Task
    pid: int
    pipe: int
    until: float
    folder: str
    received: bytes = b""


def _start(task: Task) -> _Child:
    reading, writing = os.pipe()
    folder = tempfile.mkdtemp(prefix="m")  # short: the path of a socket has 107 characters at most
    pid = os.fork()
    if pid == 0:
        with contextlib.suppress(BaseException):
            os.setpgid(0, 0)
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # a new process group outlives its parent
            os.close(reading)
            # A pytest that is to keep no folders removes those beside its own, of other children, too, when it ends.
            os.environ["PYTEST_DEBUG_TEMPROOT"] = folder
            Path(folder).chmod(0o711)  # some tests give a folder in it to another user
            _child(task, writing)
        os._exit(1)
    os.close(writing)
    with contextlib.suppress(OSError):
        os.setpgid(pid, pid)
    return _Child(task, pid, reading, time.monotonic() + task.seconds, folder)


def _child(task: Task, writing: int) -> None:
    if not os.environ.get("MUTANTS_SHOW"):  # for a look at what a test says
        nowhere = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1) if task.loud else (0, 1, 2):
            os.dup2(nowhere, descriptor)
    try:
        answer = json.dumps(task.work())
    except BaseException:
        traceback.print_exc(file=sys.__stderr__)
        raise
    sys.stdout.flush()
    os.write(writing, answer.encode())  # the reader empties the pipe
    os._exit(0)


def _end(child: _Child) -> Any:
    for _ in range(2):  # whatever the child started shares its process group
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(child.pid, 0)
    os.close(child.pipe)
    shutil.rmtree(child.folder, ignore_errors=True)
    if child.received:
        with contextlib.suppress(ValueError):
            return json.loads(child.received)
    return TIMED_OUT if time.monotonic() >= child.until else CRASHED


def forked(tasks: Iterable[Task], jobs: int) -> Iterator[tuple[Any, Any]]:
    """Run each task in a child, `jobs` at a time; yield its key and what it returned, CRASHED or TIMED_OUT."""
    waiting, running = iter(tasks), dict[int, _Child]()
    while True:
        while len(running) < jobs and (task := next(waiting, None)) is not None:
            child = _start(task)
            running[child.pipe] = child
        if not running:
            return
        patience = max(0.0, min(child.until for child in running.values()) - time.monotonic())
        ready, _, _ = select.select(list(running), [], [], patience)
        for pipe in ready:
            data = os.read(pipe, 1 << 16)
            running[pipe].received += data
            if not data:
                child = running.pop(pipe)
                yield child.task.key, _end(child)
        for child in [child for child in running.values() if time.monotonic() >= child.until]:
            del running[child.pipe]
            yield child.task.key, _end(child)
