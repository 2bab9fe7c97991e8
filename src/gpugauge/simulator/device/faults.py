"""Faults of the simulated library."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import time
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NoReturn


class Fault:
    """A fault of the scenario: the calls, the GPU, the first and last second, the number of times in this process, and
    the effect: an NVML return code, a delay in seconds, a hang, a crash, bytes that are never freed, a stat of a file
    that blocks in the kernel, or a value that replaces all outputs, or one member of structures.
    """

    def __init__(self, plain: Mapping[str, Any]) -> None:
        self._call: str | None = plain["call"]
        self._gpu: int | str | None = plain["gpu"]
        self._start: float = plain["start"]
        self._end: float = float("inf") if plain["end"] is None else plain["end"]
        self._left: float = float("inf") if plain["times"] is None else plain["times"]
        self._every: int = plain.get("every") or 1
        self._matched = 0
        self._switch: str | None = plain.get("while_exists")
        self._code: int | None = plain["code"]
        self._delay: float | None = plain["delay"]
        self._hang: bool = plain["hang"]
        self._crash: bool = plain["crash"]
        self._stat: str | None = plain.get("stat")
        self._leak: int = plain.get("leak") or 0
        self._leaked: list[bytes] = []
        self.value: int | None = plain["value"]
        self.member: str | None = plain["member"]

    def concerns(self, function: str) -> bool:
        """Return whether the fault can apply to a function."""
        return self._call is None or fnmatchcase(function, self._call)

    def due(self, t: float, index: int | None, uuid: str | None) -> bool:
        """Return whether the fault applies to a call at `t`, and count it."""
        if not self._start <= t < self._end or self._left <= 0:
            return False
        if self._call is None and index is None:  # not a call about a GPU
            return False
        if self._gpu is not None and self._gpu not in (index, uuid):
            return False
        if self._switch is not None and not os.path.lexists(self._switch):
            return False
        self._matched += 1
        if self._matched % self._every:
            return False
        self._left -= 1
        return True

    def apply(self) -> int | None:
        """Apply the effect; return the return code of the call, None if the call proceeds."""
        if self._delay is not None:
            time.sleep(self._delay)
        if self._hang:
            _hang()
        if self._stat is not None:
            Path(self._stat).stat()
        if self._leak:
            self._leaked.append(b"\1" * self._leak)
        if self._crash:
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            os.kill(os.getpid(), signal.SIGSEGV)
        return self._code


def _hang() -> NoReturn:
    """Never return. Signals except SIGKILL have no effect, as for a call that blocks in the kernel; but the process
    ends together with its parent.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT, signal.SIGHUP})
    parent = os.getppid()
    while os.getppid() == parent:
        time.sleep(0.2)
    os._exit(1)


def spoil(arguments: Sequence[Any], value: int, member: str | None = None) -> None:
    """Write `value` into every number that a call has returned, and bytes that are not UTF-8 into every text. The
    length of a list stays, because the binding allocates that much. With `member`, only that member of structures
    changes.
    """
    targets = [getattr(argument, "_obj", argument) for argument in arguments]
    is_list = any(isinstance(t, ctypes.Array) and issubclass(t._type_, ctypes.Structure) for t in targets)
    sizes_a_list = len(arguments) > 1 and any(argument is None for argument in arguments)
    for argument, target in zip(arguments, targets, strict=True):
        if isinstance(target, ctypes.Structure):
            _spoil_structure(target, value, member)
        elif isinstance(target, ctypes.Array) and issubclass(target._type_, ctypes.c_char):
            target.value = b"\xff" if member is None else target.value
        elif isinstance(target, ctypes.Array) and not issubclass(target._type_, ctypes.Structure):
            target[:] = [value if member is None else item for item in target]
        elif isinstance(target, ctypes.Array):
            for item in target:
                _spoil_structure(item, value, member)
        elif target is not argument and not is_list and not sizes_a_list and member is None and _is_number(target):
            target.value = value


def _is_number(target: Any) -> bool:
    """Return whether a target is a number: pointers stay, because an invalid handle would crash the caller."""
    return hasattr(target, "value")


def _spoil_structure(structure: ctypes.Structure, value: int, member: str | None) -> None:
    fields = {name: kind for name, kind, *_ in structure._fields_}
    if member is not None:
        if member in fields:
            setattr(structure, member, value)
        return
    union = next((name for name, kind in fields.items() if issubclass(kind, ctypes.Union)), None)
    if union:  # a field value or a sample: its type, code and time stay
        getattr(structure, union).ullVal = value
        return
    metrics = getattr(structure, "metrics", None)
    if metrics is not None:  # a request for GPM metrics: its inputs stay
        for metric in metrics:
            metric.value = value
        return
    for name, kind in fields.items():
        if issubclass(kind, ctypes.Array):
            setattr(structure, name, b"\xff")
        elif name != "version" and not hasattr(kind, "contents"):  # not a pointer
            setattr(structure, name, value)
